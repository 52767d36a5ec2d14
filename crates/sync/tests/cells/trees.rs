//! Trees in which one path decides over others: a file in the way of a directory, and repositories.

use crate::node;
use libtest_mimic::{Failed, Trial};
use seawall_api::files::FileName;
use seawall_sync::{
    diff::{Note, Plan, Sides, diff, steps},
    tree::Tree,
};

/// What it shows; base, local, remote and the result as `path=symbol` with `%` for a conflict's digits; the notes.
type Case = (&'static str, [&'static str; 4], &'static [&'static str]);

const CASES: [Case; 16] = [
    (
        "a local file where the remote made a directory",
        ["", "p=a", "p=/ p/x=b", "p=/ p/x=b p.conflict-%=a"],
        &["conflict p"],
    ),
    (
        "a local directory where the remote made a file",
        ["", "p=/ p/x=a", "p=b", "p=b p.conflict-%=/ p.conflict-%/x=a"],
        &["conflict p"],
    ),
    (
        "a directory that became a file there, with a change inside it here",
        ["p=/ p/x=a p/y=a", "p=/ p/x=b p/y=a", "p=c", "p=c p.conflict-%=/ p.conflict-%/x=b"],
        &["kept p/x", "conflict p"],
    ),
    ("a directory that became a file there, untouched here", ["p=/ p/x=a", "p=/ p/x=a", "p=c", "p=c"], &[]),
    (
        "a directory that became a file here, with a change inside it there",
        ["p=/ p/x=a", "p=c", "p=/ p/x=b", "p=/ p/x=b p.conflict-%=c"],
        &["restored p/x", "conflict p"],
    ),
    ("a directory that became a file here, untouched there", ["p=/ p/x=a", "p=c", "p=/ p/x=a", "p=c"], &[]),
    (
        "a directory deleted there, with a new file in it here",
        ["p=/ p/x=a", "p=/ p/x=a p/new=b", "", "p=/ p/new=b"],
        &[],
    ),
    (
        "a directory deleted here, with a new file in it there",
        ["p=/ p/x=a", "", "p=/ p/x=a p/new=b", "p=/ p/new=b"],
        &[],
    ),
    ("a directory deleted on both sides", ["p=/ p/x=a", "", "", ""], &[]),
    (
        "a directory that became a link there, with a new file in it here",
        ["p=/", "p=/ p/x=a", "p=@t", "p=@t p.conflict-%=/ p.conflict-%/x=a"],
        &["conflict p"],
    ),
    (
        "a repository that one side changed",
        [
            ".git=/ .git/HEAD=a .git/x=a",
            ".git=/ .git/HEAD=b .git/x=a",
            ".git=/ .git/HEAD=a .git/x=a",
            ".git=/ .git/HEAD=b .git/x=a",
        ],
        &[],
    ),
    (
        "a repository that both changed is kept twice, whole",
        [
            ".git=/ .git/HEAD=a .git/x=a",
            ".git=/ .git/HEAD=b .git/x=a",
            ".git=/ .git/HEAD=a .git/x=c",
            ".git=/ .git/HEAD=a .git/x=c .git.conflict-%=/ .git.conflict-%/HEAD=b .git.conflict-%/x=a",
        ],
        &["conflict .git"],
    ),
    (
        "a repository that both made",
        [
            "",
            "s=/ s/.git=/ s/.git/HEAD=a",
            "s=/ s/.git=/ s/.git/HEAD=b",
            "s=/ s/.git=/ s/.git/HEAD=b s/.git.conflict-%=/ s/.git.conflict-%/HEAD=a",
        ],
        &["conflict s/.git"],
    ),
    (
        "a repository changed here and deleted there",
        [".git=/ .git/HEAD=a .git/x=a", ".git=/ .git/HEAD=b .git/x=a", "", ".git=/ .git/HEAD=b .git/x=a"],
        &["kept .git"],
    ),
    (
        "a repository deleted here and changed there",
        [".git=/ .git/HEAD=a .git/x=a", "", ".git=/ .git/HEAD=a .git/x=b", ".git=/ .git/HEAD=a .git/x=b"],
        &["restored .git"],
    ),
    (
        "beside a torn repository files are merged one by one",
        [
            ".git=/ .git/HEAD=a f=a g=a",
            ".git=/ .git/HEAD=b f=b g=a",
            ".git=/ .git/HEAD=c f=a g=c",
            ".git=/ .git/HEAD=c f=b g=c .git.conflict-%=/ .git.conflict-%/HEAD=b",
        ],
        &["conflict .git"],
    ),
];

pub fn trials() -> Vec<Trial> {
    CASES.iter().map(|case| Trial::test(format!("s4_tree::{}", case.0), move || check(case))).collect()
}

fn tree(text: &str) -> Tree {
    let entry = |word: &str| {
        let (path, symbol) = word.split_once('=').unwrap_or_else(|| panic!("{word}"));
        (FileName::from(path), node(symbol).unwrap_or_else(|| panic!("{word}")))
    };
    text.split_whitespace().map(entry).collect()
}

fn check((_, [base, local, remote, merged], notes): &Case) -> Result<(), Failed> {
    let (base, local, remote) = (tree(base), tree(local), tree(remote));
    let plan = diff(Sides { base: Some(&base), local: &local, remote: &remote });
    let found = shown(&plan);
    let expected: Vec<String> = {
        let mut all: Vec<String> = merged.split_whitespace().map(str::to_owned).collect();
        all.sort();
        all
    };
    if found != expected {
        return Err(format!("there is {found:?} instead of {expected:?}").into());
    }
    let told: Vec<String> = plan.notes.iter().map(told).collect();
    if told != *notes {
        return Err(format!("told was {told:?} instead of {notes:?}").into());
    }
    // The steps must not remove what is kept, and must be possible in their order.
    let steps = steps(&local, &plan.moves, &plan.merged);
    crate::trees::apply::check(&local, &steps, &plan.merged)
}

/// The merged tree in the table's symbols, the digits of conflict names as `%`.
fn shown(plan: &Plan) -> Vec<String> {
    let symbols = ["a", "b", "c", "@t", "/"];
    let mut all: Vec<String> = plan
        .merged
        .iter()
        .map(|(path, at)| {
            let symbol = symbols.iter().find(|symbol| node(symbol).is_some_and(|node| node.same(at)));
            format!("{}={}", without_digits(&path.lossy()), symbol.unwrap_or(&"?"))
        })
        .collect();
    all.sort();
    all
}

fn without_digits(path: &str) -> String {
    match path.find(".conflict-") {
        Some(at) => {
            let digits = at + ".conflict-".len();
            format!("{}%{}", &path[..digits], &path[digits + 8..])
        }
        None => path.to_owned(),
    }
}

fn told(note: &Note) -> String {
    match note {
        Note::Conflict { path, .. } => format!("conflict {path}"),
        Note::KeptChanged { path } => format!("kept {path}"),
        Note::Restored { path } => format!("restored {path}"),
    }
}

pub mod apply {
    //! Steps, done to a tree in memory as strictly as a file system would.

    use libtest_mimic::Failed;
    use seawall_api::files::FileName;
    use seawall_sync::{
        diff::Step,
        path,
        tree::{Node, Tree},
    };

    pub fn check(local: &Tree, steps: &[Step], merged: &Tree) -> Result<(), Failed> {
        let mut tree = local.clone();
        for step in steps {
            apply(&mut tree, step).map_err(|why| format!("{step:?}: {why}"))?;
        }
        match tree.same(merged) {
            true => Ok(()),
            false => Err(format!("the steps lead to {tree:?} instead of {merged:?}").into()),
        }
    }

    fn apply(tree: &mut Tree, step: &Step) -> Result<(), String> {
        let above = path::parent(step.path().as_bytes());
        if above.is_some_and(|above| !tree.get(&FileName(above.to_vec())).is_some_and(Node::is_dir)) {
            return Err("no directory above it".into());
        }
        match step {
            Step::Move { from, to } => {
                let inside: Vec<FileName> = tree.beneath(from).map(|(path, _)| path.clone()).collect();
                for path in inside.iter().chain([from]) {
                    let node = tree.0.remove(path).ok_or("nothing to move")?;
                    tree.0.insert(
                        FileName(path::rebase(path.as_bytes(), from.as_bytes(), to.as_bytes())),
                        node,
                    );
                }
            }
            Step::Remove { path } => {
                if tree.beneath(path).next().is_some() {
                    return Err("it is not empty".into());
                }
                tree.0.remove(path).ok_or("nothing to remove")?;
            }
            Step::Finish { .. } => {}
            Step::Dir { path, node }
            | Step::Link { path, node }
            | Step::File { path, node }
            | Step::Meta { path, node } => {
                if tree.get(path).is_some_and(|there| there.is_dir() != node.is_dir()) {
                    return Err("a directory cannot be replaced".into());
                }
                tree.0.insert(path.clone(), node.clone());
            }
        }
        Ok(())
    }
}
