//! The limits of the groups that our own lies in: no box gets more, whatever it is given.

use super::{Cgroups, Controller, Limits, MEMORY};
use std::{fs, path::Path};

impl Cgroups {
    /// The limits that hold for all our groups together. None where only the machine bounds them.
    pub fn ceilings(&self) -> Limits {
        let mut found = Limits::default();
        for (controller, parent) in &self.parents {
            for group in parent.ancestors().take_while(|folder| folder.join("cgroup.procs").exists()) {
                let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok();
                match (controller, self.v2) {
                    (Controller::Memory, true) => found.memory = least(found.memory, number("memory.max")),
                    (Controller::Memory, false) => found.memory = least(found.memory, number(MEMORY)),
                    (Controller::Pids, _) => found.processes = least(found.processes, number("pids.max")),
                    (Controller::Cpu, v2) => found.cpus = least(found.cpus, processors(group, v2)),
                    (Controller::Io, _) => {}
                }
            }
        }
        found
    }
}

fn least<T: PartialOrd>(now: Option<T>, found: Option<T>) -> Option<T> {
    match (now, found) {
        (Some(now), Some(found)) if found < now => Some(found),
        (now, found) => now.or(found),
    }
}

/// The processors that a group has, where it has a quota of them.
fn processors(group: &Path, v2: bool) -> Option<f64> {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok();
    let (quota, period) = match v2 {
        true => {
            let text = read("cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
        false => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    let (quota, period): (f64, f64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}
