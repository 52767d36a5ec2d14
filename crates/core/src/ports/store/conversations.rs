//! Conversations and their totals.

use super::{Page, Paged};
use crate::Result;
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, SandboxId,
    conversation::{Conversation, Usage},
};

#[derive(Debug, Clone, PartialEq)]
pub struct NewConversation {
    pub id: ConversationId,
    pub organization_id: Option<String>,
    pub agent_id: Option<String>,
    pub template: Option<String>,
    pub sandbox_id: Option<SandboxId>,
    pub created_at: Timestamp,
}

/// What a hook used, beside the agent of its turn.
#[derive(Debug, Clone, PartialEq)]
pub struct HookUsage {
    pub conversation_id: ConversationId,
    pub sandbox_id: SandboxId,
    /// Which run it was. Of one name one counts.
    pub name: String,
    pub usage: Usage,
    pub at: Timestamp,
}

/// What to list. None: all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConversationFilter {
    pub organization_id: Option<String>,
    pub agent_id: Option<String>,
    pub sandbox_id: Option<SandboxId>,
    pub sort: SortBy,
}

/// The latest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    #[default]
    Updated,
    Created,
}

#[async_trait]
pub trait Conversations: Send + Sync {
    /// The conversation of that id, made where there is none; whether it was made. One that is there stays as it is,
    /// and another account's is `not_found`.
    async fn ensure(&self, account: AccountId, new: &NewConversation) -> Result<(Conversation, bool)>;

    /// With its totals.
    async fn get(&self, account: AccountId, id: ConversationId) -> Result<Conversation>;

    /// How many conversations an account has.
    async fn count(&self, account: AccountId) -> Result<u64>;

    async fn list(
        &self,
        account: AccountId,
        filter: &ConversationFilter,
        page: &Page,
    ) -> Result<Paged<Conversation>>;

    async fn set_template(
        &self,
        account: AccountId,
        id: ConversationId,
        template: Option<&str>,
        at: Timestamp,
    ) -> Result<()>;

    /// Links a sandbox, where the one that is linked is `expected`. `conflict` where it is another; the same link
    /// twice is one.
    async fn link(
        &self,
        account: AccountId,
        id: ConversationId,
        expected: Option<SandboxId>,
        sandbox: Option<SandboxId>,
        at: Timestamp,
    ) -> Result<()>;

    /// V6: adds it to the totals of the conversation and of its sandbox, in one transaction. Whether it was added: the
    /// second time nothing happens.
    async fn add_usage(&self, account: AccountId, used: &HookUsage) -> Result<bool>;

    /// With its turns, their events and its messages; those that are stored elsewhere go by the outbox.
    /// `conflict` while a turn runs. Deleting what is gone succeeds.
    async fn delete(&self, account: AccountId, id: ConversationId) -> Result<()>;
}
