//! Processes that are not the box's, and process 1, which is the host's man in the box.

use super::probe::{
    Arg::{N, W},
    Attempt, Facts, Outcome, best, call, host, judged, no_control, open_real, refused,
};
use libc::{EACCES, ENOENT, EPERM, ESRCH};
use std::fs;

pub const ATTEMPTS: &[Attempt] = &[
    host("see_a_host_process", see_a_host_process, &[ENOENT]),
    host("signal_the_host", signal_the_host, &[ESRCH]),
    host("signal_the_neighbour", signal_the_neighbour, &[ESRCH]),
    host("handle_on_the_host", handle_on_the_host, &[ESRCH]),
    host("limits_of_the_host", limits_of_the_host, &[ESRCH]),
    host("processors_of_the_host", processors_of_the_host, &[ESRCH]),
    host("trace_the_host", trace_the_host, &[ESRCH]),
    host("trace_process_1", trace_process_1, &[EPERM]),
    host("read_process_1", read_process_1, &[EPERM]),
    host("write_process_1", write_process_1, &[EPERM]),
    host("descriptor_of_process_1", descriptor_of_process_1, &[EPERM]),
    host("oom_score_of_process_1", oom_score_of_process_1, &[EACCES]),
    host("namespaces_of_process_1", namespaces_of_process_1, &[EACCES]),
    host("namespaces_by_handle", namespaces_by_handle, &[EPERM]),
    host("priority", priority, &[EACCES, EPERM]),
    host("realtime", realtime, &[EPERM]),
    host("realtime_disk", realtime_disk, &[EPERM]),
    no_control("spared_when_memory_ends", spared_when_memory_ends, EACCES, "not every root of a host may"),
];

fn see_a_host_process(facts: &Facts) -> Outcome {
    let path = format!("/proc/{}/cmdline", facts.get("runner"));
    judged(fs::read(&path), &path)
}

/// Signal 0: only whether it could be sent.
fn signal_the_host(facts: &Facts) -> Outcome {
    judged(call(libc::SYS_kill, [N(facts.number("runner")), N(0)]), "kill")
}

fn signal_the_neighbour(facts: &Facts) -> Outcome {
    judged(call(libc::SYS_kill, [N(facts.number("neighbour_pid")), N(0)]), "kill")
}

fn handle_on_the_host(facts: &Facts) -> Outcome {
    judged(call(libc::SYS_pidfd_open, [N(facts.number("runner")), N(0)]), "pidfd_open")
}

fn limits_of_the_host(facts: &Facts) -> Outcome {
    let mut found = [0u64; 2];
    let which = N(i64::from(libc::RLIMIT_NOFILE));
    let asked = call(libc::SYS_prlimit64, [N(facts.number("runner")), which, N(0), W(&mut found)]);
    judged(asked, "prlimit")
}

fn processors_of_the_host(facts: &Facts) -> Outcome {
    let mut mask = [0u64; 128];
    let asked = call(libc::SYS_sched_getaffinity, [N(facts.number("runner")), N(1024), W(&mut mask)]);
    judged(asked, "sched_getaffinity")
}

/// Ends with this process.
fn seize(pid: i64) -> Outcome {
    judged(call(libc::SYS_ptrace, [N(libc::PTRACE_SEIZE.into()), N(pid), N(0), N(0)]), "ptrace")
}

fn trace_the_host(facts: &Facts) -> Outcome {
    seize(facts.number("victim"))
}

fn trace_process_1(facts: &Facts) -> Outcome {
    seize(facts.number("target"))
}

/// Where the target's memory begins; in a box that is not told, and any place does.
fn memory_of(pid: i64) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let writable = maps.lines().find(|line| line.contains(" rw-p ")).unwrap_or_default();
    let first = writable.split('-').next().unwrap_or_default();
    u64::from_str_radix(first, 16).unwrap_or(0x1000)
}

/// Eight bytes, one way or the other.
fn copy_memory(number: libc::c_long, pid: i64, bytes: &mut [u64; 1]) -> Outcome {
    let mut here = [bytes.as_mut_ptr() as u64, 8];
    let mut there = [memory_of(pid), 8];
    judged(call(number, [N(pid), W(&mut here), N(1), W(&mut there), N(1), N(0)]), "its memory")
}

fn read_process_1(facts: &Facts) -> Outcome {
    copy_memory(libc::SYS_process_vm_readv, facts.number("target"), &mut [0])
}

/// What was there already, so that nothing changes where it works.
fn write_process_1(facts: &Facts) -> Outcome {
    let (target, mut bytes) = (facts.number("target"), [0]);
    copy_memory(libc::SYS_process_vm_readv, target, &mut bytes);
    copy_memory(libc::SYS_process_vm_writev, target, &mut bytes)
}

fn descriptor_of_process_1(facts: &Facts) -> Outcome {
    match call(libc::SYS_pidfd_open, [N(facts.number("target")), N(0)]) {
        Ok(handle) => {
            best((0..8).map(|number| {
                judged(call(libc::SYS_pidfd_getfd, [N(handle), N(number), N(0)]), "pidfd_getfd")
            }))
        }
        Err(error) => refused(&error, "pidfd_open"),
    }
}

fn oom_score_of_process_1(facts: &Facts) -> Outcome {
    open_real(&format!("/proc/{}/oom_score_adj", facts.get("target")), true)
}

fn namespaces_of_process_1(facts: &Facts) -> Outcome {
    use std::os::fd::AsRawFd;
    let kinds = ["mnt", "net", "pid", "ipc", "uts", "cgroup", "user"];
    best(kinds.map(|kind| {
        let path = format!("/proc/{}/ns/{kind}", facts.get("target"));
        match fs::File::open(&path) {
            Ok(file) => judged(call(libc::SYS_setns, [N(file.as_raw_fd().into()), N(0)]), &path),
            Err(error) => refused(&error, &path),
        }
    }))
}

fn namespaces_by_handle(facts: &Facts) -> Outcome {
    let kinds = libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    match call(libc::SYS_pidfd_open, [N(facts.number("target")), N(0)]) {
        Ok(handle) => judged(call(libc::SYS_setns, [N(handle), N(kinds.into())]), "setns"),
        Err(error) => refused(&error, "pidfd_open"),
    }
}

fn priority(_: &Facts) -> Outcome {
    judged(call(libc::SYS_setpriority, [N(0), N(0), N(-5)]), "setpriority")
}

/// A process of this kind keeps a processor from all others.
fn realtime(_: &Facts) -> Outcome {
    let mut priority = [1u64];
    let kind = N(libc::SCHED_FIFO.into());
    judged(call(libc::SYS_sched_setscheduler, [N(0), kind, W(&mut priority)]), "sched_setscheduler")
}

fn realtime_disk(_: &Facts) -> Outcome {
    // Of a process, this one; the class for real time.
    judged(call(libc::SYS_ioprio_set, [N(1), N(0), N(1 << 13)]), "ioprio_set")
}

fn spared_when_memory_ends(_: &Facts) -> Outcome {
    judged(fs::write("/proc/self/oom_score_adj", "-1000"), "oom_score_adj")
}
