//! The file tree of a box of the image `host`: the host's `/usr` to read, everything else its own.

use crate::{
    etc,
    kernel::{Attributes, Kernel, Source},
    own::OWN,
};
use std::{io, os::fd::RawFd};

/// What every box has. Trees, see [`Source::Tree`].
#[derive(Debug, Clone, Copy)]
pub struct Common {
    /// What `sudo` is in the box, once for each place.
    pub sudo: [RawFd; 2],
    /// Copies of what boxes may have of the host's `/etc`.
    pub etc: Option<RawFd>,
    /// Whether there are other users than root.
    pub users: bool,
}

/// What one box has. Trees too.
#[derive(Debug, Clone)]
pub struct Parts<'a> {
    /// In the order of [`OWN`].
    pub own: [RawFd; OWN.len()],
    /// The data volume.
    pub work: RawFd,
    /// Folders of the host, and where they appear.
    pub folders: Vec<(&'a str, RawFd)>,
}

/// Made in the root, with their modes.
const DIRECTORIES: [(&str, u32); 24] = [
    ("usr", 0o755),
    ("etc", 0o755),
    ("var", 0o755),
    ("opt", 0o755),
    ("home", 0o755),
    ("root", 0o700),
    ("tmp", 0o1777),
    ("work", 0o755),
    ("proc", 0o555),
    ("sys", 0o755),
    ("dev", 0o755),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("mnt", 0o755),
    ("media", 0o755),
    ("srv", 0o755),
    ("etc/.host", 0o755),
    ("run/seawall", 0o755),
    ("run/seawall/bin", 0o755),
    ("dev/pts", 0o755),
    ("dev/shm", 0o1777),
    ("sys/devices", 0o755),
    ("sys/devices/system", 0o755),
    (CPU, 0o755),
];

/// Beside `/usr` on systems that have not merged them.
const BESIDE_USR: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of /proc that tell about the host or act on it. Without power over the host most refuse anyway.
const MASKED_FILES: [&str; 8] = [
    "kcore",
    "keys",
    "timer_list",
    "sched_debug",
    "latency_stats",
    "interrupts",
    "kpagecount",
    "sysrq-trigger",
];
const MASKED_DIRECTORIES: [&str; 5] = ["acpi", "asound", "scsi", "bus", "irq"];
const READ_ONLY_DIRECTORIES: [&str; 2] = ["sys", "fs"];

const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Of /sys only what programs ask to learn how many processors there are.
const CPU: &str = "sys/devices/system/cpu";

/// Not mapped: root of a box must not have root's power over files that only the host's root may read.
const HOSTS: Attributes = Attributes { read_only: true, no_exec: false, devices: false, mapped: false };
const READ_ONLY: Attributes = Attributes { read_only: true, no_exec: false, devices: false, mapped: true };
const OWN_FILES: Attributes = Attributes { read_only: false, no_exec: false, devices: false, mapped: true };

/// What is in the new root before anything is mounted: directories, links, small files. The same for every box, so
/// it can be made in advance.
pub fn furnish(kernel: &mut dyn Kernel, etc: Option<RawFd>, users: bool) -> Result<(), Failed> {
    for (path, mode) in DIRECTORIES {
        step(path, kernel.mkdir(path, mode))?;
    }
    for name in BESIDE_USR {
        let path = format!("/{name}");
        if let Some(target) = kernel.link_of(&path) {
            // Relative, so that it cannot mean the host's.
            step(name, kernel.symlink(target.trim_start_matches('/'), name))?;
        } else if kernel.exists(&path) {
            step(name, kernel.mkdir(name, 0o755))?;
        }
    }
    furnish_etc(kernel, etc, users)?;
    step("run/seawall/bin/sudo", kernel.write("run/seawall/bin/sudo", ""))?;
    for name in DEVICES {
        let target = format!("dev/{name}");
        step(&target, kernel.write(&target, ""))?;
    }
    for (name, target) in DEVICE_LINKS {
        step(name, kernel.symlink(target, &format!("dev/{name}")))?;
    }
    Ok(())
}

/// Mounts into a furnished root what every box has, and makes it the root. The caller is alone in a new mount
/// namespace, and in the pid namespace that /proc shall show.
pub fn assemble(kernel: &mut dyn Kernel, common: &Common) -> Result<(), Failed> {
    step("usr", kernel.bind(Source::Host("/usr"), "usr", HOSTS))?;
    for name in BESIDE_USR {
        let path = format!("/{name}");
        if kernel.link_of(&path).is_none() && kernel.exists(&path) {
            step(name, kernel.bind(Source::Host(&path), name, HOSTS))?;
        }
    }
    if let Some(template) = common.etc {
        step("etc/.host", kernel.bind(Source::Tree(template), "etc/.host", READ_ONLY))?;
    }
    for (place, tree) in ["/run/seawall/bin/sudo", "/usr/bin/sudo"].into_iter().zip(common.sudo) {
        // Where the host has one, it would refuse: nothing in a box gets new privileges.
        if place.starts_with("/run") || kernel.exists(place) {
            let target = place.trim_start_matches('/');
            step(target, kernel.bind(Source::Tree(tree), target, HOSTS))?;
        }
    }
    dev(kernel, common)?;
    if kernel.exists("/sys/devices/system/cpu") {
        let attributes = Attributes { read_only: true, no_exec: true, ..Attributes::default() };
        step(CPU, kernel.bind(Source::Host("/sys/devices/system/cpu"), CPU, attributes))?;
    }
    proc(kernel)?;
    step("the new root", kernel.pivot())
}

/// Mounts what this box alone has.
pub fn occupy(kernel: &mut dyn Kernel, parts: &Parts<'_>) -> Result<(), Failed> {
    for ((_, target), tree) in OWN.into_iter().zip(parts.own) {
        if target != "usr/local" || kernel.exists("/usr/local") {
            step(target, kernel.bind(Source::Tree(tree), target, OWN_FILES))?;
        }
    }
    step("work", kernel.bind(Source::Tree(parts.work), "work", OWN_FILES))?;
    // Last: their places may be in what the box itself has written.
    for (target, tree) in &parts.folders {
        step(target, kernel.bind_within(*tree, target.trim_start_matches('/')))?;
    }
    Ok(())
}

/// Which step failed, and why.
#[derive(Debug)]
pub struct Failed {
    pub step: String,
    pub error: io::Error,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.step, self.error)
    }
}

pub fn step<T>(name: &str, result: io::Result<T>) -> Result<T, Failed> {
    result.map_err(|error| Failed { step: name.to_owned(), error })
}

fn furnish_etc(kernel: &mut dyn Kernel, etc: Option<RawFd>, users: bool) -> Result<(), Failed> {
    for (name, content) in etc::files(users, kernel.exists("/usr/bin/bash")) {
        step(name, kernel.write(&format!("etc/{name}"), &content))?;
    }
    step("etc/mtab", kernel.symlink("/proc/mounts", "etc/mtab"))?;
    let Some(template) = etc else { return Ok(()) };
    for name in step("etc/.host", kernel.names(template))? {
        if !etc::is_made(&name) {
            step(&name, kernel.symlink(&format!(".host/{name}"), &format!("etc/{name}")))?;
        }
    }
    Ok(())
}

fn dev(kernel: &mut dyn Kernel, common: &Common) -> Result<(), Failed> {
    let plain = Attributes { no_exec: true, ..Attributes::default() };
    let device = Attributes { devices: true, ..plain };
    for name in DEVICES {
        let (target, source) = (format!("dev/{name}"), format!("/dev/{name}"));
        step(&target, kernel.bind(Source::Host(&source), &target, device))?;
    }
    let mode = if common.users { "620" } else { "600" };
    // The machine has a few thousand terminals for all.
    let options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", mode), ("max", "256")];
    step("dev/pts", kernel.mount("devpts", &options, "dev/pts", device))?;
    step("dev/shm", kernel.mount("tmpfs", &[("mode", "1777"), ("size", "64m")], "dev/shm", plain))
}

fn proc(kernel: &mut dyn Kernel) -> Result<(), Failed> {
    let plain = Attributes { no_exec: true, ..Attributes::default() };
    let read_only = Attributes { read_only: true, ..plain };
    step("proc", kernel.mount("proc", &[], "proc", plain))?;
    for name in READ_ONLY_DIRECTORIES {
        let path = format!("proc/{name}");
        step(&path, kernel.bind(Source::Inside(&path), &path, read_only))?;
    }
    for name in MASKED_FILES {
        let path = format!("proc/{name}");
        if kernel.exists(&format!("/proc/{name}")) {
            let masked = Attributes { devices: true, ..read_only };
            step(&path, kernel.bind(Source::Inside("dev/null"), &path, masked))?;
        }
    }
    for name in MASKED_DIRECTORIES {
        let path = format!("proc/{name}");
        if kernel.exists(&format!("/proc/{name}")) {
            // Any directory that is always empty does.
            step(&path, kernel.bind(Source::Inside("mnt"), &path, read_only))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Recorder;

    fn merged() -> Recorder {
        Recorder {
            there: ["/usr/local", "/bin", "/lib", "/proc/keys", "/proc/acpi", "/sys/devices/system/cpu"]
                .into(),
            links: vec![("/bin", "usr/bin"), ("/lib", "/usr/lib")],
            ..Recorder::default()
        }
    }

    fn assembled(mut kernel: Recorder) -> Recorder {
        furnish(&mut kernel, Some(7), true).unwrap();
        assemble(&mut kernel, &Common { sudo: [8, 9], etc: Some(7), users: true }).unwrap();
        let parts = Parts { own: [1, 2, 3, 4, 5, 6], work: 10, folders: vec![("/data/deep", 11)] };
        occupy(&mut kernel, &parts).unwrap();
        kernel
    }

    #[test]
    fn parents_come_before_what_is_mounted_in_them_and_what_a_box_has_last() {
        let kernel = assembled(merged());
        for (first, then) in [
            ("mkdir usr ", "bind usr host:/usr ro"),
            ("bind usr host:/usr ro", "bind usr/local tree:5 mapped"),
            ("write dev/null", "bind dev/null host:/dev/null"),
            ("bind dev/null", "bind proc/keys inside:dev/null ro"),
            ("mount proc proc", "bind proc/sys inside:proc/sys ro"),
            ("mount proc proc", "bind proc/acpi inside:mnt ro"),
            ("mkdir etc/.host", "bind etc/.host tree:7 ro mapped"),
            ("pivot", "bind home tree:1 mapped"),
            ("bind work tree:10 mapped", "bind_within data/deep tree:11"),
        ] {
            assert!(kernel.position(first) < kernel.position(then), "{first} before {then}");
        }
        assert_eq!(kernel.asked.iter().filter(|asked| *asked == "pivot").count(), 1);
    }

    #[test]
    fn nothing_of_the_host_can_be_written_and_only_devices_are_devices() {
        for asked in assembled(merged()).asked.iter().filter(|asked| asked.contains(" host:")) {
            let device = asked.starts_with("bind dev/");
            assert!(device || asked.contains(" ro"), "{asked}");
            assert_eq!(asked.contains(" dev"), device, "{asked}");
            assert!(!asked.contains("mapped"), "root's power over the host's files: {asked}");
        }
    }

    #[test]
    fn links_of_the_host_stay_in_the_box_and_our_own_files_are_not_replaced() {
        let kernel = assembled(merged());
        kernel.position("symlink bin usr/bin");
        kernel.position("symlink lib usr/lib");
        kernel.position("symlink etc/ssl .host/ssl");
        assert!(!kernel.asked.iter().any(|asked| asked.starts_with("symlink etc/passwd")));
    }

    #[test]
    fn what_is_not_merged_is_bound_by_itself() {
        let kernel = assembled(Recorder { links: vec![], ..merged() });
        assert!(kernel.position("mkdir bin ") < kernel.position("bind bin host:/bin ro"));
    }

    #[test]
    fn the_step_that_failed_is_named_and_the_last() {
        let mut kernel = Recorder { failing: Some("mount proc"), ..merged() };
        let failed = assemble(&mut kernel, &Common { sudo: [8, 9], etc: None, users: true }).unwrap_err();
        assert_eq!(failed.step, "proc");
        assert!(kernel.asked.last().unwrap().starts_with("mount proc"));
    }
}
