//! Idempotency keys: a repeated request gets the first answer.

use crate::Result;
use async_trait::async_trait;
use bytes::Bytes;
use seawall_api::AccountId;
use std::time::Duration;

/// What a key stands for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The key was free, and is the caller's now. The receipt is needed to renew, finish or abandon it.
    New { receipt: u64 },
    /// Another call holds the key.
    Running,
    /// The first call was finished with this answer.
    Done(Bytes),
    /// The hold of the first call ended without an answer: whether the call was done is not known. The key is never taken
    /// over, so the call does not run twice; its holder may still finish or abandon it.
    Lost,
}

#[async_trait]
pub trait Idempotency: Send + Sync {
    /// Takes a key for a request of which `request` is a hash. `conflict` where the key was used for another request. The
    /// hold lasts for `hold`, by the database's clock, unless it is renewed; an answer is kept for `keep`.
    async fn begin(
        &self,
        account: AccountId,
        key: &str,
        request: &[u8; 32],
        hold: Duration,
        keep: Duration,
    ) -> Result<Begun>;

    /// Lets the holds of these receipts last for `hold` from now on, also those that have ended meanwhile, and their answers be
    /// kept for at least `keep`. Returns how many of them are held. For the server that made the calls, at most
    /// [`MAX_PAGE`](super::MAX_PAGE) at a time.
    async fn renew(&self, receipts: &[u64], hold: Duration, keep: Duration) -> Result<u64>;

    /// Stores the answer. `conflict` where the key belongs to another receipt, or has another answer.
    async fn finish(&self, account: AccountId, key: &str, receipt: u64, answer: &[u8]) -> Result<()>;

    /// Frees the key: the call had no effect.
    async fn abandon(&self, account: AccountId, key: &str, receipt: u64) -> Result<()>;

    /// How many keys an account has, and how many bytes of answers.
    async fn kept(&self, account: AccountId) -> Result<(u64, u64)>;

    /// Gives this answer to all calls that were begun and not finished: their server is dead. For a server's start; returns
    /// how many there were.
    async fn close_all(&self, answer: &[u8]) -> Result<u64>;

    /// Removes answers that are kept no longer, of all accounts; returns how many. Calls without an answer stay, so that a
    /// clock that jumps ahead frees no key of a call that runs.
    async fn expire(&self, limit: u32) -> Result<u64>;
}
