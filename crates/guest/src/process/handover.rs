//! How a command gets to a keeper that waits for one: its bytes and its descriptors in one message.
//!
//! The keeper's half makes only async-signal-safe calls and allocates nothing.

use super::{
    keeper::{CTL, CWD, errno, exit},
    plan::{MAX_POINTERS, MAX_SENT},
    words::MESSAGE,
};
use libc::c_char;
use rustix::{
    fd::{BorrowedFd, RawFd},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags},
};
use std::{io, mem::MaybeUninit, ptr, sync::OnceLock};

/// A command with the descriptors it starts with: stdin, stdout, stderr, its directory.
pub struct Order<'a> {
    pub bytes: &'a [u8],
    /// How many pointers its plan needs.
    pub pointers: usize,
    pub fds: [BorrowedFd<'a>; 4],
}

/// Gives the next command to a keeper that waits for one. Fails where it is too large or the keeper gone.
pub fn hand_over(order: &Order<'_>, ctl: BorrowedFd<'_>) -> io::Result<()> {
    if order.bytes.len() > MAX_SENT || order.pointers > MAX_POINTERS {
        return Err(io::ErrorKind::ArgumentListTooLong.into());
    }
    let mut space = [MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(&[]).size() + 64];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&order.fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = [io::IoSlice::new(order.bytes)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::sendmsg(ctl, &bytes, &mut ancillary, flags)? {
        n if n == order.bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Memory for the commands that a keeper takes over its socket. The guest never touches it, so it costs a
/// keeper only what it uses and the guest nothing.
#[derive(Clone, Copy)]
pub struct Space(usize);

impl Space {
    const TABLE: usize = MAX_POINTERS * size_of::<*const c_char>();

    pub fn get() -> io::Result<Space> {
        static SPACE: OnceLock<usize> = OnceLock::new();
        if let Some(space) = SPACE.get() {
            return Ok(Space(*space));
        }
        let (all, length) = (libc::PROT_READ | libc::PROT_WRITE, Space::TABLE + MAX_SENT);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which overlaps nothing.
        let memory = unsafe { libc::mmap(ptr::null_mut(), length, all, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Space(*SPACE.get_or_init(|| memory as usize)))
    }

    /// # Safety
    /// Only in a keeper, and not while another result of it is in use.
    pub unsafe fn parts(self) -> (&'static mut [*const c_char], &'static mut [u8]) {
        // SAFETY: the mapping has this size, is aligned to a page, is zeroed, and stays for ever.
        unsafe {
            let table = std::slice::from_raw_parts_mut(self.0 as *mut *const c_char, MAX_POINTERS);
            let bytes = std::slice::from_raw_parts_mut((self.0 + Space::TABLE) as *mut u8, MAX_SENT);
            (table, bytes)
        }
    }
}

/// Waits for the next command and arranges its descriptors. Ends the keeper when the guest wants no more.
pub fn next_order(buffer: &mut [u8]) -> usize {
    // Aligned as the kernel writes into it.
    let mut ancillary = [0u64; 8];
    loop {
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: an all-zero msghdr is valid; the pointers are to memory of these sizes that outlives the
        // call.
        let (n, header) = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &mut part;
            header.msg_iovlen = 1;
            header.msg_control = ancillary.as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&ancillary);
            (libc::recvmsg(CTL, &mut header, 0), header)
        };
        match usize::try_from(n) {
            // A word about the last command, which came too late.
            Ok(MESSAGE) => {}
            Ok(n) if n > MESSAGE && arranged(&header) => return n,
            Err(_) if errno() == libc::EINTR => {}
            _ => exit(),
        }
    }
}

/// Four descriptors came. As 0, 1, 2 were free, the first three are those.
fn arranged(header: &libc::msghdr) -> bool {
    // SAFETY: the kernel wrote the ancillary data within `msg_controllen`.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(header);
        if first.is_null()
            || (*first).cmsg_type != libc::SCM_RIGHTS
            || (*first).cmsg_len as usize != libc::CMSG_LEN(16) as usize
        {
            return false;
        }
        let fds = ptr::read_unaligned(libc::CMSG_DATA(first).cast::<[RawFd; 4]>());
        let cwd = fds[3];
        let settled = if cwd == CWD {
            libc::fcntl(CWD, libc::F_SETFD, libc::FD_CLOEXEC) == 0
        } else {
            libc::dup3(cwd, CWD, libc::O_CLOEXEC) == CWD && libc::close(cwd) == 0
        };
        settled && fds[..3] == [0, 1, 2]
    }
}
