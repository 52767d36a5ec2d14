//! Which system calls a box may make: an allow-list in the spirit of Docker's, as a search tree of ranges.
//!
//! What is known and not allowed fails with EPERM. What is newer than this list fails with ENOSYS, so that
//! programs take their older way.

mod calls;
mod program;

pub use program::Program;

/// How a system call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Allow,
    /// Known, and not for boxes.
    Refuse,
    /// Not known here, or better not known there.
    Unknown,
    /// Depends on an argument.
    Ask(Question),
}

/// What an argument decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// `clone`, `unshare`: no new namespaces.
    NoNamespaces,
    /// `socket`, `socketpair`: Unix, IP, and netlink for routes.
    Family,
    /// `ioctl`: nothing that types into a terminal.
    Terminal,
    /// `personality`: Linux as it is, 32 bits, or without randomised addresses.
    Personality,
}

/// The filter of every box.
pub fn program() -> Program {
    Program::new(&calls::table())
}
