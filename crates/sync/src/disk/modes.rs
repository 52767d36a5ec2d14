//! Temporary modes of directories.
//!
//! The owner of a directory of mode 0555 or 0644 cannot create files in it. While a sync fills such a directory, the
//! directory has `mode | 0o700`, and [`STATE_MODES`] holds a record of both modes. A record is on the disk before the
//! temporary mode is set, so it outlives a failed sync, the death of the guest, and a power loss.
//!
//! [`Disk::restore_modes`] gives each recorded directory its own mode back. It runs when the workspace is locked, when
//! the lock is released, before each scan, and when a guest starts on the volume. A directory whose mode is no longer
//! the temporary one was changed by the user and keeps the user's mode.

use super::{Disk, hash::READ, index::Seen, state::read_up_to, state::write_all};
use crate::{diff::Step, path::STATE_MODES, tree::Node};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};
use seawall_api::files::FileName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A larger file of records is ignored.
const MAX_RECORDS: usize = 1 << 30;

/// One line of the file of records.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    path: FileName,
    temporary: u32,
    wanted: u32,
}

/// All records of one directory.
#[derive(Debug, Default)]
struct Modes {
    temporary: Vec<u32>,
    /// The directory's own mode, from the last record.
    wanted: u32,
}

/// Returns the mode that a directory has while it is filled. `None` means that its own mode suffices.
fn temporary_mode(mode: u32) -> Option<u32> {
    let mode = mode & 0o7777;
    (mode & 0o700 != 0o700).then_some(mode | 0o700)
}

/// Returns `mode` with what the owner needs to fill the directory.
pub(super) fn fillable(mode: u32) -> u32 {
    temporary_mode(mode).unwrap_or(mode & 0o7777)
}

impl Disk {
    /// Records the temporary modes that these steps will set.
    pub(super) fn record_modes(&self, steps: &[Step]) -> Result<(), Errno> {
        let records = steps.iter().filter_map(|step| match step {
            Step::Dir { path, node: Node::Dir { mode: Some(wanted), .. } } => Some(Record {
                path: path.clone(),
                temporary: temporary_mode(*wanted)?,
                wanted: *wanted & 0o7777,
            }),
            _ => None,
        });
        self.append_records(records)
    }

    /// Opens a directory in which files can be created and removed. `.` is the root.
    pub(super) fn open_fillable(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let open = |path: &[u8]| self.open_at(path, OFlags::PATH | OFlags::DIRECTORY);
        let dir = match open(path) {
            Err(Errno::ACCESS) => {
                let above: Vec<&[u8]> = crate::path::ancestors(path).collect();
                for above in above.into_iter().rev() {
                    self.make_fillable(above, &open(above)?)?;
                }
                open(path)?
            }
            opened => opened?,
        };
        if path != b"." {
            self.make_fillable(path, &dir)?;
        }
        Ok(dir)
    }

    /// Lets the owner change the entries of an existing directory. A directory of another user keeps its mode; the change
    /// itself then reports the error.
    fn make_fillable(&self, path: &[u8], dir: &OwnedFd) -> Result<(), Errno> {
        let wanted = rustix::fs::fstat(dir)?.st_mode & 0o7777;
        let Some(temporary) = temporary_mode(wanted) else { return Ok(()) };
        let Ok(dir) = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY) else { return Ok(()) };
        self.append_records([Record { path: FileName(path.to_vec()), temporary, wanted }])?;
        match rustix::fs::fchmod(&dir, Mode::from_raw_mode(temporary)) {
            Err(Errno::PERM | Errno::ACCESS) => Ok(()),
            done => done,
        }
    }

    fn append_records(&self, records: impl IntoIterator<Item = Record>) -> Result<(), Errno> {
        let mut lines = Vec::new();
        for record in records {
            // The record before may have been cut off in the middle of its line.
            lines.push(b'\n');
            serde_json::to_writer(&mut lines, &record).map_err(|_| Errno::INVAL)?;
        }
        if lines.is_empty() {
            return Ok(());
        }
        lines.push(b'\n');
        let file = self.open_records()?;
        write_all(&file, &lines)?;
        rustix::fs::fdatasync(&file)
    }

    fn open_records(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(self.root(), STATE_MODES, flags, Mode::empty()) {
            Ok(file) if is_own(&file)? => return Ok(file),
            Ok(_) | Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => self.forget_records()?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let new = flags | OFlags::CREATE | OFlags::EXCL;
        rustix::fs::openat(self.root(), STATE_MODES, new, Mode::from_raw_mode(0o600))
    }

    /// Gives each directory with a recorded temporary mode its own mode back. Records of directories whose mode cannot
    /// be set stay, and the scan reports the modes that those directories should have.
    pub(super) fn restore_modes(&self) {
        let records = self.recorded_modes();
        if records.is_empty() {
            return;
        }
        let mut all_done = true;
        // The deepest first: the mode of a directory may close the way to those in it.
        for (path, modes) in records.iter().rev() {
            all_done &= match self.restore_mode(path, modes) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => true,
                Err(_) => false,
            };
        }
        if all_done {
            // Records that stay describe modes that no directory has.
            let _ = self.forget_records();
        }
    }

    fn restore_mode(&self, path: &FileName, modes: &Modes) -> Result<(), Errno> {
        let dir = self.open_at(path.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        match modes.temporary.contains(&(rustix::fs::fstat(&dir)?.st_mode & 0o7777)) {
            true => rustix::fs::fchmod(&dir, Mode::from_raw_mode(modes.wanted)),
            false => Ok(()),
        }
    }

    /// Replaces temporary modes among the entries of a scan: files may still arrive from a sync that has just ended.
    pub(super) fn without_temporary_modes(&self, entries: &mut [(FileName, Seen)]) {
        for (path, modes) in self.recorded_modes() {
            if let Ok(at) = entries.binary_search_by(|(own, _)| own.cmp(&path))
                && let Node::Dir { mode: Some(mode), .. } = &mut entries[at].1.node
                && modes.temporary.contains(mode)
            {
                *mode = modes.wanted;
            }
        }
    }

    /// Reads the records. A file that the user of the sandbox may have written is none of ours.
    fn recorded_modes(&self) -> BTreeMap<FileName, Modes> {
        let mut records: BTreeMap<FileName, Modes> = BTreeMap::new();
        let Ok(file) = rustix::fs::openat(self.root(), STATE_MODES, READ, Mode::empty()) else {
            return records;
        };
        if !is_own(&file).unwrap_or(false) {
            return records;
        }
        for line in read_up_to(&file, MAX_RECORDS).unwrap_or_default().split(|byte| *byte == b'\n') {
            let Ok(record) = serde_json::from_slice::<Record>(line) else { continue };
            if crate::path::check(record.path.as_bytes()).is_ok() {
                let modes = records.entry(record.path).or_default();
                modes.temporary.push(record.temporary);
                modes.wanted = record.wanted & 0o7777;
            }
        }
        records
    }

    /// Whether a sync that did not end left temporary modes.
    pub(super) fn has_recorded_modes(&self) -> bool {
        rustix::fs::statat(self.root(), STATE_MODES, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn forget_records(&self) -> Result<(), Errno> {
        match rustix::fs::unlinkat(self.root(), STATE_MODES, AtFlags::empty()) {
            Err(Errno::ISDIR) => rustix::fs::unlinkat(self.root(), STATE_MODES, AtFlags::REMOVEDIR),
            Err(Errno::NOENT) => Ok(()),
            done => done,
        }
    }
}

/// Whether this process wrote the file: a guest that is root would otherwise change modes on behalf of the user.
fn is_own(file: &OwnedFd) -> Result<bool, Errno> {
    let stat = rustix::fs::fstat(file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_file && stat.st_nlink == 1 && stat.st_uid == rustix::process::geteuid().as_raw())
}
