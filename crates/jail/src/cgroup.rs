//! Control groups: where the limits of a box live. Both generations: one tree (v2), or one per controller (v1).

mod place;

pub use place::{Cgroups, Missing};

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
}

/// The controllers that are needed for limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Controller {
    Cpu,
    Memory,
    Pids,
}

impl Controller {
    pub const ALL: [Controller; 3] = [Controller::Cpu, Controller::Memory, Controller::Pids];

    pub fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
        }
    }
}

impl Limits {
    pub fn needs(&self, controller: Controller) -> bool {
        match controller {
            Controller::Cpu => self.cpus.is_some(),
            Controller::Memory => self.memory.is_some(),
            Controller::Pids => self.processes.is_some(),
        }
    }
}

/// The period over which processor time is counted, in microseconds.
const PERIOD: u64 = 100_000;

/// The groups of one box: one folder on v2, one per controller on v1.
#[derive(Debug)]
pub struct BoxGroup {
    v2: bool,
    /// On v2 the controllers share a folder.
    folders: Vec<(Controller, PathBuf)>,
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
            (controller, _) => folder.join(format!("{}.events", controller.name())),
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

    pub fn set(&self, limits: &Limits) -> io::Result<()> {
        for (controller, folder) in &self.folders {
            for (file, value) in settings(self.v2, *controller, limits) {
                let path = folder.join(file);
                match fs::write(&path, &value) {
                    // Memory alone may never be above memory with swap: where both grow, that goes first.
                    Err(error) if error.kind() == ErrorKind::InvalidInput && file == MEMORY => {
                        fs::write(folder.join(MEMORY_AND_SWAP), &value)
                            .and_then(|()| fs::write(&path, &value))
                            .map_err(|_| at(&path, error))?;
                    }
                    // Kernels without an account of swap have no such file; they limit no swap.
                    Err(error) if error.kind() == ErrorKind::NotFound && file.contains("sw") => {}
                    other => other.map_err(|error| at(&path, error))?,
                }
            }
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
                let tasks =
                    self.folders.iter().map(|(_, folder)| open(&folder.join("tasks"), OFlags::WRONLY));
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
const MEMORY_AND_SWAP: &str = "memory.memsw.limit_in_bytes";

/// Which files get which values.
fn settings(v2: bool, controller: Controller, limits: &Limits) -> Vec<(&'static str, String)> {
    match (controller, v2) {
        (Controller::Cpu, true) => {
            limits.cpus.map_or_else(Vec::new, |cpus| vec![("cpu.max", format!("{} {PERIOD}", quota(cpus)))])
        }
        (Controller::Cpu, false) => limits.cpus.map_or_else(Vec::new, |cpus| {
            vec![("cpu.cfs_period_us", PERIOD.to_string()), ("cpu.cfs_quota_us", quota(cpus).to_string())]
        }),
        (Controller::Memory, true) => limits.memory.map_or_else(Vec::new, |bytes| {
            vec![("memory.max", bytes.to_string()), ("memory.swap.max", "0".to_owned())]
        }),
        (Controller::Memory, false) => limits.memory.map_or_else(Vec::new, |bytes| {
            vec![(MEMORY, bytes.to_string()), (MEMORY_AND_SWAP, bytes.to_string())]
        }),
        (Controller::Pids, _) => {
            limits.processes.map_or_else(Vec::new, |count| vec![("pids.max", count.to_string())])
        }
    }
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
        let limits = Limits { cpus: Some(1.5), memory: Some(1 << 20), processes: Some(7) };
        let text = |v2| -> Vec<String> {
            let each =
                |c| settings(v2, c, &limits).into_iter().map(|(file, value)| format!("{file}={value}"));
            Controller::ALL.into_iter().flat_map(each).collect()
        };
        assert_eq!(
            text(true),
            ["cpu.max=150000 100000", "memory.max=1048576", "memory.swap.max=0", "pids.max=7"]
        );
        assert_eq!(
            text(false),
            [
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=150000",
                "memory.limit_in_bytes=1048576",
                "memory.memsw.limit_in_bytes=1048576",
                "pids.max=7"
            ]
        );
        assert!(settings(true, Controller::Memory, &Limits::default()).is_empty());
    }

    #[test]
    fn counters_are_read() {
        assert_eq!(counter("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"), 3);
        assert_eq!(counter("low 0\noom 9\noom_kill 2\noom_group_kill 0", "oom_kill"), 2);
        assert_eq!(counter("", "oom_kill"), 0);
    }
}
