//! Devices: of the host's a box has six, and none of them leads anywhere.

use super::probe::{
    Arg::{B, N, S},
    Attempt, Facts, Outcome, best, call, host, judged, no_control, open_real, refused, scratch, text,
    untried,
};
use libc::{ENOENT, EPERM};
use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

pub const ATTEMPTS: &[Attempt] = &[
    host("make_a_disk", make_a_disk, &[EPERM]),
    host("make_a_memory_device", make_a_memory_device, &[EPERM]),
    no_control("disk", disk, libc::ENOENT, "not every host lets its root open the disk"),
    host("memory", memory, &[ENOENT]),
    host("kernel_log", kernel_log, &[ENOENT]),
    host("virtual_machines", virtual_machines, &[ENOENT]),
    host("file_systems_of_users", file_systems_of_users, &[ENOENT]),
    host("tunnels", tunnels, &[ENOENT]),
    host("loops", loops, &[ENOENT]),
    host("consoles", consoles, &[ENOENT]),
    host("unremovable_file", unremovable_file, &[EPERM]),
    host("type_into_a_terminal", type_into_a_terminal, &[EPERM]),
    host("discipline_of_a_terminal", discipline_of_a_terminal, &[EPERM]),
    no_control("paste_into_a_console", paste_into_a_console, EPERM, "not every host has a console"),
];

/// Makes a node and removes it again.
fn make(kind: libc::mode_t, major: i64, minor: i64) -> Outcome {
    let dir = scratch();
    let node = text(dir.path().join("node"));
    let (here, mode) = (N(libc::AT_FDCWD.into()), N(i64::from(kind | 0o600)));
    judged(call(libc::SYS_mknodat, [here, S(&node), mode, N((major << 8) | minor)]), "mknod")
}

fn make_a_disk(_: &Facts) -> Outcome {
    make(libc::S_IFBLK, 7, 0)
}

fn make_a_memory_device(_: &Facts) -> Outcome {
    make(libc::S_IFCHR, 1, 1)
}

/// On the host, one that is not there cannot be tried; in a box that is what is wanted.
fn open_any(facts: &Facts, paths: &[&str]) -> Outcome {
    let there = |path: &&&str| facts.get("target") == "1" || Path::new(path).exists();
    best(paths.iter().filter(there).map(|path| open_real(path, false)))
}

fn disk(facts: &Facts) -> Outcome {
    match facts.get("disk") {
        "" => untried("the host has no disk"),
        disk => open_real(disk, false),
    }
}

fn memory(facts: &Facts) -> Outcome {
    open_any(facts, &["/dev/mem", "/dev/kmem", "/dev/port"])
}

fn kernel_log(facts: &Facts) -> Outcome {
    open_any(facts, &["/dev/kmsg"])
}

fn virtual_machines(facts: &Facts) -> Outcome {
    open_any(facts, &["/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/vsock"])
}

fn file_systems_of_users(facts: &Facts) -> Outcome {
    open_any(facts, &["/dev/fuse", "/dev/cuse"])
}

fn tunnels(facts: &Facts) -> Outcome {
    open_any(facts, &["/dev/net/tun", "/dev/ppp"])
}

fn loops(facts: &Facts) -> Outcome {
    open_any(facts, &["/dev/loop-control", "/dev/loop0", "/dev/mapper/control", "/dev/userfaultfd"])
}

fn consoles(facts: &Facts) -> Outcome {
    open_any(
        facts,
        &["/dev/ttyS0", "/dev/tty0", "/dev/tty1", "/dev/input/event0", "/dev/uinput", "/dev/console"],
    )
}

const GET_FLAGS: i64 = 0x8008_6601;
const SET_FLAGS: i64 = 0x4008_6602;

/// A file that root of the host could not remove without a thought.
fn unremovable_file(_: &Facts) -> Outcome {
    const IMMUTABLE: u64 = 0x10;
    let dir = scratch();
    let Ok(file) = File::create(dir.path().join("file")) else { return untried("no file") };
    let fd = i64::from(file.as_raw_fd());
    let mut flags = [0u8; 8];
    if call(libc::SYS_ioctl, [N(fd), N(GET_FLAGS), B(&mut flags)]).is_err() {
        return untried("files here have no flags");
    }
    let mut wanted = (u64::from_ne_bytes(flags) | IMMUTABLE).to_ne_bytes();
    let set = call(libc::SYS_ioctl, [N(fd), N(SET_FLAGS), B(&mut wanted)]);
    if set.is_ok() {
        let _ = call(libc::SYS_ioctl, [N(fd), N(SET_FLAGS), B(&mut flags)]);
    }
    judged(set, "the flag `immutable`")
}

/// Both ends of a new terminal.
fn terminal() -> io::Result<(File, OwnedFd)> {
    let main = File::options().read(true).write(true).open("/dev/ptmx")?;
    let fd = i64::from(main.as_raw_fd());
    call(libc::SYS_ioctl, [N(fd), N(libc::TIOCSPTLCK as i64), B(&mut [0; 4])])?;
    let flags = N(i64::from(libc::O_RDWR | libc::O_NOCTTY));
    let peer = call(libc::SYS_ioctl, [N(fd), N(libc::TIOCGPTPEER as i64), flags])?;
    // SAFETY: a descriptor that was made just now, and that nobody else knows.
    Ok((main, unsafe { OwnedFd::from_raw_fd(peer as i32) }))
}

fn ask_terminal(what: i64, value: u8) -> Outcome {
    let (_main, peer) = match terminal() {
        Ok(ends) => ends,
        Err(error) => return refused(&error, "a terminal"),
    };
    let mut value = [value, 0, 0, 0, 0, 0, 0, 0];
    judged(call(libc::SYS_ioctl, [N(peer.as_raw_fd().into()), N(what), B(&mut value)]), "ioctl")
}

/// Whoever reads the terminal next takes it for typed.
fn type_into_a_terminal(_: &Facts) -> Outcome {
    ask_terminal(libc::TIOCSTI as i64, b'x')
}

/// Drivers that nobody uses, behind a number. This one is the usual.
fn discipline_of_a_terminal(_: &Facts) -> Outcome {
    ask_terminal(libc::TIOCSETD as i64, 0)
}

fn paste_into_a_console(_: &Facts) -> Outcome {
    const PASTE: u8 = 3;
    ask_terminal(libc::TIOCLINUX as i64, PASTE)
}
