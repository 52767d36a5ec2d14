//! Runs of hooks, kept to be looked at.

use super::{Page, Paged};
use crate::{Result, host_paths};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ConversationId, HookRunId, SandboxId, TurnId, hook};

/// The name of what runs where a template says nothing.
pub const DEFAULT_HOOK: &str = "default";
/// How names of webhooks begin.
pub const WEBHOOK_TO: &str = "webhook to ";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRun {
    pub id: HookRunId,
    /// `cold_start`, `message`, `stream_finish`, `terminate`.
    pub kind: String,
    /// Which one of its kind.
    pub name: Option<String>,
    pub template: Option<String>,
    pub conversation_id: Option<ConversationId>,
    pub turn_id: Option<TurnId>,
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

impl HookRun {
    /// As an account may see it. Commands of templates, and where buckets are, are the operator's to know.
    pub fn told_to(mut self, account: AccountId) -> hook::HookRun {
        if account != AccountId::LOCAL {
            let is_default = self.name.as_deref() == Some(DEFAULT_HOOK);
            let is_open = is_default || self.name.as_ref().is_some_and(|name| name.starts_with(WEBHOOK_TO));
            self.name = self.name.map(|name| if is_open { name } else { "command".to_owned() });
            if let Some(error) = self.outcome.as_mut().and_then(|outcome| outcome.error.as_mut()) {
                *error = match is_default {
                    true => "its files could not be brought in, or pushed: the operator's log tells why"
                        .to_owned(),
                    false => host_paths::redact(error).into_owned(),
                };
            }
        }
        self.told()
    }

    fn told(self) -> hook::HookRun {
        let run = self;
        let (ended_at, error) = run.outcome.map(|outcome| (outcome.ended_at, outcome.error)).unzip();
        hook::HookRun {
            id: run.id,
            kind: run.kind,
            name: run.name,
            template: run.template,
            conversation_id: run.conversation_id,
            turn_id: run.turn_id,
            sandbox_id: run.sandbox_id,
            began_at: run.began_at,
            ended_at,
            error: error.flatten(),
        }
    }
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
