//! The scan: how the files differ from what was agreed on.

use super::{
    Disk,
    held::TOLD,
    index::{Index, Seen},
    state::Base,
    walk::Walk,
};
use crate::{
    state::{CommitRef, StateFile},
    tree::{Delta, Node, Tree},
};
use seawall_api::files::FileName;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScanAsk {
    /// Paths that count although a rule leaves them out: the bucket has something there.
    #[serde(default)]
    pub also: Vec<FileName>,
    /// Take no state file for an answer: all that is there is told.
    #[serde(default)]
    pub regenerate: bool,
    /// Read every file, also those that look unchanged.
    #[serde(default)]
    pub rehash: bool,
    /// The volume has other guests too, which may have agreed on something else since.
    #[serde(default)]
    pub shared: bool,
    /// How many bytes the holes of all files may have together. What is more is a problem of its file. None:
    /// [`MAX_HOLE_BYTES`].
    #[serde(default)]
    pub max_hole_bytes: Option<u64>,
}

/// Holes cost no disk and must be hashed all the same: with MD5 so many take half a minute.
pub const MAX_HOLE_BYTES: u64 = 16 << 30;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanReport {
    /// What was agreed on, and what the delta starts from. None: it starts from nothing.
    pub base: Option<CommitRef>,
    /// A commit that was under way when its sync died.
    pub pending: Option<CommitRef>,
    /// Unix seconds; none without a state file.
    pub last_synced_at: Option<i64>,
    /// Of the state file; none without one.
    pub state_bytes: Option<u64>,
    /// What is wrong with the state file: why it could not be used, or that it is gone.
    pub base_problem: Option<String>,
    pub delta: Delta,
    /// What could not be looked at. It counts as unchanged.
    pub problems: Vec<(FileName, String)>,
    pub ignored: Vec<FileName>,
    pub ignored_count: u64,
    pub special: u64,
    pub scanned: u64,
    pub hashed: u64,
}

impl Disk {
    pub fn scan(&self, ask: &ScanAsk) -> ScanReport {
        self.restore_modes();
        let mut base = self.base();
        let lost = self.lost_where_missing(&base, ask);
        let known = match ask.rehash {
            true => Arc::default(),
            false => self.memory().index.clone(),
        };
        let also: BTreeSet<FileName> = ask.also.iter().cloned().collect();
        let tree = lost.as_ref().or(usable(&base, ask)).map(|state| &state.tree);
        let max_holes = ask.max_hole_bytes.unwrap_or(MAX_HOLE_BYTES);
        let mut found = Walk { disk: self, known: &known, base: tree, also: &also, max_holes }.run();
        self.without_temporary_modes(&mut found.entries);
        if let Some(lost) = lost {
            base = self.take_back(lost, &found);
        }
        let usable = usable(&base, ask);
        let tree = usable.map(|state| &state.tree);
        let problems: BTreeSet<&FileName> = found.problems.iter().map(|(path, _)| path).collect();
        let delta = delta(tree.unwrap_or(&Tree::default()), &found.entries, &problems);
        let report = ScanReport {
            base: usable.and_then(|state| state.commit.clone()),
            pending: self.pending().map(|pending| pending.commit),
            last_synced_at: base.state.as_ref().map(|state| state.last_synced_at),
            state_bytes: self.state_bytes(),
            base_problem: problem(&base, ask),
            delta,
            scanned: found.entries.iter().filter(|(_, seen)| !seen.node.is_dir()).count() as u64,
            problems: found.problems,
            ignored: found.ignored,
            ignored_count: found.ignored_count,
            special: found.special,
            hashed: found.hashed,
        };
        self.memory().index = Arc::new(Index(found.entries));
        report
    }
}

fn usable<'a>(base: &'a Base, ask: &ScanAsk) -> Option<&'a StateFile> {
    base.state.as_ref().filter(|state| state.commit.is_some() && !ask.regenerate)
}

fn problem(base: &Base, ask: &ScanAsk) -> Option<String> {
    match ask.regenerate {
        true => Some("it is regenerated, as asked".to_owned()),
        false if base.is_missing() && base.state.is_some() => Some(TOLD.to_owned()),
        false => base.problem.clone(),
    }
}

/// Both are sorted, so one pass is enough.
fn delta(base: &Tree, now: &[(FileName, Seen)], problems: &BTreeSet<&FileName>) -> Delta {
    let mut delta = Delta::default();
    let mut old = base.iter().peekable();
    let mut gone = |path: &FileName| {
        if !is_unseen(path, problems) {
            delta.removed.push(path.clone());
        }
    };
    for (path, seen) in now {
        while let Some((path, _)) = old.next_if(|(was, _)| *was < path) {
            gone(path);
        }
        let was = old.next_if(|(was, _)| *was == path).map(|(_, node)| node);
        if was.is_none_or(|was| is_changed(was, &seen.node)) {
            delta.changed.push((path.clone(), seen.node.clone()));
        }
    }
    for (path, _) in old {
        gone(path);
    }
    delta
}

fn is_changed(was: &Node, now: &Node) -> bool {
    !was.same(now)
}

/// It may be there: it, or something above it, could not be looked at.
pub(super) fn is_unseen(path: &FileName, problems: &BTreeSet<&FileName>) -> bool {
    if problems.is_empty() {
        return false;
    }
    let root = FileName::default();
    problems.contains(&root)
        || problems.contains(path)
        || crate::path::ancestors(path.as_bytes()).any(|above| problems.contains(&FileName(above.to_vec())))
}
