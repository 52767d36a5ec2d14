//! Which descriptors a box's first process has.

use rustix::{
    fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    fs::{Mode, OFlags},
};
use std::{io, os::fd::IntoRawFd};

/// Closes all of the launcher's but these: whoever waits for its end must not be what keeps it from being seen.
/// Standard input was the launcher's way to the host.
pub fn close_others(kept: &mut [RawFd]) -> io::Result<()> {
    kept.sort_unstable();
    // SAFETY: plain calls on numbers. Standard output is /dev/null; nobody uses the others any more.
    unsafe {
        if libc::dup2(1, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut next = FIRST;
        for fd in kept.iter().copied().filter(|fd| *fd >= FIRST) {
            if fd > next {
                libc::syscall(libc::SYS_close_range, next, fd - 1, 0);
            }
            next = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, next, u32::MAX, 0);
    }
    Ok(())
}

/// What is kept gets the numbers from here on.
const FIRST: RawFd = 3;
pub const KEPT: usize = 6;

/// Closes everything but these, which get new numbers, and stdio, which becomes /dev/null. Whoever owned a
/// descriptor before must not use or close it any more, and does not: this process never returns to them.
pub fn keep_only(kept: [Option<RawFd>; KEPT]) -> io::Result<[Option<OwnedFd>; KEPT]> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let park = |fd: RawFd| {
        // SAFETY: a plain call on numbers.
        match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 64) } {
            -1 => Err(io::Error::last_os_error()),
            parked => Ok(parked),
        }
    };
    let mut parked = Vec::new();
    for target in 0..FIRST {
        parked.push((park(null.as_raw_fd())?, target));
    }
    for (fd, target) in kept.iter().zip(FIRST..) {
        if let Some(fd) = fd {
            parked.push((park(*fd)?, target));
        }
    }
    let _ = null.into_raw_fd();
    for (from, to) in &parked {
        let flags = if *to < FIRST { 0 } else { libc::O_CLOEXEC };
        // SAFETY: a plain call on numbers.
        if unsafe { libc::dup3(*from, *to, flags) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let is_kept = |number: RawFd| parked.iter().any(|(_, to)| *to == number);
    let owned = std::array::from_fn(|n| {
        let number = FIRST + n as RawFd;
        // SAFETY: made just now, and owned here alone.
        is_kept(number).then(|| unsafe { OwnedFd::from_raw_fd(number) })
    });
    for number in (FIRST..FIRST + KEPT as RawFd).filter(|number| !is_kept(*number)) {
        // SAFETY: a number that nobody uses any more.
        unsafe { libc::close(number) };
    }
    // SAFETY: as above, all the others.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST as u32 + KEPT as u32, u32::MAX, 0) };
    Ok(owned)
}
