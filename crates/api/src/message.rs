//! What a host asks of a guest. One request per stream; the comment says what comes back.

use crate::{
    ProcessId,
    exec::{StartProcess, TtySize},
    files::{
        FileName, FileRef, ListDir, MakeDir, MoveFile, ReadFile, SetMeta, WatchDir, WriteFile, XattrCall,
    },
};
use serde::{Deserialize, Serialize};

/// The first frame of a stream that a host opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Request {
    /// A stream of [`Kind::Ping`](crate::frame::Kind::Ping) frames, each answered by a pong.
    Ping,
    /// Reply [`GuestInfo`].
    Info,
    /// Reply [`Started`], then as [`Request::Attach`] unless detached.
    Start(Box<StartProcess>),
    /// Reply [`Started`], then output from an offset on, and an end frame with
    /// [`ExitStatus`](crate::exec::ExitStatus). The client may send acks and
    /// [`ProcessControl`](crate::exec::ProcessControl).
    Attach(Attach),
    /// Reply `Vec<ProcessInfo>`, running ones and those that ended lately.
    Processes,
    /// Reply `()`. To the process group, while the process runs.
    Signal { process: ProcessId, signal: i32 },
    /// Reply `()` when the process and all its descendants are gone.
    Kill { process: ProcessId },
    /// Reply `()`.
    Resize { process: ProcessId, size: TtySize },
    /// Data frames and an end; reply `()`. `close` closes stdin after them. A stream of its own, so that
    /// a process that does not read holds up nothing else.
    Input { process: ProcessId, close: bool },

    /// Reply [`Entry`](crate::files::Entry).
    Stat { file: FileRef, follow: bool },
    /// Reply [`Listing`](crate::files::Listing).
    List(ListDir),
    /// Reply [`Entry`](crate::files::Entry), data frames, end.
    Read(ReadFile),
    /// Reply `()` when the file can be written, then data frames and an end; reply
    /// [`Entry`](crate::files::Entry) when it is in its place.
    Write(WriteFile),
    /// Reply [`Entry`](crate::files::Entry).
    MakeDir(MakeDir),
    /// Reply `()`.
    Move(MoveFile),
    /// Reply `()`.
    Remove { file: FileRef, recursive: bool },
    /// Reply `()`. The target is written as it is.
    Symlink { link: FileRef, target: FileName },
    /// Reply [`Entry`](crate::files::Entry).
    SetMeta(SetMeta),
    /// Reply [`XattrReply`](crate::files::XattrReply).
    Xattr { file: FileRef, call: XattrCall },
    /// Reply `()` when the watch is set, then [`FileChange`](crate::files::FileChange) events.
    Watch(WatchDir),

    /// Reply [`SyncOpened`] when the workspace is locked for this stream; then calls and answers, as
    /// `seawall_sync::protocol` says. `conflict` where another sync runs for longer than `wait_ms`.
    Sync { wait_ms: u64 },
    /// On a connection of its own: the bodies of files of a sync, as they were scanned.
    Collect { session: u64, files: Vec<FileName> },
    /// On a connection of its own: files with their bodies. Reply `()`, then they are taken.
    Put { session: u64 },
    /// The rest of this stream is a bulk connection: one request and its body. For hosts to which a connection is
    /// expensive.
    Bulk,

    /// Reply `()`, then the raw bytes of a TCP connection to a port of the box's loopback.
    Connect { port: u16 },
    /// Reply [`Listening`]. On a control wire only: each connection to the port becomes a stream
    /// that the guest opens, with an [`Accepted`] request. It lasts as long as this stream.
    Listen { port: u16 },

    /// Reply [`GuestInfo`]. Somebody looks after the box; should nobody do so any more, it ends by itself in time.
    Attend(Attend),

    /// Reply `()`; then every process is ended, politely and then by force, and the guest goes.
    Shutdown { grace_ms: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    pub process: ProcessId,
    /// The first offset wanted.
    pub from: u64,
    /// Make the process wait for this reader rather than drop what it has not read.
    #[serde(default)]
    pub hold: bool,
    /// Stay until the end; otherwise leave when what is there was sent.
    #[serde(default)]
    pub follow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub process: ProcessId,
    pub pid: u32,
    /// It ran already: this start attached to it.
    #[serde(default)]
    pub resumed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestInfo {
    pub build: String,
    pub boot: String,
    pub pid: u32,
    /// Seconds since the guest started.
    pub uptime_s: u64,
    pub processes_running: u32,
    /// Seconds since anybody used the box.
    pub idle_s: u64,
}

/// When a box ends by itself. None, and 0, are never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attend {
    #[serde(default)]
    pub idle_s: Option<u64>,
    #[serde(default)]
    pub max_lifetime_s: Option<u64>,
    /// For so long whoever asks holds to that itself.
    #[serde(default)]
    pub for_s: u64,
}

/// A sync that holds the workspace's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncOpened {
    pub session: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    /// The port, also where 0 was asked for.
    pub port: u16,
}

/// The first frame of a stream that a guest opens: somebody in the box connected to a listened port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    pub port: u16,
}
