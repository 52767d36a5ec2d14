//! Boxes made in advance, up to what tells one from the other. They wait in processes of their own, and are gone
//! when the launcher is.
//!
//! Where a process has to be born in its control group (v2), only its namespaces and its root are made in advance.

use super::{
    Live, Powers, Step, at,
    maker::{Made, Maker},
    things::{Things, here},
};
use crate::{
    kernel::{Linux, tree},
    net,
    order::{CgroupPlace, Order},
    rootfs,
    user::{self, Ids},
};
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    fs::{Mode, OFlags},
    rand::GetRandomFlags,
};
use std::io;

/// How many wait at the least, and at the most where many are wanted at once. Each costs about a third of a MiB,
/// most of it the kernel's.
const FEW: usize = 16;
const MANY: usize = 64;

/// The namespaces of one box.
#[derive(Debug)]
pub struct Spaces {
    pub net: OwnedFd,
    pub user: OwnedFd,
    pub ids: Ids,
    /// A furnished root.
    pub root: Linux,
    /// What all boxes have.
    pub common: Common,
}

/// Trees of what all boxes have.
#[derive(Debug)]
pub struct Common {
    pub etc: Option<OwnedFd>,
    pub sudo: [OwnedFd; 2],
}

/// A box that waits for its order.
#[derive(Debug)]
pub struct Seat {
    pub ids: Ids,
    pub socket: OwnedFd,
}

#[derive(Debug)]
pub struct Pool {
    seats: Vec<Seat>,
    spaces: Vec<Spaces>,
    /// How many shall wait.
    wanted: usize,
    maker: Option<Maker>,
    /// Whoever starts one box and goes shall not pay for more.
    orders: usize,
    /// Whether boxes can wait.
    waits: bool,
    /// Grows when what is made of the following is outdated.
    round: u32,
    /// What boxes may have of the host's `/etc`, and the program that is `sudo`. All boxes of a launcher have the
    /// same.
    etc: Option<OwnedFd>,
    program: Option<OwnedFd>,
}

impl Pool {
    pub fn new() -> Pool {
        Pool {
            seats: Vec::new(),
            spaces: Vec::new(),
            wanted: FEW,
            maker: None,
            orders: 0,
            waits: false,
            round: 0,
            etc: None,
            program: None,
        }
    }

    /// To be called with each order. Where a box's folder is, the copy of `/etc` is too; that and the program may
    /// be others than before, and then nothing made of them is used any more.
    pub fn note(&mut self, order: &Order, folder: &OwnedFd, program: &OwnedFd) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let etc = rustix::fs::openat(folder, "../../etc", flags, Mode::empty()).ok();
        let program = program.try_clone().ok();
        let inode = |fd: Option<&OwnedFd>| rustix::fs::fstat(fd?).ok().map(|stat| (stat.st_dev, stat.st_ino));
        let both = [(&etc, &self.etc), (&program, &self.program)];
        let changed = both.into_iter().any(|(now, before)| inode(now.as_ref()) != inode(before.as_ref()));
        (self.etc, self.program) = (etc, program);
        self.orders += 1;
        if changed || can_wait(order) != self.waits {
            self.waits = can_wait(order);
            self.round += 1;
            self.seats.clear();
            self.spaces.clear();
        }
    }

    /// Whether more should be made in advance.
    pub fn wants_more(&self) -> bool {
        let coming = self.maker.as_ref().map_or(0, |maker| maker.asked);
        self.orders > 1 && self.seats.len() + self.spaces.len() + coming < self.wanted
    }

    /// Asks for as many as are missing. Where that fails, boxes are made when they are ordered, and the next order
    /// tries this again.
    pub fn refill(&mut self, powers: &Powers, live: &Live<'_>) {
        if self.maker.is_none() {
            self.maker = Maker::start(powers, live).ok();
        }
        while self.wants_more() {
            let (Some(maker), Some(program)) = (&mut self.maker, &self.program) else { return };
            if maker.ask(self.waits, self.round, self.etc.as_ref(), program).is_err() {
                self.give_up();
            }
        }
    }

    /// Where something that was asked for comes from.
    pub fn source(&self) -> Option<BorrowedFd<'_>> {
        self.maker.as_ref().map(|maker| maker.socket.as_fd())
    }

    /// Takes what came from there.
    pub fn take(&mut self) {
        match self.maker.as_mut().map(Maker::next) {
            Some(Ok((_, round))) if round != self.round => {}
            Some(Ok((Made::Seat(seat), _))) => self.seats.push(seat),
            Some(Ok((Made::Spaces(spaces), _))) => self.spaces.push(*spaces),
            _ => self.give_up(),
        }
    }

    fn give_up(&mut self) {
        self.maker = None;
        self.orders = 0;
    }

    /// Nobody has wanted anything for a while.
    pub fn shrink(&mut self) {
        self.wanted = FEW;
        self.seats.truncate(FEW);
        self.spaces.truncate(FEW);
    }

    /// Whether more wait than usual.
    pub fn is_large(&self) -> bool {
        self.wanted > FEW
    }

    /// A box that can take the order.
    pub fn seat(&mut self, order: &Order) -> Option<Seat> {
        if can_wait(order) { self.seats.pop() } else { None }
    }

    /// For an order for which none waits.
    pub fn spaces(&mut self, powers: &Powers) -> Step<Spaces> {
        if self.spaces.is_empty() && self.orders > FEW {
            self.wanted = (self.wanted * 2).min(MANY);
        }
        match (self.spaces.pop(), &self.program) {
            (Some(spaces), _) => Ok(spaces),
            (None, Some(program)) => make(powers, self.etc.as_ref(), program),
            (None, None) => at("the program", Err(io::Error::from(io::ErrorKind::NotFound))),
        }
    }
}

impl Seat {
    /// Gives the order to whoever waits. An error: nobody does any more.
    pub fn order(self, bytes: &[u8], things: &Things) -> io::Result<()> {
        Ok(super::send(self.socket.as_fd(), bytes, &things.list())?)
    }
}

/// Whether a box can be made before its order is known.
fn can_wait(order: &Order) -> bool {
    !matches!(order.cgroup, CgroupPlace::V2)
}

/// What a box is made of. This process moves into its network namespace.
pub fn make(powers: &Powers, etc: Option<&OwnedFd>, program: &OwnedFd) -> Step<Spaces> {
    let ids = match powers.root {
        true => Ids::pick(at("a random number", random())?),
        false => Ids::ONE,
    };
    let user = at("a user namespace", user::namespace(ids))?;
    let net = at("a network namespace", net::namespace())?;
    let mut root = at("a new root", Linux::new(ids))?;
    let furnished = rootfs::furnish(&mut root, etc.map(AsRawFd::as_raw_fd), powers.root);
    root.done();
    furnished.map_err(|failed| ("furnishing the root", failed.error))?;
    let common = at("what all boxes have", common(powers.root, etc, program))?;
    Ok(Spaces { net, user, ids, root, common })
}

fn common(root: bool, etc: Option<&OwnedFd>, program: &OwnedFd) -> io::Result<Common> {
    let copy = |fd: &OwnedFd| tree(here(fd, root)?.as_fd(), "");
    Ok(Common { etc: etc.map(copy).transpose()?, sudo: [copy(program)?, copy(program)?] })
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
