//! What cannot be in one tree: a file of one side where the other has a directory.
//!
//! The remote has the path. What is local and in the way, or without a place to be, is kept beside it.

use super::{Merger, Move, Note, Side, Sides, Wanted, names};
use crate::{
    path,
    tree::{Mtime, Node},
};
use seawall_api::files::FileName;
use std::collections::BTreeSet;

impl Merger<'_> {
    /// Keeps the local copy: the file or link itself, or the directory with what is wanted of it.
    pub(super) fn displace(&mut self, at: &FileName) {
        let Some(node) = self.sides.local.get(at) else { return };
        let mut parts = vec![(at.clone(), node.clone())];
        if node.is_dir() {
            let (from, to) = path::beneath(at);
            let wanted = self.wanted.range(from..to).filter(|(_, wanted)| wanted.side == Side::Local);
            parts.extend(wanted.map(|(path, wanted)| (path.clone(), wanted.node.clone())));
            for (path, _) in &parts[1..] {
                self.wanted.remove(path);
            }
        }
        self.keep_beside(at, parts);
    }

    /// Wants `parts`, which lie at and beneath `at`, under another name, unless they are kept already.
    pub(super) fn keep_beside(&mut self, at: &FileName, parts: Vec<(FileName, Node)>) {
        for number in 1.. {
            let to = names::conflict_name(at, &parts, number);
            let moved =
                |path: &FileName| FileName(path::rebase(path.as_bytes(), at.as_bytes(), to.as_bytes()));
            let is_kept = parts.iter().all(|(path, node)| self.stays(&moved(path), node));
            let is_free = self.sides.local.get(&to).is_none()
                && self.sides.remote.get(&to).is_none()
                && !self.wanted.contains_key(&to);
            if !is_kept && !is_free {
                continue;
            }
            self.notes.push(Note::Conflict { path: at.clone(), kept_as: to.clone() });
            if !is_kept {
                self.moves.push(Move { from: at.clone(), to: to.clone() });
                for (path, node) in &parts {
                    self.want(moved(path), node.clone(), Side::Local);
                }
            }
            return;
        }
    }

    /// Whether the remote has this at a path, and it stays there: a sync committed the copy and died.
    fn stays(&self, path: &FileName, node: &Node) -> bool {
        let keeps = |kept: &Node| kept.same_content(node);
        let Sides { base, local, remote } = self.sides;
        let here = match local.get(path) {
            Some(kept) => keeps(kept),
            // Deleted here it would go there too.
            None => base.is_none_or(|base| base.get(path).is_none()),
        };
        here && remote.get(path).is_some_and(keeps)
            && self.wanted.get(path).is_none_or(|wanted| keeps(&wanted.node))
    }

    /// Makes one tree of what is wanted.
    pub(super) fn separate(&mut self) {
        let mut blocked: BTreeSet<FileName> = BTreeSet::new();
        for path in self.wanted.keys() {
            for above in path::ancestors(path.as_bytes()) {
                let above = FileName(above.to_vec());
                if self.wanted.get(&above).is_some_and(|wanted| !wanted.node.is_dir()) {
                    blocked.insert(above);
                }
            }
        }
        for path in blocked {
            self.unblock(&path);
        }
    }

    fn unblock(&mut self, path: &FileName) {
        let is_local = self.wanted.get(path).is_some_and(|wanted| wanted.side == Side::Local);
        if is_local {
            // A local file where the remote has a directory with something in it.
            self.displace(path);
            let dir = match self.sides.remote.get(path) {
                Some(dir @ Node::Dir { .. }) => dir.clone(),
                _ => bare_dir(),
            };
            self.want(path.clone(), dir, Side::Remote);
        } else {
            // A local directory with something in it where the remote has a file.
            self.displace(path);
        }
    }

    /// Whatever is wanted has directories above it.
    pub(super) fn add_parents(&mut self) {
        let mut missing: BTreeSet<FileName> = BTreeSet::new();
        for path in self.wanted.keys() {
            for above in path::ancestors(path.as_bytes()) {
                let above = FileName(above.to_vec());
                if self.wanted.contains_key(&above) || !missing.insert(above) {
                    break;
                }
            }
        }
        for path in missing {
            let sides = [Some(self.sides.local), Some(self.sides.remote), self.sides.base];
            let mut known = sides.into_iter().flatten().filter_map(|side| side.get(&path));
            let node = known.find(|node| node.is_dir()).cloned().unwrap_or_else(bare_dir);
            self.wanted.insert(path, Wanted { node, side: Side::Both });
        }
    }
}

fn bare_dir() -> Node {
    Node::Dir { mode: None, mtime: Mtime::default() }
}
