//! A process that makes boxes in advance for a launcher, when nobody else wants the processor. It ends when the
//! launcher does.

use super::{
    Live, Powers, Step, at, child, clone,
    descriptors::close_others,
    fork,
    pool::{Common, Seat, Spaces, make},
    receive, send,
};
use crate::{
    kernel::Linux,
    user::{self, Ids},
};
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    net::{AddressFamily, SocketFlags, SocketType},
};
use std::io;

/// The launcher's end.
#[derive(Debug)]
pub struct Maker {
    pub socket: OwnedFd,
    /// How many were asked for and have not come.
    pub asked: usize,
}

/// What was made.
#[derive(Debug)]
pub enum Made {
    /// A box that waits.
    Seat(Seat),
    /// What a box can be made of.
    Spaces(Box<Spaces>),
}

/// A request, and the first byte of its answer.
const SEAT: u8 = 1;
const SPACES: u8 = 2;

impl Maker {
    pub fn start(powers: &Powers, live: &Live<'_>) -> io::Result<Maker> {
        let (ours, theirs) = pair()?;
        match fork()? {
            0 => serve(powers, theirs, live),
            _ => Ok(Maker { socket: ours, asked: 0 }),
        }
    }

    /// `round`: comes back with what was made, to tell what is made of old things.
    pub fn ask(
        &mut self,
        waits: bool,
        round: u32,
        etc: Option<&OwnedFd>,
        program: &OwnedFd,
    ) -> io::Result<()> {
        let kind = if waits { SEAT } else { SPACES };
        let [a, b, c, d] = round.to_ne_bytes();
        let fds: Vec<_> = [Some(program), etc].into_iter().flatten().map(AsFd::as_fd).collect();
        send(self.socket.as_fd(), &[kind, a, b, c, d], &fds)?;
        self.asked += 1;
        Ok(())
    }

    /// What was made, and in which round it was asked for. An error: it is gone.
    pub fn next(&mut self) -> io::Result<(Made, u32)> {
        let (bytes, fds) = receive(self.socket.as_fd())?.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.asked = self.asked.saturating_sub(1);
        parse(&bytes, fds).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Whether a process here may give way to all others, and take that back. Not everybody may.
fn can_give_way() -> bool {
    // SAFETY: a plain call. Children are waited for only here.
    let reaping = |how| unsafe { libc::signal(libc::SIGCHLD, how) };
    reaping(libc::SIG_DFL);
    let status = match fork() {
        Ok(0) => child::leave(i32::from(give_way(true).and_then(|()| give_way(false)).is_err())),
        Ok(pid) => status_of(pid),
        Err(_) => None,
    };
    reaping(libc::SIG_IGN);
    status == Some(0)
}

fn status_of(pid: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: our own child, and a number on this stack.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// Whether this process runs only when nobody else wants to.
pub fn give_way(on: bool) -> io::Result<()> {
    let policy = if on { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    // SAFETY: an all-zero parameter is valid, and is read only.
    let done = unsafe {
        let parameter: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, policy, &raw const parameter)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn serve(powers: &Powers, socket: OwnedFd, live: &Live<'_>) -> ! {
    if close_others(&mut [socket.as_raw_fd()]).is_err() {
        child::leave(1);
    }
    let gives_way = powers.root && can_give_way() && give_way(true).is_ok();
    while let Ok(Some((bytes, fds))) = receive(socket.as_fd()) {
        // Whatever fails here fails again for whoever needs it, and is told then.
        if answer((powers, gives_way), &socket, &bytes, fds, live).is_none() {
            child::leave(1);
        }
    }
    child::leave(0)
}

fn answer(
    (powers, gives_way): (&Powers, bool),
    socket: &OwnedFd,
    request: &[u8],
    fds: Vec<OwnedFd>,
    live: &Live<'_>,
) -> Option<()> {
    let mut fds = fds.into_iter();
    let program = fds.next()?;
    let spaces = make(powers, fds.next().as_ref(), &program).ok()?;
    let ids = spaces.ids;
    let bytes = [request, &ids.first.to_ne_bytes(), &ids.count.to_ne_bytes()].concat();
    if *request.first()? == SEAT {
        let seat = park(powers, gives_way, spaces, live).ok()?;
        return send(socket.as_fd(), &bytes, &[seat.as_fd()]).ok();
    }
    let Common { etc, sudo: [first, second] } = &spaces.common;
    let fds = [Some(&spaces.net), Some(&spaces.user), Some(first), Some(second), etc.as_ref()];
    let mut fds: Vec<_> = fds.into_iter().flatten().map(AsFd::as_fd).collect();
    // SAFETY: `spaces` lives on.
    fds.insert(0, unsafe { BorrowedFd::borrow_raw(spaces.root.as_raw_fd()) });
    send(socket.as_fd(), &bytes, &fds).ok()
}

fn parse(bytes: &[u8], fds: Vec<OwnedFd>) -> Option<(Made, u32)> {
    let (kind, rest) = bytes.split_first()?;
    let (round, rest) = rest.split_first_chunk()?;
    let (first, rest) = rest.split_first_chunk()?;
    let ids = Ids { first: u32::from_ne_bytes(*first), count: u32::from_ne_bytes(rest.try_into().ok()?) };
    let mut fds = fds.into_iter();
    let made = match *kind {
        SEAT => Made::Seat(Seat { ids, socket: fds.next()? }),
        _ => {
            let root = Linux::of(fds.next()?, ids);
            let (net, user) = (fds.next()?, fds.next()?);
            let common = Common { sudo: [fds.next()?, fds.next()?], etc: fds.next() };
            Made::Spaces(Box::new(Spaces { net, user, ids, root, common }))
        }
    };
    Some((made, u32::from_ne_bytes(*round)))
}

/// A box that waits. What comes back is the way to it.
fn park(powers: &Powers, gives_way: bool, spaces: Spaces, live: &Live<'_>) -> Step<OwnedFd> {
    let (ours, theirs) = at("a socket", pair())?;
    at("joining the network namespace", user::join(&spaces.net, libc::CLONE_NEWNET))?;
    match at("cloning into namespaces", clone(None))? {
        0 => child::wait((powers, gives_way), theirs, spaces, live),
        _ => Ok(ours),
    }
}
