//! The state file is kept open, so that what it said is known after it was deleted.
//!
//! `git clean -fdx` deletes it, and an agent may run that in any turn. Without a base, whatever was changed since would
//! look as if both sides had made it, and the version's files would take the place of newer ones.
//!
//! A base that is not the last one deletes and reverts. So what is held is believed only while nothing else can have
//! been agreed on: not from a commit's beginning to its agreement, not once a sync changed files and did not come to its
//! end, and not in volumes that several sandboxes share, each with a guest of its own. It goes with the guest, so it is
//! of this volume and of this life of the machine.

use super::{
    Disk,
    hash::READ,
    scan::{ScanAsk, ScanReport, is_unseen},
    state::{Base, MAX_STATE, read_up_to},
    walk::Found,
};
use crate::{
    diff::unit_of,
    path::{self, STATE, STATE_NEXT},
    state::{CommitRef, StateFile},
    tree::{Delta, Node, Tree},
};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Mode, SeekFrom},
};
use seawall_api::files::FileName;
use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

pub(super) const TOLD: &str = "it was deleted while the sandbox ran; what was changed since stays";

impl Disk {
    /// What is at the name now. One that is not believed is not kept: deleting it makes it no better.
    pub(super) fn hold_what_is_there(&self) {
        let file = rustix::fs::openat(self.root(), STATE, READ, Mode::empty()).ok();
        self.hold(file.filter(|_| !self.went_down() && !self.is_under_way()));
    }

    pub(super) fn hold(&self, file: Option<OwnedFd>) {
        self.memory().held = file;
    }

    /// A commit was begun, and whether it became a version is not known here.
    pub(super) fn is_under_way(&self) -> bool {
        rustix::fs::statat(self.root(), STATE_NEXT, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// What a state file said that is not there any more.
    fn lost(&self) -> Option<StateFile> {
        let memory = self.memory();
        let file = memory.held.as_ref()?;
        if self.is_under_way() || self.disturbed.load(Ordering::Relaxed) {
            return None;
        }
        rustix::fs::seek(file, SeekFrom::Start(0)).ok()?;
        let json = read_up_to(file, MAX_STATE).ok()?;
        drop(memory);
        // Somebody may have written into it before.
        StateFile::parse_local(&json, &self.limits).ok().filter(|state| state.commit.is_some())
    }

    /// What to walk by where the state file is missing, and was not taken back already.
    pub(super) fn lost_where_missing(&self, base: &Base, ask: &ScanAsk) -> Option<StateFile> {
        if ask.shared {
            self.hold(None);
        }
        let is_unknown = base.is_missing() && base.state.is_none();
        if is_unknown && !ask.regenerate { self.lost() } else { None }
    }

    /// Another sync begins. The one before may have committed something.
    pub(super) fn forget_taken_back(&self) {
        let mut memory = self.memory();
        if memory.base.as_ref().is_some_and(|base| base.is_missing()) {
            memory.base = None;
        }
    }

    /// What was agreed on, for those who cannot read it at its name.
    pub fn told_base(&self) -> ScanReport {
        let base = self.base();
        let Some(state) = &base.state else { return ScanReport::default() };
        let changed = state.tree.iter().map(|(path, node)| (path.clone(), node.clone())).collect();
        ScanReport {
            base: state.commit.clone(),
            last_synced_at: Some(state.last_synced_at),
            delta: Delta { changed, ..Delta::default() },
            ..ScanReport::default()
        }
    }

    /// What was lost is the base of this sync, as far as the workspace still shows it. Its agreement writes it anew.
    pub(super) fn take_back(&self, lost: StateFile, found: &Found) -> Arc<Base> {
        let base = Arc::new(Base::without_file(as_found(lost, found)));
        self.memory().base = Some(base.clone());
        base
    }
}

/// S3: missing means empty, so what is missing too comes back. What is there is known to have been had, and so is what
/// cannot be there: beneath something that is no directory, and in a repository, which is whole or not at all. What
/// could not be looked at counts as it was.
fn as_found(lost: StateFile, found: &Found) -> StateFile {
    let now: Tree = found.entries.iter().map(|(path, seen)| (path.clone(), seen.node.clone())).collect();
    let problems: BTreeSet<&FileName> = found.problems.iter().map(|(path, _)| path).collect();
    let stays =
        |path: &FileName| now.get(path).is_some() || was_deleted(path, &now) || is_unseen(path, &problems);
    let mut tree: Tree = lost.tree.0.into_iter().filter(|(path, _)| stays(path)).collect();
    tree.add_parents();
    let digest = tree.digest();
    let commit = lost.commit.map(|was| match was.tree == digest {
        true => was,
        false => CommitRef { tree: digest, partial: true, ..was },
    });
    StateFile { commit, tree, ..lost }
}

fn was_deleted(path: &FileName, now: &Tree) -> bool {
    let name = |path: &[u8]| FileName(path.to_vec());
    let is_no_dir = |above: &[u8]| now.get(&name(above)).is_some_and(|node: &Node| !node.is_dir());
    let has_more = |unit: &[u8]| now.beneath(&name(unit)).next().is_some();
    path::ancestors(path.as_bytes()).any(is_no_dir) || unit_of(path.as_bytes()).is_some_and(has_more)
}
