//! The first process of a box, from the clone until it is the guest.

use super::{Powers, pool::Spaces, tell};
use crate::{
    caps, disk,
    etc::HOSTNAME,
    order::{CgroupPlace, Order},
    process,
    rootfs::{self, Failed, Parts, step},
};
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    fs::{Mode, OFlags},
    mount::MountPropagationFlags,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::DumpableBehavior,
};
use std::{io, os::fd::IntoRawFd, os::unix::net::UnixListener, path::Path};

/// For each folder of the host, what makes its owner the box's user.
pub type Owners = Vec<Option<OwnedFd>>;

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
    /// Whether its files have a size that cannot grow.
    pub disk: bool,
}

/// Never returns: the guest's end is the box's.
pub fn run(
    powers: &Powers,
    order: &Order,
    fds: &[OwnedFd],
    spaces: (Spaces, Owners),
    live: &dyn Fn(Inside) -> i32,
) -> ! {
    // Nothing happens before the box's number is known.
    let noted = step("noting the box's process", write_number(fds[1].as_fd(), &powers.boot));
    let code = match noted.and_then(|()| enter(powers, order, fds, spaces)) {
        Ok(inside) => live(inside),
        Err(failed) => {
            tell(fds[0].as_fd(), &failed.to_string());
            1
        }
    };
    // SAFETY: leaves without running anything of the launcher's.
    unsafe { libc::_exit(code) }
}

/// The number of the box's first process as the host has it, when it began, and in which life of the machine.
fn write_number(folder: BorrowedFd<'_>, boot: &str) -> io::Result<()> {
    let (pid, start) = process::own().ok_or_else(|| io::Error::other("/proc does not know it"))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(folder, "run.new", flags, Mode::from_raw_mode(0o600))?;
    io::Write::write_all(&mut std::fs::File::from(file), format!("{pid} {start} {boot}\n").as_bytes())?;
    Ok(rustix::fs::renameat(folder, "run.new", folder, "run")?)
}

fn enter(
    powers: &Powers,
    order: &Order,
    fds: &[OwnedFd],
    (spaces, owners): (Spaces, Owners),
) -> Result<Inside, Failed> {
    // SAFETY: plain calls on numbers.
    unsafe {
        libc::setsid();
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_NAME, c"seawall-guest".as_ptr(), 0, 0, 0);
    }
    let reply = &fds[0];
    let [folder, own] = [here(&fds[1])?, here(&fds[2])?];
    let mut rest = fds[Order::FDS..].iter();
    join_groups(order, &mut rest)?;
    let (own, work) = match &order.disk {
        None => (own, here(&fds[3])?),
        Some(stamp) => step("the disk's image", open_image(&folder, &own, &fds[3], stamp))?,
    };
    let listener = step("the wire's socket", listen(&folder))?;
    let counters = order.counters.map(|comes| if comes { rest.next() } else { None });
    let users = powers.root;
    let mapping = if powers.root { Some(step("the user namespace", spaces.user.try_clone())?) } else { None };
    let mounted: Vec<OwnedFd> = rest.map(here).collect::<Result<_, _>>()?;
    let folders: Vec<_> = order.mounts.iter().cloned().zip(mounted.iter().map(AsRawFd::as_raw_fd)).collect();
    let etc = open_template(&folder);
    let program = here_file(&fds[4])?;
    let parts = Parts {
        program: program.as_raw_fd(),
        own: own.as_raw_fd(),
        work: work.as_raw_fd(),
        etc: etc.as_ref().map(AsRawFd::as_raw_fd),
        users,
        folders: &folders,
    };
    let Spaces { net, user, mut root } = spaces;
    let maps = mounted.iter().map(AsRawFd::as_raw_fd).zip(owners);
    root.owners = maps.filter_map(|(fd, map)| map.map(|map| (fd, map))).collect();
    step("a new root", root.attach_root(folder.as_fd(), mapping))?;
    rootfs::assemble(&mut root, &parts)?;
    // Before all other descriptors go, those that have an owner do.
    drop((root, folder, own, work, etc, mounted, program));
    step("the host's name", rustix::system::sethostname(HOSTNAME.as_bytes()).map_err(Into::into))?;
    limit_files(order.open_files)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // From here on numbers only: an owner that closed its number later would close another's.
    let _ = net.into_raw_fd();
    let [oom, pids] = counters.map(|fd| fd.map(AsRawFd::as_raw_fd));
    let kept = [Some(listener.into_raw_fd()), Some(reply.as_raw_fd()), Some(user.into_raw_fd()), oom, pids];
    let [listener, reply, space, oom, pids] = step("descriptors", keep_only(kept))?;
    let (Some(listener), Some(reply), Some(space)) = (listener, reply, space) else {
        return step("descriptors", Err(io::ErrorKind::NotFound.into()));
    };
    step("entering the user namespace", crate::user::enter(&space, users))?;
    drop(space);
    step("capabilities", caps::drop_others())?;
    // Nobody in the box looks into process 1, root neither.
    step(
        "keeping memory private",
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(Into::into),
    )?;
    step("no new privileges", caps::no_new_privileges())?;
    step("the filter of system calls", powers.filter.install())?;
    Ok(Inside {
        sandbox: order.sandbox.clone(),
        user: order.user.clone(),
        env: order.env.clone(),
        listener: listener.into(),
        reply,
        users,
        counters: [oom, pids],
        disk: order.disk.is_some(),
    })
}

/// Mounts the image over the empty directory `place`, and returns the box's files and its volume in it.
fn open_image(
    folder: &OwnedFd,
    place: &OwnedFd,
    image: &OwnedFd,
    stamp: &str,
) -> io::Result<(OwnedFd, OwnedFd)> {
    // Nothing mounted here may be seen outside.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change(c"/", private)?;
    disk::mount(image, place)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = |dir: &OwnedFd, name: &str| rustix::fs::openat(dir, name, flags, Mode::empty());
    // By its name again: the descriptor is of the directory below.
    let top = open(folder, "own")?;
    disk::populate(Path::new(&format!("/proc/self/fd/{}", top.as_raw_fd())), stamp)?;
    Ok((open(&top, "own")?, open(&top, "work")?))
}

/// The same directory in this mount namespace: the host's descriptor is of the host's.
fn here(fd: &OwnedFd) -> Result<OwnedFd, Failed> {
    reopened(fd, OFlags::RDONLY | OFlags::DIRECTORY)
}

fn here_file(fd: &OwnedFd) -> Result<OwnedFd, Failed> {
    reopened(fd, OFlags::PATH)
}

fn reopened(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Failed> {
    let open = || -> io::Result<OwnedFd> {
        let path = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let found = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
        let (there, here) = (rustix::fs::fstat(fd)?, rustix::fs::fstat(&found)?);
        match (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) {
            true => Ok(found),
            false => Err(io::Error::new(io::ErrorKind::NotFound, "it was moved away meanwhile")),
        }
    };
    step("a folder of the box", open())
}

/// On v2 the clone put it there.
fn join_groups<'a>(order: &Order, rest: &mut impl Iterator<Item = &'a OwnedFd>) -> Result<(), Failed> {
    match order.cgroup {
        CgroupPlace::None => {}
        CgroupPlace::V2 => drop(rest.next()),
        CgroupPlace::V1(count) => {
            for tasks in rest.take(count) {
                step("the control group", rustix::io::write(tasks, b"0").map_err(Into::into))?;
            }
        }
    }
    if !matches!(order.cgroup, CgroupPlace::V2) {
        // SAFETY: changes this process only.
        let done = unsafe { libc::unshare(libc::CLONE_NEWCGROUP) };
        step("a cgroup namespace", if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) })?;
    }
    Ok(())
}

/// In the box's folder, which the box itself never sees.
fn listen(folder: &OwnedFd) -> io::Result<UnixListener> {
    rustix::process::fchdir(folder)?;
    match rustix::fs::unlinkat(folder, "wire.sock", rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new("wire.sock")?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// The copies of the host's `/etc`, beside the folders of boxes.
fn open_template(folder: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(folder, "../../etc", flags, Mode::empty()).ok()
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

/// What is kept gets the numbers from here on.
const FIRST: RawFd = 3;
const KEPT: usize = 5;

/// Closes everything but these, which get new numbers, and stdio, which becomes /dev/null. Whoever owned a
/// descriptor before must not use or close it any more, and does not: this process never returns to them.
fn keep_only(kept: [Option<RawFd>; KEPT]) -> io::Result<[Option<OwnedFd>; KEPT]> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let park = |fd: RawFd| {
        // SAFETY: a plain call on numbers.
        match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 64) } {
            -1 => Err(io::Error::last_os_error()),
            parked => Ok(parked),
        }
    };
    let mut parked = Vec::new();
    for target in 0..FIRST {
        parked.push((park(null.as_raw_fd())?, target));
    }
    for (fd, target) in kept.iter().zip(FIRST..) {
        if let Some(fd) = fd {
            parked.push((park(*fd)?, target));
        }
    }
    let _ = null.into_raw_fd();
    for (from, to) in &parked {
        let flags = if *to < FIRST { 0 } else { libc::O_CLOEXEC };
        // SAFETY: a plain call on numbers.
        if unsafe { libc::dup3(*from, *to, flags) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let is_kept = |number: RawFd| parked.iter().any(|(_, to)| *to == number);
    let owned = std::array::from_fn(|n| {
        let number = FIRST + n as RawFd;
        // SAFETY: made just now, and owned here alone.
        is_kept(number).then(|| unsafe { OwnedFd::from_raw_fd(number) })
    });
    for number in (FIRST..FIRST + KEPT as RawFd).filter(|number| !is_kept(*number)) {
        // SAFETY: a number that nobody uses any more.
        unsafe { libc::close(number) };
    }
    // SAFETY: as above, all the others.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST as u32 + KEPT as u32, u32::MAX, 0) };
    Ok(owned)
}
