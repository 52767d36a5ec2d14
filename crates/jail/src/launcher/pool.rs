//! Namespaces made in advance: a network namespace takes as long as everything else together, and at times ten
//! times as long.

use super::{Step, at};
use crate::{
    net,
    user::{self, Ids},
};
use rustix::{fd::OwnedFd, rand::GetRandomFlags};
use std::io;

/// How many wait. Each costs the kernel some memory, and nobody else.
const READY: usize = 4;

/// The namespaces of one box.
#[derive(Debug)]
pub struct Spaces {
    pub net: OwnedFd,
    pub user: OwnedFd,
    pub ids: Ids,
}

#[derive(Debug)]
pub struct Pool {
    root: bool,
    ready: Vec<Spaces>,
    /// Whoever starts one box and goes shall not pay for more.
    asked: usize,
}

impl Pool {
    pub fn new(root: bool) -> Pool {
        Pool { root, ready: Vec::new(), asked: 0 }
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
        Ok(Spaces { net, user, ids })
    }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
