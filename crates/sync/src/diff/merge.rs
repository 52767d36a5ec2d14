//! One path, three sides.

use crate::tree::{File, Node};

/// Whose node it is. Decides who makes room where two do not fit into one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Local,
    Remote,
    Both,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    Gone,
    Take(Node, Side),
    /// Changed here, deleted there.
    KeptChanged(Node),
    /// Deleted here, changed there.
    Restored(Node),
    Conflict {
        local: Node,
        remote: Node,
    },
}

pub fn one(base: Option<&Node>, local: Option<&Node>, remote: Option<&Node>) -> Choice {
    match (local, remote) {
        (None, None) => Choice::Gone,
        (Some(local), None) => match base {
            Some(base) if unchanged(base, local) => Choice::Gone,
            Some(_) => Choice::KeptChanged(local.clone()),
            None => Choice::Take(local.clone(), Side::Local),
        },
        (None, Some(remote)) => match base {
            Some(base) if unchanged(base, remote) => Choice::Gone,
            Some(_) => Choice::Restored(remote.clone()),
            None => Choice::Take(remote.clone(), Side::Remote),
        },
        (Some(local), Some(remote)) => both(base, local, remote),
    }
}

/// A time alone is no change that is worth keeping a deleted file for.
fn unchanged(base: &Node, now: &Node) -> bool {
    base.same_content(now) && base.same_mode(now)
}

fn both(base: Option<&Node>, local: &Node, remote: &Node) -> Choice {
    if local.same_content(remote) {
        return Choice::Take(attributes(base, local, remote, remote), Side::Both);
    }
    match base {
        Some(base) if base.same_content(local) => {
            Choice::Take(attributes(Some(base), local, remote, remote), Side::Remote)
        }
        Some(base) if base.same_content(remote) => {
            Choice::Take(attributes(Some(base), local, remote, local), Side::Local)
        }
        _ => Choice::Conflict { local: local.clone(), remote: remote.clone() },
    }
}

/// `body` with the mode and the time of whoever changed them; the remote has the last word on modes.
fn attributes(base: Option<&Node>, local: &Node, remote: &Node, body: &Node) -> Node {
    let mut node = body.clone();
    let is_one_kind = std::mem::discriminant(local) == std::mem::discriminant(remote);
    if !is_one_kind {
        return node;
    }
    let remote_kept = base.is_some_and(|base| base.same_mode(remote));
    let chosen = if remote_kept { local } else { remote };
    let chosen = chosen.mode().or(local.mode()).or(remote.mode());
    match &mut node {
        Node::File(File { mode, .. }) | Node::Dir { mode, .. } => *mode = chosen,
        Node::Link { .. } => {}
    }
    if local.same_content(remote) {
        let time = time(base, local, remote);
        match &mut node {
            Node::File(File { mtime, .. }) | Node::Link { mtime, .. } | Node::Dir { mtime, .. } => {
                *mtime = time;
            }
        }
    }
    node
}

/// Of one body with two times: the one that was set since, else the later.
fn time(base: Option<&Node>, local: &Node, remote: &Node) -> crate::tree::Mtime {
    let was = base.map(Node::mtime);
    match (local.mtime(), remote.mtime()) {
        (local, remote) if Some(local) == was => remote,
        (local, remote) if Some(remote) == was => local,
        (local, remote) => local.max(remote),
    }
}
