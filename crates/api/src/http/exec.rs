//! Commands and terminals over HTTP.

use super::object;
use crate::{
    ProcessId,
    exec::{ExitStatus, TtySize},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How bytes are written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Encoding {
    /// What is no text is replaced.
    #[default]
    Text,
    Base64,
}

/// A command: `args`, or `command` for `sh -c`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Exec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// None: /work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Given to it, then closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Bytes kept of each stream; the rest is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
    /// Of `stdin` and of the output.
    #[serde(default)]
    pub encoding: Encoding,
    /// A word to find the process by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecResult {
    /// As a shell has it: 124 after its timeout, 128 and the signal.
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
    pub encoding: Encoding,
    pub duration_ms: u64,
    /// Bytes that were not kept.
    pub stdout_truncated: u64,
    pub stderr_truncated: u64,
    pub status: ExitStatus,
}

/// What a streamed command says, in `data:` of its events. The id of an event is the offset behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExecEvent {
    Started {
        process: ProcessId,
        pid: u32,
    },
    Stdout {
        data: String,
    },
    Stderr {
        data: String,
    },
    /// Of a terminal.
    Tty {
        data: String,
    },
    /// Output that nobody read in time is gone.
    Gap {
        from: u64,
        to: u64,
    },
    Exit {
        exit_code: i32,
        status: ExitStatus,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SendSignal {
    /// A number, e.g. 15.
    pub signal: i32,
}

/// A new terminal. Without a command it is a shell.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateTerminal {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, deserialize_with = "object")]
    pub size: TtySize,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Text frames to a terminal's WebSocket. Binary frames are what is typed, and what is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TerminalControl {
    Resize { rows: u16, cols: u16 },
    Signal { signal: i32 },
}

/// Text frames from a terminal's WebSocket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TerminalEvent {
    /// Where the bytes that follow begin. For `from` of the next connection add what came after it.
    Attached {
        process: ProcessId,
        offset: u64,
    },
    Gap {
        from: u64,
        to: u64,
    },
    Exit {
        exit_code: i32,
        status: ExitStatus,
    },
    Error {
        code: String,
        detail: String,
    },
}
