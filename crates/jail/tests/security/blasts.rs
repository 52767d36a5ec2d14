//! Bombs, from within: what a careless or hostile program does to its machine.

use super::probe::{
    Arg::{N, S, W},
    Facts, Outcome, call, fork, nothing, refused, text, untried, won,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    thread,
    time::Duration,
};

pub const BOMBS: &[(&str, super::probe::Run)] = &[
    ("fork_bomb", fork_bomb),
    ("memory_bomb", memory_bomb),
    ("memory_in_files", memory_in_files),
    ("descriptor_bomb", descriptor_bomb),
    ("endless_output", endless_output),
    ("deaf_processes", deaf_processes),
    ("stopped_processes", stopped_processes),
    ("zombies", zombies),
    ("thread_bomb", thread_bomb),
    ("pipe_bomb", pipe_bomb),
    ("many_files", many_files),
    ("deep_folders", deep_folders),
    ("disk_bomb", disk_bomb),
    ("inode_bomb", inode_bomb),
];

/// Says that it is done, and keeps what it has.
pub fn hold(text: &str) -> Outcome {
    println!("ready: {text}");
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

pub fn last(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Parents and children all go on.
fn fork_bomb(_: &Facts) -> Outcome {
    println!("ready");
    loop {
        // SAFETY: this process has one thread.
        if unsafe { libc::fork() } < 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn memory_bomb(_: &Facts) -> Outcome {
    let mut all = Vec::new();
    loop {
        all.push(vec![1u8; 16 << 20]);
        if all.len() > 1 << 12 {
            return won("64 GiB");
        }
    }
}

/// Writes until it may not. How far it came, and what stopped it.
fn fill(path: &str, most: u64) -> Outcome {
    let block = vec![1u8; 1 << 20];
    let mut file = match OpenOptions::new().create(true).write(true).truncate(true).open(path) {
        Ok(file) => file,
        Err(error) => return refused(&error, path),
    };
    for _ in 0..(most >> 20) {
        if let Err(error) = file.write_all(&block) {
            return refused(&error, path);
        }
    }
    won(format!("{most} bytes in {path}"))
}

fn memory_in_files(_: &Facts) -> Outcome {
    fill("/dev/shm/bomb", 64 << 30)
}

fn disk_bomb(facts: &Facts) -> Outcome {
    fill(&format!("{}/bomb", facts.get("place")), facts.number("most").cast_unsigned())
}

fn descriptor_bomb(_: &Facts) -> Outcome {
    let mut all = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => all.push(file),
            Err(error) => return refused(&error, &format!("after {} files", all.len())),
        }
    }
}

fn endless_output(_: &Facts) -> Outcome {
    let block = [b'x'; 1 << 16];
    let mut out = io::stdout().lock();
    while out.write_all(&block).is_ok() {}
    nothing("nobody reads")
}

/// A child in a session of its own.
fn child(work: impl FnOnce()) -> io::Result<libc::pid_t> {
    fork(|| {
        let _ = call(libc::SYS_setsid, []);
        work();
        0
    })
}

fn deaf_processes(_: &Facts) -> Outcome {
    for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
        // SAFETY: ignores a signal; numbers that are none are refused.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    for _ in 0..10 {
        let _ = child(|| {
            loop {
                thread::sleep(Duration::from_secs(3600));
            }
        });
    }
    hold("nobody here hears anything")
}

fn stop_self() {
    let _ = call(libc::SYS_kill, [N(std::process::id().into()), N(libc::SIGSTOP.into())]);
}

fn stopped_processes(_: &Facts) -> Outcome {
    for _ in 0..20 {
        let _ = child(stop_self);
    }
    println!("ready");
    stop_self();
    nothing("somebody woke it")
}

fn zombies(facts: &Facts) -> Outcome {
    for count in 0..facts.number("count") {
        if let Err(error) = fork(|| 0) {
            return refused(&error, &format!("after {count}"));
        }
    }
    hold("all are dead, and nobody looks")
}

fn thread_bomb(_: &Facts) -> Outcome {
    let mut count = 0;
    loop {
        let builder = thread::Builder::new().stack_size(64 << 10);
        match builder.spawn(|| thread::sleep(Duration::from_secs(3600))) {
            Ok(_) => count += 1,
            Err(error) => return hold(&format!("{count} threads, {}", last(&error))),
        }
    }
}

/// As many as there are descriptors for, and all of them full.
fn pipe_bomb(_: &Facts) -> Outcome {
    let (mut all, block) = (Vec::new(), vec![1u8; 1 << 20]);
    loop {
        let mut ends = [0u64];
        let flags = i64::from(libc::O_NONBLOCK | libc::O_CLOEXEC);
        if let Err(error) = call(libc::SYS_pipe2, [W(&mut ends), N(flags)]) {
            return hold(&format!("{} pipes, {}", all.len(), last(&error)));
        }
        // Two numbers of four bytes: to read from, to write to.
        let input = (ends[0] >> 32) as i32;
        let _ = call(libc::SYS_fcntl, [N(input.into()), N(libc::F_SETPIPE_SZ.into()), N(1 << 20)]);
        // SAFETY: the descriptor was made just now; what is given to the kernel is as long as told.
        let written = unsafe { libc::write(input, block.as_ptr().cast(), block.len()) };
        all.push(written);
    }
}

fn many_files(facts: &Facts) -> Outcome {
    for number in 0..facts.number("count") {
        let folder = format!("/work/many/{}", number / 10_000);
        if number % 10_000 == 0 && fs::create_dir_all(&folder).is_err() {
            return untried("no folder");
        }
        if let Err(error) = File::create(format!("{folder}/{number}")) {
            return refused(&error, &format!("after {number} files"));
        }
    }
    won("all were made")
}

fn inode_bomb(facts: &Facts) -> Outcome {
    let place = facts.get("place");
    for number in 0..facts.number("most") {
        if let Err(error) = File::create(format!("{place}/inode{number}")) {
            return refused(&error, &format!("after {number} files"));
        }
    }
    won("all were made")
}

/// Deeper than any path can say.
fn deep_folders(facts: &Facts) -> Outcome {
    let place = text(facts.get("place"));
    if let Err(error) = call(libc::SYS_chdir, [S(&place)]) {
        return refused(&error, "chdir");
    }
    for depth in 0..facts.number("depth") {
        let here = N(libc::AT_FDCWD.into());
        let made = call(libc::SYS_mkdirat, [here, S(c"d"), N(0o755)]);
        if let Err(error) = made.and_then(|_| call(libc::SYS_chdir, [S(c"d")])) {
            return refused(&error, &format!("{depth} folders deep"));
        }
    }
    won("all were made")
}
