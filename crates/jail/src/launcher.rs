//! The launcher: one small process with one thread that starts boxes for a host process.
//!
//! It is the guest's own program, executed once per host process. A box is a clone of it in new namespaces, which builds
//! its file tree, gives up its powers and goes on as the guest, without executing anything again. The host's threads
//! are never forked. Mostly the box waits ready-made, and an order only makes it somebody's ([`pool`], [`maker`]); else it
//! is cloned for the order.
//!
//! The first thing that happens with an order is that the box's process writes its number into its folder, so that there
//! is no box that nobody knows, whoever dies in between.
//!
//! The host process has threads and is never forked: with 200 MB of memory a fork takes ten milliseconds, and the
//! child would inherit locks that no thread releases. An order has at most 160 KiB and 32 descriptors. The launcher
//! ends with its host process; its boxes continue to run.
//!
//! **Prepared boxes** ([`pool`]) contain everything that is the same for all boxes: namespaces, a network with its
//! loopback up, the root. An order then takes 0.5 ms instead of 2.5. The [`maker`] is a fork of the launcher that
//! runs under `SCHED_IDLE`, with the boxes that wait; a box that gets an order returns to the normal policy. An
//! ordinary user's process could not return, so it stays at the normal policy. The maker begins with the second box,
//! 2 ms after an order. 16 boxes wait, and twice as many up to 64 after the pool ran empty, until a minute passes
//! without an order. Prepared boxes are discarded when the copy of `/etc` or the guest's program is replaced, and end
//! with the launcher.
//!
//! **Control groups v2** have no prepared boxes, because a process must be born in its group (`CLONE_INTO_CGROUP`);
//! moving one costs milliseconds. Only namespaces and a furnished root are prepared. On v1 a child writes `0` into
//! the `tasks` files itself, which takes 0.09 ms; attaching it from outside takes 9 ms on an idle machine.
//!
//! **Trees across mount namespaces.** The launcher opens the box's directories, its volume and host folders as
//! detached trees (`open_tree`) in the namespace that it shares with the host, and the box attaches them in its own.
//! So a box that waited for an hour gets a disk that was mounted a moment ago.

mod child;
mod descriptors;
mod maker;
mod pool;
mod things;

pub use child::Inside;

use crate::{
    order::{CgroupPlace, MAX_ORDER, Order},
    rootfs::Failed,
    seccomp, user,
};
use pool::Pool;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags,
    },
};
use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
};
use things::Given;

/// Descriptors that come with an order, at the most.
pub const MAX_FDS: usize = 32;
/// How long the launcher rests before it asks for boxes in advance: until then the last one needs the processors
/// more.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// After so long without an order, as few boxes wait as usual.
const LONG_REST: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// What the launcher is, once and for all boxes.
#[derive(Debug)]
pub struct Powers {
    /// Real root; else an ordinary user who is root only in a namespace of its own.
    pub root: bool,
    boot: String,
    filter: seccomp::Program,
}

/// The whole life of a box's first process. The number is what it ends with.
pub type Live<'a> = dyn Fn(Inside) -> i32 + 'a;

/// Serves orders from `socket` until the host process is gone. In a box it calls `live`, and that never returns.
pub fn serve(socket: OwnedFd, live: &Live<'_>) -> io::Result<()> {
    let root = rustix::process::geteuid().is_root();
    // SAFETY: plain calls on numbers. Dead boxes are reaped by the kernel.
    unsafe {
        libc::setsid();
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::umask(0);
    }
    if !root {
        user::enter_own()?;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    let powers = Powers { root, boot, filter: seccomp::program() };
    let mut pool = Pool::new();
    loop {
        match next_event(&socket, &pool) {
            Event::Order => {
                let Some((bytes, fds)) = receive(socket.as_fd())? else { return Ok(()) };
                launch(&powers, &mut pool, &bytes, fds, live);
            }
            Event::Made => pool.take(),
            Event::Quiet if pool.wants_more() => pool.refill(&powers, live),
            Event::Quiet => pool.shrink(),
        }
    }
}

enum Event {
    /// The host wants something, or is gone.
    Order,
    /// Something that was asked for in advance is there.
    Made,
    /// Neither for a while.
    Quiet,
}

fn next_event(socket: &OwnedFd, pool: &Pool) -> Event {
    let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
    fds.extend(pool.source().map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
    let rest = match (pool.wants_more(), pool.is_large()) {
        (true, _) => Some(&REST),
        (false, true) => Some(&LONG_REST),
        (false, false) => None,
    };
    loop {
        match poll(&mut fds, rest) {
            Err(Errno::INTR) => {}
            Ok(0) => return Event::Quiet,
            // Orders first. Where looking fails, waiting for one does as well.
            _ if fds[1..].iter().all(|fd| fd.revents().is_empty()) => return Event::Order,
            _ if fds[0].revents().is_empty() => return Event::Made,
            _ => return Event::Order,
        }
    }
}

/// The next order; none when the host process is gone.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_ORDER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    if length == 0 {
        return Ok(None);
    }
    bytes.truncate(length);
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(Some((bytes, fds)))
}

/// Sends a message with descriptors in one piece.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Why a box could not be launched. Whoever asked may be gone.
fn tell(reply: BorrowedFd<'_>, message: &str) {
    let _ = rustix::io::write(reply, format!("error {message}\n").as_bytes());
}

type Step<T> = Result<T, (&'static str, io::Error)>;

fn at<T, E: Into<io::Error>>(step: &'static str, result: Result<T, E>) -> Step<T> {
    result.map_err(|error| (step, error.into()))
}

impl From<(&'static str, io::Error)> for Failed {
    fn from((step, error): (&'static str, io::Error)) -> Failed {
        Failed { step: step.to_owned(), error }
    }
}

/// Whoever asked is told what fails.
fn launch(powers: &Powers, pool: &mut Pool, bytes: &[u8], fds: Vec<OwnedFd>, live: &Live<'_>) {
    let Some(reply) = fds.first().and_then(|reply| reply.try_clone().ok()) else { return };
    let order = match Order::parse(bytes) {
        Ok(order) => order,
        Err(error) => return tell(reply.as_fd(), &error.to_string()),
    };
    let Some(given) = Given::sort(&order, fds) else {
        return tell(reply.as_fd(), "the order's descriptors are not those it names");
    };
    if let Err(failed) = try_launch(powers, pool, (&order, bytes), &given, live) {
        tell(reply.as_fd(), &failed.to_string());
    }
}

fn try_launch(
    powers: &Powers,
    pool: &mut Pool,
    (order, bytes): (&Order, &[u8]),
    given: &Given,
    live: &Live<'_>,
) -> Result<(), Failed> {
    pool.note(order, &given.folder, &given.program);
    // One that died while it waited is passed over.
    while let Some(seat) = pool.seat(order) {
        let things = given.prepare(order, powers.root, seat.ids)?;
        if seat.order(bytes, &things).is_ok() {
            return Ok(());
        }
    }
    let spaces = pool.spaces(powers)?;
    let things = given.prepare(order, powers.root, spaces.ids)?;
    // The child inherits it.
    at("joining the network namespace", user::join(&spaces.net, libc::CLONE_NEWNET))?;
    let cgroup = match order.cgroup {
        CgroupPlace::V2 => given.groups.first(),
        _ => None,
    };
    match at("cloning into namespaces", clone(cgroup))? {
        0 => child::begin(powers, order, things, spaces, live),
        _ => Ok(()),
    }
}

/// A plain copy of this process, which has one thread. Zero in the child.
fn fork() -> io::Result<libc::pid_t> {
    // SAFETY: the one thread goes on in both.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

/// Clones this process, which has one thread, into namespaces. Zero in the child.
fn clone(cgroup: Option<&OwnedFd>) -> io::Result<libc::pid_t> {
    let mut flags = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    if cgroup.is_none() {
        // On v1 the child joins its groups first.
        flags &= !libc::CLONE_NEWCGROUP;
    }
    // SAFETY: an all-zero clone_args is valid. Without a shared memory this is a fork; the one thread goes on in
    // both.
    let pid = unsafe {
        let mut args: libc::clone_args = std::mem::zeroed();
        args.flags = flags as u32 as u64;
        args.exit_signal = libc::SIGCHLD as u64;
        if let Some(cgroup) = cgroup {
            args.flags |= INTO_CGROUP;
            args.cgroup = cgroup.as_raw_fd() as u64;
        }
        libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>())
    };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as libc::pid_t) }
}
