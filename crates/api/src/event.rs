//! The events of a turn, in the order in which they happened. What a client sees, and what a turn is taken up again from.

use crate::{
    ConversationId, MessageId, SandboxId, TurnId,
    conversation::{Stats, TurnState, Usage},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One event. A client passes over types that it does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Event {
    /// Always the first.
    TurnStarted {
        conversation_id: ConversationId,
        turn_id: TurnId,
        sandbox_id: SandboxId,
        prompt_id: MessageId,
        answer_id: MessageId,
        template: String,
    },
    /// The sandbox runs. `cold`: it was made, or made again, for this turn.
    SandboxReady {
        cold: bool,
        /// The version of the files that it has; none: no version is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<i64>,
        duration_ms: u64,
    },
    /// The agent's program runs, as the process that has the turn's id.
    AgentStarted {
        agent: String,
        /// The life of the guest that it runs in.
        #[serde(default)]
        boot: String,
        /// Where the server is in the box: a port of its loopback.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
    },
    /// The agent's own name for what it continues the next time.
    AgentSession { session: String },
    /// More of the answer.
    Text {
        text: String,
        /// From the command's stderr; agents have none.
        #[serde(default, skip_serializing_if = "is_false")]
        stderr: bool,
    },
    /// What the agent says to itself. Not part of the answer.
    Thinking { text: String },
    ToolCall {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    ToolResult {
        id: String,
        #[serde(default)]
        output: Value,
        #[serde(default, skip_serializing_if = "is_false")]
        is_error: bool,
    },
    /// What was used so far by one message of the agent, or, without `message`, by the whole turn: then it counts
    /// instead of all before it.
    Usage {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        #[serde(flatten)]
        usage: Usage,
    },
    /// What the agent's thread used in all, this turn and those before it: for agents that tell no more.
    ThreadUsage {
        #[serde(flatten)]
        usage: Usage,
    },
    /// What the turn's requests to models used so far, as the server counted their answers. The turn is charged this
    /// or what the agent tells, whichever is more.
    GatewayUsage {
        #[serde(flatten)]
        usage: Usage,
    },
    /// Something worth knowing that is no part of the answer: a retry, a session that could not be continued.
    Notice { text: String },
    /// A piece of a very long line of the agent's output, kept so that nothing is lost. Of no use to clients.
    OutputPart {
        text: String,
        /// The line is over; what is behind it is a new one.
        #[serde(default, skip_serializing_if = "is_false")]
        end: bool,
    },
    /// The agent's program ended, and all that it printed is above.
    AgentEnded {
        state: TurnState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
    },
    /// The files are a version of the bucket.
    WorkspacePushed { version: i64, files_uploaded: u64, bytes_transferred: u64 },
    /// The files are not in the bucket yet. It is tried again, and the sandbox is kept until it worked.
    WorkspaceUnsynced { error: String },
    /// Always the last: what the turn used, and the conversation's totals.
    TurnEnded {
        state: TurnState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        usage: Usage,
        /// The agent ended before it told what it used: it is at least this.
        #[serde(default, skip_serializing_if = "is_false")]
        estimate: bool,
        stats: Stats,
    },
}

fn is_false(flag: &bool) -> bool {
    !flag
}
