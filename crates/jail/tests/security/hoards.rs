//! Hoards, from within: things that the kernel counts for all boxes together, or for root of the host.

use super::{
    blasts::{hold, last},
    probe::{
        Arg::{B, N, S, W},
        Facts, Outcome, call, text,
    },
};
use std::{fs::File, io};

pub const BOMBS: &[(&str, super::probe::Run)] = &[
    ("hoard_watches", hoard_watches),
    ("hoard_signals", hoard_signals),
    ("hoard_queues", hoard_queues),
    ("hoard_terminals", hoard_terminals),
    ("hoard_io_contexts", hoard_io_contexts),
];

/// Takes until there are no more, and keeps them.
fn take(most: u64, mut one: impl FnMut(u64) -> io::Result<()>) -> Outcome {
    for count in 0..most {
        if let Err(error) = one(count) {
            return hold(&format!("{count}, then {}", last(&error)));
        }
    }
    hold(&format!("{most}, and there may be more"))
}

/// Instances of inotify: descriptors that are never closed.
fn hoard_watches(_: &Facts) -> Outcome {
    take(10_000, |_| call(libc::SYS_inotify_init1, [N(0)]).map(drop))
}

/// Signals that wait to be taken.
fn hoard_signals(_: &Facts) -> Outcome {
    const SIGNAL: i64 = 40;
    const BY_QUEUE: i32 = -1;
    let mut blocked = [1u64 << (SIGNAL - 1)];
    let _ = call(libc::SYS_rt_sigprocmask, [N(0), W(&mut blocked), N(0), N(8)]);
    let mut info = [0u8; 128];
    info[8..12].copy_from_slice(&BY_QUEUE.to_ne_bytes());
    let own = i64::from(std::process::id());
    take(1_000_000, |_| call(libc::SYS_rt_sigqueueinfo, [N(own), N(SIGNAL), B(&mut info)]).map(drop))
}

fn hoard_queues(_: &Facts) -> Outcome {
    let flags = i64::from(libc::O_CREAT | libc::O_RDWR);
    take(10_000, |count| {
        let name = text(format!("hoard{count}"));
        call(libc::SYS_mq_open, [S(&name), N(flags), N(0o600), N(0)]).map(drop)
    })
}

fn hoard_terminals(_: &Facts) -> Outcome {
    let mut all = Vec::new();
    take(10_000, |_| {
        all.push(File::options().read(true).write(true).open("/dev/ptmx")?);
        Ok(())
    })
}

/// Of these the kernel has a number for the whole machine: in large pieces first.
fn hoard_io_contexts(_: &Facts) -> Outcome {
    let mut size = 1i64 << 14;
    take(10_000, |_| {
        loop {
            match call(libc::SYS_io_setup, [N(size), W(&mut [0])]) {
                Err(_) if size > 1 => size /= 2,
                other => return other.map(drop),
            }
        }
    })
}
