//! Checksums of a file that may change while it is read.

use super::{holes, index::Stamp};
use crate::sums::{Hasher, Sums};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags},
    io::Errno,
};
use std::ffi::OsStr;

/// How often a file that changes under our eyes is read again.
const TRIES: usize = 3;
const CHUNK: usize = 256 << 10;

/// Why there is no checksum.
#[derive(Debug)]
pub enum Failure {
    Vanished,
    /// It changed each time it was read.
    Busy,
    /// It has more bytes in holes than may be hashed.
    Sparse(u64),
    Denied(Errno),
}

/// Opens a file without waiting for anything, following no link.
pub const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY);

/// The checksums of a file in a directory, and how it looked while it was read.
pub fn hash_at(
    dir: impl AsFd,
    name: &OsStr,
    max_holes: u64,
    buffer: &mut Vec<u8>,
) -> Result<(Stamp, Sums), Failure> {
    for _ in 0..TRIES {
        let file = match rustix::fs::openat(&dir, name, READ, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Err(Failure::Vanished),
            Err(errno) => return Err(Failure::Denied(errno)),
        };
        match hash(&file, max_holes, buffer) {
            Err(Failure::Busy) => {}
            done => return done,
        }
    }
    Err(Failure::Busy)
}

/// `Busy` where it changed meanwhile.
fn hash(file: &OwnedFd, max_holes: u64, buffer: &mut Vec<u8>) -> Result<(Stamp, Sums), Failure> {
    let stat = rustix::fs::fstat(file)?;
    let before = Stamp::of(&stat);
    // It may have grown since it was looked at, by a terabyte of nothing.
    if holes::estimated(&stat) > max_holes
        && let Some(holes) = holes::counted(file, before.size)?.filter(|holes| *holes > max_holes)
    {
        return Err(Failure::Sparse(holes));
    }
    buffer.resize(CHUNK, 0);
    let mut hasher = Hasher::default();
    let mut offset = 0;
    loop {
        // A file of the size that it says needs no second look for its end.
        if offset == before.size && offset > 0 {
            break;
        }
        match rustix::io::pread(file, &mut buffer[..], offset) {
            Ok(0) => break,
            Ok(n) => {
                hasher.update(&buffer[..n]);
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let after = Stamp::of(&rustix::fs::fstat(file)?);
    match after == before && offset == before.size {
        true => Ok((before, hasher.finish())),
        false => Err(Failure::Busy),
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Failure::Denied(errno)
    }
}
