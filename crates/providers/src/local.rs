//! The local provider: plain processes of this machine, for development. **It isolates nothing.**
//!
//! A box is a folder with its intent (`box.json`) and a guest that runs apart from whoever started it.
//! The kernel's truth about a box is the lock on `guest.lock`: the guest holds it, and so does the keeper
//! of every command, so it is free only when nothing of the box is alive.
//!
//! A pid file alone is never believed: the pid in `guest.lock` is used through a pidfd, after a check of its command
//! line.

mod folder;
mod launch;
mod provider;

pub use provider::LocalProvider;
