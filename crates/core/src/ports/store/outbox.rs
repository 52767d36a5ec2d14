//! The outbox: what was decided in a transaction and has to reach somewhere else, at least once, under a fixed key.
//! It is the server's own; accounts are inside its entries.

use crate::Result;
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ConversationId, conversation::Message};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Task {
    /// The message to its store.
    PutMessage {
        account: AccountId,
        message: Box<Message>,
    },
    /// A POST to somebody else's server. Its key is not in here: it is the server's environment's.
    CallWebhook {
        account: AccountId,
        url: String,
        secret_env: Option<String>,
        /// The same for every try.
        id: String,
        body: String,
    },
    DeleteMessages {
        account: AccountId,
        conversation: ConversationId,
    },
}

impl Task {
    /// The conversation whose entries are carried one after the other. None: it waits for nothing.
    pub fn line(&self) -> Option<ConversationId> {
        match self {
            Task::PutMessage { message, .. } => Some(message.conversation_id),
            Task::DeleteMessages { conversation, .. } => Some(*conversation),
            Task::CallWebhook { .. } => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct OutboxEntry {
    pub id: u64,
    pub task: Task,
    /// How often it was tried.
    pub attempts: u32,
    pub last_error: Option<String>,
}

/// An entry that is somebody's for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub entry: OutboxEntry,
    /// What only whoever took it knows: after the while it may be another's.
    pub receipt: u64,
}

#[async_trait]
pub trait Outbox: Send + Sync {
    async fn add(&self, task: &Task, due: Timestamp) -> Result<u64>;

    /// Entries that are due, oldest first, each for nobody else until the time is over or it is settled. Those of one
    /// conversation come one after the other, in the order in which they were added: the next when the last is done.
    async fn take(&self, limit: u32, time: Duration) -> Result<Vec<Delivery>>;

    /// It is done. False where it was another's meanwhile.
    async fn done(&self, delivery: &Delivery) -> Result<bool>;

    /// It failed, and is due again after a while. False where it was another's meanwhile.
    async fn failed(&self, delivery: &Delivery, error: &str, again_in: Duration) -> Result<bool>;

    /// How many wait, and since when the oldest is due: what an operator is paged for.
    async fn waiting(&self) -> Result<(u64, Option<Timestamp>)>;
}
