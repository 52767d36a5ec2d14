//! Starting and ending the guest of a box.

use super::folder::Folders;
use crate::{boxes::io_error, spawn_written};
use rustix::process::{Pid, PidfdFlags, Signal};
use seawall_api::{ErrorKind, SandboxId, sandbox::SandboxSpec};
use seawall_core::{Error, Result};
use std::{fs, path::Path, process::Stdio, time::Duration};
use tokio::{
    process::Command,
    time::{Instant, sleep, timeout},
};

/// A guest serves within milliseconds; after this something is wrong.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Beyond the grace that was given, for the kernel to do its part.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns when the guest serves. It outlives this process.
pub async fn start(guest: &Path, folders: &Folders, id: SandboxId, spec: &SandboxSpec) -> Result<()> {
    let (folder, root) = (folders.of(id), folders.root(id, spec));
    let mut command = Command::new(guest);
    // The folder is the working directory because a socket's path must be short.
    command
        .current_dir(&folder)
        .arg("--daemon")
        .args(["--sandbox", &id.to_string(), "--socket", "wire.sock", "--lock", "guest.lock"])
        .args(["--end", "end", "--log", "guest.log"])
        .arg("--root")
        .arg(&root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()))
        .env("HOME", root.join("home"))
        .env("TMPDIR", root.join("tmp"))
        .env("SEAWALL_SANDBOX", id.to_string())
        .env("SEAWALL_WORK", root.join("work"))
        .envs(&spec.env);
    if let Some(user) = &spec.user {
        command.args(["--user", user]);
    }
    let child = spawn_written(|| command.spawn()).map_err(|error| io_error(guest, error))?;
    let output = match timeout(START_PATIENCE, child.wait_with_output()).await {
        Ok(output) => output.map_err(|error| io_error(guest, error))?,
        Err(_) => return Err(Error::new(ErrorKind::Timeout, format!("the guest of {id} does not start"))),
    };
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::internal(format!("the guest of {id} did not start: {said}")))
        }
    }
}

/// Waits until nothing of the box is alive.
pub async fn wait_dead(folders: &Folders, id: SandboxId, patience: Duration) -> Result<bool> {
    let give_up = Instant::now() + patience;
    let mut pause = Duration::from_millis(1);
    while folders.is_alive(id)? {
        if Instant::now() >= give_up {
            return Ok(false);
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(true)
}

/// Ends a guest that does not answer. Its keepers notice, and end what they keep.
pub async fn kill(folders: &Folders, id: SandboxId) -> Result<()> {
    if let Some(guest) = folders.guest_pid(id) {
        signal(guest, id, Signal::KILL);
    }
    // A keeper that somebody stopped cannot notice.
    for pid in processes_of(id) {
        signal(pid, id, Signal::CONT);
    }
    if wait_dead(folders, id, STOP_PATIENCE).await? {
        return Ok(());
    }
    for pid in processes_of(id) {
        end_descendants(pid);
        signal(pid, id, Signal::KILL);
    }
    match wait_dead(folders, id, STOP_PATIENCE).await? {
        true => Ok(()),
        false => Err(Error::unavailable(format!(
            "processes of sandbox {id} do not end; they may wait for a disk or network that does not answer"
        ))),
    }
}

/// The guest of a box and its keepers: keepers are forks of it, and have its command line.
fn processes_of(id: SandboxId) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_of(*pid, id)).collect()
}

fn signal(pid: u32, id: SandboxId, signal: Signal) {
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return };
    // Between the look and the signal the descriptor keeps the number from meaning another.
    if let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        && is_of(pid.as_raw_nonzero().get().cast_unsigned(), id)
    {
        // It may have ended just now.
        let _ = rustix::process::pidfd_send_signal(process, signal);
    }
}

/// What a keeper that does not do its work keeps, from the top down.
fn end_descendants(pid: u32) {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()) {
        end_descendants(child);
        if let Some(child) = Pid::from_raw(child.cast_signed()) {
            // A child of a process that reaps nothing keeps its number.
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
    }
}

/// Whether a process belongs to the guest of this box, and is not another that got its number.
fn is_of(pid: u32, id: SandboxId) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
        let id = id.to_string();
        let mut parts = line.split(|b| *b == 0);
        let guest = parts.next().is_some_and(|program| program.windows(13).any(|w| w == b"seawall-guest"));
        guest && parts.any(|part| part == id.as_bytes())
    })
}
