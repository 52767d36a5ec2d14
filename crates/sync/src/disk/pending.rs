//! A commit that is under way. If its sync dies, the next one knows what this workspace had in it.
//!
//! Without that the base would be the one from before, and what the user does next to a file that was just pushed
//! would look as if two had changed it.

use super::{Disk, hash::READ, state::read_up_to};
use crate::{
    path::{STATE_NEXT, STATE_TEMPORARY},
    state::{CommitRef, StateFile},
    sums::Strong,
    tree::{Delta, Mtime, Node, Tree},
    workspace::Agree,
};
use rustix::{
    fs::{AtFlags, Mode},
    io::Errno,
};
use seawall_api::files::FileName;
use serde::{Deserialize, Serialize};
use std::io;

const MAX_PENDING: usize = 2 << 30;

/// From what was agreed on to what will be: small, where little changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub commit: CommitRef,
    /// The digest of what the delta starts from; none: from nothing.
    base: Option<Strong>,
    delta: Delta,
}

#[derive(Serialize, Deserialize)]
struct Document {
    commit: CommitRef,
    base: Option<Strong>,
    /// A state file with what is there or different.
    changed: Box<serde_json::value::RawValue>,
    removed: Vec<FileName>,
}

impl Disk {
    /// None where there is none, or none that can be read: then nothing is known of it.
    pub(super) fn pending(&self) -> Option<Pending> {
        let file = rustix::fs::openat(self.root(), STATE_NEXT, READ, Mode::empty()).ok()?;
        let json = read_up_to(&file, MAX_PENDING).ok()?;
        let document: Document = serde_json::from_slice(&json).ok()?;
        let changed = StateFile::parse(document.changed.get().as_bytes(), &self.limits).ok()?;
        // Directories that only the reading implied say nothing.
        let told = |(_, node): &(FileName, Node)| !matches!(node, Node::Dir { mode: None, mtime } if *mtime == Mtime::default());
        let changed = changed.tree.0.into_iter().filter(told).collect();
        let delta = Delta { changed, removed: document.removed };
        Some(Pending { commit: document.commit, base: document.base, delta })
    }

    pub fn prepare(&self, agree: Agree) -> io::Result<()> {
        let before = self.base();
        let base = match (&before.state, agree.from_base) {
            (Some(state), true) => state.commit.as_ref().map(|commit| commit.tree),
            _ => None,
        };
        let tree: Tree = agree.delta.changed.into_iter().collect();
        let changed = StateFile { last_synced_at: agree.now, commit: None, packed: false, tree }.to_json();
        let changed = serde_json::from_slice(&changed)?;
        let document = Document { commit: agree.commit, base, changed, removed: agree.delta.removed };
        // Whether it becomes a version nobody knows, should this file be deleted too.
        self.hold(None);
        // A loss of power may undo it: then the base is the one from before, and nothing is lost.
        self.write_beside(&serde_json::to_vec(&document)?)?;
        Ok(rustix::fs::renameat(self.root(), STATE_TEMPORARY, self.root(), STATE_NEXT)?)
    }

    /// What was prepared for became true, or did not.
    pub fn settle(&self, commit: Option<CommitRef>, now: i64) -> io::Result<()> {
        let came_to_nothing = commit.is_none();
        if let (Some(commit), Some(pending)) = (commit, self.pending()) {
            let before = self.base();
            let from = match (&before.state, pending.base) {
                (_, None) => Some(Tree::default()),
                (Some(state), Some(base)) if state.tree.digest() == base => Some(state.tree.clone()),
                // It starts from what is no longer here.
                _ => None,
            };
            if let Some(mut tree) = from {
                pending.delta.apply(&mut tree);
                tree.add_parents();
                let commit = CommitRef { tree: tree.digest(), partial: true, ..commit };
                return self.write_state(StateFile {
                    last_synced_at: now,
                    commit: Some(commit),
                    packed: false,
                    tree,
                });
            }
        }
        self.forget_pending()?;
        if came_to_nothing {
            self.hold_what_is_there();
        }
        Ok(())
    }

    pub(super) fn forget_pending(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(self.root(), STATE_NEXT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
