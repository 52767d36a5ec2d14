//! Listings: sorted, to any depth, in pages, with memory for a page and no more.

use super::{Place, meta};
use crate::fault::{Outcome, from_errno, invalid};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};
use seawall_api::{
    files::{Entry, EntryKind, FileName, ListDir, Listing, MAX_PAGE, Root},
    sandbox::WORKDIR,
};
use std::{collections::BinaryHeap, ffi::OsStr, os::unix::ffi::OsStrExt};

/// Below this the kernel's own limit on paths is near, and each level costs a descriptor.
const MAX_DEPTH: u32 = 128;
/// A page must fit into one frame.
const MAX_BYTES: usize = 512 << 10;

pub fn list(place: &Place, list: &ListDir) -> Outcome<Listing> {
    if list.depth == 0 || list.limit == 0 || list.limit > MAX_PAGE {
        return Err(invalid(format!("depth starts at 1, and a page has 1 to {MAX_PAGE} entries")));
    }
    let after: Vec<Vec<u8>> = match &list.after {
        Some(path) => path.as_bytes().split(|b| *b == b'/').map(<[u8]>::to_vec).collect(),
        None => Vec::new(),
    };
    let dir = place.path.open(place.root(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut walk = Walk {
        workspace: workspace_in(place, list.dir.root),
        limit: list.limit as usize,
        bytes: 0,
        capped: list.depth > MAX_DEPTH,
        listing: Listing { entries: Vec::new(), next: None, unreadable: Vec::new() },
    };
    let full = walk
        .dir(&dir, b"", &after, list.depth.min(MAX_DEPTH))
        .map_err(|errno| from_errno(place.path.shown(), errno))?;
    if full {
        walk.listing.next = walk.listing.entries.last().map(|entry| entry.path.clone());
    }
    Ok(walk.listing)
}

/// The way to the workspace from the directory that is listed; none where it is not in it.
fn workspace_in(place: &Place, root: Root) -> Option<Vec<u8>> {
    let shown = place.path.shown();
    match root {
        Root::Box if shown == WORKDIR => Some(Vec::new()),
        Root::Box if shown == "/" => Some(WORKDIR.as_bytes()[1..].to_vec()),
        Root::Work if shown.is_empty() => Some(Vec::new()),
        _ => None,
    }
}

struct Walk {
    workspace: Option<Vec<u8>>,
    limit: usize,
    bytes: usize,
    /// More depth was asked for than there is.
    capped: bool,
    listing: Listing,
}

impl Walk {
    fn is_full(&self) -> bool {
        self.listing.entries.len() >= self.limit || self.bytes >= MAX_BYTES
    }

    /// Adds what comes behind `after` in this directory. True when the page ended before the directory.
    fn dir(&mut self, dir: &OwnedFd, prefix: &[u8], after: &[Vec<u8>], depth: u32) -> Result<bool, Errno> {
        let mut cursor: Option<Vec<u8>> = None;
        // The page before may have ended within this directory's child.
        if let Some(first) = after.first() {
            if depth > 1 && self.descend(dir, prefix, first, &after[1..], depth)? {
                return Ok(true);
            }
            cursor = Some(first.clone());
        }
        loop {
            let wanted = self.limit - self.listing.entries.len();
            // S2: files of the sync itself are never listed.
            let hides = self.workspace.as_deref() == Some(prefix);
            let is_shown = |name: &[u8]| !(hides && seawall_sync::path::is_own(name));
            let names = names_after(dir, cursor.as_deref(), wanted + 1, is_shown)?;
            let more = names.len() > wanted;
            for name in names {
                if self.is_full() {
                    return Ok(true);
                }
                self.add(dir, prefix, &name);
                if depth > 1 && self.descend(dir, prefix, &name, &[], depth)? {
                    return Ok(true);
                }
                if depth == 1 && self.capped {
                    self.note_depth();
                }
                cursor = Some(name);
            }
            if !more {
                return Ok(false);
            }
        }
    }

    fn add(&mut self, dir: &OwnedFd, prefix: &[u8], name: &[u8]) {
        let Ok(stat) = rustix::fs::statat(dir, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW) else {
            // It vanished since the directory was read.
            return;
        };
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        let target = if is_link { meta::read_link(dir.as_fd(), name) } else { None };
        let entry: Entry = meta::entry(&join(prefix, name), &stat, target);
        self.bytes +=
            entry.path.as_bytes().len() + entry.target.as_ref().map_or(0, |t| t.as_bytes().len()) + 128;
        self.listing.entries.push(entry);
    }

    /// What lies deeper is not left out in silence.
    fn note_depth(&mut self) {
        if let Some(last) = self.listing.entries.last().filter(|entry| entry.kind == EntryKind::Directory) {
            let why = format!("it lies {MAX_DEPTH} levels deep; list it by itself");
            self.bytes += last.path.as_bytes().len() + why.len() + 64;
            self.listing.unreadable.push((last.path.clone(), why));
        }
    }

    /// Goes into a child, if it is a directory. Links are not followed.
    fn descend(
        &mut self,
        dir: &OwnedFd,
        prefix: &[u8],
        name: &[u8],
        after: &[Vec<u8>],
        depth: u32,
    ) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = join(prefix, name);
        match rustix::fs::openat(dir, OsStr::from_bytes(name), flags, Mode::empty()) {
            Ok(child) => self.dir(&child, &path, after, depth - 1),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Ok(false),
            Err(errno) => {
                let why = std::io::Error::from(errno).to_string();
                self.bytes += path.len() + why.len() + 64;
                self.listing.unreadable.push((FileName(path), why));
                Ok(false)
            }
        }
    }
}

/// The first `count` names behind `after`, sorted. Memory for `count` names, however many there are.
fn names_after(
    dir: &OwnedFd,
    after: Option<&[u8]>,
    count: usize,
    is_shown: impl Fn(&[u8]) -> bool,
) -> Result<Vec<Vec<u8>>, Errno> {
    let mut heap: BinaryHeap<Vec<u8>> = BinaryHeap::new();
    let mut entries = Dir::read_from(dir)?;
    entries.rewind();
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let wanted =
            !matches!(name, b"." | b"..") && is_shown(name) && after.is_none_or(|after| name > after);
        if !wanted || (heap.len() == count && heap.peek().is_some_and(|last| name > &last[..])) {
            continue;
        }
        heap.push(name.to_vec());
        if heap.len() > count {
            heap.pop();
        }
    }
    Ok(heap.into_sorted_vec())
}

fn join(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    match prefix.is_empty() {
        true => name.to_vec(),
        false => [prefix, b"/", name].concat(),
    }
}
