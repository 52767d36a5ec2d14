//! Files that a pull wrote reach the disk a moment after the agreement on them.
//!
//! Until then a mark stands beside the state file, with the boot it was made in. Should the machine go down meanwhile,
//! the mark is of another boot, and the state file is not believed: files that were cut short would look like a
//! user's change. Waiting for the disk instead would hold up every restore by whatever else the machine writes.

use super::{Disk, hash::READ, state::read_up_to};
use crate::path::{STATE_FRESH, STATE_TEMPORARY};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Mode},
    io::Errno,
};
use std::{fs, io};

const BOOT: &str = "/proc/sys/kernel/random/boot_id";
const MAX_MARK: usize = 4096;

/// The boot, and a name of its own: a later pull has another.
#[derive(Debug, PartialEq, Eq)]
pub struct Mark(String);

impl Disk {
    /// Before the state file gets its name. None where the boot cannot be known.
    pub(super) fn mark_fresh(&self) -> io::Result<Option<Mark>> {
        let Ok(boot) = fs::read_to_string(BOOT) else { return Ok(None) };
        let mark = format!("{}\n{}\n", boot.trim(), uuid::Uuid::new_v4());
        self.write_beside(mark.as_bytes())?;
        rustix::fs::renameat(self.root(), STATE_TEMPORARY, self.root(), STATE_FRESH)?;
        Ok(Some(Mark(mark)))
    }

    /// Whether the machine went down before what was agreed on was on its disk.
    pub(super) fn went_down(&self) -> bool {
        let Some(mark) = read_mark(&self.root) else { return false };
        let boot = fs::read_to_string(BOOT).unwrap_or_default();
        mark.0.lines().next() != Some(boot.trim())
    }

    /// Nothing is doubted any more: what is there was looked at since.
    pub(super) fn forget_mark(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(self.root(), STATE_FRESH, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Brings it to the disk, on a thread, and takes the mark away, unless a later pull has set its own.
    pub(super) fn settle_down(&self, mark: Mark) -> io::Result<()> {
        let root = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
        let work = move || {
            if rustix::fs::syncfs(&root).is_ok() && read_mark(&root).as_ref() == Some(&mark) {
                // Where that fails the mark stays, and costs a comparison after the next boot.
                let _ = rustix::fs::unlinkat(&root, STATE_FRESH, AtFlags::empty());
            }
        };
        std::thread::Builder::new().name("to disk".into()).stack_size(256 << 10).spawn(work)?;
        Ok(())
    }
}

fn read_mark(root: &OwnedFd) -> Option<Mark> {
    let file = rustix::fs::openat(root, STATE_FRESH, READ, Mode::empty()).ok()?;
    let bytes = read_up_to(&file, MAX_MARK).ok()?;
    Some(Mark(String::from_utf8_lossy(&bytes).into_owned()))
}
