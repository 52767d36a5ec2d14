//! Files that are not the box's: the host's, seawall's own, another box's.

use super::probe::{
    Arg::{B, N, S},
    Attempt, Facts, MARKER, Outcome, best, call, contains, host, judged, no_control, nothing, open_real,
    pids, refused, secret_in, text, untried, won,
};
use libc::{EACCES, ENOENT, EPERM, EROFS};
use std::{
    fs,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
};

pub const ATTEMPTS: &[Attempt] = &[
    host("roots_home", roots_home, &[ENOENT, EACCES]),
    host("homes", homes, &[ENOENT]),
    host("var_tmp", var_tmp, &[ENOENT]),
    host("temporary_files", temporary_files, &[ENOENT]),
    host("shared_memory_files", shared_memory_files, &[ENOENT]),
    host("shadow", shadow, &[ENOENT]),
    host("data_folder", data_folder, &[ENOENT]),
    host("guest_program", guest_program, &[ENOENT]),
    host("neighbours_files", neighbours_files, &[ENOENT]),
    host("neighbours_wire", neighbours_wire, &[ENOENT]),
    host("own_wire", own_wire, &[ENOENT]),
    host("dots_above_the_root", dots_above_the_root, &[ENOENT]),
    host("dots_above_own_root", dots_above_own_root, &[ENOENT]),
    host("root_of_process_1", root_of_process_1, &[EACCES]),
    host("cwd_of_process_1", cwd_of_process_1, &[EACCES]),
    host("program_of_process_1", program_of_process_1, &[EACCES]),
    host("descriptors_of_process_1", descriptors_of_process_1, &[EACCES]),
    host("maps_of_process_1", maps_of_process_1, &[EACCES]),
    host("memory_of_process_1", memory_of_process_1, &[EACCES]),
    host("environment_of_process_1", environment_of_process_1, &[EACCES]),
    host("environment_of_all", environment_of_all, &[0, EACCES]),
    host("roots_of_all", roots_of_all, &[ENOENT, EACCES]),
    no_control("programs_of_all", programs_of_all, EACCES, "nobody may write to a program that runs"),
    host("paths_of_mounts", paths_of_mounts, &[ENOENT, EACCES]),
    no_control("inherited_descriptors", inherited_descriptors, 0, "the runner's own child has none either"),
    host("file_by_handle", file_by_handle, &[EPERM]),
    host("write_usr", write_usr, &[EROFS, EACCES]),
    host("change_usr", change_usr, &[EROFS, EACCES]),
    host("change_etc", change_etc, &[EROFS, EACCES]),
    host("system_v_memory", system_v_memory, &[ENOENT]),
    host("message_queue", message_queue, &[ENOENT]),
];

/// A file in a place of the host that the runner found to be there.
fn told(facts: &Facts, key: &str) -> Outcome {
    match facts.get(key) {
        "" => untried("the host has no such place that can be written to"),
        path => secret_in(path, facts),
    }
}

fn canary(facts: &Facts) -> String {
    format!("{}/canary", facts.get("data"))
}

fn roots_home(facts: &Facts) -> Outcome {
    told(facts, "canary_root")
}

fn homes(facts: &Facts) -> Outcome {
    told(facts, "canary_home")
}

fn var_tmp(facts: &Facts) -> Outcome {
    told(facts, "canary_var_tmp")
}

fn temporary_files(facts: &Facts) -> Outcome {
    told(facts, "canary_tmp")
}

fn shared_memory_files(facts: &Facts) -> Outcome {
    told(facts, "canary_shm")
}

fn shadow(_: &Facts) -> Outcome {
    match fs::read("/etc/shadow") {
        Ok(found) if contains(&found, b"root:") => won("passwords of the host"),
        Ok(_) => nothing("another file"),
        Err(error) => refused(&error, "/etc/shadow"),
    }
}

fn data_folder(facts: &Facts) -> Outcome {
    secret_in(canary(facts), facts)
}

/// Whoever changes it is in every box that starts from then on.
fn guest_program(facts: &Facts) -> Outcome {
    may_write(facts.get("guest"))
}

fn neighbours_files(facts: &Facts) -> Outcome {
    secret_in(Path::new(facts.get("neighbour_work")).join("secret"), facts)
}

fn neighbours_wire(facts: &Facts) -> Outcome {
    judged(UnixStream::connect(facts.get("neighbour_wire")), "the wire of another box")
}

fn own_wire(facts: &Facts) -> Outcome {
    judged(UnixStream::connect(facts.get("wire")), "the wire of this box")
}

fn dots_above_the_root(facts: &Facts) -> Outcome {
    secret_in(format!("{}{}", "/..".repeat(40), canary(facts)), facts)
}

fn dots_above_own_root(facts: &Facts) -> Outcome {
    secret_in(format!("/proc/self/root{}{}", "/..".repeat(40), canary(facts)), facts)
}

/// Process 1 in a box; on the host, one that the runner started for this.
fn of_target(facts: &Facts, file: &str) -> String {
    format!("/proc/{}/{file}", facts.get("target"))
}

fn root_of_process_1(facts: &Facts) -> Outcome {
    secret_in(format!("{}{}", of_target(facts, "root"), canary(facts)), facts)
}

fn cwd_of_process_1(facts: &Facts) -> Outcome {
    secret_in(format!("{}{}{}", of_target(facts, "cwd"), "/..".repeat(40), canary(facts)), facts)
}

fn program_of_process_1(facts: &Facts) -> Outcome {
    open_real(&of_target(facts, "exe"), false)
}

fn descriptors_of_process_1(facts: &Facts) -> Outcome {
    judged(fs::read_dir(of_target(facts, "fd")), "its descriptors")
}

fn maps_of_process_1(facts: &Facts) -> Outcome {
    open_real(&of_target(facts, "maps"), false)
}

fn memory_of_process_1(facts: &Facts) -> Outcome {
    open_real(&of_target(facts, "mem"), true)
}

fn marker_in(path: &str) -> Outcome {
    match fs::read(path) {
        Ok(found) if contains(&found, MARKER.as_bytes()) => won(format!("the host's variables, from {path}")),
        Ok(_) => nothing("no variable of the host"),
        Err(error) => refused(&error, path),
    }
}

fn environment_of_process_1(facts: &Facts) -> Outcome {
    marker_in(&of_target(facts, "environ"))
}

fn environment_of_all(_: &Facts) -> Outcome {
    best(pids().into_iter().map(|pid| marker_in(&format!("/proc/{pid}/environ"))))
}

fn roots_of_all(facts: &Facts) -> Outcome {
    best(pids().into_iter().map(|pid| secret_in(format!("/proc/{pid}/root{}", canary(facts)), facts)))
}

/// This attacker's own program is his to change; others are not.
fn programs_of_all(_: &Facts) -> Outcome {
    let others = pids().into_iter().filter(|pid| *pid != std::process::id());
    best(others.map(|pid| open_real(&format!("/proc/{pid}/exe"), true)))
}

/// The kernel tells from where on its disk a mounted directory is: the path on the host.
fn paths_of_mounts(facts: &Facts) -> Outcome {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let roots = table.lines().filter_map(|line| line.split(' ').nth(3)).chain([facts.get("data")]);
    let above = roots.flat_map(|root| Path::new(root).ancestors());
    best(above.map(|folder| secret_in(folder.join("canary"), facts)))
}

fn inherited_descriptors(_: &Facts) -> Outcome {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open = entries.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let target = fs::read_link(entry.path()).ok()?;
        // The one that lists them is among them.
        (number > 2 && !target.ends_with("fd")).then(|| format!("{number}: {}", target.display()))
    });
    match open.collect::<Vec<_>>() {
        none if none.is_empty() => nothing("only stdio"),
        some => won(some.join(", ")),
    }
}

/// As in the exploit `shocker`: a handle names a file on a disk, wherever that file is mounted.
fn file_by_handle(_: &Facts) -> Outcome {
    const ROOM: u32 = 128;
    let mut handle = [0u8; 8 + ROOM as usize];
    handle[..4].copy_from_slice(&ROOM.to_ne_bytes());
    let mut mount = [0u8; 8];
    let here = N(libc::AT_FDCWD.into());
    let named = call(libc::SYS_name_to_handle_at, [here, S(c"."), B(&mut handle), B(&mut mount), N(0)]);
    let Ok(dir) = fs::File::open(".") else { return untried("no directory to start from") };
    let disk = N(dir.as_raw_fd().into());
    match (call(libc::SYS_open_by_handle_at, [disk, B(&mut handle), N(0)]), named) {
        (Err(error), Err(_)) if error.raw_os_error() != Some(EPERM) => untried("files here have no handles"),
        (opened, _) => judged(opened, "open_by_handle_at"),
    }
}

/// Only asked, so that nothing changes where it may.
fn may_write(path: &str) -> Outcome {
    let (here, name) = (N(libc::AT_FDCWD.into()), text(path));
    judged(call(libc::SYS_faccessat, [here, S(&name), N(libc::W_OK.into())]), path)
}

fn write_usr(_: &Facts) -> Outcome {
    may_write("/usr")
}

fn change_usr(_: &Facts) -> Outcome {
    open_real("/usr/lib/os-release", true)
}

fn change_etc(_: &Facts) -> Outcome {
    open_real("/etc/ld.so.cache", true)
}

fn system_v_memory(facts: &Facts) -> Outcome {
    judged(call(libc::SYS_shmget, [N(facts.number("shm")), N(0), N(0)]), "shmget")
}

fn message_queue(facts: &Facts) -> Outcome {
    let name = text(facts.get("queue"));
    judged(call(libc::SYS_mq_open, [S(&name), N(libc::O_RDONLY.into()), N(0), N(0)]), "mq_open")
}
