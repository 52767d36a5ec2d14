//! Retention (K11): removing what is kept long enough, of all accounts, a bounded batch at a time.
//!
//! It is the server's own: what is removed is decided by the operator's settings, and by no request.

use super::{Cursor, Page, Paged};
use crate::Result;
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ConversationId, SandboxId, TurnId};
use std::time::Duration;

/// What a batch came to, in a walk through rows of which some stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walked {
    pub removed: u64,
    /// Where the next batch begins. `None`: the walk is at its end.
    pub next: Option<Cursor>,
}

#[async_trait]
pub trait Expiry: Send + Sync {
    /// Removes leases that ended or were given back at least `age` ago, by the database's clock.
    async fn expire_leases(&self, age: Duration, limit: u32) -> Result<u64>;

    /// Removes runs of hooks that began before a time.
    async fn expire_hook_runs(&self, before: Timestamp, limit: u32) -> Result<u64>;

    /// Removes sessions that were last used before a time.
    async fn expire_sessions(&self, before: Timestamp, limit: u32) -> Result<u64>;

    /// Looks at `limit` records of sandboxes that were ended at least `age` ago, by the database's clock, and removes those that
    /// nobody needs. A record is needed while a conversation is linked to it, because a turn may make the sandbox again, and
    /// while the sandbox has versions, because its owner finds them through the record.
    async fn expire_sandboxes(&self, age: Duration, after: Option<Cursor>, limit: u32) -> Result<Walked>;

    /// Turns that ended before a time and still have events, the earliest first.
    async fn turns_with_events(&self, before: Timestamp, limit: u32) -> Result<Vec<(AccountId, TurnId)>>;

    /// Removes up to `limit` events of a turn that has ended, and returns how many; below `limit`, none is left. From the first
    /// call on its events are `gone`, and `summary` stays in their place.
    async fn forget_events(&self, account: AccountId, turn: TurnId, summary: &str, limit: u32)
    -> Result<u64>;

    /// Conversations that last changed before a time, the earliest first.
    async fn idle_conversations(
        &self,
        before: Timestamp,
        page: &Page,
    ) -> Result<Paged<(AccountId, ConversationId)>>;

    /// Removes up to `limit` messages from before a time, of the conversations that changed since then too. The walk is through
    /// conversations, by their id.
    async fn expire_messages(&self, before: Timestamp, after: Option<Cursor>, limit: u32) -> Result<Walked>;

    /// Sandboxes that were ended at least `age` ago, by the database's clock, that no conversation is linked to, and that have
    /// versions, the earliest first.
    async fn ended_with_versions(&self, age: Duration, page: &Page) -> Result<Paged<(AccountId, SandboxId)>>;
}
