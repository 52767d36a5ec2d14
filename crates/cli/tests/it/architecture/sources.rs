//! Rules that every source file keeps.

use crate::architecture::{
    none, read, root,
    source::{code_of, words},
};
use std::path::{Path, PathBuf};

/// Where `unsafe` may be said.
const UNSAFE: [&str; 2] = ["crates/guest/src/", "crates/jail/"];
/// What must not be left in code that is delivered.
const LEFT_OVER: [&str; 3] = ["todo", "unimplemented", "dbg"];
const LONGEST_FILE: usize = 500;
const LONGEST_README: usize = 150;

struct Source {
    /// From the workspace on.
    path: String,
    text: String,
}

impl Source {
    /// In a crate's `src`, as against its tests.
    fn is_delivered(&self) -> bool {
        self.path.split('/').nth(2) == Some("src")
    }
}

fn sources() -> Vec<Source> {
    let root = root();
    let mut paths = Vec::new();
    collect(&root.join("crates"), &mut paths);
    paths.sort();
    assert!(paths.len() > 100, "only {} sources were found", paths.len());
    let relative = |path: &Path| path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| Source { path: relative(path), text: read(path) }).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            if entry.file_name() != "target" {
                collect(&path, paths);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

#[test]
fn only_the_guest_and_the_jail_are_unsafe() {
    let mut broken = Vec::new();
    for source in sources() {
        if UNSAFE.iter().any(|allowed| source.path.starts_with(allowed)) {
            continue;
        }
        let code = code_of(&source.text);
        let said = words(&code).into_iter().filter(|(_, word, _)| *word == "unsafe");
        broken.extend(said.map(|(line, ..)| format!("{}:{line}", source.path)));
    }
    none("`unsafe` is said in crates/guest/src and crates/jail alone", broken);
}

#[test]
fn nothing_is_left_over() {
    let mut broken = Vec::new();
    for source in sources() {
        let code = code_of(&source.text);
        let left = words(&code).into_iter().filter(|(_, word, called)| *called && LEFT_OVER.contains(word));
        broken.extend(left.map(|(line, word, _)| format!("{}:{line}: {word}!", source.path)));
    }
    none("no todo!, unimplemented! or dbg!", broken);
}

#[test]
fn modules_have_names() {
    let named = |source: &Source| source.path.ends_with("/mod.rs");
    let broken = sources().into_iter().filter(named).map(|source| source.path).collect();
    none("no mod.rs: a module's file has the module's name", broken);
}

#[test]
fn every_file_says_what_it_is() {
    let silent = |source: &Source| source.is_delivered() && !source.text.starts_with("//!");
    let broken = sources().into_iter().filter(silent).map(|source| source.path).collect();
    none("every file under crates/*/src opens with `//!`", broken);
}

/// Lines before the tests that are in the same file.
fn length(text: &str) -> usize {
    text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count()
}

#[test]
fn files_can_be_read_in_one_go() {
    let long = |source: &Source| {
        let lines = length(&source.text);
        (lines > LONGEST_FILE).then(|| format!("{}: {lines} lines", source.path))
    };
    let broken = sources().iter().filter_map(long).collect();
    none("no file has more than 500 lines before its #[cfg(test)]", broken);
}

#[test]
fn the_readme_is_short() {
    let path = root().join("README.md");
    if !path.exists() {
        return;
    }
    let lines = read(&path).lines().count();
    let long = (lines >= LONGEST_README).then(|| format!("{}: {lines} lines", path.display()));
    none("the README has less than 150 lines", long.into_iter().collect());
}
