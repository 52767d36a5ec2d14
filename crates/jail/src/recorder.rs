//! A kernel that only writes down what it is asked for.

use crate::kernel::{Attributes, Kernel, Source};
use std::{collections::BTreeSet, io, os::fd::RawFd};

/// What was asked for, in order, as text.
#[derive(Debug, Default)]
pub struct Recorder {
    pub asked: Vec<String>,
    /// Paths of the host that are there.
    pub there: BTreeSet<&'static str>,
    /// Those of them that are links.
    pub links: Vec<(&'static str, &'static str)>,
    /// What fails.
    pub failing: Option<&'static str>,
}

impl Recorder {
    fn note(&mut self, text: String) -> io::Result<()> {
        let fails = self.failing.is_some_and(|failing| text.starts_with(failing));
        self.asked.push(text);
        if fails { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }

    /// Where something was asked for.
    pub fn position(&self, text: &str) -> usize {
        let found = self.asked.iter().position(|asked| asked.starts_with(text));
        found.unwrap_or_else(|| panic!("`{text}` was not asked for: {:#?}", self.asked))
    }
}

fn flags(attributes: Attributes) -> String {
    let words = [
        (attributes.read_only, " ro"),
        (attributes.no_exec, " noexec"),
        (attributes.devices, " dev"),
        (attributes.mapped, " mapped"),
    ];
    words.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect()
}

fn from(source: Source<'_>) -> String {
    match source {
        Source::Host(path) => format!("host:{path}"),
        Source::Tree(fd) => format!("tree:{fd}"),
        Source::Inside(path) => format!("inside:{path}"),
    }
}

impl Kernel for Recorder {
    fn mkdir(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.note(format!("mkdir {path} {mode:o}"))
    }

    fn symlink(&mut self, target: &str, path: &str) -> io::Result<()> {
        self.note(format!("symlink {path} {target}"))
    }

    fn write(&mut self, path: &str, _content: &str) -> io::Result<()> {
        self.note(format!("write {path}"))
    }

    fn bind(&mut self, source: Source<'_>, target: &str, attributes: Attributes) -> io::Result<()> {
        self.note(format!("bind {target} {}{}", from(source), flags(attributes)))
    }

    fn bind_within(&mut self, tree: RawFd, target: &str) -> io::Result<()> {
        self.note(format!("bind_within {target} tree:{tree}"))
    }

    fn mount(
        &mut self,
        kind: &str,
        _options: &[(&str, &str)],
        target: &str,
        attributes: Attributes,
    ) -> io::Result<()> {
        self.note(format!("mount {target} {kind}{}", flags(attributes)))
    }

    fn pivot(&mut self) -> io::Result<()> {
        self.note("pivot".to_owned())
    }

    fn exists(&self, path: &str) -> bool {
        self.there.contains(path)
    }

    fn link_of(&self, path: &str) -> Option<String> {
        self.links.iter().find(|(link, _)| *link == path).map(|(_, target)| (*target).to_owned())
    }

    fn names(&self, _directory: RawFd) -> io::Result<Vec<String>> {
        Ok(vec!["ssl".to_owned(), "passwd".to_owned()])
    }
}
