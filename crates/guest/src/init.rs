//! The duty of a process 1: start, reap, forward signals, end in order.

use crate::{config::Config, server, state::Guest};
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags},
    process::{Pid, Signal, WaitOptions},
};
use seawall_api::exec::ExitReason;
use std::{fs, io, os::unix::net::UnixListener, rc::Rc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{LocalSet, spawn_local},
    time::{Instant, sleep_until, timeout_at},
};

/// Grace when a signal, not a host, asks for the end.
const SIGNAL_GRACE: Duration = Duration::from_secs(5);
/// How long to wait for a former life of this box to be over.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// File work happens on threads that are gone when idle.
const FILE_THREADS: usize = 8;
const THREAD_KEEP_ALIVE: Duration = Duration::from_millis(500);

/// What whoever built the box hands over.
#[derive(Debug, Default)]
pub struct Given {
    /// Where hosts connect; none: at the socket of the configuration.
    pub listener: Option<UnixListener>,
    /// Counts kills for memory, and refusals of processes.
    pub counters: [Option<OwnedFd>; 2],
    /// The box's files have a size that cannot grow.
    pub disk_limit: bool,
    /// The guest is root of a box of its own, and has a command for it at once, mostly.
    pub boxed: bool,
    /// Where the reason goes, should it end by itself.
    pub ended: Option<OwnedFd>,
}

/// Serves until asked to end, and returns the deadline that passed where one did. `ready` is called when hosts can
/// connect.
pub fn run(
    config: Config,
    given: Given,
    ready: Box<dyn FnOnce() -> io::Result<()>>,
) -> io::Result<Option<&'static str>> {
    let lock = config.lock.as_deref().map(take_lock).transpose()?;
    if let Some(end) = &config.end {
        // The reason of a former end. Only now: until the lock was taken it was the truth.
        let _ = fs::remove_file(end);
    }
    restore_signals();
    // Orphans of a keeper that was killed come here, where no pid namespace would send them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(FILE_THREADS)
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .thread_stack_size(256 << 10)
        .build()?;
    let guest = Guest::new(config, lock, raise_open_files(), (given.disk_limit, given.counters))?;
    LocalSet::new().block_on(&runtime, async {
        let listener = match given.listener {
            Some(listener) => tokio::net::UnixListener::from_std(listener)?,
            None => server::listen(&guest.config.socket)?,
        };
        crate::sync::ensure_state(&guest);
        spawn_local(reap()?);
        spawn_local(forward_signals(guest.clone())?);
        spawn_local(crate::deadlines::keep(guest.clone()));
        ready()?;
        if guest.config.container {
            crate::container::begin(&guest);
        }
        if given.boxed {
            guest.processes.expecting.set(true);
            if let Err(error) = crate::sudo::serve(&guest) {
                crate::say!("there is no sudo: {error}");
            }
        }
        tokio::select! {
            result = server::serve(guest.clone(), listener) => result?,
            () = stop_when_asked(&guest, given.ended) => {}
        }
        Ok(guest.deadlines.passed.get())
    })
}

/// Whoever started the guest may have ignored signals, and that is inherited: by us and by every command.
fn restore_signals() {
    // SAFETY: sets dispositions before any handler of this process exists; SIGKILL and SIGSTOP refuse.
    unsafe {
        for signal in (1..=64).filter(|signal| *signal != libc::SIGPIPE) {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Many commands need many descriptors. Returns what was allowed before, for the commands themselves.
fn raise_open_files() -> libc::rlimit {
    let mut before = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: both structures live on this stack. Where it is refused, the old limit does.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut before);
        let wanted = before.rlim_max.min(1 << 16).max(before.rlim_cur);
        let raised = libc::rlimit { rlim_cur: wanted, rlim_max: before.rlim_max };
        libc::setrlimit(libc::RLIMIT_NOFILE, &raised);
    }
    before
}

/// Exclusive for as long as anything of the box lives: keepers share it.
fn take_lock(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    // Somebody may just be looking whether it is held; a former life may just be ending.
    let give_up = std::time::Instant::now() + LOCK_PATIENCE;
    while rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
        if std::time::Instant::now() > give_up {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another guest of this box is still alive"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::fs::ftruncate(&fd, 0)?;
    let pid = rustix::process::getpid().as_raw_nonzero();
    rustix::io::write(&fd, pid.to_string().as_bytes())?;
    Ok(fd)
}

/// Takes dead children: keepers, and strays that came here when a keeper was killed.
fn reap() -> io::Result<impl Future<Output = ()>> {
    let mut children = signal(SignalKind::child())?;
    Ok(async move {
        loop {
            reap_now();
            if children.recv().await.is_none() {
                return;
            }
        }
    })
}

fn reap_now() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Ends children that are no keepers: what a killed keeper left.
pub async fn end_strays(guest: &Guest) {
    // Each round ends those that are children now; theirs become children for the next.
    for _ in 0..1000 {
        reap_now();
        let strays: Vec<u32> =
            children().into_iter().filter(|pid| !guest.processes.is_keeper(*pid)).collect();
        if strays.is_empty() {
            return;
        }
        for pid in strays.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            // A child that was not reaped keeps its number, so this cannot hit another.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    crate::say!("processes of a killed keeper do not end");
}

fn children() -> Vec<u32> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Signals to process 1 are meant for what runs in the box. Those that mean the end begin it.
fn forward_signals(guest: Rc<Guest>) -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut user1 = signal(SignalKind::user_defined1())?;
    let mut user2 = signal(SignalKind::user_defined2())?;
    Ok(async move {
        loop {
            let number = tokio::select! {
                _ = terminate.recv() => libc::SIGTERM,
                _ = interrupt.recv() => libc::SIGINT,
                _ = hangup.recv() => libc::SIGHUP,
                _ = quit.recv() => libc::SIGQUIT,
                _ = user1.recv() => libc::SIGUSR1,
                _ = user2.recv() => libc::SIGUSR2,
            };
            if matches!(number, libc::SIGTERM | libc::SIGINT) {
                guest.stopping.set(Some(SIGNAL_GRACE.as_millis() as u64));
                guest.stop.notify_one();
                continue;
            }
            for process in guest.processes.all() {
                // The number is one of the six above, so it is a signal.
                drop(process.signal(number));
            }
        }
    })
}

/// Waits for the order, then ends everything in it.
async fn stop_when_asked(guest: &Rc<Guest>, ended: Option<OwnedFd>) {
    let grace = loop {
        guest.stop.notified().await;
        if let Some(grace) = guest.stopping.get() {
            break Duration::from_millis(grace);
        }
    };
    for process in guest.processes.all() {
        process.ask_to_end(ExitReason::Stopped);
    }
    let deadline = Instant::now().checked_add(grace).unwrap_or_else(|| Instant::now() + SIGNAL_GRACE);
    for process in guest.processes.all() {
        if timeout_at(deadline, process.wait_gone()).await.is_err() {
            break;
        }
    }
    for process in guest.processes.all() {
        process.kill(ExitReason::Stopped);
    }
    for process in guest.processes.all() {
        process.wait_gone().await;
    }
    guest.processes.let_keepers_go();
    end_strays(guest).await;
    // Clients that wait for an end get it before the wire goes.
    sleep_until(Instant::now() + Duration::from_millis(5)).await;
    // One word: half of it is as good as all of it.
    let reason = guest.deadlines.passed.get();
    if let Some(path) = &guest.config.end
        && let Err(error) = fs::write(path, reason.unwrap_or("stopped"))
    {
        crate::say!("{}: {error}", path.display());
    }
    // Where a host asked for the end it knows why.
    if let (Some(file), Some(reason)) = (ended, reason)
        && let Err(error) = rustix::io::write(&file, reason.as_bytes())
    {
        crate::say!("why the box ends could not be noted: {error}");
    }
}
