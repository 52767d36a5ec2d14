//! Repositories are never mixed: what is inside a `.git` belongs together.
//!
//! Where both sides changed one, taking single files of each would give a repository that neither had. So the
//! whole of one side takes the path, and the whole other one is kept beside it.

use super::{Merger, Side, Sides};
use crate::tree::{Node, Tree};
use seawall_api::files::FileName;
use std::collections::BTreeMap;

/// What becomes of a repository that both sides changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Local,
    Remote,
    Conflict,
    /// The local one is on its way from the base to the remote one: a pull died.
    Finish,
}

/// The outermost `.git` that a path is or is in.
pub fn unit_of(path: &[u8]) -> Option<&[u8]> {
    let mut start = 0;
    for part in path.split(|byte| *byte == b'/') {
        let end = start + part.len();
        if part == b".git" {
            return Some(&path[..end]);
        }
        start = end + 1;
    }
    None
}

/// The repositories that both sides changed, each differently.
pub fn torn<'a>(sides: &Sides<'a>, paths: &[&'a FileName]) -> BTreeMap<&'a [u8], Verdict> {
    let mut torn = BTreeMap::new();
    let mut seen: Option<&[u8]> = None;
    for path in paths {
        let unit = unit_of(path.as_bytes());
        if unit.is_none() || unit == seen {
            continue;
        }
        seen = unit;
        let Some(unit) = unit.filter(|unit| !torn.contains_key(unit)) else { continue };
        if let Some(verdict) = verdict(sides, &FileName(unit.to_vec())) {
            torn.insert(unit, verdict);
        }
    }
    torn
}

fn verdict(sides: &Sides<'_>, unit: &FileName) -> Option<Verdict> {
    let changed = |side: &Tree| sides.base.is_none_or(|base| !is_same(unit, base, side));
    if is_same(unit, sides.local, sides.remote) || !changed(sides.local) || !changed(sides.remote) {
        return None;
    }
    let was_there = sides.base.is_some_and(|base| base.get(unit).is_some());
    if !was_there && (sides.local.get(unit).is_none() || sides.remote.get(unit).is_none()) {
        // New on one side: there is nothing to mix.
        return None;
    }
    if !has_own_work(sides, unit) {
        return Some(Verdict::Finish);
    }
    match (sides.local.get(unit), sides.remote.get(unit)) {
        (Some(_), Some(_)) => Some(Verdict::Conflict),
        (Some(_), None) => Some(Verdict::Local),
        (None, Some(_)) => Some(Verdict::Remote),
        (None, None) => None,
    }
}

/// Whether anything in it is neither as the base nor as the remote has it.
fn has_own_work(sides: &Sides<'_>, unit: &FileName) -> bool {
    let Sides { base, local, remote } = sides;
    let is = |one: Option<&Node>, other: Option<&Node>| match (one, other) {
        (Some(one), Some(other)) => one.same_content(other) && one.same_mode(other),
        (one, other) => one.is_none() && other.is_none(),
    };
    let all = [Some(*local), Some(*remote), *base].into_iter().flatten();
    all.flat_map(|tree| parts(unit, tree)).any(|(path, _)| {
        let here = local.get(path);
        !is(here, remote.get(path)) && !is(here, base.and_then(|base| base.get(path)))
    })
}

/// The unit itself and what is beneath it.
pub fn parts<'a>(unit: &FileName, tree: &'a Tree) -> impl Iterator<Item = (&'a FileName, &'a Node)> {
    tree.0.get_key_value(unit).into_iter().chain(tree.beneath(unit))
}

fn is_same(unit: &FileName, one: &Tree, other: &Tree) -> bool {
    let unchanged = |(a, b): ((&FileName, &Node), (&FileName, &Node))| {
        a.0 == b.0 && a.1.same_content(b.1) && a.1.same_mode(b.1)
    };
    parts(unit, one).count() == parts(unit, other).count()
        && parts(unit, one).zip(parts(unit, other)).all(unchanged)
}

impl Merger<'_> {
    pub(super) fn settle_unit(&mut self, unit: &FileName, verdict: Verdict) {
        let Sides { local, remote, .. } = self.sides;
        match verdict {
            Verdict::Local => {
                self.notes.push(super::Note::KeptChanged { path: unit.clone() });
                self.want_unit(unit, local, Side::Local);
            }
            Verdict::Remote => {
                self.notes.push(super::Note::Restored { path: unit.clone() });
                self.want_unit(unit, remote, Side::Remote);
            }
            Verdict::Finish => self.want_unit(unit, remote, Side::Remote),
            Verdict::Conflict => {
                self.want_unit(unit, remote, Side::Remote);
                // The whole local one, also what did not change in it.
                let parts = parts(unit, local).map(|(path, node)| (path.clone(), node.clone())).collect();
                self.keep_beside(unit, parts);
            }
        }
    }

    fn want_unit(&mut self, unit: &FileName, tree: &Tree, side: Side) {
        for (path, node) in parts(unit, tree) {
            self.want(path.clone(), node.clone(), side);
        }
    }
}
