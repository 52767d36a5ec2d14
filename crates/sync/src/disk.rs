//! The workspace's side: a directory, scanned, read and changed. The guest runs it; it knows no wire.
//!
//! Invariant: nothing is replaced or removed that is not as the last scan saw it, and a body appears under its
//! name whole or not at all. Paths are followed by the kernel, beneath the root and through no link.
//!
//! A replaced file is swapped out (`RENAME_EXCHANGE`) and a removed one is moved aside; each is compared once more
//! with the scan and put back if it changed in that moment. A path where a file appeared since the scan is refused.

mod apply;
mod collect;
mod fresh;
mod hash;
mod held;
mod holes;
mod index;
mod local;
mod modes;
mod pending;
mod put;
mod scan;
mod state;
mod walk;

pub use apply::Refused;
pub use collect::{Opened, SMALL};
pub use local::LocalWorkspace;
pub use put::{Incoming, Placed, Placer};
pub use scan::{MAX_HOLE_BYTES, ScanAsk, ScanReport};
pub use state::Base;

use crate::state::Limits;
use index::Index;
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{FlockOperation, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64},
    },
};

/// `openat2` asks to try again when something moved while it looked.
const RACES: usize = 64;

/// A workspace on a disk of this machine.
#[derive(Debug)]
pub struct Disk {
    root: OwnedFd,
    /// Whose restored files are; none: ours.
    owner: Option<(u32, u32)>,
    limits: Limits,
    memory: Mutex<Memory>,
    /// Numbers for files that wait until they are whole.
    staged: AtomicU64,
    /// The folder where they wait: guests of several boxes may be at one volume, and all are process 1.
    mark: String,
    /// Files were written since the last agreement, perhaps by a guest that died.
    placed: AtomicBool,
    /// A sync of this life changed something, and did not agree on it yet.
    disturbed: AtomicBool,
}

#[derive(Debug, Default)]
struct Memory {
    /// What the last scan saw, with checksums.
    index: Arc<Index>,
    base: Option<Arc<Base>>,
    /// The state file, open.
    held: Option<OwnedFd>,
}

/// The right to sync, until it is dropped. Dropping it also ends the temporary modes of directories.
#[derive(Debug)]
pub struct DiskLock {
    disk: Arc<Disk>,
    is_abandoned: bool,
    file: OwnedFd,
}

impl Drop for DiskLock {
    fn drop(&mut self) {
        if !self.is_abandoned {
            self.disk.restore_modes();
        }
        // Closing the file does not release the lock while a child that another thread forked still holds a copy of the
        // descriptor, which it does until it executes its own program.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(feature = "testing")]
impl DiskLock {
    /// Releases the lock as the death of its process does: temporary modes stay.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }
}

impl Disk {
    pub fn open(root: &Path, owner: Option<(u32, u32)>) -> io::Result<Disk> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Disk::new(rustix::fs::open(root, flags, Mode::empty())?, owner))
    }

    pub fn new(root: OwnedFd, owner: Option<(u32, u32)>) -> Disk {
        let (memory, staged, placed) = (Mutex::default(), AtomicU64::new(0), AtomicBool::new(true));
        let mark = uuid::Uuid::new_v4().simple().to_string();
        let disturbed = AtomicBool::new(false);
        Disk { root, owner, limits: Limits::default(), memory, staged, mark, placed, disturbed }
    }

    /// S9: one sync of a workspace at a time. None where somebody has the lock.
    pub fn try_lock(self: &Arc<Self>) -> io::Result<Option<DiskLock>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.root, crate::path::STATE_LOCK, flags, Mode::from_raw_mode(0o644))?;
        // So that the user's own tools stumble over nothing.
        self.give(&fd)?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.clear_staging()?;
                self.restore_modes();
                self.forget_taken_back();
                Ok(Some(DiskLock { disk: self.clone(), is_abandoned: false, file: fd }))
            }
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens what is at a path, beneath the root and through no link.
    fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        open_beneath(self.root(), path, flags)
    }

    /// The directory above a path, and the last name.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let above = crate::path::parent(path).unwrap_or(b".");
        let dir = self.open_at(above, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok((dir, OsStr::from_bytes(crate::path::name(path))))
    }

    /// The directory above a path, made ready for changes, and the last name.
    fn fillable_parent<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let above = crate::path::parent(path).unwrap_or(b".");
        Ok((self.open_fillable(above)?, OsStr::from_bytes(crate::path::name(path))))
    }
}

fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = OsStr::from_bytes(path);
    for _ in 0..RACES {
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}
