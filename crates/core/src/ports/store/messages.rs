//! Messages: the one store that can be elsewhere.

use super::{Page, Paged};
use crate::Result;
use async_trait::async_trait;
use seawall_api::{AccountId, ConversationId, MessageId, conversation::Message};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    #[default]
    OldestFirst,
    NewestFirst,
}

/// Messages are ordered by `created_at`, then by id. Whether their conversation exists is not asked here: it may be in
/// another store. The account is part of the key.
#[async_trait]
pub trait Messages: Send + Sync {
    /// Stores messages under their keys. One that is there with the same or a newer revision stays. All or, on an
    /// error, some of them are stored; storing them again is safe.
    async fn put(&self, account: AccountId, messages: &[Message]) -> Result<()>;

    /// `not_found` where there is none.
    async fn get(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<Message>;

    /// Estimates what a message takes in memory, in bytes. `not_found` where there is none.
    async fn size(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<u64>;

    /// Estimates what each message of a page takes in memory, in bytes: for who has to know that before it is read.
    async fn sizes(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Vec<u64>>;

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Paged<Message>>;

    /// All of a conversation. Deleting what is gone succeeds; what is put meanwhile may stay.
    async fn delete_all(&self, account: AccountId, conversation: ConversationId) -> Result<()>;
}
