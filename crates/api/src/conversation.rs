//! Conversations: what is durable. Turns, messages, and what they used.

use crate::{AccountId, ConversationId, MessageId, SandboxId, TurnId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{fmt, str::FromStr};

/// The durable object. Its sandbox is a cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Conversation {
    pub id: ConversationId,
    pub account_id: AccountId,
    /// Opaque, the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_id: Option<String>,
    /// Opaque, the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    pub stats: Stats,
    pub created_at: Timestamp,
    /// When it was last changed, or a turn of it began or ended.
    pub updated_at: Timestamp,
}

/// Totals of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stats {
    pub messages_exchanged: u64,
    /// What was not cached.
    pub total_input_tokens: u64,
    /// With reasoning.
    pub total_output_tokens: u64,
    /// Reads and writes.
    pub total_cache_tokens: u64,
}

/// What one turn used. The same three as in [`Stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    User,
    Assistant,
    System,
}

/// One prompt or one answer, in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Message {
    pub id: MessageId,
    pub conversation_id: ConversationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    pub role: Role,
    pub body: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// With the id, its place in the conversation. Microseconds count.
    pub created_at: Timestamp,
    /// Grows whenever more of it is stored: an older one never replaces a newer one.
    #[serde(default)]
    pub revision: u32,
}

/// A tool that the agent used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub input: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    pub status: ToolStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ToolStatus {
    /// The turn ended before it did.
    Pending,
    Succeeded,
    Failed,
}

/// One prompt and all that follows from it, until the answer is complete and stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Turn {
    pub id: TurnId,
    pub conversation_id: ConversationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Its place in the conversation, from 1 on.
    pub number: u64,
    pub state: TurnState,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub prompt_id: MessageId,
    /// Decided when the turn begins, so that the answer has one place whoever writes it.
    pub answer_id: MessageId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How far the agent's output was read.
    #[serde(default)]
    pub output_offset: u64,
    /// How many events there are.
    #[serde(default)]
    pub events: u64,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Somebody asked for its end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancelling: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TurnState {
    Running,
    Completed,
    Failed,
    Cancelled,
    /// Its sandbox was gone before it was complete.
    Interrupted,
}

/// A word that stands for nothing here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not known here")]
pub struct UnknownWord(pub String);

macro_rules! words {
    ($name:ident: $($variant:ident = $word:literal),+ $(,)?) => {
        impl $name {
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;
            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($word => Ok($name::$variant),)+
                    other => Err(UnknownWord(other.to_owned())),
                }
            }
        }
    };
}

words!(Role: User = "user", Assistant = "assistant", System = "system");
words!(
    TurnState: Running = "running", Completed = "completed", Failed = "failed", Cancelled = "cancelled",
    Interrupted = "interrupted",
);

impl Usage {
    /// More than any turn can use: what an agent claims beyond is not believed, so that totals can be added.
    pub const MOST: u64 = 1 << 40;

    /// With no count above [`Usage::MOST`].
    pub fn capped(self) -> Usage {
        Usage {
            input_tokens: self.input_tokens.min(Usage::MOST),
            output_tokens: self.output_tokens.min(Usage::MOST),
            cache_tokens: self.cache_tokens.min(Usage::MOST),
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Usage {
    /// V6: adds itself to the totals among a sandbox's metadata.
    pub fn add_to(&self, metadata: &mut Map<String, Value>) {
        let parts = [
            ("total_input_tokens", self.input_tokens),
            ("total_output_tokens", self.output_tokens),
            ("total_cache_tokens", self.cache_tokens),
        ];
        for (key, tokens) in parts {
            let there = metadata.get(key).and_then(Value::as_u64).unwrap_or(0);
            metadata.insert(key.to_owned(), Value::from(there.saturating_add(tokens)));
        }
    }
}

impl Stats {
    /// With one more turn's usage. Totals stop at the largest number instead of starting anew.
    pub fn plus(self, usage: &Usage) -> Stats {
        Stats {
            total_input_tokens: self.total_input_tokens.saturating_add(usage.input_tokens),
            total_output_tokens: self.total_output_tokens.saturating_add(usage.output_tokens),
            total_cache_tokens: self.total_cache_tokens.saturating_add(usage.cache_tokens),
            ..self
        }
    }
}
