//! Control groups: where the limits of a box live. Both generations: one tree (v2), or one per controller (v1).
//!
//! A box of the operator has a group directly beneath ours. Boxes of an account with totals have theirs beneath the
//! account's group (`account.rs`), whose limits bound all of them together.

mod account;
mod ceilings;
mod place;

pub use place::{Cgroups, Missing, account_group};

use crate::disk::Device;

use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
};
use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

/// Limits of a box. None: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Processors, fractions allowed.
    pub cpus: Option<f64>,
    /// Bytes.
    pub memory: Option<u64>,
    pub processes: Option<u64>,
    /// Bytes a second that are read from the data disk, and as many that are written to it.
    pub io_bytes: Option<u64>,
    /// Reads a second of the data disk, and as many writes.
    pub io_operations: Option<u64>,
}

/// The controllers that are needed for limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Controller {
    Cpu,
    Memory,
    Pids,
    Io,
}

impl Controller {
    pub const ALL: [Controller; 4] = [Controller::Cpu, Controller::Memory, Controller::Pids, Controller::Io];

    /// The name of the controller in the generation of control groups that this machine uses.
    pub fn name(self, v2: bool) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Io if v2 => "io",
            Controller::Io => "blkio",
        }
    }
}

impl Limits {
    pub fn needs(&self, controller: Controller) -> bool {
        match controller {
            Controller::Cpu => self.cpus.is_some(),
            Controller::Memory => self.memory.is_some(),
            Controller::Pids => self.processes.is_some(),
            Controller::Io => self.io_bytes.or(self.io_operations).is_some(),
        }
    }
}

/// The period over which processor time is counted, in microseconds. A fifth of the kernel's default: boxes that use up their
/// quota keep the processors from others for at most that long at a stretch.
const PERIOD: u64 = 20_000;

/// The groups of one box: one folder on v2, one per controller on v1.
#[derive(Debug)]
pub struct BoxGroup {
    v2: bool,
    /// On v2 the controllers share a folder.
    folders: Vec<(Controller, PathBuf)>,
    /// The group of the account that the box joins as it is, on v1, where it has no limit of disk IO of its own.
    joined: Option<PathBuf>,
    /// The data disk.
    disk: Option<Device>,
}

/// What the launcher needs to put a box into its groups.
#[derive(Debug)]
pub enum Entry {
    /// The folder.
    V2(OwnedFd),
    /// The `tasks` files.
    V1(Vec<OwnedFd>),
}

impl BoxGroup {
    /// Every folder once.
    fn each(&self) -> Vec<&PathBuf> {
        let mut folders: Vec<&PathBuf> = self.folders.iter().map(|(_, folder)| folder).collect();
        folders.dedup();
        folders
    }

    /// Where the kernel counts what it refused.
    fn counter_file(&self, controller: Controller) -> Option<PathBuf> {
        let (_, folder) = self.folders.iter().find(|(found, _)| *found == controller)?;
        Some(match (controller, self.v2) {
            (Controller::Memory, false) => folder.join("memory.oom_control"),
            (controller, v2) => folder.join(format!("{}.events", controller.name(v2))),
        })
    }

    /// Makes what is missing of them.
    pub fn make(&self) -> io::Result<()> {
        for folder in self.each() {
            match fs::create_dir(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at(folder, error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the limits that are set. Those that are not stay as they are.
    pub fn set(&self, limits: &Limits) -> io::Result<()> {
        for (controller, folder) in &self.folders {
            let settings = settings(self.v2, *controller, limits, self.disk);
            write_settings(folder, if limits.needs(*controller) { &settings } else { &[] })?;
        }
        Ok(())
    }

    pub fn entry(&self) -> io::Result<Option<Entry>> {
        let open = |path: &Path, flags| {
            rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(|error| at(path, error.into()))
        };
        Ok(match (self.v2, self.folders.first()) {
            (_, None) => None,
            (true, Some((_, folder))) => Some(Entry::V2(open(folder, OFlags::RDONLY | OFlags::DIRECTORY)?)),
            (false, _) => {
                let folders = self.folders.iter().map(|(_, folder)| folder).chain(&self.joined);
                let tasks = folders.map(|folder| open(&folder.join("tasks"), OFlags::WRONLY));
                Some(Entry::V1(tasks.collect::<io::Result<_>>()?))
            }
        })
    }

    /// Files in which the kernel counts what was killed for memory and refused for processes, to read.
    pub fn counters(&self) -> [Option<OwnedFd>; 2] {
        [Controller::Memory, Controller::Pids].map(|controller| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open(self.counter_file(controller)?, flags, Mode::empty()).ok()
        })
    }

    /// How many processes the kernel killed for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let text = self.counter_file(Controller::Memory).and_then(|file| fs::read_to_string(file).ok());
        text.map_or(0, |text| counter(&text, "oom_kill"))
    }

    /// Bytes of memory now, and seconds of processor time so far. None: it is not counted.
    pub fn used(&self) -> (Option<u64>, Option<f64>) {
        let read = |controller: Controller, file: &str| {
            let (_, folder) = self.folders.iter().find(|(found, _)| *found == controller)?;
            fs::read_to_string(folder.join(file)).ok()
        };
        let number = |text: String| text.trim().parse::<u64>().ok();
        if self.v2 {
            let micros = read(Controller::Cpu, "cpu.stat").map(|text| counter(&text, "usage_usec"));
            let memory = read(Controller::Memory, "memory.current").and_then(number);
            return (memory, micros.map(|micros| micros as f64 / 1e6));
        }
        let nanos = read(Controller::Cpu, "cpuacct.usage").and_then(number);
        let memory = read(Controller::Memory, "memory.usage_in_bytes").and_then(number);
        (memory, nanos.map(|nanos| nanos as f64 / 1e9))
    }

    /// Processes that live in it and below, where that is counted.
    pub fn processes(&self) -> Option<u64> {
        let (_, folder) = self.folders.iter().find(|(found, _)| *found == Controller::Pids)?;
        fs::read_to_string(folder.join("pids.current")).ok()?.trim().parse().ok()
    }

    /// Whether there is one, with or without processes.
    pub fn exists(&self) -> bool {
        self.each().iter().any(|folder| folder.exists())
    }

    /// Whether anything lives in them.
    pub fn has_processes(&self) -> bool {
        let lives =
            |folder: &&PathBuf| fs::read(folder.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty());
        self.each().iter().any(lives)
    }

    /// Ends whatever lives in them.
    pub fn kill(&self) {
        self.each().into_iter().for_each(|folder| kill_in(folder));
    }

    /// Removes the groups, and what lives in them with them. What is gone is gone.
    pub fn remove(&self) -> io::Result<()> {
        for folder in self.each() {
            remove_group(folder)?;
        }
        Ok(())
    }
}

/// The last of the dead leave a group a moment after they can be seen to be dead.
fn remove_group(folder: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ResourceBusy && tries < 400 => {
                tries += 1;
                // Somebody whom no folder names: its own was lost.
                if tries % 20 == 0 {
                    kill_in(folder);
                }
                std::thread::sleep(std::time::Duration::from_micros(if tries < 20 { 50 } else { 1000 }));
            }
            other => return other.map_err(|error| at(folder, error)),
        }
    }
}

fn kill_in(folder: &Path) {
    for pid in fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default().lines() {
        if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// A value of a file with a name and a number on each line.
pub fn counter(text: &str, name: &str) -> u64 {
    let line = text.lines().filter_map(|line| line.split_once(' ')).find(|(key, _)| *key == name);
    line.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

const MEMORY: &str = "memory.limit_in_bytes";
const PERIOD_FILE: &str = "cpu.cfs_period_us";
const QUOTA: &str = "cpu.cfs_quota_us";
const MEMORY_AND_SWAP: &str = "memory.memsw.limit_in_bytes";

type Settings = Vec<(&'static str, String)>;

/// Returns which files get which values. A limit that is not set is written as none.
fn settings(v2: bool, controller: Controller, limits: &Limits, disk: Option<Device>) -> Settings {
    let or =
        |value: Option<u64>, none: &str| value.map_or_else(|| none.to_owned(), |value| value.to_string());
    match (controller, v2) {
        (Controller::Cpu, true) => {
            vec![("cpu.max", format!("{} {PERIOD}", or(limits.cpus.map(quota), "max")))]
        }
        (Controller::Cpu, false) => {
            vec![(PERIOD_FILE, PERIOD.to_string()), (QUOTA, or(limits.cpus.map(quota), "-1"))]
        }
        (Controller::Memory, true) => {
            let swap = or(limits.memory.map(|_| 0), "max");
            vec![("memory.max", or(limits.memory, "max")), ("memory.swap.max", swap)]
        }
        (Controller::Memory, false) => {
            vec![(MEMORY, or(limits.memory, "-1")), (MEMORY_AND_SWAP, or(limits.memory, "-1"))]
        }
        (Controller::Pids, _) => vec![("pids.max", or(limits.processes, "max"))],
        (Controller::Io, _) => disk.map_or_else(Vec::new, |disk| io_settings(v2, disk, limits)),
    }
}

/// The same limits for reading and for writing.
fn io_settings(v2: bool, device: Device, limits: &Limits) -> Settings {
    let or =
        |value: Option<u64>, none: &str| value.map_or_else(|| none.to_owned(), |value| value.to_string());
    if v2 {
        let (bytes, operations) = (or(limits.io_bytes, "max"), or(limits.io_operations, "max"));
        let value = format!("{device} rbps={bytes} wbps={bytes} riops={operations} wiops={operations}");
        return vec![("io.max", value)];
    }
    let (bytes, operations) = (or(limits.io_bytes, "0"), or(limits.io_operations, "0"));
    vec![
        ("blkio.throttle.read_bps_device", format!("{device} {bytes}")),
        ("blkio.throttle.write_bps_device", format!("{device} {bytes}")),
        ("blkio.throttle.read_iops_device", format!("{device} {operations}")),
        ("blkio.throttle.write_iops_device", format!("{device} {operations}")),
    ]
}

fn write_settings(folder: &Path, settings: &[(&'static str, String)]) -> io::Result<()> {
    for (file, value) in settings {
        let path = folder.join(file);
        match fs::write(&path, value) {
            // Memory alone may never be above memory with swap: where both grow, that goes first.
            Err(error) if error.kind() == ErrorKind::InvalidInput && *file == MEMORY => {
                fs::write(folder.join(MEMORY_AND_SWAP), value)
                    .and_then(|()| fs::write(&path, value))
                    .map_err(|_| at(&path, error))?;
            }
            // The quota of a group that was made with a longer period would be more than that of the group around it.
            Err(error) if error.kind() == ErrorKind::InvalidInput && *file == PERIOD_FILE => {
                fs::write(folder.join(QUOTA), "-1")
                    .and_then(|()| fs::write(&path, value))
                    .map_err(|_| at(&path, error))?;
            }
            // Kernels without an account of swap have no such file; they limit no swap.
            Err(error) if error.kind() == ErrorKind::NotFound && file.contains("sw") => {}
            other => other.map_err(|error| at(&path, error))?,
        }
    }
    Ok(())
}

/// The kernel takes no less than a millisecond.
fn quota(cpus: f64) -> u64 {
    ((cpus * PERIOD as f64) as u64).max(1000)
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_files() {
        let disk = Some(Device { major: 254, minor: 0 });
        let text = |v2, limits: &Limits| -> Vec<String> {
            let each =
                |c| settings(v2, c, limits, disk).into_iter().map(|(file, value)| format!("{file}={value}"));
            Controller::ALL.into_iter().flat_map(each).collect()
        };
        let (cpus, memory, processes) = (Some(1.5), Some(1 << 20), Some(7));
        let limits = Limits { cpus, memory, processes, io_bytes: Some(4096), io_operations: None };
        assert_eq!(
            text(true, &limits),
            [
                "cpu.max=30000 20000",
                "memory.max=1048576",
                "memory.swap.max=0",
                "pids.max=7",
                "io.max=254:0 rbps=4096 wbps=4096 riops=max wiops=max",
            ]
        );
        assert_eq!(
            text(false, &limits),
            [
                "cpu.cfs_period_us=20000",
                "cpu.cfs_quota_us=30000",
                "memory.limit_in_bytes=1048576",
                "memory.memsw.limit_in_bytes=1048576",
                "pids.max=7",
                "blkio.throttle.read_bps_device=254:0 4096",
                "blkio.throttle.write_bps_device=254:0 4096",
                "blkio.throttle.read_iops_device=254:0 0",
                "blkio.throttle.write_iops_device=254:0 0",
            ]
        );
        assert_eq!(
            text(true, &Limits::default())[..4],
            ["cpu.max=max 20000", "memory.max=max", "memory.swap.max=max", "pids.max=max"]
        );
    }

    #[test]
    fn counters_are_read() {
        assert_eq!(counter("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"), 3);
        assert_eq!(counter("low 0\noom 9\noom_kill 2\noom_group_kill 0", "oom_kill"), 2);
        assert_eq!(counter("", "oom_kill"), 0);
    }
}
