//! Which limits hold for a box, and which folders of the host it may see.

use seawall_api::{
    ErrorKind,
    sandbox::{HostMount, Limits},
};
use seawall_core::{Error, Result};
use seawall_jail::{
    cgroup::{self, Cgroups, Controller},
    disk,
    order::HostFolder,
};
use std::{collections::BTreeSet, path::PathBuf};

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

/// Places of a box that nothing may be mounted over.
const OURS: [&str; 5] = ["/proc", "/sys", "/dev", "/usr", "/etc"];

/// The folders of the host that a box asks for, each beneath one that the operator allows.
pub fn host_folders(asked: &[HostMount], allowed: &Mounts) -> Result<Vec<(HostFolder, PathBuf)>> {
    if asked.len() > MAX_MOUNTS {
        return Err(Error::invalid(format!("a sandbox has at most {MAX_MOUNTS} mounts")));
    }
    let mut places = BTreeSet::new();
    if let Some(twice) = asked.iter().find(|mount| !places.insert(&mount.target)) {
        return Err(Error::invalid(format!("two mounts have the same place: `{}`", twice.target)));
    }
    asked.iter().map(|mount| host_folder(mount, allowed)).collect()
}

const MAX_MOUNTS: usize = 16;

fn host_folder(mount: &HostMount, allowed: &Mounts) -> Result<(HostFolder, PathBuf)> {
    let (source, target) = (&mount.source, &mount.target);
    let clean = target.len() > 1
        && target.starts_with('/')
        && !target.contains('\0')
        && target[1..].split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !clean || OURS.iter().any(|ours| target == ours || target.starts_with(&format!("{ours}/"))) {
        return Err(Error::invalid(format!(
            "`{target}` cannot be mounted over: give an absolute path such as /data, not in /usr, /etc, /dev, /proc or /sys"
        )));
    }
    // What it really is: a link must not lead out of what is allowed.
    let real = std::fs::canonicalize(source)
        .map_err(|error| Error::invalid(format!("the folder `{source}` of the host")).with_source(error))?;
    if !real.is_dir() {
        return Err(Error::invalid(format!("`{source}` is not a folder of the host")));
    }
    if !allowed.iter().any(|allowed| real.starts_with(allowed)) {
        let message = format!(
            "`{}` may not be mounted: the operator can allow it with `mounts = [\"{}\"]` in section [native] of seawall.toml",
            real.display(),
            real.display()
        );
        return Err(Error::new(ErrorKind::Denied, message));
    }
    Ok((HostFolder { target: target.clone(), writable: mount.writable }, real))
}

const MIB: u64 = 1 << 20;
/// Less than this no guest could live in.
const LEAST_MEMORY_MB: u64 = 16;
const LEAST_PROCESSES: u64 = 8;

/// What was asked for must hold; what was not holds by default where it can.
pub fn in_force(asked: &Limits, defaults: &Defaults, groups: &Cgroups) -> Result<cgroup::Limits> {
    check(asked)?;
    if asked.disk_mb.is_some()
        && let Some((why, fix)) = no_disk()
    {
        return Err(unenforceable("disk_mb", why, fix));
    }
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

/// As users know them.
pub fn shown(limits: &cgroup::Limits, asked: &Limits) -> Limits {
    Limits {
        cpus: limits.cpus,
        memory_mb: limits.memory.map(|bytes| bytes / MIB),
        max_processes: limits.processes,
        disk_mb: asked.disk_mb,
        ..Limits::default()
    }
}

/// Each limit, and where it cannot be enforced why not and what would help.
pub fn table() -> Vec<(&'static str, Option<(String, String)>)> {
    let groups = Cgroups::find();
    let of = |name, controller| (name, groups.missing(controller).map(|missing| (missing.why, missing.fix)));
    vec![
        of("limit cpus", Controller::Cpu),
        of("limit memory_mb", Controller::Memory),
        of("limit max_processes", Controller::Pids),
        ("limit disk_mb", no_disk().map(|(why, fix)| (why.to_owned(), fix.to_owned()))),
    ]
}

/// Why disk cannot be limited, and what would help.
pub fn no_disk() -> Option<(&'static str, &'static str)> {
    if !rustix::process::geteuid().is_root() {
        return Some(("a file system of its own needs root", "Run seawall as root"));
    }
    if !std::path::Path::new("/dev/loop-control").exists() {
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

/// More than any machine has; what is beyond the kernel or ext4 would refuse without saying why.
const MOST_CPUS: f64 = 8192.0;
const MOST_MEMORY_MB: u64 = 1 << 30;
const MOST_PROCESSES: u64 = 1 << 22;
const MOST_DISK_MB: u64 = 16 << 20;

fn check(asked: &Limits) -> Result<()> {
    let most = [
        ("cpus", asked.cpus.is_some_and(|cpus| cpus > MOST_CPUS), MOST_CPUS as u64),
        ("memory_mb", asked.memory_mb.is_some_and(|mb| mb > MOST_MEMORY_MB), MOST_MEMORY_MB),
        ("max_processes", asked.max_processes.is_some_and(|count| count > MOST_PROCESSES), MOST_PROCESSES),
        ("disk_mb", asked.disk_mb.is_some_and(|mb| mb >= MOST_DISK_MB), MOST_DISK_MB - 1),
    ];
    if let Some((name, _, most)) = most.into_iter().find(|(_, beyond, _)| *beyond) {
        return Err(Error::invalid(format!("`{name}` must be at most {most}")));
    }
    if asked.disk_mb.is_some_and(|mb| mb < disk::LEAST_MB) {
        return Err(Error::invalid(format!("`disk_mb` must be at least {}", disk::LEAST_MB)));
    }
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
    fn mounts_are_only_what_the_operator_allows() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("open/inner")).unwrap();
        std::fs::create_dir(real.join("closed")).unwrap();
        std::os::unix::fs::symlink(real.join("closed"), real.join("open/link")).unwrap();
        let allowed = vec![real.join("open")];
        let ask = |source: &str, target: &str| {
            let mount = HostMount {
                source: real.join(source).display().to_string(),
                target: target.into(),
                writable: false,
            };
            host_folders(&[mount], &allowed)
        };
        assert_eq!(ask("open/inner", "/data").unwrap()[0].1, real.join("open/inner"));
        for (source, target, kind) in [
            ("closed", "/data", ErrorKind::Denied),
            ("open/link", "/data", ErrorKind::Denied),
            ("open/../closed", "/data", ErrorKind::Denied),
            ("missing", "/data", ErrorKind::Invalid),
            ("open", "data", ErrorKind::Invalid),
            ("open", "/", ErrorKind::Invalid),
            ("open", "/data/../etc", ErrorKind::Invalid),
            ("open", "/usr/lib", ErrorKind::Invalid),
            ("open", "/proc", ErrorKind::Invalid),
        ] {
            assert_eq!(ask(source, target).unwrap_err().kind(), kind, "{source} {target}");
        }
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
