//! Ending a box.

use super::folder::Folders;
use crate::boxes::io_error;
use rustix::{
    fd::OwnedFd,
    process::{Pid, PidfdFlags, Signal},
};
use seawall_api::{hello::Role, sandbox::EndReason};
use seawall_core::{Error, Result, ports::ToBox, steps::reached};
use seawall_wire::Guest;
use std::{io, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
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
    let handle = watch(handle).map_err(|error| io_error(Path::new("a process"), error))?;
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

/// The constructor that takes this one's place is unsafe, because of types that can change their descriptor while it is
/// watched. An [`OwnedFd`] cannot.
#[allow(deprecated)]
fn watch(handle: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(handle, Interest::READABLE)
}

/// Whether the process is dead, and all of its box with it, within `patience`. Waiting takes no thread.
async fn wait_dead(handle: &AsyncFd<OwnedFd>, patience: Duration) -> Result<bool> {
    match timeout(patience, handle.readable()).await {
        Ok(ended) => ended.map(|_| true).map_err(|e| io_error(Path::new("a process"), e)),
        Err(_) => Ok(false),
    }
}
