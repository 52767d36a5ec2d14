//! The three-way diff: base (what both sides last agreed on), local (a scan), remote (the head). Pure.
//!
//! Invariant: every body that is in `local` or in `remote` is in the merged tree, but for those that the other
//! side had and deleted, or replaced, while this side left them as the base has them. So whatever one side
//! wrote since the base is kept.
//!
//! | | remote as base | remote changed | remote lacks it |
//! | --- | --- | --- | --- |
//! | **local as base** | nothing | remote | deleted here |
//! | **local changed** | local | the same: nothing; else remote, and the local copy beside it | local, reported |
//! | **local lacks it** | deleted there | remote, reported | nothing |
//!
//! Without a base nothing counts as unchanged, so nothing is deleted. Look at [`merge`] for one path, at
//! [`clash`] for what cannot be in one tree, at [`git`] for repositories, which are never mixed.

mod clash;
mod git;
mod merge;
mod names;
mod steps;

pub use git::unit_of;
pub use steps::{Step, steps};

use crate::{
    path,
    tree::{Node, Tree},
};
use merge::{Choice, Side};
use seawall_api::files::FileName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A local copy that makes room for the remote one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Move {
    pub from: FileName,
    pub to: FileName,
}

/// What a person should hear of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Note {
    /// Changed on both sides: the remote took the path, the local copy is kept under another name.
    Conflict { path: FileName, kept_as: FileName },
    /// Changed here and deleted there: kept.
    KeptChanged { path: FileName },
    /// Deleted here and changed there: restored.
    Restored { path: FileName },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// What both sides are when all is done. Files without a place are only in the workspace so far.
    pub merged: Tree,
    pub moves: Vec<Move>,
    pub notes: Vec<Note>,
}

impl Plan {
    /// Where a file of the merged tree is in the workspace before anything is moved.
    pub fn source(&self, path: &FileName) -> FileName {
        let inside = |moved: &&Move| {
            let rest = path.as_bytes().strip_prefix(moved.to.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        match self.moves.iter().find(inside) {
            Some(moved) => {
                FileName(path::rebase(path.as_bytes(), moved.to.as_bytes(), moved.from.as_bytes()))
            }
            None => path.clone(),
        }
    }
}

/// The three sides.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    /// None where it is missing or cannot be read.
    pub base: Option<&'a Tree>,
    pub local: &'a Tree,
    pub remote: &'a Tree,
}

/// What is wanted at a path, and whose it is.
#[derive(Debug, Clone)]
struct Wanted {
    node: Node,
    side: Side,
}

struct Merger<'a> {
    sides: Sides<'a>,
    wanted: BTreeMap<FileName, Wanted>,
    moves: Vec<Move>,
    notes: Vec<Note>,
}

pub fn diff(sides: Sides<'_>) -> Plan {
    let mut merger = Merger { sides, wanted: BTreeMap::new(), moves: Vec::new(), notes: Vec::new() };
    let paths = union(&sides);
    let units = git::torn(&sides, &paths);
    for path in paths {
        if units.is_empty() || git::unit_of(path.as_bytes()).is_none_or(|unit| !units.contains_key(unit)) {
            merger.decide(path);
        }
    }
    for (unit, verdict) in &units {
        merger.settle_unit(&FileName(unit.to_vec()), *verdict);
    }
    merger.separate();
    merger.add_parents();
    let merged = merger.wanted.into_iter().map(|(path, wanted)| (path, wanted.node)).collect();
    Plan { merged, moves: merger.moves, notes: merger.notes }
}

impl Merger<'_> {
    fn decide(&mut self, path: &FileName) {
        let Sides { base, local, remote } = self.sides;
        let (base, local, remote) = (base.and_then(|base| base.get(path)), local.get(path), remote.get(path));
        match merge::one(base, local, remote) {
            Choice::Gone => {}
            Choice::Take(node, side) => self.want(path.clone(), node, side),
            Choice::KeptChanged(node) => {
                // A directory has nothing to lose, so nobody needs to hear of it.
                if !node.is_dir() {
                    self.notes.push(Note::KeptChanged { path: path.clone() });
                }
                self.want(path.clone(), node, Side::Local);
            }
            Choice::Restored(node) => {
                if !node.is_dir() {
                    self.notes.push(Note::Restored { path: path.clone() });
                }
                self.want(path.clone(), node, Side::Remote);
            }
            Choice::Conflict { local, remote } => {
                self.want(path.clone(), remote, Side::Remote);
                if !local.is_dir() {
                    self.displace(path);
                }
                // Of a directory what is in it is displaced, if anything, when all is decided.
            }
        }
    }

    fn want(&mut self, path: FileName, node: Node, side: Side) {
        self.wanted.insert(path, Wanted { node, side });
    }
}

/// The paths of all sides, sorted, each once.
fn union<'a>(sides: &Sides<'a>) -> Vec<&'a FileName> {
    let mut base = sides.base.into_iter().flat_map(|base| base.0.keys()).peekable();
    let mut local = sides.local.0.keys().peekable();
    let mut remote = sides.remote.0.keys().peekable();
    let mut all = Vec::with_capacity(sides.local.len().max(sides.remote.len()));
    loop {
        let heads = [base.peek(), local.peek(), remote.peek()];
        let Some(next) = heads.into_iter().flatten().min().copied() else { return all };
        base.next_if(|path| *path == next);
        local.next_if(|path| *path == next);
        remote.next_if(|path| *path == next);
        all.push(next);
    }
}
