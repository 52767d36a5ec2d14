//! What a sync did, and how far it is.

use crate::{diff::Note, state::CommitRef};
use seawall_api::files::FileName;
use serde::{Deserialize, Serialize};

/// S5. Files here are files and links.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncStats {
    pub files_downloaded: u64,
    pub files_uploaded: u64,
    /// In the workspace, because the bucket's newest version lacks them.
    pub files_deleted: u64,
    /// In the new version, because the workspace lacks them.
    pub files_deleted_remotely: u64,
    pub files_skipped: u64,
    /// Bodies, in both directions, without what is not stored of their zeros.
    pub bytes_transferred: u64,
    /// Bytes of all objects that it added to the bucket, as far as they are counted.
    #[serde(default)]
    pub bytes_stored: u64,
    #[serde(rename = "duration")]
    pub duration_ms: u64,
    /// Looked at in the workspace; read, because they were new or looked changed.
    pub scanned: u64,
    pub hashed: u64,
    /// Left out by rules; pipes, sockets and devices.
    pub ignored: u64,
    pub special: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    #[default]
    Nothing,
    Pulled,
    Pushed,
    Both,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncReport {
    pub direction: Direction,
    #[serde(flatten)]
    pub stats: SyncStats,
    /// Conflicts, and what was kept or restored against a deletion.
    pub notes: Vec<Note>,
    /// Files that are not in the version because they could not be read.
    pub problems: Vec<(FileName, String)>,
    /// Files of the version that the bucket does not have as they should be. They are not in the workspace.
    pub damaged: Vec<(FileName, String)>,
    /// What was wrong with the state file: why it could not be used, or that it was gone.
    pub state_problem: Option<String>,
    /// What both sides agree on now.
    pub version: Option<CommitRef>,
}

impl SyncReport {
    /// Whether the bucket has everything that the workspace has.
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }
}

/// What a sync would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DryRun {
    pub download: Vec<FileName>,
    pub upload: Vec<FileName>,
    pub delete_here: Vec<FileName>,
    pub delete_there: Vec<FileName>,
    pub notes: Vec<Note>,
    pub problems: Vec<(FileName, String)>,
    /// Left out by rules: the first ten thousand of them, and how many there are.
    pub ignored: Vec<FileName>,
    pub ignored_count: u64,
    pub special: u64,
    pub state_problem: Option<String>,
}

impl DryRun {
    pub fn is_empty(&self) -> bool {
        self.download.is_empty()
            && self.upload.is_empty()
            && self.delete_here.is_empty()
            && self.delete_there.is_empty()
            && self.notes.is_empty()
    }
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Scanning,
    Looking,
    Uploading { files: u64, bytes: u64 },
    Committing,
    Downloading { files: u64, bytes: u64 },
    Agreeing,
}

/// Whoever wants to know how far it is.
pub trait Progress: Send + Sync {
    fn phase(&self, phase: Phase);
    /// So many more bytes of the phase are done.
    fn moved(&self, bytes: u64);
}

/// Nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn phase(&self, _: Phase) {}
    fn moved(&self, _: u64) {}
}
