//! The launcher: one small process with one thread that starts boxes for a host process.
//!
//! It is the guest's own program, executed once per host process. For each box it clones itself into new
//! namespaces; the child builds its file tree, gives up its powers and goes on as the guest, without executing
//! anything again. The host's threads are never forked.
//!
//! The first thing that a box's process does is to write its number into its folder, so that there is no box that
//! nobody knows, whoever dies in between.

mod child;
mod pool;

pub use child::Inside;

use crate::{
    order::{CgroupPlace, MAX_ORDER, Order},
    seccomp, user,
};
use pool::Pool;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
};
use std::{
    fs,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
};

/// Descriptors that come with an order, at the most.
const MAX_FDS: usize = 32;
/// How long the launcher rests before it makes namespaces in advance: until then the last box needs the
/// processors more.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 4_000_000 };

/// What the launcher is, once and for all boxes.
#[derive(Debug)]
pub struct Powers {
    /// Real root; else an ordinary user who is root only in a namespace of its own.
    pub root: bool,
    boot: String,
    filter: seccomp::Program,
}

/// Serves orders from `socket` until the host process is gone. In a box it calls `live`, and that never returns.
pub fn serve(socket: OwnedFd, live: &dyn Fn(Inside) -> i32) -> io::Result<()> {
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
    let mut pool = Pool::new(root);
    loop {
        if pool.wants_more() && is_quiet(socket.as_fd()) {
            pool.add();
            continue;
        }
        let Some((bytes, fds)) = receive(socket.as_fd())? else { return Ok(()) };
        match Order::parse(&bytes) {
            Ok(order) if order.fds() == fds.len() => launch(&powers, &mut pool, &order, fds, live),
            Ok(_) => tell_first(&fds, "the order's descriptors are not those it names"),
            Err(error) => tell_first(&fds, &error.to_string()),
        }
    }
}

fn is_quiet(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&REST)), Ok(0))
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

/// Answers on the descriptor that an order brought for it.
fn tell_first(fds: &[OwnedFd], message: &str) {
    if let Some(reply) = fds.first() {
        tell(reply.as_fd(), message);
    }
}

/// Why a box could not be launched. Whoever asked may be gone.
fn tell(reply: BorrowedFd<'_>, message: &str) {
    let _ = rustix::io::write(reply, format!("error {message}\n").as_bytes());
}

fn launch(powers: &Powers, pool: &mut Pool, order: &Order, fds: Vec<OwnedFd>, live: &dyn Fn(Inside) -> i32) {
    let reply = fds[0].as_fd();
    if let Err((step, error)) = try_launch(powers, pool, order, &fds, live) {
        tell(reply, &format!("{step}: {error}"));
    }
}

type Step<T> = Result<T, (&'static str, io::Error)>;

fn at<T, E: Into<io::Error>>(step: &'static str, result: Result<T, E>) -> Step<T> {
    result.map_err(|error| (step, error.into()))
}

fn try_launch(
    powers: &Powers,
    pool: &mut Pool,
    order: &Order,
    fds: &[OwnedFd],
    live: &dyn Fn(Inside) -> i32,
) -> Step<()> {
    pool.find_etc(&fds[1]);
    let spaces = pool.take()?;
    let mut owners = Vec::new();
    for folder in fds[fds.len() - order.mounts.len()..].iter().filter(|_| powers.root) {
        owners.push(at("the ids of a mount", spaces.root.owner_map(folder))?);
    }
    // The child inherits it.
    at("joining the network namespace", user::join(&spaces.net, libc::CLONE_NEWNET))?;
    let cgroup = match order.cgroup {
        CgroupPlace::V2 => Some(&fds[Order::FDS]),
        _ => None,
    };
    match at("cloning into namespaces", clone(cgroup))? {
        0 => child::run(powers, order, fds, (spaces, owners), live),
        _ => Ok(()),
    }
}

/// Clones this process, which has one thread. Zero in the child.
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
