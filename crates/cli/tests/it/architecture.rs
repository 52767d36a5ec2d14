//! The rules that the layout keeps, read from the manifests and the sources. A failure names the file and
//! the rule.

mod manifests;
mod source;
mod sources;

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[track_caller]
fn none(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "\nrule: {rule}\n  {}\n", broken.join("\n  "));
}
