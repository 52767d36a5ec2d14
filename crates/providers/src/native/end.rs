//! Ending a box, and the way to its guest.

use super::folder::Folders;
use crate::{
    boxes::{io_error, no_box},
    off_thread,
};
use async_trait::async_trait;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags},
    io::Errno,
    process::{Pid, PidfdFlags, Signal},
};
use seawall_api::{ErrorKind, SandboxId, hello::Role, sandbox::EndReason};
use seawall_core::{Error, Result, ports::BoxState, steps::reached};
use seawall_wire::{Connector, Duplex, Guest};
use std::{
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::net::UnixStream;

/// Beyond the grace, for the guest to answer and the kernel to clean up.
const STOP_SLACK: Duration = Duration::from_secs(3);
/// How long the kernel may take to end a box.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Ends everything in a box that is held.
pub async fn end(folders: &Arc<Folders>, id: SandboxId, grace: Duration, reason: EndReason) -> Result<()> {
    let Some(process) = folders.process(id).filter(|process| process.is_alive()) else { return Ok(()) };
    let Some(pid) = Pid::from_raw(process.pid.cast_signed()) else { return Ok(()) };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) else { return Ok(()) };
    // Between the look and the descriptor another may have got its number.
    if !process.is_alive() {
        return Ok(());
    }
    folders.write_end(id, Some(&reason))?;
    reached("the end is noted");
    if !grace.is_zero() {
        let connector = Arc::new(Socket { folders: folders.clone(), id });
        let asked = Guest::new(id, Role::Client, connector).shutdown(grace).await;
        if asked.is_ok() && wait_dead(&handle, grace + STOP_SLACK).await? {
            return Ok(());
        }
    }
    // With process 1 goes every other of the box; it is dead when all are.
    let _ = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
    match wait_dead(&handle, KILL_PATIENCE).await? {
        true => Ok(()),
        false => Err(Error::unavailable(format!(
            "processes of sandbox {id} do not end; they may wait for a disk or network that does not answer"
        ))),
    }
}

/// Whether the process is dead, and all of its box with it, within `patience`.
async fn wait_dead(handle: &OwnedFd, patience: Duration) -> Result<bool> {
    let handle = handle.try_clone().map_err(|e| io_error(Path::new("a process"), e))?;
    off_thread(move || Ok(dies(&handle, patience))).await
}

fn dies(handle: &OwnedFd, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)];
        let wait = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&wait)) {
            Err(Errno::INTR) => {}
            other => return matches!(other, Ok(1)),
        }
    }
}

/// The way to a box's guest while the box is being ended.
struct Socket {
    folders: Arc<Folders>,
    id: SandboxId,
}

#[async_trait]
impl Connector for Socket {
    async fn connect(&self) -> Result<Box<dyn Duplex>, seawall_wire::Error> {
        dial(&self.folders, self.id)
            .await
            .map_err(|error| seawall_wire::Error::Unreachable { kind: error.kind(), message: error.chain() })
    }
}

/// Through the folder's descriptor: a socket's path has room for about a hundred bytes only.
pub async fn dial(folders: &Folders, id: SandboxId) -> Result<Box<dyn Duplex>> {
    let folder = folders.boxes.of(id);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(&folder, flags, Mode::empty()).map_err(|_| no_box(id))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/wire.sock", dir.as_raw_fd()));
    match UnixStream::connect(path).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => {
            let info = folders.info(id)?;
            let (kind, message) = match info.state {
                BoxState::Running => (ErrorKind::Unavailable, format!("the guest of {id} does not answer")),
                _ => (ErrorKind::Stopped, format!("sandbox {id} does not run")),
            };
            Err(Error::new(kind, message).with_source(error))
        }
    }
}
