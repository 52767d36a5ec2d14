//! Keepers that wait for a next command, for a while.
//!
//! A keeper whose command has ended waits one or two seconds for the next, and at most four wait. This saves a fork
//! and an exit, a quarter of the round trip of `true`. A command that does not fit into one message (96 KiB) gets a
//! new keeper. The guest of a native box forks one keeper as soon as it serves; an idle box has none.

use super::{
    handover::{Order, hand_over},
    keeper,
    words::{Said, Tell},
};
use crate::{
    fault::{Outcome, from_errno, from_io},
    state::Guest,
};
use rustix::{
    fd::{AsFd, OwnedFd},
    net::{AddressFamily, SendFlags, SocketFlags, SocketType},
};
use std::{
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{io::unix::AsyncFd, task::spawn_local, time::sleep};

/// As many as commands that usually run side by side.
const WAITING: usize = 4;
/// An idle sandbox has none.
const PATIENCE: Duration = Duration::from_secs(1);

/// A keeper that the guest knows as its own, until this is dropped.
pub struct Known {
    pub guest: Rc<Guest>,
    pub keeper: u32,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.guest.processes.keepers.borrow_mut().remove(&self.keeper);
    }
}

/// A keeper and the socket to it. Letting go of the socket ends the keeper.
pub struct Kept {
    pub known: Known,
    pub ctl: Rc<AsyncFd<OwnedFd>>,
}

/// One that has nothing to keep, since when.
pub struct Waiting {
    since: Instant,
    kept: Kept,
}

impl Kept {
    /// A keeper that runs `order`: one that waited, or a new one.
    pub fn for_order(guest: &Rc<Guest>, order: &Order<'_>) -> Outcome<(Kept, bool)> {
        let waiting = guest.processes.waiting.borrow_mut().pop();
        if let Some(Waiting { kept, .. }) = waiting
            && hand_over(order, kept.ctl.get_ref().as_fd()).is_ok()
        {
            return Ok((kept, true));
        }
        Ok((Kept::fork(guest, Some(order))?, false))
    }

    pub fn fork(guest: &Rc<Guest>, order: Option<&Order<'_>>) -> Outcome<Kept> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|errno| from_errno("a socket", errno))?;
        rustix::io::ioctl_fionbio(&theirs, false).map_err(|errno| from_errno("a socket", errno))?;
        let keeper =
            keeper::fork(order, theirs.as_fd(), guest.lock.as_ref().map(AsFd::as_fd)).map_err(|error| {
                match error.raw_os_error() {
                    Some(libc::EAGAIN) => super::run::too_many(),
                    _ => from_io("a new process", &error),
                }
            })?;
        guest.processes.keepers.borrow_mut().insert(keeper);
        let known = Known { guest: guest.clone(), keeper };
        let ctl = crate::poll::watch(ours).map_err(|error| from_io("a socket", &error))?;
        Ok(Kept { known, ctl: Rc::new(ctl) })
    }

    /// To its command's process group.
    pub fn signal(&self, signal: i32) {
        self.tell(Tell::Signal(signal));
    }

    /// Ends its command and everything that came from it.
    pub fn kill(&self) {
        self.tell(Tell::Kill);
    }

    fn tell(&self, tell: Tell) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // One that is gone needs no word.
        let _ = rustix::net::send(self.ctl.get_ref().as_fd(), &tell.to_bytes(), flags);
    }

    /// Waits until nothing is left of its command; then it may have another.
    pub async fn settle(self) {
        loop {
            match super::run::listen(&self.ctl).await {
                Some(Said::Gone) => return self.wait_for_more(),
                Some(_) => {}
                None => return,
            }
        }
    }

    /// After its command: it may have another, unless enough wait already.
    pub fn wait_for_more(self) {
        let guest = self.known.guest.clone();
        let mut waiting = guest.processes.waiting.borrow_mut();
        if waiting.len() >= WAITING || guest.stopping.get().is_some() {
            return;
        }
        waiting.push(Waiting { since: Instant::now(), kept: self });
        if !guest.processes.dismissing.replace(true) {
            spawn_local(dismiss(guest.clone()));
        }
    }
}

/// One that waits for the first command, which mostly comes at once. Without it that one forks its own.
pub fn make_ready(guest: &Rc<Guest>) {
    if let Ok(kept) = Kept::fork(guest, None) {
        kept.wait_for_more();
    }
}

/// Lets go of those that wait in vain, until there are none.
async fn dismiss(guest: Rc<Guest>) {
    loop {
        sleep(PATIENCE).await;
        let mut waiting = guest.processes.waiting.borrow_mut();
        waiting.retain(|waiting| waiting.since.elapsed() < PATIENCE);
        if waiting.is_empty() {
            guest.processes.dismissing.set(false);
            return;
        }
    }
}
