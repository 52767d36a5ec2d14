//! Checksums of a file that may change while it is read.

use super::index::Stamp;
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
    Denied(Errno),
}

/// Opens a file without waiting for anything, following no link.
pub const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY);

/// The checksums of a file in a directory, and how it looked while it was read.
pub fn hash_at(dir: impl AsFd, name: &OsStr, buffer: &mut Vec<u8>) -> Result<(Stamp, Sums), Failure> {
    for _ in 0..TRIES {
        let file = match rustix::fs::openat(&dir, name, READ, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Err(Failure::Vanished),
            Err(errno) => return Err(Failure::Denied(errno)),
        };
        match hash(&file, buffer) {
            Ok(Some(hashed)) => return Ok(hashed),
            Ok(None) => {}
            Err(errno) => return Err(Failure::Denied(errno)),
        }
    }
    Err(Failure::Busy)
}

/// None where it changed meanwhile.
fn hash(file: &OwnedFd, buffer: &mut Vec<u8>) -> Result<Option<(Stamp, Sums)>, Errno> {
    let before = Stamp::of(&rustix::fs::fstat(file)?);
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
            Err(errno) => return Err(errno),
        }
    }
    let after = Stamp::of(&rustix::fs::fstat(file)?);
    Ok((after == before && offset == before.size).then(|| (before, hasher.finish())))
}
