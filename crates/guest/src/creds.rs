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
pub fn with_identity<T>(identity: &Identity, work: impl FnOnce() -> T) -> T {
    let _worn = identity.as_ref().map(Worn::put_on);
    work()
}

struct Worn {
    groups: Vec<libc::gid_t>,
}

impl Worn {
    fn put_on(user: &User) -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let worn = Worn { groups: groups.iter().map(|g| g.as_raw()).collect() };
        set(&user.groups, user.gid, user.uid);
        worn
    }
}

impl Drop for Worn {
    fn drop(&mut self) {
        set(&self.groups, 0, 0);
        // A thread that could not get its own identity back must not work on as somebody else.
        // SAFETY: setfsuid with an impossible id changes nothing and returns the present one.
        let now = unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) };
        if now != 0 {
            eprintln!("seawall-guest: a thread could not get its identity back");
            std::process::abort();
        }
    }
}

/// Groups, group and user for file access, of this thread alone: the raw calls, not glibc's, which
/// change all threads.
fn set(groups: &[libc::gid_t], gid: u32, uid: u32) {
    // SAFETY: the pointer and the length are those of a live slice; the calls touch no other memory.
    unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr());
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
}
