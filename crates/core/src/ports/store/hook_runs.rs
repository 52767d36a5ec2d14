//! Runs of hooks, kept to be looked at.

use super::{Page, Paged};
use crate::Result;
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ConversationId, HookRunId, SandboxId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRun {
    pub id: HookRunId,
    /// `cold_start`, `message`, `stream_finish`, `terminate`.
    pub kind: String,
    pub template: Option<String>,
    pub conversation_id: Option<ConversationId>,
    pub sandbox_id: Option<SandboxId>,
    pub began_at: Timestamp,
    /// None: it has not ended, or nobody lived to see it.
    pub outcome: Option<HookOutcome>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookOutcome {
    pub ended_at: Timestamp,
    /// None: it succeeded.
    pub error: Option<String>,
}

#[async_trait]
pub trait HookRuns: Send + Sync {
    async fn begin(&self, account: AccountId, run: &HookRun) -> Result<()>;

    /// The first end counts. `not_found` where it has not begun.
    async fn end(&self, account: AccountId, id: HookRunId, outcome: &HookOutcome) -> Result<()>;

    /// Newest first; of one sandbox where one is given.
    async fn list(
        &self,
        account: AccountId,
        sandbox: Option<SandboxId>,
        page: &Page,
    ) -> Result<Paged<HookRun>>;
}
