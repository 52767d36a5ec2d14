//! Which limits hold for a box, and for the boxes of an account together.

use seawall_api::{ErrorKind, sandbox::Limits};
use seawall_core::{Error, Result, ports::AccountTotals};
use seawall_jail::{
    cgroup::{self, Cgroups, Controller},
    disk::{self, Device},
    machine::Machine,
};
use std::{fmt::Display, path::Path};

/// Limits of boxes that were asked for without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    pub cpus: f64,
    pub memory_mb: u64,
    pub max_processes: u64,
    pub open_files: u64,
    /// The size of a sandbox's disk. None means that its files are not limited.
    pub disk_mb: Option<u64>,
    pub disk_io_mb_s: Option<u64>,
    pub disk_iops: Option<u64>,
}

impl Default for Defaults {
    fn default() -> Self {
        Defaults {
            cpus: 2.0,
            memory_mb: 2048,
            max_processes: 1024,
            open_files: 16_384,
            disk_mb: None,
            disk_io_mb_s: None,
            disk_iops: None,
        }
    }
}

const MIB: u64 = 1 << 20;
/// Less than this no guest could live in.
const LEAST_MEMORY_MB: u64 = 16;
const LEAST_PROCESSES: u64 = 8;
/// What ext4 can have is less than this.
const MOST_DISK_MB: u64 = 16 << 20;

/// Which limits can be enforced here, which hold by default, and how much the machine has.
#[derive(Debug, Clone)]
pub struct Bounds {
    pub groups: Cgroups,
    machine: Machine,
    defaults: Defaults,
    no_disk: Option<(&'static str, &'static str)>,
}

impl Bounds {
    /// Looks at this machine, for boxes whose files are beneath `data`. Defaults that it does not have are cut to what
    /// it has.
    pub fn measure(data: &Path, defaults: Defaults) -> Bounds {
        let groups = Cgroups::find().with_disk(Device::of(data));
        let machine = Machine::measure(&groups, data);
        Bounds { defaults: cut(defaults, &machine), machine, no_disk: no_disk(), groups }
    }

    /// Whether the size of a box's disk can be limited.
    pub fn can_limit_disk(&self) -> bool {
        self.no_disk.is_none()
    }

    /// The size of a box's disk, unless its volume was made with another. None where it is not limited.
    pub fn disk_mb(&self, asked: &Limits) -> Option<u64> {
        asked.disk_mb.or(self.defaults.disk_mb.filter(|_| self.can_limit_disk()))
    }

    /// Refuses what makes no sense, what the machine does not have, and what cannot be enforced.
    pub fn check(&self, asked: &Limits) -> Result<()> {
        check_least(asked)?;
        let machine = &self.machine;
        if let Some(cpus) = asked.cpus.filter(|cpus| *cpus > machine.cpus) {
            return Err(beyond("cpus", cpus, machine.cpus));
        }
        for (name, value, most) in [
            ("memory_mb", asked.memory_mb, machine.memory / MIB),
            ("max_processes", asked.max_processes, machine.processes),
            ("disk_mb", asked.disk_mb, (machine.disk / MIB).min(MOST_DISK_MB - 1)),
        ] {
            if let Some(value) = value.filter(|value| *value > most) {
                return Err(beyond(name, value, most));
            }
        }
        self.in_force(asked).map(drop)
    }

    /// The limits of a box's group: what was asked for must hold, and what was not holds by default where it can.
    /// A box that was made on a larger machine gets what this one has.
    pub fn in_force(&self, asked: &Limits) -> Result<cgroup::Limits> {
        if let (Some(_), Some((why, fix))) = (asked.disk_mb, self.no_disk) {
            return Err(unenforceable("disk_mb", why, fix));
        }
        for (controller, name, set) in [
            (Controller::Cpu, "cpus", asked.cpus.is_some()),
            (Controller::Memory, "memory_mb", asked.memory_mb.is_some()),
            (Controller::Pids, "max_processes", asked.max_processes.is_some()),
            (Controller::Io, "disk_io_mb_s", asked.disk_io_mb_s.is_some()),
            (Controller::Io, "disk_iops", asked.disk_iops.is_some()),
        ] {
            if let Some(missing) = self.groups.missing(controller).filter(|_| set) {
                return Err(unenforceable(name, &missing.why, &missing.fix));
            }
        }
        let (can, defaults) = (|controller| self.groups.has(controller), &self.defaults);
        let asked = within(asked, &self.machine);
        let memory = asked.memory_mb.or(can(Controller::Memory).then_some(defaults.memory_mb));
        let io = |asked: Option<u64>, default: Option<u64>| asked.or(default.filter(|_| can(Controller::Io)));
        Ok(cgroup::Limits {
            cpus: asked.cpus.or(can(Controller::Cpu).then_some(defaults.cpus)),
            memory: memory.map(|mb| mb.saturating_mul(MIB)),
            processes: asked.max_processes.or(can(Controller::Pids).then_some(defaults.max_processes)),
            io_bytes: io(asked.disk_io_mb_s, defaults.disk_io_mb_s).map(|mb| mb.saturating_mul(MIB)),
            io_operations: io(asked.disk_iops, defaults.disk_iops),
        })
    }

    /// The totals of an account as its group takes them, and the first that cannot be enforced here.
    pub fn totals(&self, totals: &AccountTotals) -> (cgroup::Limits, Result<()>) {
        let mut refused = Ok(());
        for (controller, name, set) in [
            (Controller::Cpu, "cpus", totals.cpus.is_some()),
            (Controller::Memory, "memory_mb", totals.memory_mb.is_some()),
            (Controller::Pids, "max_processes", totals.max_processes.is_some()),
            (Controller::Io, "disk_io_mb_s", totals.disk_io_mb_s.is_some()),
            (Controller::Io, "disk_iops", totals.disk_iops.is_some()),
        ] {
            if let (Ok(()), Some(missing)) = (&refused, self.groups.missing(controller).filter(|_| set)) {
                refused = Err(unenforceable(&format!("{name} of an account"), &missing.why, &missing.fix));
            }
        }
        let limits = cgroup::Limits {
            cpus: totals.cpus,
            memory: totals.memory_mb.map(|mb| mb.saturating_mul(MIB)),
            processes: totals.max_processes,
            io_bytes: totals.disk_io_mb_s.map(|mb| mb.saturating_mul(MIB)),
            io_operations: totals.disk_iops,
        };
        (limits, refused)
    }
}

/// The same limits, none above what the machine has.
fn within(asked: &Limits, machine: &Machine) -> Limits {
    Limits {
        cpus: asked.cpus.map(|cpus| cpus.min(machine.cpus)),
        memory_mb: asked.memory_mb.map(|mb| mb.min(machine.memory / MIB)),
        max_processes: asked.max_processes.map(|count| count.min(machine.processes)),
        ..*asked
    }
}

fn cut(defaults: Defaults, machine: &Machine) -> Defaults {
    Defaults {
        cpus: defaults.cpus.min(machine.cpus),
        memory_mb: defaults.memory_mb.min(machine.memory / MIB),
        max_processes: defaults.max_processes.min(machine.processes),
        disk_mb: defaults.disk_mb.map(|mb| mb.min(machine.disk / MIB).min(MOST_DISK_MB - 1)),
        ..defaults
    }
}

/// As users know them. `disk_mb` is the size of the box's disk.
pub fn shown(limits: &cgroup::Limits, disk_mb: Option<u64>) -> Limits {
    Limits {
        cpus: limits.cpus,
        memory_mb: limits.memory.map(|bytes| bytes / MIB),
        max_processes: limits.processes,
        disk_mb,
        disk_io_mb_s: limits.io_bytes.map(|bytes| bytes / MIB),
        disk_iops: limits.io_operations,
    }
}

/// Each limit, and where it cannot be enforced why not and what would help.
pub fn table(data: &Path) -> Vec<(&'static str, Option<(String, String)>)> {
    let groups = Cgroups::find().with_disk(Device::of(data));
    let of = |name, controller| (name, groups.missing(controller).map(|missing| (missing.why, missing.fix)));
    vec![
        of("limit cpus", Controller::Cpu),
        of("limit memory_mb", Controller::Memory),
        of("limit max_processes", Controller::Pids),
        ("limit disk_mb", no_disk().map(|(why, fix)| (why.to_owned(), fix.to_owned()))),
        of("limit disk_io_mb_s, disk_iops", Controller::Io),
    ]
}

/// Why disk cannot be limited, and what would help.
fn no_disk() -> Option<(&'static str, &'static str)> {
    if !rustix::process::geteuid().is_root() {
        return Some(("a file system of its own needs root", "Run seawall as root"));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some(("this host has no loop devices", "Load the module `loop`"));
    }
    match disk::mkfs() {
        None => Some(("there is no mkfs.ext4", "Install e2fsprogs")),
        Some(_) => None,
    }
}

pub fn unenforceable(name: &str, why: &str, fix: &str) -> Error {
    let message = format!("the limit `{name}` cannot be enforced here: {why}. {fix}; or leave it out");
    Error::new(ErrorKind::LimitUnenforceable, message)
}

fn beyond(name: &str, value: impl Display, most: impl Display) -> Error {
    Error::invalid(format!("`{name}` is {value}, and the most that this machine has is {most}"))
}

pub fn check_least(asked: &Limits) -> Result<()> {
    let below = |value: Option<u64>, least: u64| value.is_some_and(|value| value < least);
    let cpus = asked.cpus.is_some_and(|cpus| !(cpus.is_finite() && cpus >= 0.01));
    for (name, is_below, least) in [
        ("disk_mb", below(asked.disk_mb, disk::LEAST_MB), disk::LEAST_MB.to_string()),
        ("cpus", cpus, "0.01".to_owned()),
        ("memory_mb", below(asked.memory_mb, LEAST_MEMORY_MB), LEAST_MEMORY_MB.to_string()),
        ("max_processes", below(asked.max_processes, LEAST_PROCESSES), LEAST_PROCESSES.to_string()),
        ("disk_io_mb_s", below(asked.disk_io_mb_s, 1), 1.to_string()),
        ("disk_iops", below(asked.disk_iops, LEAST_IOPS), LEAST_IOPS.to_string()),
    ] {
        if is_below {
            return Err(Error::invalid(format!("`{name}` must be at least {least}")));
        }
    }
    Ok(())
}

/// With fewer operations a second a box would hardly start.
const LEAST_IOPS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(defaults: Defaults) -> Bounds {
        let machine = Machine { cpus: 2.0, memory: 24_103 * MIB, processes: 32_768, disk: 1000 * MIB };
        let defaults = cut(defaults, &machine);
        Bounds { groups: Cgroups::default(), machine, defaults, no_disk: None }
    }

    #[test]
    fn what_was_asked_for_and_cannot_be_is_refused_with_the_fix() {
        let bounds = bounds(Defaults { disk_io_mb_s: Some(5), ..Defaults::default() });
        for (asked, name) in [
            (Limits { memory_mb: Some(64), ..Limits::default() }, "memory_mb"),
            (Limits { disk_io_mb_s: Some(64), ..Limits::default() }, "disk_io_mb_s"),
            (Limits { disk_iops: Some(64), ..Limits::default() }, "disk_iops"),
        ] {
            let error = bounds.check(&asked).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitUnenforceable);
            assert!(error.to_string().contains(name), "{error}");
        }
        assert_eq!(bounds.in_force(&Limits::default()).unwrap(), cgroup::Limits::default());
        let (_, refused) = bounds.totals(&AccountTotals { cpus: Some(1.0), ..AccountTotals::default() });
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::LimitUnenforceable);
        assert!(bounds.totals(&AccountTotals::default()).1.is_ok());
    }

    #[test]
    fn k8_the_machine_is_the_most_that_can_be_asked_for() {
        let bounds = bounds(Defaults::default());
        for (asked, text) in [
            (
                Limits { cpus: Some(64.0), ..Limits::default() },
                "`cpus` is 64, and the most that this machine has is 2",
            ),
            (
                Limits { memory_mb: Some(102_400), ..Limits::default() },
                "`memory_mb` is 102400, and the most that this machine has is 24103",
            ),
            (
                Limits { max_processes: Some(40_000), ..Limits::default() },
                "`max_processes` is 40000, and the most that this machine has is 32768",
            ),
            (
                Limits { disk_mb: Some(1001), ..Limits::default() },
                "`disk_mb` is 1001, and the most that this machine has is 1000",
            ),
        ] {
            let error = bounds.check(&asked).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Invalid, text));
        }
    }

    #[test]
    fn k8_defaults_are_cut_to_the_machine() {
        let large = Defaults {
            cpus: 64.0,
            memory_mb: 1 << 20,
            max_processes: 1 << 20,
            disk_mb: Some(1 << 20),
            ..Defaults::default()
        };
        let cut = bounds(large);
        assert_eq!((cut.defaults.cpus, cut.defaults.memory_mb), (2.0, 24_103));
        assert_eq!((cut.defaults.max_processes, cut.disk_mb(&Limits::default())), (32_768, Some(1000)));
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        let bad = [
            Limits { cpus: Some(f64::NAN), ..Limits::default() },
            Limits { cpus: Some(0.0), ..Limits::default() },
            Limits { memory_mb: Some(1), ..Limits::default() },
            Limits { max_processes: Some(1), ..Limits::default() },
            Limits { disk_mb: Some(1), ..Limits::default() },
            Limits { disk_io_mb_s: Some(0), ..Limits::default() },
            Limits { disk_iops: Some(1), ..Limits::default() },
        ];
        for limits in bad {
            assert_eq!(check_least(&limits).unwrap_err().kind(), ErrorKind::Invalid, "{limits:?}");
        }
    }
}
