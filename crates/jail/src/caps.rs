//! Capabilities: what root of a box may do, and only to what is the box's.

use rustix::io::Errno;
use std::io;

/// Kept: what Docker keeps, but for raw sockets, device nodes, audit messages and `SETPCAP`.
pub const KEPT: [u32; 9] = [
    0,  // CHOWN
    1,  // DAC_OVERRIDE
    3,  // FOWNER
    4,  // FSETID
    5,  // KILL
    6,  // SETGID
    7,  // SETUID
    10, // NET_BIND_SERVICE
    18, // SYS_CHROOT
];

/// `SETFCAP` is left out too: with no new privileges a file's capabilities mean nothing.
pub fn mask() -> u64 {
    KEPT.iter().fold(0, |mask, cap| mask | 1 << cap)
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

/// Nobody in the box gets any other again, root or not.
pub fn drop_others() -> io::Result<()> {
    let kept = mask();
    for cap in (0..64).filter(|cap| kept & 1 << cap == 0) {
        // SAFETY: a plain number.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) } != 0 {
            match io::Error::last_os_error() {
                // The kernel has no more of them.
                error if error.raw_os_error() == Some(libc::EINVAL) => break,
                error => return Err(error),
            }
        }
    }
    let header = Header { version: VERSION_3, pid: 0 };
    let half = |shift: u32| {
        let bits = (kept >> shift) as u32;
        Data { effective: bits, permitted: bits, inheritable: 0 }
    };
    let data = [half(0), half(32)];
    // SAFETY: both structures have the kernel's layout of version 3 and live on this stack.
    match unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// No program gives more rights than its caller has: setuid files are plain files.
pub fn no_new_privileges() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true).map_err(|errno: Errno| errno.into())
}
