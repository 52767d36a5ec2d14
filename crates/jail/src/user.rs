//! User namespaces: root of a box is nobody on the host.
//!
//! Started by root, a box has 65,536 ids, mapped to a random range of the host above 2^30 that is chosen anew for
//! each start. Files on disk have the box's own ids (0, 1000), and each mount decides how they are mapped:
//!
//! | mount | mapped | result |
//! | --- | --- | --- |
//! | the box's directories, its volume, its copy of `/etc` | to the box's ids | root of the box is root there |
//! | `/usr`, processors in `/sys`, devices | no | root of the box has no power over files that only the host's root may read |
//! | host folders that an operator allows | the folder's owner only, to the box's `user`, unless it is root | no program of root can be left there |
//!
//! An ordinary user has one id, and root of the box is that user.

use crate::own::USER;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::{fs, io};

/// Ids in a box.
pub const IDS: u32 = 1 << 16;
/// Ids of boxes on the host begin here, above those that systems and subordinate ranges use.
const FIRST: u32 = 1 << 30;
/// As many ranges of [`IDS`] follow.
const RANGES: u32 = 40_000;

/// Which ids of the host stand behind those of a box, from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub first: u32,
    pub count: u32,
}

impl Ids {
    /// A range of its own for a box, by chance: two boxes that share one share only what the kernel counts by
    /// user. Their namespaces keep them apart.
    pub fn pick(random: u64) -> Ids {
        Ids { first: FIRST + (random % u64::from(RANGES)) as u32 * IDS, count: IDS }
    }

    /// All that an ordinary user has: itself.
    pub const ONE: Ids = Ids { first: 0, count: 1 };

    fn line(self) -> String {
        format!("0 {} {}", self.first, self.count)
    }
}

const STACK: usize = 16 << 10;

/// A user namespace with these ids, as a descriptor. Whoever calls has one thread.
pub fn namespace(ids: Ids) -> io::Result<OwnedFd> {
    // What the kernel counts for a user it also counts for whoever made the namespace: that must not be root.
    let owner = (ids != Ids::ONE).then_some(ids.first);
    make([&ids.line(), &ids.line()], owner)
}

/// One that makes the owner of a folder of the host the plain user of a box; all others are nobody there. None
/// where that is root: else root's programs could be made from within. To be asked for where `/proc` is that of
/// this process's own pid namespace.
pub fn owner_map(ids: Ids, folder: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let found = rustix::fs::fstat(folder)?;
    let other = ids.first + USER;
    match (found.st_uid, found.st_gid) {
        (0, _) => Ok(None),
        (uid, gid) => make([&format!("{uid} {other} 1"), &format!("{gid} {other} 1")], None).map(Some),
    }
}

/// With these maps of users and of groups.
fn make(maps: [&str; 2], owner: Option<u32>) -> io::Result<OwnedFd> {
    let mut stack = vec![0u8; STACK];
    let flags = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::SIGCHLD;
    let as_user = |id: u32| {
        // SAFETY: plain numbers, this thread alone. Real and saved ids stay root's, so it can be undone.
        unsafe { libc::syscall(libc::SYS_setresuid, -1, id, -1) }
    };
    if let Some(owner) = owner {
        as_user(owner);
    }
    // SAFETY: the child has a stack of its own, aligned, touches no other memory, and is dead when this function
    // returns.
    let pid = unsafe {
        let top = (stack.as_mut_ptr_range().end as usize & !15) as *mut libc::c_void;
        libc::clone(wait_for_the_end, top, flags, std::ptr::null_mut())
    };
    let error = io::Error::last_os_error();
    if owner.is_some() {
        as_user(0);
    }
    if pid < 0 {
        return Err(error);
    }
    let made = map_and_open(pid, maps);
    // SAFETY: our child, which does nothing but wait; when the second call returns, it is gone.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        while libc::waitpid(pid, std::ptr::null_mut(), 0) < 0 && *libc::__errno_location() == libc::EINTR {}
    }
    made
}

fn map_and_open(pid: libc::pid_t, maps: [&str; 2]) -> io::Result<OwnedFd> {
    fs::write(format!("/proc/{pid}/uid_map"), maps[0])?;
    fs::write(format!("/proc/{pid}/gid_map"), maps[1])?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{pid}/ns/user"), flags, Mode::empty())?)
}

extern "C" fn wait_for_the_end(_: *mut libc::c_void) -> libc::c_int {
    loop {
        // SAFETY: sleeps; it is killed from outside.
        unsafe { libc::syscall(libc::SYS_pause) };
    }
}

/// For an ordinary user: a namespace in which it is root, so that it may make the others. This process moves
/// into it, and into a mount namespace of its own.
pub fn enter_own() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: changes this process only, which has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Moves this process into a user namespace, as its root.
pub fn enter(namespace: impl AsFd, may_set_groups: bool) -> io::Result<()> {
    join(namespace, libc::CLONE_NEWUSER)?;
    // SAFETY: plain system calls on numbers; one thread.
    let done = unsafe {
        (!may_set_groups || libc::syscall(libc::SYS_setgroups, 0, 0) == 0)
            && libc::syscall(libc::SYS_setresgid, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves this process into a namespace.
pub fn join(namespace: impl AsFd, kind: libc::c_int) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: changes this process only.
    match unsafe { libc::setns(namespace.as_fd().as_raw_fd(), kind) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lie_above_those_of_the_host_and_do_not_overlap() {
        for random in [0, 1, 39_999, u64::MAX] {
            let ids = Ids::pick(random);
            assert!(ids.first >= FIRST && ids.first.checked_add(IDS).is_some());
            assert_eq!((ids.first - FIRST) % IDS, 0);
        }
        assert_ne!(Ids::pick(0), Ids::pick(1));
    }
}
