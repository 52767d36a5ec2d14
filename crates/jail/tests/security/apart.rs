//! Namespaces of its own for a control, so that what works on the host does not happen to it.

use super::probe::{
    Arg::{N, S},
    call,
};
use std::io;

/// Leaves the host's namespaces of these kinds. Before anything else: this process has one thread.
pub fn leave(kinds: libc::c_int) -> io::Result<()> {
    call(libc::SYS_unshare, [N(kinds.into())])?;
    if kinds & libc::CLONE_NEWNS != 0 {
        // Else mounts would show on the host all the same.
        let private = libc::MS_REC | libc::MS_PRIVATE;
        call(libc::SYS_mount, [S(c"none"), S(c"/"), S(c"none"), N(private as i64), N(0)])?;
    }
    Ok(())
}
