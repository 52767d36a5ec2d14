//! Processes: what is asked for, and what comes back.

use crate::ProcessId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What happens to output when nobody reads it and its buffer is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// The oldest bytes go; the process never waits. A reader that is attached does make it wait,
    /// as a pipe would, so a reader loses nothing.
    #[default]
    DropOldest,
    /// The process waits until the bytes were acknowledged: nothing is lost while a host restarts.
    Block,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TtySize {
    pub rows: u16,
    pub cols: u16,
}

impl Default for TtySize {
    fn default() -> Self {
        TtySize { rows: 24, cols: 80 }
    }
}

/// A process to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartProcess {
    /// Chosen by the host. A second start under one id attaches to the first.
    pub process: ProcessId,
    /// Program and arguments. Empty with a terminal: the shell of the sandbox.
    #[serde(default)]
    pub args: Vec<String>,
    /// Added to the sandbox's environment; later entries win.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Where it runs: absolute in the box, or relative to the working directory (`/work`).
    #[serde(default)]
    pub cwd: Option<String>,
    /// A name, `root`, `UID` or `UID:GID`. None: the sandbox's default.
    #[serde(default)]
    pub user: Option<String>,
    /// A terminal of this size instead of pipes.
    #[serde(default)]
    pub tty: Option<TtySize>,
    /// Whether stdin stays open for input. Otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    #[serde(default)]
    pub when_full: WhenFull,
    /// After this time the process and all its descendants are ended.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Between the polite signal and the kill, at a timeout.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// Output beyond this many bytes is counted and thrown away.
    #[serde(default)]
    pub output_limit: Option<u64>,
    /// A name to find it by.
    #[serde(default)]
    pub tag: Option<String>,
    /// Answer when it runs, and do not stay attached.
    #[serde(default)]
    pub detach: bool,
}

impl StartProcess {
    pub fn new<S: Into<String>>(args: impl IntoIterator<Item = S>) -> Self {
        StartProcess {
            process: ProcessId::generate(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            tty: None,
            stdin: false,
            when_full: WhenFull::default(),
            timeout_ms: None,
            grace_ms: None,
            output_limit: None,
            tag: None,
            detach: false,
        }
    }
}

/// Which stream a piece of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
    /// A terminal has only one.
    Tty,
}

impl OutputStream {
    pub fn code(self) -> u8 {
        match self {
            OutputStream::Stdout => 1,
            OutputStream::Stderr => 2,
            OutputStream::Tty => 3,
        }
    }

    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(OutputStream::Stdout),
            2 => Some(OutputStream::Stderr),
            3 => Some(OutputStream::Tty),
            _ => None,
        }
    }
}

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExitReason {
    /// By itself, with a code or by a signal.
    Exited,
    /// Its time was up.
    Timeout,
    /// Somebody asked for its end.
    Killed,
    /// The kernel ended it for want of memory.
    Oom,
    /// The sandbox was stopped.
    Stopped,
    /// Its keeper is gone, so nobody knows its code.
    #[serde(other)]
    Lost,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExitStatus {
    /// What it returned, unless a signal ended it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub reason: ExitReason,
    /// All it printed that was kept or sent: the offset behind the last byte.
    pub output_end: u64,
    /// Bytes beyond its output limit, thrown away.
    #[serde(default)]
    pub truncated: u64,
    /// Limits of the sandbox that were reached while it ran, by it or by others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitHit>,
}

/// A limit of a sandbox that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LimitHit {
    /// A process was killed for want of memory.
    Memory,
    /// A process could not be started.
    Processes,
    /// There was no room for a file.
    Disk,
    /// One that this build does not know.
    #[serde(other)]
    Other,
}

impl LimitHit {
    /// The setting that would allow more.
    pub fn setting(self) -> &'static str {
        match self {
            LimitHit::Memory => "memory_mb",
            LimitHit::Processes => "max_processes",
            LimitHit::Disk => "disk_mb",
            LimitHit::Other => "limits",
        }
    }
}

impl ExitStatus {
    /// The code a shell would show: 128 plus the signal where one ended it, 124 after a timeout.
    pub fn shell_code(&self) -> i32 {
        match (self.reason, self.code, self.signal) {
            (ExitReason::Timeout, _, _) => 124,
            (_, Some(code), _) => code,
            (_, None, Some(signal)) => 128 + signal,
            (_, None, None) => 125,
        }
    }

    pub fn success(&self) -> bool {
        self.code == Some(0) && self.reason == ExitReason::Exited
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, self.code, self.signal) {
            (ExitReason::Timeout, _, _) => f.write_str("ended after its timeout"),
            (ExitReason::Stopped, _, _) => f.write_str("ended with its sandbox"),
            (ExitReason::Oom, _, _) => f.write_str("ended for want of memory"),
            (_, Some(code), _) => write!(f, "exited with {code}"),
            (_, None, Some(signal)) => write!(f, "ended by signal {signal}"),
            (_, None, None) => f.write_str("lost"),
        }
    }
}

/// A process that runs, or ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessInfo {
    pub process: ProcessId,
    /// Its number in the sandbox.
    pub pid: u32,
    pub args: Vec<String>,
    #[serde(default)]
    pub tag: Option<String>,
    pub tty: bool,
    /// Unix milliseconds, by the sandbox's clock.
    pub started_at_ms: u64,
    /// The first offset that can still be replayed, and the one behind the last byte.
    pub output_start: u64,
    pub output_end: u64,
    /// None while it runs.
    #[serde(default)]
    pub exit: Option<ExitStatus>,
}

/// What an attached stream tells beside output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessEvent {
    /// Bytes from `from` up to `to` were dropped before this reader saw them.
    Gap { from: u64, to: u64 },
}

/// What a client says into an attached stream beside input bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessControl {
    Resize(TtySize),
    Signal(i32),
}
