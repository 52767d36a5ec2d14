//! What a host and a guest say to each other during a sync.
//!
//! One stream is the sync itself: the guest holds the workspace's lock as long as the stream is open, and answers
//! [`Call`]s on it. Bodies go over connections of their own: `Collect` brings them out, each file as data frames and
//! an end frame with one byte ([`WHOLE`] or [`CHANGED`]); `Put` takes them in, each file as an event with its entry,
//! data frames, and an end frame with one byte ([`WHOLE`] or [`ABORT`]), and a control frame behind the last.
//!
//! Lists (entries, paths, steps) are plain bytes in [`codec`]'s form: there may be a million of them.

pub mod codec;

use crate::{disk::ScanAsk, state::CommitRef};
use serde::{Deserialize, Serialize};

/// The body is complete, and belongs to the file as it was scanned.
pub const WHOLE: u8 = 1;
/// The file is not as it was scanned.
pub const CHANGED: u8 = 2;
/// The body is not what it should be.
pub const ABORT: u8 = 3;

/// A control frame of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Answered by [`codec::Item`] events and a [`ScanEnd`] reply.
    Scan(ScanAsk),
    /// What the last scan started from, where no file says it. Answered as a scan is.
    Base,
    /// Followed by steps as events and an end; answered by refusals as events and a reply.
    Apply,
    /// As [`Call::Agree`].
    Prepare { commit: CommitRef, now: i64, from_base: bool },
    /// Answered by a reply.
    Settle { commit: Option<CommitRef>, now: i64 },
    /// Followed by [`codec::Item`] events and an end; answered by a reply with the size of the state file.
    Agree { commit: CommitRef, now: i64, from_base: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScanEnd {
    pub base: Option<CommitRef>,
    #[serde(default)]
    pub pending: Option<CommitRef>,
    pub last_synced_at: Option<i64>,
    /// Of the state file.
    #[serde(default)]
    pub state_bytes: Option<u64>,
    pub base_problem: Option<String>,
    pub ignored_count: u64,
    pub special: u64,
    pub scanned: u64,
    pub hashed: u64,
}
