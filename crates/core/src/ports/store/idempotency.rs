//! Idempotency keys: a repeated request gets the first answer.

use crate::Result;
use async_trait::async_trait;
use bytes::Bytes;
use seawall_api::AccountId;
use std::time::Duration;

/// What a key stands for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Nothing yet: the request is the caller's to do. The receipt is needed to finish it.
    New { receipt: u64 },
    /// Somebody is at it.
    Running,
    /// This was the answer.
    Done(Bytes),
}

#[async_trait]
pub trait Idempotency: Send + Sync {
    /// Takes a key for a request of which `request` is a hash. `conflict` where the key was used for another one. Whoever
    /// is at it for longer than `time` is taken to be dead. An answer is kept for `keep`.
    async fn begin(
        &self,
        account: AccountId,
        key: &str,
        request: &[u8; 32],
        time: Duration,
        keep: Duration,
    ) -> Result<Begun>;

    /// The answer. `conflict` where the key was another's meanwhile.
    async fn finish(&self, account: AccountId, key: &str, receipt: u64, answer: &[u8]) -> Result<()>;

    /// Nothing was done: the key is free again.
    async fn abandon(&self, account: AccountId, key: &str, receipt: u64) -> Result<()>;

    /// Whoever was at anything is dead: all that was begun and not finished gets this answer. For a server's start; how
    /// many that were.
    async fn close_all(&self, answer: &[u8]) -> Result<u64>;

    /// Forgets what is kept no longer, of all accounts; how many that were.
    async fn expire(&self, limit: u32) -> Result<u64>;
}
