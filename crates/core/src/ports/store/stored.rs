//! Stored bytes: how much each account has in buckets, by place, and in conversations.
//!
//! A place is a prefix of a bucket with the versions of one workspace. Its count is an upper bound of what is there:
//! whoever stores something counts it first, and corrects the count afterwards. A process that dies in between leaves it
//! too high, until the place is listed and [`Stored::set`] says what is there.
//!
//! What conversations store (prompts, answers, and events of turns) has a count of its own for each account. The store
//! keeps it: it grows when a turn ends, and shrinks when a conversation is deleted or retention removes messages or
//! events. It belongs to no place, and is part of [`Stored::total`] alone.

use crate::Result;
use async_trait::async_trait;
use seawall_api::AccountId;

/// A place, and what is counted of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPlace {
    pub account: AccountId,
    /// The address of the bucket, without secrets, and the prefix behind it.
    pub place: String,
    pub bytes: u64,
}

/// Unlike other methods of the stores, an [`Stored::add`] that failed and is repeated may count twice.
#[async_trait]
pub trait Stored: Send + Sync {
    /// Adds to the count of a place, or takes from it, and makes the row where there is none. A count never falls below
    /// zero. Returns how often the place was [set](Stored::set) before: where that changed between two calls, what was
    /// added before may not be in the count any more; where it is zero, the place may hold more than is counted.
    /// A loss of power may undo it.
    async fn add(&self, account: AccountId, place: &str, delta: i64) -> Result<u64>;

    /// Replaces the count of a place by what a listing of it found.
    async fn set(&self, account: AccountId, place: &str, bytes: u64) -> Result<()>;

    /// The bytes of all places of an account, and of its conversations.
    async fn total(&self, account: AccountId) -> Result<u64>;

    /// The places of an account by their names, at most `limit` of those behind `after`.
    async fn places(&self, account: AccountId, after: Option<&str>, limit: u32) -> Result<Vec<StoredPlace>>;

    /// The places of all accounts, in the order of accounts and names: for the server's own rounds.
    async fn all_places(&self, after: Option<&StoredPlace>, limit: u32) -> Result<Vec<StoredPlace>>;

    /// The row of a place that is empty. Forgetting what is not there succeeds.
    async fn forget(&self, account: AccountId, place: &str) -> Result<()>;
}
