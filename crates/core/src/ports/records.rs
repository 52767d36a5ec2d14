//! What is known of sandboxes beyond their boxes: the intent, the name, why it ended.
//!
//! A record is written before its box is made and goes after the box is gone, so that a crash leaves
//! something to clean up, never a box that nobody knows. What a call has returned is durable.

use super::{
    Volumes,
    store::{Page, Paged},
};
use crate::Result;
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{EndReason, SandboxSpec, SandboxState, Timeouts},
};
use serde::{Deserialize, Serialize};
use std::pin::Pin;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub id: SandboxId,
    #[serde(default = "local")]
    pub account_id: AccountId,
    #[serde(default)]
    pub name: Option<String>,
    pub provider: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The last state that was decided here; the box may have moved on.
    pub state: SandboxState,
    #[serde(default)]
    pub reason: Option<EndReason>,
    pub spec: SandboxSpec,
    pub created_at: Timestamp,
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// It is being removed, and this becomes of its volume.
    #[serde(default)]
    pub removing: Option<Volumes>,
    /// Its workspace has work that no bucket has, and why (H8). It is not stopped or removed without force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsynced: Option<String>,
}

/// The part of a record that background rounds read. It has nothing whose size a user decides, so that a page of heads is small.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordHead {
    pub id: SandboxId,
    pub account_id: AccountId,
    pub provider: String,
    pub template: Option<String>,
    pub state: SandboxState,
    pub reason: Option<EndReason>,
    pub removing: Option<Volumes>,
    pub unsynced: Option<String>,
    pub timeouts: Timeouts,
    /// The shared volume that it uses, if any.
    pub volume: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
}

impl From<&Record> for RecordHead {
    fn from(record: &Record) -> RecordHead {
        RecordHead {
            id: record.id,
            account_id: record.account_id,
            provider: record.provider.clone(),
            template: record.template.clone(),
            state: record.state,
            reason: record.reason.clone(),
            removing: record.removing,
            unsynced: record.unsynced.clone(),
            timeouts: record.spec.timeouts,
            volume: record.spec.volume.clone(),
            created_at: record.created_at,
            started_at: record.started_at,
        }
    }
}

/// Of records from before there were accounts.
fn local() -> AccountId {
    AccountId::LOCAL
}

/// The right to make or remove one sandbox, across processes. Given back when dropped, also by a crash.
pub type Claim = Box<dyn Send + Sync>;

/// Ends when something is durable.
pub type Durable = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

#[async_trait]
pub trait Records: Send + Sync {
    /// Adds a record. `already_exists` where the id is taken, `conflict` where the name is.
    async fn insert(&self, record: &Record) -> Result<()>;

    /// As [`Records::insert`], but durable only when the future has ended: for boxes whose provider keeps a durable
    /// intent of its own. Meanwhile the box can be made.
    async fn insert_soon(&self, record: &Record) -> Result<Durable> {
        self.insert(record).await?;
        Ok(Box::pin(async { Ok(()) }))
    }

    /// Replaces a record. `not_found` where there is none.
    async fn update(&self, record: &Record) -> Result<()>;

    /// As [`Records::update`], for what the box itself tells anyway: a loss of power may undo it.
    async fn note(&self, record: &Record) -> Result<()> {
        self.update(record).await
    }

    /// Ends when all notes are written, as far as they can be.
    async fn flush(&self) {}

    async fn get(&self, id: SandboxId) -> Result<Option<Record>>;

    /// All of them, oldest first. For a command that shows them; rounds read [`Records::heads`].
    async fn list(&self) -> Result<Vec<Record>>;

    /// One page of the heads of all records, oldest first.
    async fn heads(&self, page: &Page) -> Result<Paged<RecordHead>>;

    async fn head(&self, id: SandboxId) -> Result<Option<RecordHead>>;

    /// Removing what is gone succeeds.
    async fn remove(&self, id: SandboxId) -> Result<()>;

    /// Waits for the claim to a sandbox.
    async fn claim(&self, id: SandboxId) -> Result<Claim>;

    /// None where somebody who lives has it.
    async fn try_claim(&self, id: SandboxId) -> Result<Option<Claim>>;

    /// A number larger than any given before, for the control wire to a sandbox.
    async fn next_epoch(&self, id: SandboxId) -> Result<u64>;
}

/// Who is at a sandbox, among the processes of one machine.
#[async_trait]
pub trait Claims: Send + Sync {
    /// Waits for the claim to a sandbox.
    async fn claim(&self, id: SandboxId) -> Result<Claim>;

    /// None where somebody who lives has it.
    async fn try_claim(&self, id: SandboxId) -> Result<Option<Claim>>;

    /// A number larger than any given before, for the control wire to a sandbox.
    async fn next_epoch(&self, id: SandboxId) -> Result<u64>;
}
