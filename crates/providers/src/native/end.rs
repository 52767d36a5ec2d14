//! Ending a box.

use super::folder::Folders;
use crate::{boxes::io_error, off_thread};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, OwnedFd},
    io::Errno,
    process::{Pid, PidfdFlags, Signal},
};
use seawall_api::{hello::Role, sandbox::EndReason};
use seawall_core::{Error, Result, ports::ToBox, steps::reached};
use seawall_wire::Guest;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Beyond the grace, for the guest to answer and the kernel to clean up.
const STOP_SLACK: Duration = Duration::from_secs(3);
/// How long the kernel may take to end a box.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Ends everything in a box that is held.
pub async fn end(folders: &Folders, guest: ToBox, grace: Duration, reason: EndReason) -> Result<()> {
    let id = guest.id;
    let Some(process) = folders.process(id).filter(|process| process.is_alive()) else { return Ok(()) };
    let Some(pid) = Pid::from_raw(process.pid.cast_signed()) else { return Ok(()) };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) else { return Ok(()) };
    // Between the look and the descriptor another may have got its number.
    if !process.is_alive() {
        return Ok(());
    }
    if let Err(error) = folders.write_end(id, Some(&reason)) {
        // A full disk must not keep anybody from ending what fills it.
        tracing::warn!(sandbox = %id, error = %error.chain(), "the reason of an end could not be noted");
    }
    reached("the end is noted");
    if !grace.is_zero() {
        let asked = Guest::new(id, Role::Client, Arc::new(guest)).shutdown(grace).await;
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
