//! A sync from end to end: scan, look at the bucket, merge, upload, commit, change the workspace, agree.
//!
//! Invariant: the workspace agrees on a version only when it has all of it, and a version is committed only when
//! every body that it names is in the bucket. Whatever dies in between leaves a state from which the same
//! three-way diff finds out what is left to do.
//!
//! A sync consists of rounds, and each round starts from the disk and the bucket alone:
//!
//! 1. **Scan**: the guest reports differences from the state file. A pending commit is resolved first, and a new
//!    round begins.
//! 2. **Look**: one list after the base's record. No new record and no difference: the sync is done.
//! 3. **Merge**: base, scan and newest version become one tree ([`crate::diff`]) and steps.
//! 4. **Upload** bodies without a known place, each hashed again on the host; **prepare**; **commit** manifest, then
//!    record.
//! 5. **Pull**: steps without bodies, bodies, then modes and times of directories, the deepest first.
//! 6. **Agree**: the guest writes the state file.
//!
//! A round that lost its number to another writer begins again at most 30 times, and one whose files changed during
//! it 4 times.
//!
//! - **Places come from the head only.** A new version names bodies where the newest version has them, or where this
//!   sync (or a dead push for the same number) stored them. An older version's places may be pruned, so a file that
//!   returns is uploaded again.
//! - **The base is checked by digest** (`commit.tree`). An edited state file, or one that a guest reports
//!   differently, is no base, because a wrong base deletes files; neither is a base outside the chain.
//! - **A `partial` base**, of a pending commit or a deleted state file, is compared even if it equals the head.

mod body;
mod download;
mod pack;
mod push;
mod restore;
mod round;
mod stats;
mod upload;

pub use restore::Restored;
pub use stats::{Direction, DryRun, Phase, Progress, Silent, SyncReport, SyncStats};

use crate::{
    Error, Result,
    disk::ScanAsk,
    retry::jitter,
    tree::{Node, Tree},
    versions::Versions,
    workspace::Workspace,
};
use round::{Done, Round};
use std::{fmt, sync::Arc, time::Duration};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Believe no state file (S3).
    pub regenerate: bool,
    /// Read every file again.
    pub rehash: bool,
}

/// The most that one sync takes from its workspace. Bodies that are more are named in the report, and left for the next
/// sync; a workspace with more entries or names is not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of bodies that the workspace is asked for, zeros included.
    pub taken: u64,
    /// Bytes of bodies that are stored.
    pub stored: u64,
    /// Files, links and directories of the workspace.
    pub files: usize,
    /// Bytes of their names, and of what links point to.
    pub name_bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { taken: u64::MAX, stored: u64::MAX, files: usize::MAX, name_bytes: u64::MAX }
    }
}

impl Budget {
    /// Whether a workspace is small enough, however it became what it is.
    fn check(&self, tree: &Tree) -> Result<()> {
        let too_large = |why: String| {
            let why = format!("{why}; leave some out by {}", crate::path::IGNORE_FILE);
            Err(Error::new(seawall_api::ErrorKind::TooLarge, why).during("syncing"))
        };
        if tree.len() > self.files {
            return too_large(format!("the workspace has more than {} files", self.files));
        }
        let target = |node: &Node| match node {
            Node::Link { target, .. } => target.as_bytes().len(),
            _ => 0,
        };
        let names = tree.iter().map(|(path, node)| (path.as_bytes().len() + target(node)) as u64);
        match names.sum::<u64>() > self.name_bytes {
            true => too_large(format!("the names of its files have more than {} bytes", self.name_bytes)),
            false => Ok(()),
        }
    }
}

/// Why a file is not in a version.
const BEYOND: &str =
    "with it this sync would store more than the sandbox's disk can hold; sync again, or make it smaller";

/// One workspace and its versions, while the workspace is locked.
pub struct Engine<'a> {
    pub versions: &'a Versions,
    pub workspace: &'a dyn Workspace,
    pub progress: Arc<dyn Progress>,
    pub options: Options,
    pub budget: Budget,
}

impl fmt::Debug for Engine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("versions", &self.versions).finish_non_exhaustive()
    }
}

/// How often somebody else may be faster, and how often files may change under our eyes.
const MAX_LOST: u32 = 30;
const MAX_DISTURBED: u32 = 4;
const MAX_VOID: u32 = 5;
const MAX_PASSED: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

impl<'a> Engine<'a> {
    pub fn new(versions: &'a Versions, workspace: &'a dyn Workspace) -> Engine<'a> {
        let (progress, options, budget) = (Arc::new(Silent), Options::default(), Budget::default());
        Engine { versions, workspace, progress, options, budget }
    }

    pub fn with_progress(mut self, progress: Arc<dyn Progress>) -> Self {
        self.progress = progress;
        self
    }

    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    fn ask(&self) -> ScanAsk {
        ScanAsk {
            also: Vec::new(),
            regenerate: self.options.regenerate,
            rehash: self.options.rehash || self.options.regenerate,
            shared: false,
            max_hole_bytes: None,
        }
    }

    /// S7: pulls if the bucket is ahead, pushes if the workspace is, both if both are.
    pub async fn sync(&self) -> Result<SyncReport> {
        let started = tokio::time::Instant::now();
        let mut round = Round::new(self.ask(), &self.budget);
        let (mut lost, mut disturbed, mut void) = (0, 0, 0);
        loop {
            let done = match self.round(&mut round).await {
                // A prune passed by: what it left is looked at anew.
                Err(error) if error.kind() == seawall_api::ErrorKind::NotFound && lost < MAX_PASSED => {
                    Done::Lost
                }
                done => done?,
            };
            match done {
                Done::Synced => break,
                Done::Lost => {
                    lost += 1;
                    // What was prepared for is settled by the next round, which begins anew after that.
                    void = 0;
                    if lost > MAX_LOST {
                        let why = "others commit faster than this sync can; try again";
                        return Err(Error::unavailable(why).during("committing the version"));
                    }
                    tokio::time::sleep(jitter(PAUSE * lost)).await;
                }
                Done::Disturbed => {
                    disturbed += 1;
                    if disturbed > MAX_DISTURBED {
                        return Err(round.too_busy());
                    }
                }
                Done::Void => {
                    void += 1;
                    if void > MAX_VOID {
                        return Err(never_ends());
                    }
                }
            }
        }
        let mut report = round.report;
        report.stats.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(report)
    }

    /// What a sync would do. Changes nothing, neither here nor there, but that a commit whose sync died is settled.
    pub async fn dry_run(&self) -> Result<DryRun> {
        let mut round = Round::new(self.ask(), &self.budget);
        for _ in 0..MAX_VOID {
            if let Some(plan) = self.plan(&mut round).await? {
                return Ok(plan.into_dry_run(&round));
            }
        }
        Err(never_ends())
    }
}

/// A sandbox that tells of another base each time.
fn never_ends() -> Error {
    let why = "the sandbox tells of something else each time it is asked what it has";
    Error::new(seawall_api::ErrorKind::Protocol, why).during("syncing")
}

#[cfg(test)]
mod send {
    use super::*;

    /// A server runs syncs on any thread.
    #[test]
    fn a_sync_can_be_sent() {
        fn is_send<T: Send>(_: T) {}
        let _ = |engine: &'static Engine<'static>, version: i64| {
            is_send(engine.sync());
            is_send(engine.restore(version));
            is_send(engine.dry_run());
        };
    }
}
