//! Holes of files: bytes that are hashed and sent, and that no disk holds.

use rustix::{
    fd::OwnedFd,
    fs::{SeekFrom, Stat},
    io::Errno,
};

/// A file with more holes than this waits until all others were looked at.
pub const MANY: u64 = 64 << 10;
/// More pieces of data than this are not looked for.
const MAX_STEPS: usize = 1 << 20;

/// How many bytes of a file are in holes, as far as its blocks tell. A file system that compresses says too much here.
pub fn estimated(stat: &Stat) -> u64 {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let on_disk = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    size.saturating_sub(on_disk)
}

/// How many bytes of a file are in holes, as its file system tells. None where it has too many pieces to say.
pub fn counted(file: &OwnedFd, size: u64) -> Result<Option<u64>, Errno> {
    let (mut at, mut holes) = (0, 0);
    for _ in 0..MAX_STEPS {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // Nothing but a hole up to its end.
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        holes += data.saturating_sub(at);
        if data >= size {
            return Ok(Some(holes));
        }
        at = rustix::fs::seek(file, SeekFrom::Hole(data))?;
    }
    Ok(None)
}
