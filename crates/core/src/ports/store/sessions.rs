//! Sessions of Code Mode: a scope that has one sandbox.

use crate::Result;
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, SandboxId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionScope {
    Workflow,
    Agent,
}

impl SessionScope {
    pub fn as_str(self) -> &'static str {
        match self {
            SessionScope::Workflow => "workflow",
            SessionScope::Agent => "agent",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub account_id: AccountId,
    pub scope: SessionScope,
    /// Of the workflow or the agent's run.
    pub scope_id: String,
    pub sandbox_id: SandboxId,
    /// What it was opened with.
    pub image: Option<String>,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
}

#[async_trait]
pub trait Sessions: Send + Sync {
    /// The session of that scope, made where there is none; whether it was made. Of several at once one makes it, and
    /// all get the same.
    async fn open(&self, session: &Session) -> Result<(Session, bool)>;

    async fn get(&self, account: AccountId, scope: SessionScope, scope_id: &str) -> Result<Session>;

    /// Any use counts. An older time changes nothing.
    async fn touch(
        &self,
        account: AccountId,
        scope: SessionScope,
        scope_id: &str,
        at: Timestamp,
    ) -> Result<()>;

    /// What it was. None where there is none: ending twice is ending once.
    async fn end(&self, account: AccountId, scope: SessionScope, scope_id: &str) -> Result<Option<Session>>;

    /// Those last used before `used`, or made before `made`, of all accounts: for the reaper.
    async fn expired(&self, used: Timestamp, made: Timestamp, limit: u32) -> Result<Vec<Session>>;
}
