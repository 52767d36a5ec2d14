//! Mounts: the file tree of a box is what it was made of, for good.

use super::probe::{
    Arg::{N, S, W},
    Attempt, Facts, Outcome, apart, call, host, judged, no_control, refused, scratch, secret_in, text,
    untried,
};
use libc::{CLONE_NEWNS, ENOENT, EPERM, MNT_DETACH, MS_BIND, MS_REMOUNT};
use std::{ffi::CStr, fs, os::fd::AsRawFd};

pub const ATTEMPTS: &[Attempt] = &[
    apart("tmpfs", tmpfs, CLONE_NEWNS, &[EPERM]),
    apart("proc", proc, CLONE_NEWNS, &[EPERM]),
    apart("sysfs", sysfs, CLONE_NEWNS, &[EPERM]),
    apart("control_groups", control_groups, CLONE_NEWNS, &[EPERM]),
    apart("devices_of_the_kernel", devices_of_the_kernel, CLONE_NEWNS, &[EPERM]),
    apart("bind", bind, CLONE_NEWNS, &[EPERM]),
    no_control(
        "bind_process_1s_root",
        bind_process_1s_root,
        EPERM,
        "no mount of another namespace can be bound",
    ),
    apart("remount_usr_writable", remount_usr_writable, CLONE_NEWNS, &[EPERM]),
    apart("usr_writable_by_attribute", usr_writable_by_attribute, CLONE_NEWNS, &[EPERM]),
    apart("take_the_covers_off", take_the_covers_off, CLONE_NEWNS, &[EPERM]),
    apart("another_root", another_root, CLONE_NEWNS, &[EPERM]),
    apart("new_file_system", new_file_system, CLONE_NEWNS, &[EPERM]),
    apart("pick_a_file_system", pick_a_file_system, CLONE_NEWNS, &[EPERM]),
    apart("copy_of_a_tree", copy_of_a_tree, CLONE_NEWNS, &[EPERM]),
    apart("move_a_tree", move_a_tree, CLONE_NEWNS, &[EPERM]),
    host("out_of_a_chroot", out_of_a_chroot, &[ENOENT, EPERM]),
];

/// Mounts over a directory of its own.
fn mount(source: &CStr, kind: &CStr, flags: libc::c_ulong) -> Outcome {
    let dir = scratch();
    let target = text(dir.path());
    let mounted = call(libc::SYS_mount, [S(source), S(&target), S(kind), N(flags as i64), N(0)]);
    if mounted.is_ok() {
        let _ = call(libc::SYS_umount2, [S(&target), N(MNT_DETACH.into())]);
    }
    judged(mounted, "mount")
}

fn tmpfs(_: &Facts) -> Outcome {
    mount(c"none", c"tmpfs", 0)
}

/// A fresh one would be without covers.
fn proc(_: &Facts) -> Outcome {
    mount(c"none", c"proc", 0)
}

fn sysfs(_: &Facts) -> Outcome {
    mount(c"none", c"sysfs", 0)
}

fn control_groups(_: &Facts) -> Outcome {
    mount(c"none", c"cgroup2", 0)
}

fn devices_of_the_kernel(_: &Facts) -> Outcome {
    mount(c"none", c"devtmpfs", 0)
}

fn bind(_: &Facts) -> Outcome {
    mount(c"/", c"none", MS_BIND)
}

fn bind_process_1s_root(facts: &Facts) -> Outcome {
    mount(&text(format!("/proc/{}/root", facts.get("target"))), c"none", MS_BIND)
}

fn mount_points() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

/// On the host `/usr` is mostly no mount of its own.
fn usr() -> &'static CStr {
    if mount_points().iter().any(|point| point == "/usr") { c"/usr" } else { c"/" }
}

fn remount_usr_writable(_: &Facts) -> Outcome {
    let flags = N((MS_REMOUNT | MS_BIND) as i64);
    judged(call(libc::SYS_mount, [S(c"none"), S(usr()), S(c"none"), flags, N(0)]), "mount")
}

fn usr_writable_by_attribute(_: &Facts) -> Outcome {
    const READ_ONLY: u64 = 1;
    // To set, to clear, propagation, a user namespace.
    let mut wanted = [0, READ_ONLY, 0, 0];
    let here = N(libc::AT_FDCWD.into());
    let set = call(libc::SYS_mount_setattr, [here, S(usr()), N(0), W(&mut wanted), N(32)]);
    judged(set, "mount_setattr")
}

/// The last mount beneath /proc lies over something. On the host nothing is covered, and /proc itself does.
fn take_the_covers_off(_: &Facts) -> Outcome {
    let cover = mount_points().into_iter().rfind(|point| point.starts_with("/proc"));
    let cover = text(cover.unwrap_or_else(|| "/proc".to_owned()));
    judged(call(libc::SYS_umount2, [S(&cover), N(MNT_DETACH.into())]), "umount")
}

fn another_root(_: &Facts) -> Outcome {
    let dir = scratch();
    let root = text(dir.path());
    // Where this is refused, the next shall say so as well.
    let _ = call(libc::SYS_mount, [S(c"none"), S(&root), S(c"tmpfs"), N(0), N(0)]);
    judged(call(libc::SYS_pivot_root, [S(&root), S(&root)]), "pivot_root")
}

fn new_file_system(_: &Facts) -> Outcome {
    judged(call(libc::SYS_fsopen, [S(c"tmpfs"), N(0)]), "fsopen")
}

fn pick_a_file_system(_: &Facts) -> Outcome {
    judged(call(libc::SYS_fspick, [N(libc::AT_FDCWD.into()), S(c"/"), N(0)]), "fspick")
}

const CLONE: i64 = 1;
const EMPTY_PATH: i64 = 4;

fn copy_of_a_tree(_: &Facts) -> Outcome {
    judged(call(libc::SYS_open_tree, [N(libc::AT_FDCWD.into()), S(c"/"), N(CLONE)]), "open_tree")
}

fn move_a_tree(_: &Facts) -> Outcome {
    let dir = scratch();
    let (target, here) = (text(dir.path()), i64::from(libc::AT_FDCWD));
    let tree = call(libc::SYS_open_tree, [N(here), S(c"/usr"), N(CLONE)]).unwrap_or(-1);
    let moved = call(libc::SYS_move_mount, [N(tree), S(c""), N(here), S(&target), N(EMPTY_PATH)]);
    if moved.is_ok() {
        let _ = call(libc::SYS_umount2, [S(&target), N(MNT_DETACH.into())]);
    }
    judged(moved, "move_mount")
}

/// The old way: a root within the root, and a directory that is still open above it.
fn out_of_a_chroot(facts: &Facts) -> Outcome {
    let dir = scratch();
    let Ok(above) = fs::File::open("/") else { return untried("no root to open") };
    if let Err(error) = call(libc::SYS_chroot, [S(&text(dir.path()))]) {
        return refused(&error, "chroot");
    }
    let _ = call(libc::SYS_fchdir, [N(above.as_raw_fd().into())]);
    for _ in 0..64 {
        let _ = call(libc::SYS_chdir, [S(c"..")]);
    }
    if let Err(error) = call(libc::SYS_chroot, [S(c".")]) {
        return refused(&error, "the second chroot");
    }
    secret_in(format!("{}/canary", facts.get("data")), facts)
}
