//! How large this machine is: no box can have more.

use crate::cgroup::Cgroups;
use std::{fs, path::Path};

/// What the machine has, or the control group that all boxes are in, where that is less.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Processors, fractions where a group has a part of one.
    pub cpus: f64,
    /// Bytes.
    pub memory: u64,
    /// Numbers of processes and threads at the same time.
    pub processes: u64,
    /// Bytes of the disk that the data folder is on.
    pub disk: u64,
}

impl Machine {
    /// Measures this machine. What cannot be told bounds nothing.
    pub fn measure(groups: &Cgroups, data: &Path) -> Machine {
        let within = groups.ceilings();
        let disk =
            rustix::fs::statvfs(data).map_or(u64::MAX, |found| found.f_blocks.saturating_mul(found.f_frsize));
        Machine {
            cpus: processors().min(within.cpus.unwrap_or(f64::INFINITY)),
            memory: memory().min(within.memory.unwrap_or(u64::MAX)),
            processes: processes().min(within.processes.unwrap_or(u64::MAX)),
            disk,
        }
    }
}

fn processors() -> f64 {
    // SAFETY: a plain call that returns a number.
    match unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } {
        count if count > 0 => count as f64,
        _ => f64::INFINITY,
    }
}

fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.map_or(u64::MAX, |kib: u64| kib.saturating_mul(1024))
}

fn processes() -> u64 {
    let text = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    text.trim().parse().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_size() {
        let machine = Machine::measure(&Cgroups::default(), Path::new("/"));
        assert!(machine.cpus >= 1.0 && machine.cpus < 100_000.0, "{machine:?}");
        assert!(machine.memory > 1 << 26 && machine.memory < 1 << 60, "{machine:?}");
        assert!(machine.processes > 100 && machine.disk > 1 << 20, "{machine:?}");
    }
}
