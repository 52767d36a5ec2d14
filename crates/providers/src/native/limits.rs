//! Which limits hold for a box, and which folders of the host it may see.

use seawall_api::{ErrorKind, sandbox::Limits};
use seawall_core::{Error, Result};
use seawall_jail::cgroup::{self, Cgroups, Controller};
use std::path::PathBuf;

/// Limits of boxes that were asked for without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    pub cpus: f64,
    pub memory_mb: u64,
    pub max_processes: u64,
    pub open_files: u64,
}

impl Default for Defaults {
    fn default() -> Self {
        Defaults { cpus: 2.0, memory_mb: 2048, max_processes: 1024, open_files: 16_384 }
    }
}

/// Folders of the host that boxes may be given.
pub type Mounts = Vec<PathBuf>;

const MIB: u64 = 1 << 20;
/// Less than this no guest could live in.
const LEAST_MEMORY_MB: u64 = 16;
const LEAST_PROCESSES: u64 = 8;

/// What was asked for must hold; what was not holds by default where it can.
pub fn in_force(asked: &Limits, defaults: &Defaults, groups: &Cgroups) -> Result<cgroup::Limits> {
    check(asked)?;
    let can = |controller| groups.has(controller);
    for (controller, name, set) in [
        (Controller::Cpu, "cpus", asked.cpus.is_some()),
        (Controller::Memory, "memory_mb", asked.memory_mb.is_some()),
        (Controller::Pids, "max_processes", asked.max_processes.is_some()),
    ] {
        if let Some(missing) = groups.missing(controller).filter(|_| set) {
            return Err(unenforceable(name, &missing.why, &missing.fix));
        }
    }
    let memory = asked.memory_mb.or(can(Controller::Memory).then_some(defaults.memory_mb));
    Ok(cgroup::Limits {
        cpus: asked.cpus.or(can(Controller::Cpu).then_some(defaults.cpus)),
        memory: memory.map(|mb| mb.saturating_mul(MIB)),
        processes: asked.max_processes.or(can(Controller::Pids).then_some(defaults.max_processes)),
    })
}

pub fn unenforceable(name: &str, why: &str, fix: &str) -> Error {
    let message = format!("the limit `{name}` cannot be enforced here: {why}. {fix}; or leave it out");
    Error::new(ErrorKind::LimitUnenforceable, message)
}

fn check(asked: &Limits) -> Result<()> {
    if asked.cpus.is_some_and(|cpus| !(cpus.is_finite() && cpus >= 0.01)) {
        return Err(Error::invalid("`cpus` must be at least 0.01"));
    }
    if asked.memory_mb.is_some_and(|mb| mb < LEAST_MEMORY_MB) {
        return Err(Error::invalid(format!("`memory_mb` must be at least {LEAST_MEMORY_MB}")));
    }
    if asked.max_processes.is_some_and(|count| count < LEAST_PROCESSES) {
        return Err(Error::invalid(format!("`max_processes` must be at least {LEAST_PROCESSES}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_and_cannot_be_is_refused_with_the_fix() {
        let none = Cgroups::default();
        let asked = Limits { memory_mb: Some(64), ..Limits::default() };
        let error = in_force(&asked, &Defaults::default(), &none).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitUnenforceable);
        assert!(error.to_string().contains("memory_mb"), "{error}");
        let default = in_force(&Limits::default(), &Defaults::default(), &none).unwrap();
        assert_eq!(default, cgroup::Limits::default());
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        let bad = [
            Limits { cpus: Some(f64::NAN), ..Limits::default() },
            Limits { cpus: Some(0.0), ..Limits::default() },
            Limits { memory_mb: Some(1), ..Limits::default() },
            Limits { max_processes: Some(1), ..Limits::default() },
        ];
        for limits in bad {
            assert_eq!(check(&limits).unwrap_err().kind(), ErrorKind::Invalid, "{limits:?}");
        }
    }
}
