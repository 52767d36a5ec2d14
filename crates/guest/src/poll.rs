//! Descriptors that tasks wait for.

use rustix::fd::OwnedFd;
use std::io;
use tokio::io::unix::AsyncFd;

pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open until it is dropped, and nothing here replaces it while it is
    // registered: `AsyncFd` gives it out by shared reference only.
    Ok(unsafe { AsyncFd::register(fd) }?)
}
