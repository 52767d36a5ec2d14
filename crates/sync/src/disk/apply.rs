//! Steps without a body: moves, removals, directories, links, modes and times.

use super::{
    Disk,
    index::{Index, Seen, Stamp},
    modes::fillable,
    put::{seen_as, set_meta, times},
};
use crate::{
    diff::Step,
    tree::{Mtime, Node},
};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Mode, OFlags, RenameFlags},
    io::Errno,
};
use seawall_api::files::FileName;
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{Arc, atomic::Ordering},
};

const DEFAULT_DIR_MODE: u32 = 0o755;
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A step that was not done, because the path is not as it was scanned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub path: FileName,
    pub why: String,
}

/// What became of the index by a step: seen anew, or gone.
pub type Change = (FileName, Option<Seen>);

type Outcome = Result<Result<Vec<Change>, Refused>, Errno>;

fn refused(path: &FileName, why: &str) -> Outcome {
    Ok(Err(Refused { path: path.clone(), why: why.to_owned() }))
}

impl Disk {
    /// Does steps in their order. What was refused is told, and the rest goes on.
    pub fn apply(&self, steps: &[Step]) -> Result<Vec<Refused>, (FileName, Errno)> {
        self.disturbed.store(true, Ordering::Relaxed);
        let (mut all, mut changes) = (Vec::new(), Vec::new());
        if let Some(first) = steps.first() {
            self.record_modes(steps).map_err(|errno| (first.path().clone(), errno))?;
        }
        for step in steps {
            match self.step(step).map_err(|errno| (step.path().clone(), errno)) {
                Ok(Ok(done)) => changes.extend(done),
                Ok(Err(refused)) => all.push(refused),
                Err(error) => {
                    self.remember(changes);
                    return Err(error);
                }
            }
            // Later steps look at what moved here.
            if matches!(step, Step::Move { .. }) {
                self.remember(std::mem::take(&mut changes));
            }
        }
        self.remember(changes);
        Ok(all)
    }

    /// So that the next scan need not read what was just written.
    pub fn remember(&self, changes: Vec<Change>) {
        let mut memory = self.memory();
        let mut index = std::mem::take(&mut memory.index);
        Arc::make_mut(&mut index).update(changes);
        memory.index = index;
    }

    fn step(&self, step: &Step) -> Outcome {
        match step {
            Step::Move { from, to } => self.move_aside(from, to),
            Step::Remove { path } => self.remove(path),
            Step::Dir { path, node } => self.make_dir(path, node),
            Step::Finish { path, node } => self.finish_dir(path, node),
            Step::Link { path, node } => self.make_link(path, node),
            Step::Meta { path, node } => self.change_meta(path, node),
            Step::File { path, .. } => refused(path, "its body is missing"),
        }
    }

    /// Whether what is at a path is what was scanned. Of a directory only that it is one.
    fn is_as_scanned(&self, path: &FileName) -> Result<bool, Errno> {
        let seen = self.memory().index.get(path.as_bytes()).map(|seen| seen.stamp);
        let (dir, name) = match self.parent(path.as_bytes()) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(seen.is_none()),
            Err(errno) => return Err(errno),
        };
        Ok(match (seen, self.stamp_at(&dir, name)?) {
            (Some(seen), Some(now)) if is_dir(&seen) && is_dir(&now) => seen.inode == now.inode,
            (seen, now) => seen == now,
        })
    }

    fn move_aside(&self, from: &FileName, to: &FileName) -> Outcome {
        if !self.is_as_scanned(from)? {
            return refused(from, "it changed since it was scanned");
        }
        let ((from_dir, from_name), (to_dir, to_name)) =
            (self.fillable_parent(from.as_bytes())?, self.fillable_parent(to.as_bytes())?);
        match rustix::fs::renameat_with(&from_dir, from_name, &to_dir, to_name, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return refused(to, "something appeared there"),
            Err(errno) => return Err(errno),
        }
        let now = self.stamp_at(&to_dir, to_name)?;
        Ok(Ok(moved(&self.memory().index.clone(), from, to, now)))
    }

    fn remove(&self, path: &FileName) -> Outcome {
        if !self.is_as_scanned(path)? {
            return refused(path, "it changed since it was scanned");
        }
        let (dir, name) = match self.fillable_parent(path.as_bytes()) {
            Ok(parent) => parent,
            Err(Errno::NOENT) => return Ok(Ok(vec![(path.clone(), None)])),
            Err(errno) => return Err(errno),
        };
        let Some(seen) = self.stamp_at(&dir, name)? else { return Ok(Ok(vec![(path.clone(), None)])) };
        if is_dir(&seen) {
            return match rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(Ok(vec![(path.clone(), None)])),
                // Something that no scan saw is in it: a new file, or one that a rule leaves out. It stays.
                Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Ok(Vec::new())),
                Err(errno) => Err(errno),
            };
        }
        // Out of the way first, so that a change in this very moment is seen, and undone.
        let (staging, aside) = (self.staging()?, self.staged_name());
        rustix::fs::renameat(&dir, name, &staging, &*aside)?;
        if self.stamp_at(&staging, &aside)?.is_none_or(|now| !seen.same_but_moved(&now)) {
            let flags = RenameFlags::NOREPLACE;
            rustix::fs::renameat_with(&staging, &*aside, &dir, name, flags)?;
            return refused(path, "it changed in this very moment");
        }
        rustix::fs::unlinkat(&staging, &*aside, AtFlags::empty())?;
        Ok(Ok(vec![(path.clone(), None)]))
    }

    fn make_dir(&self, path: &FileName, node: &Node) -> Outcome {
        let (dir, name) = match self.fillable_parent(path.as_bytes()) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                return refused(path, "the directory above it changed");
            }
            Err(errno) => return Err(errno),
        };
        let mode = Mode::from_raw_mode(fillable(node.mode().unwrap_or(DEFAULT_DIR_MODE)));
        let open = || rustix::fs::openat(&dir, name, DIR | OFlags::NOFOLLOW, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) => match self.new_dir(&dir, name, mode) {
                // Another process made it since it was found missing.
                Err(Errno::EXIST) => open(),
                made => made,
            },
            opened => opened,
        };
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {
                return refused(path, "something appeared there");
            }
            Err(errno) => return Err(errno),
        };
        rustix::fs::fchmod(&fd, mode)?;
        let stamp = Stamp::of(&rustix::fs::fstat(&fd)?);
        let node = seen_as(node, &stamp);
        Ok(Ok(vec![(path.clone(), Some(Seen { stamp, node, racy: false }))]))
    }

    /// Makes a directory that has its owner and its mode from the moment that it has its name.
    fn new_dir(&self, dir: &OwnedFd, name: &OsStr, mode: Mode) -> Result<OwnedFd, Errno> {
        let (staging, staged) = (self.staging()?, self.staged_name());
        rustix::fs::mkdirat(&staging, &*staged, Mode::RWXU)?;
        let place = || {
            let fd = rustix::fs::openat(&staging, &*staged, DIR | OFlags::NOFOLLOW, Mode::empty())?;
            self.give(&fd)?;
            rustix::fs::fchmod(&fd, mode)?;
            rustix::fs::renameat_with(&staging, &*staged, dir, name, RenameFlags::NOREPLACE)?;
            Ok(fd)
        };
        place().inspect_err(|_| {
            // The next sync clears the folder where this fails.
            let _ = rustix::fs::unlinkat(&staging, &*staged, AtFlags::REMOVEDIR);
        })
    }

    fn finish_dir(&self, path: &FileName, node: &Node) -> Outcome {
        let fd = match self.open_at(path.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return refused(path, "it is gone"),
            Err(errno) => return Err(errno),
        };
        let mode = node.mode().unwrap_or(DEFAULT_DIR_MODE) & 0o7777;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
        if node.mtime() != Mtime::default() {
            rustix::fs::futimens(&fd, &times(node.mtime()))?;
        }
        let stamp = Stamp::of(&rustix::fs::fstat(&fd)?);
        Ok(Ok(vec![(path.clone(), Some(Seen { stamp, node: seen_as(node, &stamp), racy: false }))]))
    }

    fn make_link(&self, path: &FileName, node: &Node) -> Outcome {
        let Node::Link { target, mtime } = node else { return refused(path, "it is no link") };
        let (staging, name) = (self.staging()?, self.staged_name());
        rustix::fs::symlinkat(OsStr::from_bytes(target.as_bytes()), &staging, &*name)?;
        if let Some((uid, gid)) = self.owner {
            let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
            rustix::fs::chownat(&staging, &*name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        rustix::fs::utimensat(&staging, &*name, &times(*mtime), AtFlags::SYMLINK_NOFOLLOW)?;
        let (dir, last) = match self.fillable_parent(path.as_bytes()) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                return refused(path, "the directory above it changed");
            }
            Err(errno) => return Err(errno),
        };
        if let Err(refused) = self.put_in_place(&staging, &name, &dir, path)? {
            let _ = rustix::fs::unlinkat(&staging, &*name, AtFlags::empty());
            return Ok(Err(refused));
        }
        let seen = self.stamp_at(&dir, last)?;
        Ok(Ok(vec![(
            path.clone(),
            seen.map(|stamp| Seen { stamp, node: seen_as(node, &stamp), racy: false }),
        )]))
    }

    fn change_meta(&self, path: &FileName, node: &Node) -> Outcome {
        let Some(opened) = self.open_scanned(path)? else {
            return refused(path, "it changed since it was scanned");
        };
        set_meta(&opened.fd, node)?;
        let stamp = Stamp::of(&rustix::fs::fstat(&opened.fd)?);
        // Read again next time: it might have changed just before its time was set.
        let seen = Seen { stamp, node: seen_as(node, &stamp), racy: true };
        Ok(Ok(vec![(path.clone(), Some(seen))]))
    }
}

fn is_dir(stamp: &Stamp) -> bool {
    rustix::fs::FileType::from_raw_mode(stamp.mode) == rustix::fs::FileType::Directory
}

/// The entries at and beneath a path, under their new names.
fn moved(index: &Index, from: &FileName, to: &FileName, now: Option<Stamp>) -> Vec<Change> {
    let (first, behind) = crate::path::beneath(from);
    let start = index.0.partition_point(|(path, _)| *path < first);
    let end = index.0.partition_point(|(path, _)| *path < behind);
    let mut changes = Vec::new();
    for (path, seen) in &index.0[start..end] {
        let there = crate::path::rebase(path.as_bytes(), from.as_bytes(), to.as_bytes());
        changes.push((path.clone(), None));
        changes.push((FileName(there), Some(seen.clone())));
    }
    if let (Some(seen), Some(stamp)) = (index.get(from.as_bytes()), now) {
        changes.push((to.clone(), Some(Seen { stamp, ..seen.clone() })));
    }
    changes.push((from.clone(), None));
    changes
}
