//! The launcher of this host process: started when the first box is, asked for each, gone with us.

use crate::{boxes::io_error, spawn_written};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{MemfdFlags, Mode, OFlags, SealFlags},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
    pipe::PipeFlags,
};
use seawall_api::ErrorKind;
use seawall_core::{Error, Result, steps::reached};
use seawall_jail::{
    launcher::send,
    order::{MAX_ORDER, Order},
};
use std::{
    fs::File,
    io::{self, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{io::AsyncReadExt, net::unix::pipe, time::timeout};

/// A box serves within milliseconds; after this something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a box may say about why it does not start.
const MAX_SAID: u64 = 4096;

#[derive(Debug)]
pub struct Launcher {
    program: Program,
    running: Mutex<Option<Running>>,
}

/// What is executed.
#[derive(Debug)]
enum Program {
    /// A file that root of a box can neither write nor own.
    File(PathBuf),
    /// An ordinary user is root of its boxes: a copy in memory that nobody can change.
    Sealed(OwnedFd),
}

#[derive(Debug)]
struct Running {
    socket: OwnedFd,
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It ends when its socket does; its boxes live on.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

impl Launcher {
    pub fn new(data: &Path, guest: &[u8]) -> Result<Launcher> {
        let program = match rustix::process::geteuid().is_root() {
            true => Program::File(crate::guest_file(data, guest)?),
            false => {
                Program::Sealed(sealed(guest).map_err(|e| io_error(Path::new("the guest in memory"), e))?)
            }
        };
        Ok(Launcher { program, running: Mutex::new(None) })
    }

    /// Returns when the box's guest serves. `fds` are what the order says comes after the place to answer.
    pub async fn launch(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let bytes = order.to_bytes();
        if bytes.len() > MAX_ORDER {
            return Err(Error::invalid("the environment of the sandbox is too large (more than 160 KiB)"));
        }
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|errno| io_error(Path::new("a pipe"), errno.into()))?;
        self.send(&bytes, write.as_fd(), fds).map_err(|error| {
            Error::unavailable("the launcher of boxes does not run; see `seawall doctor`").with_source(error)
        })?;
        drop(write);
        reached("the launcher was asked");
        let reader = pipe::Receiver::from_owned_fd(read).map_err(|e| io_error(Path::new("a pipe"), e))?;
        match timeout(PATIENCE, answer(reader)).await {
            Ok(answer) => understood(&answer),
            Err(_) => Err(Error::new(ErrorKind::Timeout, "the box does not start; see `seawall doctor`")),
        }
    }

    /// Whether the launcher answers. One that was not needed yet is started when it is.
    pub async fn check(&self) -> Result<()> {
        if self.running.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Ok(());
        }
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|errno| io_error(Path::new("a pipe"), errno.into()))?;
        // No order, to which the launcher says so.
        self.send(b"?", write.as_fd(), &[])
            .map_err(|error| Error::unavailable("the launcher of boxes does not run").with_source(error))?;
        drop(write);
        let reader = pipe::Receiver::from_owned_fd(read).map_err(|e| io_error(Path::new("a pipe"), e))?;
        match answer(reader).await.is_empty() {
            true => Err(Error::unavailable("the launcher of boxes does not answer")),
            false => Ok(()),
        }
    }

    /// Asks a launcher, a new one where the last is gone.
    fn send(&self, bytes: &[u8], reply: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<BorrowedFd<'_>> = [reply].into_iter().chain(fds.iter().copied()).collect();
        if let Some(launcher) = &*running {
            match send(launcher.socket.as_fd(), bytes, &all) {
                Err(Errno::PIPE | Errno::CONNRESET) => *running = None,
                other => return Ok(other?),
            }
        }
        let launcher = running.insert(self.start()?);
        Ok(send(launcher.socket.as_fd(), bytes, &all)?)
    }

    fn start(&self) -> io::Result<Running> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let path = match &self.program {
            Program::File(path) => path.clone(),
            Program::Sealed(fd) => PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())),
        };
        let mut command = Command::new(path);
        command
            .arg0("seawall-guest")
            .arg("--launcher")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = spawn_written(|| command.spawn())?;
        Ok(Running { socket: ours, child })
    }
}

/// The first line that comes, or what came of it.
async fn answer(reader: pipe::Receiver) -> String {
    let (mut reader, mut said) = (reader.take(MAX_SAID), Vec::new());
    while !said.ends_with(b"\n") {
        match reader.read_buf(&mut said).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    String::from_utf8_lossy(&said).trim().to_owned()
}

fn understood(answer: &str) -> Result<()> {
    match answer.split_once(' ') {
        _ if answer == "ready" => Ok(()),
        // What was asked for is wrong, not this host.
        Some(("invalid", why)) => Err(Error::invalid(why.to_owned())),
        Some(("error", why)) => {
            let advice = match why {
                _ if why.contains("user namespace") => {
                    "; user namespaces may be off or, on Ubuntu, restricted by AppArmor: see `seawall doctor`"
                }
                _ => "; `seawall doctor` shows what this host allows",
            };
            Err(Error::new(ErrorKind::Unavailable, format!("the box could not be made: {why}{advice}")))
        }
        _ => Err(Error::new(
            ErrorKind::Unavailable,
            "the box died while it was made; `seawall doctor` shows what this host allows".to_owned(),
        )),
    }
}

/// A program in memory that nobody can change any more.
fn sealed(program: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"seawall-guest", flags)?;
    let mut file = File::from(fd);
    file.write_all(program)?;
    let fd = OwnedFd::from(file);
    rustix::fs::fcntl_add_seals(
        &fd,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    // A file that is open for writing cannot be executed.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
