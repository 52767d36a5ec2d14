//! The first process of a box, from the clone until it is the guest.
//!
//! The child does the following, in this order:
//!
//! 1. It attaches the furnished root over the present one.
//! 2. It mounts what every box has, pivots (`rootfs::assemble`) and sets the host name. A prepared box waits here for
//!    its order.
//! 3. It writes its number into the box's folder and joins its groups (v1). With an order from the start, this is the
//!    first step.
//! 4. It takes its files from its disks, and mounts its directories, its volume and host folders (`rootfs::occupy`).
//! 5. It forbids core files, limits open files, and binds `wire.sock` in the box's folder, outside the box's tree.
//! 6. It closes every descriptor but six: the listener, the answer socket, the user namespace, the counters of memory
//!    and of processes, and `ended`, into which the guest may write why the box ended by itself.
//! 7. **It enters the user namespace last**, as its root, drops capabilities, sets no-new-privileges and installs the
//!    filter.
//! 8. It answers `ready`, when the socket already accepts connections, and continues as the guest.
//!
//! All other namespaces therefore belong to the launcher's user namespace: root of the box can neither mount, nor
//! rename the host, nor change an interface, with or without the filter. Settings of the network namespace allow
//! ports below 1024 and `ping` to all users of the box.

use super::{
    Live, Powers,
    descriptors::{close_others, keep_only},
    maker::give_way,
    pool::{Common, Spaces},
    receive, tell,
    things::{Things, trees},
};
use crate::{
    caps,
    etc::HOSTNAME,
    kernel::Linux,
    order::{CgroupPlace, Disks, Order},
    process,
    rootfs::{self, Failed, Parts, step},
};
use rustix::{
    fd::{AsFd, AsRawFd, OwnedFd},
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::DumpableBehavior,
};
use std::{
    io,
    os::{fd::IntoRawFd, unix::net::UnixListener},
};

/// What the guest of a box starts with. Its descriptors are the only ones that are open beside stdio, which is
/// /dev/null.
#[derive(Debug)]
pub struct Inside {
    pub sandbox: String,
    pub user: Option<String>,
    pub env: Vec<(String, String)>,
    /// Where hosts connect.
    pub listener: UnixListener,
    /// Where to say that it serves.
    pub reply: OwnedFd,
    /// Whether it may become other users.
    pub users: bool,
    /// Counts kills for memory, and refusals of processes.
    pub counters: [Option<OwnedFd>; 2],
    /// Whether its workspace has a size that cannot grow.
    pub disk: bool,
    /// Where one word goes, should it end by itself. In the box's folder, which the box itself never sees.
    pub ended: Option<OwnedFd>,
}

/// A box so far: its root, and the user namespace that it enters last.
struct Place {
    root: Linux,
    user: OwnedFd,
}

/// A box that has its order. Never returns: the guest's end is the box's.
pub fn begin(powers: &Powers, order: &Order, things: Things, spaces: Spaces, live: &Live<'_>) -> ! {
    settle();
    // Nothing happens before the box's number is known.
    let known = number(powers).and_then(|number| register(&number, order, &things));
    match known.and_then(|()| build(powers, spaces)) {
        Ok(place) => take(powers, order, things, place, live),
        Err(failed) => fail(&things.reply, &failed),
    }
}

/// A box that waits for its order. It ends when the launcher does. `gives_way`: until then it runs only when nobody
/// else wants to.
pub fn wait((powers, gives_way): (&Powers, bool), socket: OwnedFd, spaces: Spaces, live: &Live<'_>) -> ! {
    settle();
    // Whoever asks finds nobody where this fails, and makes a box step by step.
    let Ok((number, place)) = arrive(powers, &socket, spaces) else { leave(1) };
    let Ok(Some((bytes, fds))) = receive(socket.as_fd()) else { leave(0) };
    if gives_way && give_way(false).is_err() {
        leave(1);
    }
    drop(socket);
    let Ok(order) = Order::parse(&bytes) else { leave(1) };
    let Some(things) = Things::sort(&order, fds) else { leave(1) };
    match register(&number, &order, &things) {
        Ok(()) => take(powers, &order, things, place, live),
        Err(failed) => fail(&things.reply, &failed),
    }
}

pub fn leave(code: i32) -> ! {
    // SAFETY: leaves without running anything of the launcher's.
    unsafe { libc::_exit(code) }
}

fn fail(reply: &OwnedFd, failed: &Failed) -> ! {
    tell(reply.as_fd(), &failed.to_string());
    leave(1)
}

fn settle() {
    // SAFETY: plain calls on numbers.
    unsafe {
        libc::setsid();
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_NAME, c"seawall-guest".as_ptr(), 0, 0, 0);
    }
}

/// The number of the box's first process as the host has it, when it began, and in which life of the machine.
fn number(powers: &Powers) -> Result<String, Failed> {
    let own = process::own().ok_or_else(|| io::Error::other("/proc does not know it"));
    let (pid, start) = step("the box's number", own)?;
    Ok(format!("{pid} {start} {}\n", powers.boot))
}

/// Everything of a box that is the same for all.
fn arrive(powers: &Powers, socket: &OwnedFd, spaces: Spaces) -> Result<(String, Place), Failed> {
    let number = number(powers)?;
    let Common { etc, sudo: [first, second] } = &spaces.common;
    let kept = [Some(socket), Some(&spaces.user), Some(&spaces.net), etc.as_ref(), Some(first), Some(second)];
    let mut kept: Vec<_> = kept.into_iter().flatten().map(AsRawFd::as_raw_fd).collect();
    kept.push(spaces.root.as_raw_fd());
    step("descriptors", close_others(&mut kept))?;
    Ok((number, build(powers, spaces)?))
}

/// Builds the file tree of a box around this process.
fn build(powers: &Powers, spaces: Spaces) -> Result<Place, Failed> {
    let Spaces { user, mut root, common, .. } = spaces;
    let mapping = if powers.root { Some(step("the user namespace", user.try_clone())?) } else { None };
    step("a new root", root.attach_root(mapping))?;
    let etc = common.etc.as_ref().map(AsRawFd::as_raw_fd);
    let sudo = common.sudo.each_ref().map(AsRawFd::as_raw_fd);
    rootfs::assemble(&mut root, &rootfs::Common { sudo, etc, users: powers.root })?;
    step("the host's name", rustix::system::sethostname(HOSTNAME.as_bytes()).map_err(Into::into))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(Place { root, user })
}

/// Makes the box known, and its limits hold.
fn register(number: &str, order: &Order, things: &Things) -> Result<(), Failed> {
    step("noting the box's process", write_number(&things.folder, number))?;
    if matches!(order.cgroup, CgroupPlace::V2) {
        // The clone put it there.
        return Ok(());
    }
    for tasks in &things.groups {
        step("the control group", rustix::io::write(tasks, b"0").map_err(Into::into))?;
    }
    // SAFETY: changes this process only.
    let done = unsafe { libc::unshare(libc::CLONE_NEWCGROUP) };
    step("a cgroup namespace", if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) })
}

fn write_number(folder: &OwnedFd, number: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(folder, "run.new", flags, Mode::from_raw_mode(0o600))?;
    io::Write::write_all(&mut std::fs::File::from(file), number.as_bytes())?;
    Ok(rustix::fs::renameat(folder, "run.new", folder, "run")?)
}

/// Makes the box this order's, and goes on as its guest.
fn take(powers: &Powers, order: &Order, mut things: Things, mut place: Place, live: &Live<'_>) -> ! {
    let listener = match occupy(order, &mut things, &mut place) {
        Ok(listener) => listener,
        Err(failed) => fail(&things.reply, &failed),
    };
    // Where this fails nobody can be told: which descriptor is which is not known any more.
    let Ok((inside, space)) = hand_over(powers, order, things, place, listener) else { leave(1) };
    match give_up_powers(powers, space) {
        Ok(()) => leave(live(inside)),
        Err(failed) => fail(&inside.reply, &failed),
    }
}

/// Mounts what is this box's, and listens.
fn occupy(order: &Order, things: &mut Things, place: &mut Place) -> Result<UnixListener, Failed> {
    let trees = step("the box's files", trees(&place.root, order.disks, std::mem::take(&mut things.files)))?;
    let numbers: Vec<_> = trees.iter().map(AsRawFd::as_raw_fd).collect();
    let Some((own, [work])) = numbers.split_first_chunk() else {
        return step("the box's files", Err(io::ErrorKind::NotFound.into()));
    };
    let targets = order.mounts.iter().map(|mount| mount.target.as_str());
    let folders = targets.zip(things.folders.iter().map(AsRawFd::as_raw_fd)).collect();
    rootfs::occupy(&mut place.root, &Parts { own: *own, work: *work, folders })?;
    limit_files(order.open_files)?;
    step("the wire's socket", listen(&things.folder))
}

/// Keeps what the guest needs, and closes everything else.
fn hand_over(
    powers: &Powers,
    order: &Order,
    things: Things,
    place: Place,
    listener: UnixListener,
) -> io::Result<(Inside, OwnedFd)> {
    let Things { reply, folder, groups, counters, files, folders } = things;
    let Place { root, user } = place;
    // A box without it is as good; only why it ended would not be known.
    let ended = open_ended(&folder).ok().map(IntoRawFd::into_raw_fd);
    drop((root, folder, groups, files, folders));
    // From here on numbers only: an owner that closed its number later would close another's.
    let [oom, pids] = counters.map(|fd| fd.map(IntoRawFd::into_raw_fd));
    let (listener, reply, user) = (listener.into_raw_fd(), reply.into_raw_fd(), user.into_raw_fd());
    let [listener, reply, space, oom, pids, ended] =
        keep_only([Some(listener), Some(reply), Some(user), oom, pids, ended])?;
    let (Some(listener), Some(reply), Some(space)) = (listener, reply, space) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let inside = Inside {
        sandbox: order.sandbox.clone(),
        user: order.user.clone(),
        env: order.env.clone(),
        listener: listener.into(),
        reply,
        users: powers.root,
        counters: [oom, pids],
        disk: matches!(order.disks, Disks::One | Disks::Work | Disks::Two),
        ended,
    };
    Ok((inside, space))
}

fn open_ended(folder: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(folder, "ended", flags, Mode::from_raw_mode(0o600))?)
}

/// From here on this process is a nobody.
fn give_up_powers(powers: &Powers, space: OwnedFd) -> Result<(), Failed> {
    step("entering the user namespace", crate::user::enter(&space, powers.root))?;
    drop(space);
    step("capabilities", caps::drop_others())?;
    // Nobody in the box looks into process 1, root neither.
    let private = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    step("keeping memory private", private.map_err(Into::into))?;
    step("no new privileges", caps::no_new_privileges())?;
    step("the filter of system calls", powers.filter.install())
}

/// In the box's folder, which the box itself never sees.
fn listen(folder: &OwnedFd) -> io::Result<UnixListener> {
    match rustix::fs::unlinkat(folder, "wire.sock", rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let path = format!("/proc/self/fd/{}/wire.sock", folder.as_raw_fd());
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

fn limit_files(limit: Option<u64>) -> Result<(), Failed> {
    let set = |what, limit: u64| {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structures live on this stack.
        let done = unsafe {
            if libc::getrlimit(what, &mut now) != 0 {
                return Err(io::Error::last_os_error());
            }
            // Not everybody may have more than it has, root without all its powers neither.
            let limit = limit.min(now.rlim_max);
            libc::setrlimit(what, &libc::rlimit { rlim_cur: limit, rlim_max: limit })
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // A core would land wherever the host says.
    step("cores", set(libc::RLIMIT_CORE, 0))?;
    match limit {
        Some(limit) => step("open files", set(libc::RLIMIT_NOFILE, limit)),
        None => Ok(()),
    }
}
