//! Runs of hooks, as they are told.

use crate::{ConversationId, HookRunId, SandboxId, TurnId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One run of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HookRun {
    pub id: HookRunId,
    /// `cold_start`, `message`, `stream_finish`, `terminate`.
    pub kind: String,
    /// `default`, a command, the server of a webhook, or the name of one in Rust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    pub began_at: Timestamp,
    /// None: it has not ended, or nobody lived to see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// None: it succeeded, or has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
