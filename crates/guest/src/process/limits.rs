//! Which limits of the box were reached while a process ran, as the kernel counts it.

use crate::state::Guest;
use rustix::fd::OwnedFd;
use seawall_api::{
    exec::{ExitReason, LimitHit},
    sandbox::WORKDIR,
};
use seawall_jail::cgroup::counter;

/// The kernel's counts at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    oom: u64,
    processes: u64,
}

impl Counts {
    pub fn now(guest: &Guest) -> Counts {
        let [oom, processes] = &guest.counters;
        Counts { oom: read(oom.as_ref(), "oom_kill"), processes: read(processes.as_ref(), "max") }
    }

    /// What was reached since.
    pub fn since(self, guest: &Guest) -> Vec<LimitHit> {
        let now = Counts::now(guest);
        let hits = [
            (LimitHit::Memory, now.oom > self.oom),
            (LimitHit::Processes, now.processes > self.processes),
            (LimitHit::Disk, guest.disk_limit && is_full()),
        ];
        hits.into_iter().filter(|(_, hit)| *hit).map(|(limit, _)| limit).collect()
    }
}

fn read(file: Option<&OwnedFd>, name: &str) -> u64 {
    let mut buffer = [0; 1024];
    let Some(length) = file.and_then(|file| rustix::io::pread(file, &mut buffer, 0).ok()) else { return 0 };
    counter(&String::from_utf8_lossy(&buffer[..length]), name)
}

/// File systems keep a little back, so users find them full before they are.
fn is_full() -> bool {
    let Ok(disk) = rustix::fs::statvfs(WORKDIR) else { return false };
    let little = (disk.f_blocks.saturating_mul(disk.f_frsize) / 100).max(1 << 20);
    disk.f_bavail.saturating_mul(disk.f_frsize) < little || disk.f_favail == 0
}

/// A command that the kernel killed for want of memory, or whose shell says so.
pub fn reason(hits: &[LimitHit], code: Option<i32>, signal: Option<i32>) -> ExitReason {
    let killed = signal == Some(libc::SIGKILL) || code == Some(128 + libc::SIGKILL);
    match killed && hits.contains(&LimitHit::Memory) {
        true => ExitReason::Oom,
        false => ExitReason::Exited,
    }
}
