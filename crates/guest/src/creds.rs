//! File access as another user, for one thread at a time.
//!
//! Linux keeps the identity for file access per thread. A thread takes it on, does its work, and puts
//! it down again, also when the work panics. Going from 0 to another user drops the file capabilities
//! (override, chown …) for that time, so the kernel itself decides.

use crate::{
    fault::Outcome,
    users::{self, User},
};
use seawall_api::{ErrorKind, Fault};

/// Whom a piece of work is done as. None: as the guest itself.
pub type Identity = Option<User>;

/// Checks that this guest may act as `wanted`.
pub fn identity(wanted: Option<&str>) -> Outcome<Identity> {
    let Some(wanted) = wanted else { return Ok(None) };
    let user = users::find(wanted)?;
    let own = rustix::process::geteuid().as_raw();
    match own {
        0 if user.uid == 0 && user.gid == 0 => Ok(None),
        0 => Ok(Some(user)),
        _ if own == user.uid && rustix::process::getegid().as_raw() == user.gid => Ok(None),
        _ => Err(Fault::new(
            ErrorKind::Denied,
            format!("this sandbox runs as user {own} and cannot act as {wanted}; run seawall as root"),
        )),
    }
}

/// Does `work` with the rights of `identity`. Call it on a thread that does nothing else meanwhile.
pub fn with_identity<T>(identity: &Identity, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _worn = identity.as_ref().map(Worn::put_on).transpose()?;
    work()
}

struct Worn {
    groups: Vec<libc::gid_t>,
    gid: u32,
    uid: u32,
}

impl Worn {
    fn put_on(user: &User) -> Outcome<Self> {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let worn = Worn {
            groups: groups.iter().map(|g| g.as_raw()).collect(),
            gid: rustix::process::getegid().as_raw(),
            uid: rustix::process::geteuid().as_raw(),
        };
        match set(&user.groups, user.gid, user.uid) {
            true => Ok(worn),
            // Dropping `worn` puts things right again.
            false => Err(Fault::new(ErrorKind::Denied, format!("this sandbox cannot act as {}", user.name))),
        }
    }
}

impl Drop for Worn {
    fn drop(&mut self) {
        if !set(&self.groups, self.gid, self.uid) {
            // A thread that could not get its own identity back must not work on as somebody else.
            crate::say!("a thread could not get its identity back");
            std::process::abort();
        }
    }
}

/// Groups, group and user for file access, of this thread alone: the raw calls, not glibc's, which change
/// all threads. The kernel does not say whether it obeyed, so it is asked.
fn set(groups: &[libc::gid_t], gid: u32, uid: u32) -> bool {
    // SAFETY: the pointer and the length are those of a live slice; the calls touch no other memory. With an
    // impossible id they change nothing and return the present one.
    unsafe {
        let grouped = libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0;
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        grouped
            && libc::syscall(libc::SYS_setfsgid, u32::MAX) == i64::from(gid)
            && libc::syscall(libc::SYS_setfsuid, u32::MAX) == i64::from(uid)
    }
}
