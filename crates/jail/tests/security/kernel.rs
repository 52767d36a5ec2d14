//! The kernel itself: its modules, its settings, its clock, its newer and larger doors.

use super::probe::{
    Arg::{B, N, S, W},
    Attempt, Facts, Outcome, apart, best, call, host, judged, no_control, nothing, open_real, refused,
    untried, won,
};
use libc::{CLONE_NEWUTS, EACCES, ENOENT, EPERM, EROFS};
use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const WOULD_CHANGE: &str = "it would change the host";

pub const ATTEMPTS: &[Attempt] = &[
    no_control("load_a_module", load_a_module, EPERM, WOULD_CHANGE),
    no_control("load_a_modules_file", load_a_modules_file, EPERM, WOULD_CHANGE),
    no_control("unload_a_module", unload_a_module, EPERM, WOULD_CHANGE),
    no_control("another_kernel", another_kernel, EPERM, WOULD_CHANGE),
    no_control("another_kernels_file", another_kernels_file, EPERM, WOULD_CHANGE),
    no_control("reboot", reboot, EPERM, WOULD_CHANGE),
    no_control("swap_on", swap_on, EPERM, WOULD_CHANGE),
    no_control("swap_off", swap_off, EPERM, WOULD_CHANGE),
    no_control("accounting", accounting, EPERM, WOULD_CHANGE),
    no_control("quotas", quotas, EPERM, WOULD_CHANGE),
    no_control("set_the_clock", set_the_clock, EPERM, WOULD_CHANGE),
    no_control("set_the_clock_by_another_name", set_the_clock_by_another_name, EPERM, WOULD_CHANGE),
    no_control("tune_the_clock", tune_the_clock, EPERM, WOULD_CHANGE),
    apart("name_of_the_host", name_of_the_host, CLONE_NEWUTS, &[EPERM]),
    apart("domain_of_the_host", domain_of_the_host, CLONE_NEWUTS, &[EPERM]),
    host("log", log, &[EPERM]),
    host("log_file", log_file, &[EACCES, EPERM]),
    host("addresses", addresses, &[0]),
    host("core_pattern", core_pattern, &[EACCES, EROFS]),
    host("name_by_setting", name_by_setting, &[EACCES, EROFS]),
    host("caches", caches, &[EACCES, EROFS]),
    host("magic_keys", magic_keys, &[EACCES, EROFS, ENOENT, 0]),
    host("memory_image", memory_image, &[EACCES, EPERM, ENOENT, 0]),
    host("processors", processors, &[EACCES, EROFS]),
    host("power_state", power_state, &[ENOENT]),
    host("control_group_files", control_group_files, &[ENOENT]),
    host("keyring", keyring, &[EPERM]),
    host("add_a_key", add_a_key, &[EPERM]),
    no_control("request_a_key", request_a_key, EPERM, "there is no key to request"),
    host("bpf", bpf, &[EPERM]),
    host("performance_events", performance_events, &[EPERM]),
    host("page_faults", page_faults, &[EPERM]),
    host("ring", ring, &[EPERM]),
    host("events_of_all_files", events_of_all_files, &[EPERM]),
    host("ports_of_the_machine", ports_of_the_machine, &[EPERM]),
];

fn load_a_module(_: &Facts) -> Outcome {
    let mut module = *b"\x7fELF";
    judged(call(libc::SYS_init_module, [B(&mut module), N(4), S(c"")]), "init_module")
}

fn load_a_modules_file(_: &Facts) -> Outcome {
    judged(call(libc::SYS_finit_module, [N(0), S(c""), N(0)]), "finit_module")
}

fn unload_a_module(_: &Facts) -> Outcome {
    judged(call(libc::SYS_delete_module, [S(c"seawall_no_such_module"), N(0)]), "delete_module")
}

fn another_kernel(_: &Facts) -> Outcome {
    judged(call(libc::SYS_kexec_load, [N(0), N(0), N(0), N(0)]), "kexec_load")
}

#[cfg(target_arch = "x86_64")]
fn another_kernels_file(_: &Facts) -> Outcome {
    judged(call(libc::SYS_kexec_file_load, [N(-1), N(-1), N(0), S(c""), N(0)]), "kexec_file_load")
}

#[cfg(not(target_arch = "x86_64"))]
fn another_kernels_file(_: &Facts) -> Outcome {
    untried("not on this architecture")
}

/// Only what Ctrl-Alt-Del does: even where it works the machine goes on.
fn reboot(_: &Facts) -> Outcome {
    judged(call(libc::SYS_reboot, [N(0xfee1_dead), N(672_274_793), N(0), N(0)]), "reboot")
}

fn swap_on(_: &Facts) -> Outcome {
    judged(call(libc::SYS_swapon, [S(c"/work/no-such-file"), N(0)]), "swapon")
}

fn swap_off(_: &Facts) -> Outcome {
    judged(call(libc::SYS_swapoff, [S(c"/work/no-such-file")]), "swapoff")
}

fn accounting(_: &Facts) -> Outcome {
    judged(call(libc::SYS_acct, [N(0)]), "acct")
}

fn quotas(_: &Facts) -> Outcome {
    judged(call(libc::SYS_quotactl, [N(0), S(c"/dev/null"), N(0), N(0)]), "quotactl")
}

/// The time as it is, so that nobody is hurt where it works.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn set_the_clock(_: &Facts) -> Outcome {
    let mut time = [now().as_secs(), u64::from(now().subsec_nanos())];
    judged(call(libc::SYS_clock_settime, [N(libc::CLOCK_REALTIME.into()), W(&mut time)]), "clock_settime")
}

fn set_the_clock_by_another_name(_: &Facts) -> Outcome {
    let mut time = [now().as_secs(), u64::from(now().subsec_micros())];
    judged(call(libc::SYS_settimeofday, [W(&mut time), N(0)]), "settimeofday")
}

fn tune_the_clock(_: &Facts) -> Outcome {
    judged(call(libc::SYS_adjtimex, [W(&mut [0; 32])]), "adjtimex")
}

fn name_of_the_host(_: &Facts) -> Outcome {
    judged(call(libc::SYS_sethostname, [S(c"escaped"), N(7)]), "sethostname")
}

fn domain_of_the_host(_: &Facts) -> Outcome {
    judged(call(libc::SYS_setdomainname, [S(c"escaped"), N(7)]), "setdomainname")
}

fn log(_: &Facts) -> Outcome {
    const READ_ALL: i64 = 3;
    let mut some = [0u8; 64];
    judged(call(libc::SYS_syslog, [N(READ_ALL), B(&mut some), N(64)]), "syslog")
}

fn log_file(_: &Facts) -> Outcome {
    open_real("/proc/kmsg", false)
}

/// Where the kernel's parts are in memory: half of many an exploit.
fn addresses(_: &Facts) -> Outcome {
    if fs::read_to_string("/proc/sys/kernel/kptr_restrict").is_ok_and(|value| value.trim() == "2") {
        return untried("this kernel tells nobody");
    }
    match fs::read_to_string("/proc/kallsyms") {
        Ok(table) => match table.lines().find(|line| !line.starts_with("0000000000000000")) {
            Some(line) => won(line),
            None => nothing("all are zero"),
        },
        Err(error) if error.raw_os_error() == Some(ENOENT) => untried("this kernel has no such list"),
        Err(error) => refused(&error, "/proc/kallsyms"),
    }
}

/// Names a program that the host runs as root when something crashes.
fn core_pattern(_: &Facts) -> Outcome {
    open_real("/proc/sys/kernel/core_pattern", true)
}

fn name_by_setting(_: &Facts) -> Outcome {
    open_real("/proc/sys/kernel/hostname", true)
}

fn caches(_: &Facts) -> Outcome {
    open_real("/proc/sys/vm/drop_caches", true)
}

/// What the host may lack; in a box that it is not there is what is wanted.
fn open_if_any(facts: &Facts, path: &str, write: bool) -> Outcome {
    match facts.get("target") {
        "1" => open_real(path, write),
        _ if !Path::new(path).exists() => untried(format!("this host has no {path}")),
        _ => open_real(path, write),
    }
}

fn magic_keys(facts: &Facts) -> Outcome {
    open_if_any(facts, "/proc/sysrq-trigger", true)
}

fn memory_image(facts: &Facts) -> Outcome {
    open_if_any(facts, "/proc/kcore", false)
}

fn processors(_: &Facts) -> Outcome {
    open_real("/sys/devices/system/cpu/uevent", true)
}

fn power_state(facts: &Facts) -> Outcome {
    open_if_any(facts, "/sys/power/state", true)
}

/// With one of these the host runs a program of the attacker's choice, or he leaves his limits.
fn control_group_files(_: &Facts) -> Outcome {
    let folders = ["", "/unified", "/memory", "/pids", "/cpu", "/devices"].into_iter();
    let files = folders.flat_map(|folder| {
        let of = move |file: &str| format!("/sys/fs/cgroup{folder}/{file}");
        [of("cgroup.procs"), of("release_agent"), of("notify_on_release")]
    });
    best(files.map(|file| open_real(&file, true)))
}

fn keyring(_: &Facts) -> Outcome {
    const GET_ID: i64 = 0;
    const OF_THE_USER: i64 = -4;
    judged(call(libc::SYS_keyctl, [N(GET_ID), N(OF_THE_USER), N(1)]), "keyctl")
}

fn add_a_key(_: &Facts) -> Outcome {
    const OF_THE_PROCESS: i64 = -2;
    let mut value = *b"x";
    let key = [S(c"user"), S(c"seawall-probe"), B(&mut value), N(1), N(OF_THE_PROCESS)];
    judged(call(libc::SYS_add_key, key), "add_key")
}

fn request_a_key(_: &Facts) -> Outcome {
    judged(call(libc::SYS_request_key, [S(c"user"), S(c"seawall-probe"), N(0), N(0)]), "request_key")
}

/// A map of one number: nothing that the kernel would have to check.
fn bpf(_: &Facts) -> Outcome {
    const MAP_CREATE: i64 = 0;
    const ARRAY: u32 = 2;
    let mut wanted = [0u8; 20];
    for (word, value) in wanted.chunks_exact_mut(4).zip([ARRAY, 4, 4, 1, 0]) {
        word.copy_from_slice(&value.to_ne_bytes());
    }
    judged(call(libc::SYS_bpf, [N(MAP_CREATE), B(&mut wanted), N(20)]), "bpf")
}

/// The clock of a processor, counted for this process.
fn performance_events(_: &Facts) -> Outcome {
    const SOFTWARE: u32 = 1;
    const SIZE: u32 = 112;
    let mut wanted = [0u8; SIZE as usize];
    wanted[..4].copy_from_slice(&SOFTWARE.to_ne_bytes());
    wanted[4..8].copy_from_slice(&SIZE.to_ne_bytes());
    let opened = call(libc::SYS_perf_event_open, [B(&mut wanted), N(0), N(-1), N(-1), N(0)]);
    judged(opened, "perf_event_open")
}

fn page_faults(_: &Facts) -> Outcome {
    judged(call(libc::SYS_userfaultfd, [N(libc::O_CLOEXEC.into())]), "userfaultfd")
}

/// Calls made through a ring are seen by no filter.
fn ring(_: &Facts) -> Outcome {
    judged(call(libc::SYS_io_uring_setup, [N(4), B(&mut [0u8; 120])]), "io_uring_setup")
}

fn events_of_all_files(_: &Facts) -> Outcome {
    judged(call(libc::SYS_fanotify_init, [N(0), N(0)]), "fanotify_init")
}

#[cfg(target_arch = "x86_64")]
fn ports_of_the_machine(_: &Facts) -> Outcome {
    judged(call(libc::SYS_iopl, [N(3)]), "iopl")
}

#[cfg(not(target_arch = "x86_64"))]
fn ports_of_the_machine(_: &Facts) -> Outcome {
    untried("not on this architecture")
}
