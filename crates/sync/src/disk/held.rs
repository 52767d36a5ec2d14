//! The state file is kept open, so that what it said is known after it was deleted.
//!
//! `git clean -fdx` deletes it, and an agent may run that in any turn. Without a base, whatever was changed since would
//! look as if both sides had made it, and the version's files would take the place of newer ones. What is open is of
//! this workspace and of this life of the machine, and goes with the guest.

use super::{
    Disk,
    hash::READ,
    state::{Base, MAX_STATE, read_up_to},
    walk::Found,
};
use crate::{
    diff::unit_of,
    path::{self, STATE},
    state::{CommitRef, StateFile},
    tree::{Node, Tree},
};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, SeekFrom},
};
use seawall_api::files::FileName;
use std::{io, sync::Arc};

const TOLD: &str = "it was deleted while the sandbox ran; what was changed since stays";

impl Disk {
    /// What is at the name now. One that is not believed is not kept: deleting it makes it no better.
    pub(super) fn hold_what_is_there(&self) {
        let file = rustix::fs::openat(self.root(), STATE, READ, Mode::empty()).ok();
        self.hold(file.filter(|_| !self.went_down()));
    }

    pub(super) fn hold(&self, file: Option<OwnedFd>) {
        self.memory().held = file;
    }

    /// What a state file said that is not there any more.
    pub(super) fn lost(&self) -> Option<StateFile> {
        let memory = self.memory();
        let file = memory.held.as_ref()?;
        rustix::fs::seek(file, SeekFrom::Start(0)).ok()?;
        let json = read_up_to(file, MAX_STATE).ok()?;
        drop(memory);
        // Somebody may have written into it before.
        StateFile::parse_local(&json, &self.limits).ok().filter(|state| state.commit.is_some())
    }

    /// Writes a lost one anew, as far as the workspace still shows it; and what is to be told of that.
    pub(super) fn put_back(&self, lost: StateFile, found: &Found) -> (Arc<Base>, String) {
        match self.write_back(as_found(lost, found)) {
            Ok(base) => (base, TOLD.to_owned()),
            Err(error) => (Arc::default(), format!("it was deleted, and could not be written anew: {error}")),
        }
    }

    /// What is under way stays, and the mark of files that may not be on the disk yet is set anew.
    fn write_back(&self, state: StateFile) -> io::Result<Arc<Base>> {
        let mark = self.mark_fresh()?;
        let file = self.replace(&state, mark.is_none())?;
        if let Some(mark) = mark {
            self.settle_down(mark)?;
        }
        self.wrote(file, state)
    }
}

/// S3: missing means empty, so what is missing too comes back. What is there is known to have been had, and so is what
/// cannot be there: beneath something that is no directory, and in a repository, which is whole or not at all. What
/// could not be looked at counts as it was.
fn as_found(lost: StateFile, found: &Found) -> StateFile {
    let now: Tree = found.entries.iter().map(|(path, seen)| (path.clone(), seen.node.clone())).collect();
    let unseen = |path: &FileName| found.problems.iter().any(|(problem, _)| is_at_or_above(problem, path));
    let stays = |path: &FileName| now.get(path).is_some() || was_deleted(path, &now) || unseen(path);
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

fn is_at_or_above(problem: &FileName, path: &FileName) -> bool {
    let above = problem.as_bytes();
    above.is_empty() || problem == path || path::ancestors(path.as_bytes()).any(|each| each == above)
}
