//! Bodies on their way in. They wait in a folder of the sync's own until they are whole.

use super::{
    Disk, Refused,
    index::{Seen, Stamp, is_racy},
    open_beneath,
};
use crate::{
    path::STAGING,
    sparse,
    tree::{Mtime, Node},
};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, Dir, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps},
    io::Errno,
};
use seawall_api::files::FileName;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    sync::atomic::Ordering,
    time::SystemTime,
};

const DEFAULT_MODE: u32 = 0o644;

/// A file in its place, as the next scan will know it.
pub type Placed = (FileName, Seen);

/// Takes files into the workspace, one after the other. Neighbours share what is open.
#[derive(Debug)]
pub struct Placer<'a> {
    disk: &'a Disk,
    staging: OwnedFd,
    /// The directory that the last file went to.
    parent: Option<(Vec<u8>, OwnedFd)>,
}

/// A body that is being written.
#[derive(Debug)]
pub struct Incoming<'a, 'b> {
    placer: &'b mut Placer<'a>,
    name: OsString,
    fd: Option<OwnedFd>,
    /// Bytes of the body so far.
    taken: u64,
    /// How long the file is: zeros at the end of what came are not in it yet.
    length: u64,
}

impl Drop for Incoming<'_, '_> {
    fn drop(&mut self) {
        if self.fd.is_some() {
            // Best effort; the next sync clears the folder.
            let _ = rustix::fs::unlinkat(&self.placer.staging, &*self.name, AtFlags::empty());
        }
    }
}

impl<'a> Placer<'a> {
    /// A place for a body.
    pub fn incoming(&mut self) -> Result<Incoming<'a, '_>, Errno> {
        let name = self.disk.staged_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.staging, &*name, flags, Mode::from_raw_mode(0o600))?;
        Ok(Incoming { placer: self, name, fd: Some(fd), taken: 0, length: 0 })
    }

    /// The directory above a path, opened once for neighbours.
    fn parent(&mut self, path: &FileName) -> Result<&OwnedFd, Errno> {
        let above = crate::path::parent(path.as_bytes()).unwrap_or(b".");
        if self.parent.as_ref().is_none_or(|(open, _)| open != above) {
            let dir = self.disk.open_fillable(above)?;
            self.parent = Some((above.to_vec(), dir));
        }
        self.parent.as_ref().map(|(_, dir)| dir).ok_or(Errno::NOENT)
    }
}

/// What is in a folder.
fn names(dir: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes a folder of bodies that nobody waits for. What is not ours in it stays, and harms nobody there.
fn clear(above: &OwnedFd, name: &OsStr) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(dir) = open_beneath(above.as_fd(), name.as_bytes(), flags) else { return };
    for name in names(&dir).unwrap_or_default() {
        let _ = rustix::fs::unlinkat(&dir, &*name, AtFlags::empty());
    }
    let _ = rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR);
}

impl Disk {
    pub(super) fn clear_staging(&self) -> Result<(), Errno> {
        let Ok(dir) = self.open_at(STAGING.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY) else {
            // Something else has the name: it goes, since it is ours.
            return match rustix::fs::unlinkat(self.root(), STAGING, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno),
            };
        };
        for name in names(&dir)? {
            // What cannot be removed harms nobody here.
            if let Err(Errno::ISDIR | Errno::PERM) = rustix::fs::unlinkat(&dir, &*name, AtFlags::empty()) {
                clear(&dir, &name);
            }
        }
        match rustix::fs::unlinkat(self.root(), STAGING, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// The folder where bodies of this one wait.
    pub(super) fn staging(&self) -> Result<OwnedFd, Errno> {
        let place = format!("{STAGING}/{}", self.mark);
        if let Ok(dir) = self.open_at(place.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY) {
            return Ok(dir);
        }
        let all = self.make_folder(self.root(), STAGING)?;
        // Files stay near the folder that they were made in, and ext4 without a journal passes over each inode that was
        // freed there in the last minutes, one by one: where workspaces come and go, each file of a restore would take 25
        // times as long. Folders in a marked one are far from each other. Where there is no such mark none is needed.
        if let Ok(flags) = rustix::fs::ioctl_getflags(&all)
            && !flags.contains(IFlags::TOPDIR)
        {
            let _ = rustix::fs::ioctl_setflags(&all, flags | IFlags::TOPDIR);
        }
        self.make_folder(all.as_fd(), &self.mark)
    }

    fn make_folder(&self, above: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
        let made = match rustix::fs::mkdirat(above, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno),
        };
        let dir = open_beneath(above, name.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        if made {
            self.give(&dir)?;
        }
        Ok(dir)
    }

    pub(super) fn staged_name(&self) -> OsString {
        let number = self.staged.fetch_add(1, Ordering::Relaxed);
        OsString::from(number.to_string())
    }

    pub fn placer(&self) -> Result<Placer<'_>, Errno> {
        self.placed.store(true, Ordering::Relaxed);
        self.disturbed.store(true, Ordering::Relaxed);
        Ok(Placer { disk: self, staging: self.staging()?, parent: None })
    }

    /// Puts something that waits in the staging folder into its place, if that is as it was scanned.
    pub(super) fn put_in_place(
        &self,
        staging: &OwnedFd,
        name: &OsStr,
        dir: &OwnedFd,
        path: &FileName,
    ) -> Result<Result<(), Refused>, Errno> {
        let refused = |why: &str| Ok(Err(Refused { path: path.clone(), why: why.to_owned() }));
        let last = OsStr::from_bytes(crate::path::name(path.as_bytes()));
        let seen = self.memory().index.get(path.as_bytes()).map(|seen| seen.stamp);
        let Some(seen) = seen else {
            return match rustix::fs::renameat_with(staging, name, dir, last, RenameFlags::NOREPLACE) {
                Ok(()) => Ok(Ok(())),
                Err(Errno::EXIST) => refused("something appeared there"),
                Err(errno) => Err(errno),
            };
        };
        if self.stamp_at(dir, last)? != Some(seen) {
            return refused("it changed since it was scanned");
        }
        // Both at once, so that a change in this very moment is still seen, and undone.
        rustix::fs::renameat_with(staging, name, dir, last, RenameFlags::EXCHANGE)?;
        if self.stamp_at(staging, name)?.is_none_or(|old| !seen.same_but_moved(&old)) {
            rustix::fs::renameat_with(staging, name, dir, last, RenameFlags::EXCHANGE)?;
            return refused("it changed in this very moment");
        }
        rustix::fs::unlinkat(staging, name, AtFlags::empty())?;
        Ok(Ok(()))
    }

    pub(super) fn stamp_at(&self, dir: &OwnedFd, name: &OsStr) -> Result<Option<Stamp>, Errno> {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Stamp::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl Incoming<'_, '_> {
    /// Blocks of zeros become holes, so that a file takes no more disk than it did before.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        for (run, is_zeros) in sparse::runs(bytes, self.taken) {
            // The end of a file may be a part of a block.
            let is_hole = is_zeros || (run.len() < sparse::BLOCK && run.iter().all(|byte| *byte == 0));
            if !is_hole {
                write_all_at(fd, run, self.taken)?;
                self.length = self.taken + run.len() as u64;
            }
            self.taken += run.len() as u64;
        }
        Ok(())
    }

    /// The body is whole, and whoever sent it has checked it.
    pub fn finish(mut self, path: &FileName, node: &Node) -> Result<Result<Placed, Refused>, Errno> {
        let fd = self.fd.take().ok_or(Errno::BADF)?;
        let placed = self.place(&fd, path, node);
        if !matches!(placed, Ok(Ok(_))) {
            let _ = rustix::fs::unlinkat(&self.placer.staging, &*self.name, AtFlags::empty());
        }
        placed
    }

    fn place(
        &mut self,
        fd: &OwnedFd,
        path: &FileName,
        node: &Node,
    ) -> Result<Result<Placed, Refused>, Errno> {
        let refused = |why: String| Ok(Err(Refused { path: path.clone(), why }));
        if self.taken != node.size() {
            return refused(format!("{} bytes came instead of {}", self.taken, node.size()));
        }
        if self.length < self.taken {
            rustix::fs::ftruncate(fd, self.taken)?;
        }
        let disk = self.placer.disk;
        disk.give(fd)?;
        set_meta(fd, node)?;
        match self.placer.parent(path) {
            Ok(_) => {}
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                return refused("the directory above it changed".to_owned());
            }
            Err(errno) => return Err(errno),
        }
        let Placer { staging, parent: Some((_, dir)), .. } = &*self.placer else { return Err(Errno::NOENT) };
        if let Err(refused) = disk.put_in_place(staging, &self.name, dir, path)? {
            return Ok(Err(refused));
        }
        let stamp = Stamp::of(&rustix::fs::fstat(fd)?);
        // Its time is one of before, so the next write to it will show in it.
        // And what an older writer knew by its MD5 alone is read once more.
        let half_known = node.file().is_some_and(|file| file.sums.strong.is_none());
        let racy = half_known || is_racy(stamp.mtime, SystemTime::now());
        let node = seen_as(node, &stamp);
        Ok(Ok((path.clone(), Seen { stamp, node, racy })))
    }
}

fn write_all_at(fd: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, offset) {
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// What a scan would find now.
pub fn seen_as(node: &Node, stamp: &Stamp) -> Node {
    let mut node = node.clone();
    match &mut node {
        Node::File(file) => {
            file.mode = Some(stamp.mode & 0o7777);
            file.mtime = stamp.mtime;
            file.place = None;
        }
        Node::Link { mtime, .. } => *mtime = stamp.mtime,
        Node::Dir { mode, mtime } => {
            *mode = Some(stamp.mode & 0o7777);
            *mtime = stamp.mtime;
        }
    }
    node
}

/// Mode and time of a file.
pub fn set_meta(fd: &OwnedFd, node: &Node) -> Result<(), Errno> {
    let mode = node.mode().unwrap_or(DEFAULT_MODE);
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode & 0o7777))?;
    rustix::fs::futimens(fd, &times(node.mtime()))
}

pub fn times(mtime: Mtime) -> Timestamps {
    let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
    let modified = Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() };
    Timestamps { last_access: keep, last_modification: modified }
}
