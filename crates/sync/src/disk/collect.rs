//! Bodies on their way out: only of files that are as they were scanned.

use super::{Disk, hash::READ, index::Stamp};
use rustix::{fd::OwnedFd, io::Errno};
use seawall_api::files::FileName;

/// Bodies up to this size are read at once.
pub const SMALL: u64 = 128 << 10;

/// A file that is as it was scanned, open.
#[derive(Debug)]
pub struct Opened {
    pub fd: OwnedFd,
    stamp: Stamp,
}

impl Opened {
    pub fn size(&self) -> u64 {
        self.stamp.size
    }

    /// Whether all that was read since belongs to one body.
    pub fn is_unchanged(&self) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|stat| Stamp::of(&stat) == self.stamp)
    }

    /// Reads at an offset until the buffer is full or the file ends.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::io::pread(&self.fd, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(filled)
    }
}

impl Disk {
    /// None where it is no longer as it was scanned.
    pub fn open_scanned(&self, path: &FileName) -> Result<Option<Opened>, Errno> {
        let Some(stamp) = self.memory().index.get(path.as_bytes()).map(|seen| seen.stamp) else {
            return Ok(None);
        };
        let fd = match self.open_at(path.as_bytes(), READ) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let opened = Opened { fd, stamp };
        Ok(opened.is_unchanged().then_some(opened))
    }
}
