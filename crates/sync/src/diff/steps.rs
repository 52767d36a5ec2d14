//! From the workspace as it was scanned to the merged tree, in an order that works.

use super::Move;
use crate::{
    path,
    tree::{Node, Tree},
};
use seawall_api::files::FileName;
use std::borrow::Cow;

/// One change of a workspace. Each is refused where the path is no longer as it was scanned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Move {
        from: FileName,
        to: FileName,
    },
    /// A file, a link, or a directory that is empty by now.
    Remove {
        path: FileName,
    },
    /// A directory, or its mode.
    Dir {
        path: FileName,
        node: Node,
    },
    /// Mode and time of a directory that has all that belongs into it.
    Finish {
        path: FileName,
        node: Node,
    },
    Link {
        path: FileName,
        node: Node,
    },
    /// Its body follows.
    File {
        path: FileName,
        node: Node,
    },
    /// Mode and time of a file that has its body.
    Meta {
        path: FileName,
        node: Node,
    },
}

impl Step {
    pub fn path(&self) -> &FileName {
        match self {
            Step::Move { from: path, .. }
            | Step::Remove { path }
            | Step::Dir { path, .. }
            | Step::Finish { path, .. }
            | Step::Link { path, .. }
            | Step::File { path, .. }
            | Step::Meta { path, .. } => path,
        }
    }
}

/// Moves, removals from the bottom up, directories from the top down, then the rest.
pub fn steps(local: &Tree, moves: &[Move], merged: &Tree) -> Vec<Step> {
    let moved = match moves.is_empty() {
        true => Cow::Borrowed(local),
        false => Cow::Owned(after_moves(local, moves)),
    };
    let mut steps: Vec<Step> =
        moves.iter().map(|Move { from, to }| Step::Move { from: from.clone(), to: to.clone() }).collect();
    for (path, node) in moved.0.iter().rev() {
        let wanted = merged.get(path);
        // A rename can replace anything but a directory, and by anything but one.
        if wanted.is_none_or(|wanted| wanted.is_dir() != node.is_dir()) {
            steps.push(Step::Remove { path: path.clone() });
        }
    }
    let mut rest = Vec::new();
    for (path, node) in merged.iter() {
        let there = moved.get(path).filter(|there| there.is_dir() == node.is_dir());
        let unchanged = match (node, there) {
            (Node::Dir { .. }, Some(there)) => there.same_mode(node),
            (_, Some(there)) => there.same(node),
            _ => false,
        };
        if unchanged {
            continue;
        }
        let (path, node) = (path.clone(), node.clone());
        match (&node, there) {
            (Node::Dir { .. }, _) => steps.push(Step::Dir { path, node }),
            (Node::File(_), Some(there)) if there.same_content(&node) => rest.push(Step::Meta { path, node }),
            (Node::File(_), _) => rest.push(Step::File { path, node }),
            (Node::Link { .. }, _) => rest.push(Step::Link { path, node }),
        }
    }
    steps.extend(rest);
    steps
}

fn after_moves(local: &Tree, moves: &[Move]) -> Tree {
    let mut tree = local.clone();
    for Move { from, to } in moves {
        let inside: Vec<FileName> = super::git::parts(from, &tree).map(|(path, _)| path.clone()).collect();
        for path in inside {
            if let Some(node) = tree.0.remove(&path) {
                let moved = path::rebase(path.as_bytes(), from.as_bytes(), to.as_bytes());
                tree.0.insert(FileName(moved), node);
            }
        }
    }
    tree
}
