//! Namespaces made in advance: a network namespace takes as long as everything else together, and at times ten
//! times as long.

use super::{Step, at};
use crate::{
    kernel::Linux,
    net, rootfs,
    user::{self, Ids},
};
use rustix::{
    fd::{AsRawFd, OwnedFd},
    fs::{Mode, OFlags},
    rand::GetRandomFlags,
};
use std::io;

/// How many wait. Each costs the kernel some memory, and nobody else.
const READY: usize = 16;

/// The namespaces of one box.
#[derive(Debug)]
pub struct Spaces {
    pub net: OwnedFd,
    pub user: OwnedFd,
    /// A furnished root.
    pub root: Linux,
}

#[derive(Debug)]
pub struct Pool {
    root: bool,
    ready: Vec<Spaces>,
    /// Whoever starts one box and goes shall not pay for more.
    asked: usize,
    /// What boxes may have of the host's `/etc`. All boxes of a launcher have the same.
    etc: Option<OwnedFd>,
}

impl Pool {
    pub fn new(root: bool) -> Pool {
        Pool { root, ready: Vec::new(), asked: 0, etc: None }
    }

    /// Where a box's folder is, the copy of `/etc` is too. It may be another than before.
    pub fn find_etc(&mut self, folder: &OwnedFd) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let found = rustix::fs::openat(folder, "../../etc", flags, Mode::empty()).ok();
        let inode = |fd: Option<&OwnedFd>| rustix::fs::fstat(fd?).ok().map(|stat| (stat.st_dev, stat.st_ino));
        if inode(found.as_ref()) != inode(self.etc.as_ref()) {
            // Furnished with links into the old one.
            self.ready.clear();
        }
        self.etc = found;
    }

    pub fn wants_more(&self) -> bool {
        self.asked > 1 && self.ready.len() < READY
    }

    /// One more. A failure shows when the next box is asked for.
    pub fn add(&mut self) {
        match self.make() {
            Ok(spaces) => self.ready.push(spaces),
            Err(_) => self.asked = 0,
        }
    }

    pub fn take(&mut self) -> Step<Spaces> {
        self.asked += 1;
        match self.ready.pop() {
            Some(spaces) => Ok(spaces),
            None => self.make(),
        }
    }

    fn make(&self) -> Step<Spaces> {
        let ids = match self.root {
            true => Ids::pick(at("a random number", random())?),
            false => Ids::ONE,
        };
        let user = at("a user namespace", user::namespace(ids))?;
        let net = at("a network namespace", net::namespace())?;
        let mut root = at("a new root", Linux::new(ids))?;
        let etc = self.etc.as_ref().map(AsRawFd::as_raw_fd);
        let furnished = rootfs::furnish(&mut root, etc, self.root);
        root.done();
        furnished.map_err(|failed| ("furnishing the root", failed.error))?;
        Ok(Spaces { net, user, root })
    }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
