//! A test for each row of `cells/table.txt`, and for trees that one path cannot show (`cells/trees.rs`).

#[path = "cells/trees.rs"]
mod trees;

use libtest_mimic::{Arguments, Failed, Trial};
use seawall_api::files::FileName;
use seawall_sync::{
    diff::{Note, Sides, diff},
    sums::Sums,
    tree::{File, Mtime, Node, Tree},
};

fn main() {
    let mut trials: Vec<Trial> =
        rows().into_iter().map(|row| Trial::test(row.name(), move || row.check())).collect();
    trials.extend(trees::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

struct Row {
    base: String,
    local: String,
    remote: String,
    merged: String,
    note: String,
}

fn rows() -> Vec<Row> {
    let lines =
        include_str!("cells/table.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rows: Vec<Row> = lines.map(row).collect();
    assert!(rows.len() > 150, "the table has {} rows", rows.len());
    rows
}

fn row(line: &str) -> Row {
    let mut words = line.split_whitespace().map(str::to_owned);
    let mut word = || words.next().unwrap_or_default();
    let (base, local, remote, arrow) = (word(), word(), word(), word());
    assert_eq!(arrow, "=>", "{line}");
    Row { base, local, remote, merged: word(), note: word() }
}

/// One node, as the table writes it.
pub fn node(symbol: &str) -> Option<Node> {
    let mtime = Mtime { secs: 1, nanos: 0 };
    Some(match symbol {
        "-" | "?" => return None,
        "/" | "/r" | "/s" => {
            let mode = match symbol {
                "/" => 0o755,
                "/r" => 0o700,
                _ => 0o711,
            };
            Node::Dir { mode: Some(mode), mtime }
        }
        link if link.starts_with('@') => Node::Link { target: FileName::from(&link[1..]), mtime },
        body => Node::File(File {
            size: body.len() as u64,
            sums: Sums::of(body.as_bytes()),
            mode: Some(0o644),
            mtime,
            place: None,
        }),
    })
}

fn tree(symbol: &str) -> Tree {
    node(symbol).map(|node| (FileName::from("p.txt"), node)).into_iter().collect()
}

impl Row {
    fn name(&self) -> String {
        let Row { base, local, remote, .. } = self;
        format!("s4_cell::base {base} local {local} remote {remote}")
    }

    fn check(&self) -> Result<(), Failed> {
        let (base, local, remote) = (tree(&self.base), tree(&self.local), tree(&self.remote));
        let base = (self.base != "?").then_some(&base);
        let plan = diff(Sides { base, local: &local, remote: &remote });
        let at = plan.merged.get(&FileName::from("p.txt"));
        let expected = node(&self.merged);
        if !match (at, &expected) {
            (Some(at), Some(expected)) => at.same(expected),
            (at, expected) => at.is_none() && expected.is_none(),
        } {
            return Err(format!("there is {at:?} instead of {expected:?}").into());
        }
        self.check_notes(&plan.notes, &plan.merged)
    }

    fn check_notes(&self, notes: &[Note], merged: &Tree) -> Result<(), Failed> {
        let right = match (self.note.as_str(), notes) {
            ("", []) => merged.len() == usize::from(self.merged != "-"),
            ("kept", [Note::KeptChanged { .. }]) | ("restored", [Note::Restored { .. }]) => merged.len() == 1,
            (copy, [Note::Conflict { kept_as, .. }]) => {
                let kept = merged.get(kept_as);
                merged.len() == 2 && copy.strip_prefix('+').and_then(node).as_ref() == kept
            }
            _ => false,
        };
        match right {
            true => Ok(()),
            false => {
                Err(format!("{:?} was expected, and told was {notes:?} of {merged:?}", self.note).into())
            }
        }
    }
}
