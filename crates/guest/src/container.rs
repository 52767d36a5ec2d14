//! The guest as process 1 of a container whose daemon is not Seawall's, such as Docker's.
//!
//! The daemon hands over no descriptors, so the guest uses fixed paths: the hosts' sockets in [`HOSTS`], which it
//! dials, its control group below [`CGROUPS`], and a folder for its own sockets. The daemon keeps
//! the exit code, which reports why the box ended.

use crate::{
    config::Config,
    dial,
    fault::Outcome,
    init,
    process::{self, launch},
    state::Guest,
    sudo, users,
};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
    process::{DumpableBehavior, Pid},
};
use seawall_api::{
    exec::StartProcess,
    sandbox::{EndReason, WORKDIR},
};
use std::{
    fs,
    io::{self, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    rc::Rc,
    thread,
};

/// Hosts on the same machine listen in this folder, which the container can only read.
pub const HOSTS: &str = "/run/seawall/hosts";
/// The guest's socket for bridges.
pub const WIRE: &str = "/run/seawall/wire.sock";
/// The folder of the guest's own programs.
const PROGRAMS: &str = "/run/seawall/bin";
/// The tag of the command that the container was made with.
pub const COMMAND: &str = "command";
/// The addresses of host names. The daemon leaves the file to the image if the container has no network.
const HOST_NAMES: &str = "/etc/hosts";
const LOCALHOST: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
/// The kernel's counters of kills for memory and of refused processes, in control groups v2 and v1.
const CGROUPS: [[&str; 2]; 2] =
    [["memory.events", "pids.events"], ["memory/memory.oom_control", "pids/pids.events"]];

/// Serves until the box ends, and returns the exit code.
pub fn run(config: Config) -> io::Result<u8> {
    // Root of the container must not trace the one process that hosts trust to be the guest.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // The filter of native boxes, on top of the daemon's: it leaves out io_uring, most families of sockets, and calls of
    // 32-bit programs.
    seawall_jail::seccomp::program().install()?;
    // A daemon that does not read the guest's messages must not hold it up.
    rustix::io::ioctl_fionbio(io::stderr(), true)?;
    // `sudo` is in the folder of the guest: a program with the set-user-ID bit gets no rights here.
    let path = std::env::var("PATH").unwrap_or_else(|_| launch::DEFAULT_PATH.to_owned());
    // SAFETY: the process has a single thread here.
    unsafe { std::env::set_var("PATH", format!("{PROGRAMS}:{path}")) };
    // The daemon sets the home of root where the image names none; processes get the home of their user.
    if std::env::var_os("HOME").is_some_and(|home| home == "/root" || home == "/") {
        // SAFETY: the process has a single thread here.
        unsafe { std::env::remove_var("HOME") };
    }
    fs::create_dir_all(sudo::FOLDER)?;
    if let Some(workdir) = &config.workdir {
        // Daemons create the working directory of an image too. If this fails, commands report it.
        let _ = fs::create_dir_all(workdir);
    }
    if let Err(error) = name_localhost(Path::new(HOST_NAMES)) {
        crate::say!("`localhost` has no address: {HOST_NAMES}: {error}");
    }
    if let Some(user) = &config.user {
        let user = users::find(user).map_err(|fault| io::Error::other(fault.message))?;
        if !config.host_workspace {
            users::own_workspace(&user);
        }
    }
    let given = init::Given { counters: counters(), boxed: true, ..init::Given::default() };
    let passed =
        init::run(config, given, Box::new(|| fs::set_permissions(WIRE, fs::Permissions::from_mode(0o600))))?;
    let reason = match passed {
        Some("idle") => EndReason::Idle,
        Some("max_lifetime") => EndReason::MaxLifetime,
        _ => EndReason::Stopped,
    };
    Ok(reason.exit_code())
}

/// Adds `localhost` to a file of host names that lacks it, as many images do.
fn name_localhost(file: &Path) -> io::Result<()> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let names = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    if names.flat_map(str::split_whitespace).any(|name| name == "localhost") {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    fs::write(file, format!("{text}{separator}{LOCALHOST}"))
}

/// The kernel's counters of the container's control group, as far as the container can read them.
fn counters() -> [Option<OwnedFd>; 2] {
    let open = |file: &str| {
        let path = Path::new("/sys/fs/cgroup").join(file);
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    };
    let [v2, v1] = CGROUPS;
    [0, 1].map(|at| open(v2[at]).or_else(|| open(v1[at])))
}

/// Begins what only a container needs, once the guest serves.
pub fn begin(guest: &Rc<Guest>) {
    tokio::task::spawn_local(dial::serve(guest.clone(), HOSTS.into()));
}

/// Starts the command of the container at the first connection of a host: until then the host may still be separating the
/// container from others in its network.
pub fn connected(guest: &Rc<Guest>) {
    if !guest.config.command.is_empty() && !guest.command_started.replace(true) {
        let guest = guest.clone();
        tokio::task::spawn_local(async move {
            if let Err(fault) = start_command(&guest).await {
                crate::say!("the command of the container: {}", fault.message);
            }
        });
    }
}

async fn start_command(guest: &Rc<Guest>) -> Outcome<()> {
    let mut start = StartProcess::new(guest.config.command.clone());
    start.tag = Some(COMMAND.to_owned());
    start.cwd = Some(guest.config.workdir.clone().unwrap_or_else(|| WORKDIR.to_owned()));
    start.detach = true;
    process::start(guest, &start).await.map(drop)
}

/// Whether a process was put into the container from outside, by the daemon: such a process has no parent in here.
/// The container's own processes descend from the guest.
pub fn is_from_outside(stream: &tokio::net::UnixStream) -> bool {
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let Some(status) = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok()) else {
        return false;
    };
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    pid != Some(1) && parent.is_some_and(|parent| parent.trim() == "0")
}

/// Connects stdin and stdout to the guest. The daemon runs it in the container, with its stdio as the host's wire.
pub fn bridge() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let guest = UnixStream::connect(WIRE)?;
    // Root of the container can replace the socket by one of its own.
    if rustix::net::sockopt::socket_peercred(&guest)?.pid != Pid::INIT {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "another process than the guest listens",
        ));
    }
    let to_guest = guest.try_clone()?;
    let input = fs::File::from(rustix::io::dup(io::stdin())?);
    let output = fs::File::from(rustix::io::dup(io::stdout())?);
    thread::spawn(move || {
        // The end of the host's side is the end of this direction only.
        let _ = carry(&input, &to_guest);
        let _ = to_guest.shutdown(std::net::Shutdown::Write);
    });
    carry(&guest, &output)
}

/// Copies each piece as soon as it arrives, which [`io::copy`] does not promise.
fn carry(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => to.write_all(&buffer[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_added_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("etc/hosts");
        name_localhost(&file).unwrap();
        name_localhost(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), LOCALHOST);
        fs::write(&file, "# localhost\n10.0.0.1 box").unwrap();
        name_localhost(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("# localhost\n10.0.0.1 box\n{LOCALHOST}"));
    }
}
