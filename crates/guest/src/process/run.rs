//! A process from its start to its end: its output is read, its time is watched, its end is told.
//!
//! A command's exit and the last bytes of its pipes arrive independently. The end is sent when each stream was found
//! empty after the exit was known; that check queries the kernel, because tokio's readiness may be stale. It does not
//! wait for the end of a pipe, which a background child may hold open. A command that was killed or timed out has
//! ended only when its descendants have.

use super::{
    Input, Process,
    handover::Order,
    launch::{Ends, exec_fault, prepare, shortened},
    limits::{self, Counts},
    log::Log,
    pool::{Kept, Known},
    words::{MESSAGE, Said, Step},
};
use crate::{
    fault::{Outcome, from_errno, from_io},
    state::Guest,
};
use bytes::{Bytes, BytesMut};
use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::RecvFlags,
    process::{Pid, Signal},
};
use seawall_api::{
    ErrorKind, Fault,
    exec::{ExitReason, ExitStatus, OutputStream, StartProcess},
};
use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::unix::pipe,
    sync::{Mutex, Notify},
    task::spawn_local,
    time::{Instant, sleep_until, timeout},
};

/// Between the polite signal and the kill, unless the request says otherwise.
const GRACE: Duration = Duration::from_millis(500);
/// How long a program may take to load: a slow disk, not a stopped keeper.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// More than any pipe of ours holds.
const MAX_PIPE: usize = 512 << 10;
/// How much is read at once.
const CHUNK: usize = 128 << 10;

/// Starts a command under its keeper.
pub async fn launch(guest: &Rc<Guest>, start: &StartProcess) -> Outcome<Rc<Process>> {
    let counts = Counts::now(guest);
    let (launch, given, ends, args) = prepare(guest, start)?;
    let bytes = launch.to_bytes();
    let fds = given.each_ref().map(AsFd::as_fd);
    let order = Order { bytes: &bytes, pointers: launch.pointers(), fds };
    let (mut kept, waited) = Kept::for_order(guest, &order)?;
    let mut word = first_word(&kept.ctl, kept.known.keeper).await;
    if waited && matches!(word, Some(None)) {
        // Somebody killed it while it waited; its command went with it, if it had begun.
        kept = Kept::fork(guest, Some(&order))?;
        word = first_word(&kept.ctl, kept.known.keeper).await;
    }
    let Kept { known, ctl } = kept;
    let keeper = known.keeper;
    drop((launch, bytes, given));
    let Some(said) = word else {
        drop(known);
        crate::init::end_strays(guest).await;
        return Err(Fault::new(ErrorKind::ExecFailed, "the command did not start in time"));
    };
    let pid = match said {
        Some(Said::Started { pid }) => pid,
        Some(Said::Failed { errno, step }) => return Err(failed(start, &args, errno, step)),
        _ => return Err(Fault::new(ErrorKind::Internal, "the keeper died before it started the command")),
    };
    let pipes = Pipes::new(ends).map_err(|error| from_io("a pipe", &error))?;
    let process = Rc::new(Process {
        id: start.process,
        pid,
        keeper,
        args: shortened(&args),
        tag: start.tag.clone(),
        tty: pipes.tty.clone(),
        started_at_ms: now_ms(),
        counts,
        log: RefCell::new(Log::new(start.when_full, start.output_limit)),
        changed: Notify::new(),
        room: Notify::new(),
        input: Mutex::new(pipes.input),
        ctl: RefCell::new(Some(ctl.clone())),
        ending: Cell::new(None),
        exited: Cell::new(None),
        drained: Cell::new(0),
        streams: pipes.outputs.len(),
        gone: Cell::new(false),
        watched: Cell::new(false),
        status: RefCell::new(None),
    });
    guest.processes.table.borrow_mut().insert(start.process, process.clone());
    for (stream, source) in pipes.outputs {
        spawn_local(pump(process.clone(), stream, source));
    }
    spawn_local(supervise(known, ctl, process.clone(), Limits::of(start)));
    Ok(process)
}

/// What a new keeper says first; none where it says nothing, and was ended. Its command may have stopped it
/// before it could speak, so it is woken now and then.
async fn first_word(ctl: &AsyncFd<OwnedFd>, keeper: u32) -> Option<Option<Said>> {
    let pid = Pid::from_raw(keeper.cast_signed())?;
    for _ in 0..START_PATIENCE.as_secs() {
        if let Ok(said) = timeout(Duration::from_secs(1), listen(ctl)).await {
            return Some(said);
        }
        let _ = rustix::process::kill_process(pid, Signal::CONT);
    }
    let _ = rustix::process::kill_process(pid, Signal::KILL);
    None
}

fn failed(start: &StartProcess, args: &[String], errno: i32, step: Step) -> Fault {
    let what = match step {
        Step::Execute => return exec_fault(&args[0], errno),
        Step::Clone if errno == libc::EAGAIN => return too_many(),
        Step::Clone => "a new process".to_owned(),
        Step::Directory => {
            format!("the working directory {}", start.cwd.as_deref().unwrap_or("of the sandbox"))
        }
        Step::User => format!("becoming {}", start.user.as_deref().unwrap_or("the sandbox's user")),
        Step::Terminal => "the terminal".to_owned(),
    };
    from_errno(what, Errno::from_raw_os_error(errno))
}

/// The kernel refused one more process.
pub fn too_many() -> Fault {
    let message = "the sandbox has as many processes as it may (`max_processes`); end some, or allow more";
    Fault::new(ErrorKind::Unavailable, message).with_errno(libc::EAGAIN)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A place that output comes from.
enum Source {
    Pipe(pipe::Receiver),
    Tty(Rc<AsyncFd<OwnedFd>>),
}

struct Pipes {
    input: Input,
    outputs: Vec<(OutputStream, Source)>,
    tty: Option<Rc<AsyncFd<OwnedFd>>>,
}

impl Pipes {
    fn new(ends: Ends) -> io::Result<Pipes> {
        match ends {
            Ends::Pipes { stdin, stdout, stderr } => Ok(Pipes {
                input: match stdin {
                    Some(fd) => Input::Pipe(pipe::Sender::from_owned_fd(fd)?),
                    None => Input::Closed,
                },
                outputs: vec![
                    (OutputStream::Stdout, Source::Pipe(pipe::Receiver::from_owned_fd(stdout)?)),
                    (OutputStream::Stderr, Source::Pipe(pipe::Receiver::from_owned_fd(stderr)?)),
                ],
                tty: None,
            }),
            Ends::Tty { master } => {
                rustix::io::ioctl_fionbio(&master, true)?;
                let master = Rc::new(crate::poll::watch(master)?);
                Ok(Pipes {
                    input: Input::Tty(master.clone()),
                    outputs: vec![(OutputStream::Tty, Source::Tty(master.clone()))],
                    tty: Some(master),
                })
            }
        }
    }
}

impl Source {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Source::Pipe(pipe) => pipe.readable().await,
            Source::Tty(tty) => tty.readable().await.map(|mut guard| guard.retain_ready()),
        }
    }

    /// Reads what is there. `WouldBlock` where there is nothing, zero at the end.
    ///
    /// Tokio remembers whether there is something and may not have heard yet, so a `last_look` asks the
    /// kernel itself.
    fn try_read(&self, buffer: &mut BytesMut, last_look: bool) -> io::Result<usize> {
        let read = match self {
            Source::Pipe(pipe) => pipe.try_read_buf(buffer),
            Source::Tty(tty) => tty.try_io(Interest::READABLE, |fd| read_into(fd, buffer)),
        };
        let read = match read {
            Err(error) if last_look && error.kind() == io::ErrorKind::WouldBlock => match self {
                Source::Pipe(pipe) => read_into(pipe, buffer),
                Source::Tty(tty) => read_into(tty.get_ref(), buffer),
            },
            other => other,
        };
        match read {
            // How a terminal says that nobody has its other side open.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(0),
            other => other,
        }
    }
}

fn read_into(fd: impl AsFd, buffer: &mut BytesMut) -> io::Result<usize> {
    let mut bytes = [0u8; 16 << 10];
    let n = rustix::io::read(fd, &mut bytes)?;
    buffer.extend_from_slice(&bytes[..n]);
    Ok(n)
}

/// Carries one stream of output into the log, as fast as the log has room.
async fn pump(process: Rc<Process>, stream: OutputStream, source: Source) {
    let mut buffer = BytesMut::new();
    let (mut drained, mut since_exit) = (false, 0);
    loop {
        wait_for_room(&process).await;
        buffer.reserve(CHUNK);
        let last_look = process.exited.get().is_some() && !drained;
        match source.try_read(&mut buffer, last_look) {
            Ok(0) => break,
            Ok(n) => {
                // A pipe holds less than this: what comes now, others printed after the command's end.
                since_exit += if last_look { n } else { 0 };
                if since_exit > MAX_PIPE && !drained {
                    drained = true;
                    note_drained(&process);
                }
                let bytes = buffer.split().freeze();
                keep_or_count(&mut process.log.borrow_mut(), stream, bytes);
                process.changed.notify_waiters();
                // Others get their turn even where output never ceases.
                tokio::task::yield_now().await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Nothing there after the command's end: its output is complete.
                if process.exited.get().is_some() && !drained {
                    drained = true;
                    note_drained(&process);
                }
                buffer = BytesMut::new();
                wait_readable(&process, &source, drained).await;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                crate::say!("reading output of {}: {error}", process.id);
                break;
            }
        }
    }
    if !drained {
        note_drained(&process);
    }
}

/// Where there is no room, the process is being ended: see [`wait_for_room`].
fn keep_or_count(log: &mut Log, stream: OutputStream, bytes: Bytes) {
    match log.has_room() {
        true => log.push_owned(stream, bytes),
        false => log.discard(bytes.len()),
    }
}

fn note_drained(process: &Process) {
    process.drained.set(process.drained.get() + 1);
    process.changed.notify_waiters();
}

/// Returns when output can be kept, or need not be.
async fn wait_for_room(process: &Process) {
    loop {
        let room = process.room.notified();
        tokio::pin!(room);
        room.as_mut().enable();
        // Of what is being ended, nobody waits for the rest.
        if process.log.borrow_mut().has_room() || process.ending.get().is_some() {
            return;
        }
        room.await;
    }
}

/// Until there is something to read, or the command's end makes it worth looking.
async fn wait_readable(process: &Process, source: &Source, drained: bool) {
    loop {
        let changed = process.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if process.exited.get().is_some() && !drained {
            return;
        }
        tokio::select! {
            result = source.readable() => {
                if let Err(error) = result {
                    crate::say!("waiting for output of {}: {error}", process.id);
                }
                return;
            }
            () = changed => {}
        }
    }
}

struct Limits {
    deadline: Option<Instant>,
    grace: Duration,
}

impl Limits {
    fn of(start: &StartProcess) -> Self {
        let now = Instant::now();
        let deadline = start.timeout_ms.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
        Limits { deadline, grace: start.grace_ms.map_or(GRACE, Duration::from_millis) }
    }
}

/// Watches over a process until nothing of it is left.
async fn supervise(known: Known, ctl: Rc<AsyncFd<OwnedFd>>, process: Rc<Process>, limits: Limits) {
    let guest = known.guest.clone();
    let mut deadline = limits.deadline;
    let mut polite = true;
    let keeper_lives = loop {
        let due = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        tokio::select! {
            said = listen(&ctl) => match said {
                Some(Said::Exited { status }) => {
                    process.exited.set(Some(status));
                    process.changed.notify_waiters();
                    match process.ending.get() {
                        // It ended by itself. What it left behind has until the deadline.
                        None => drop(spawn_local(settle(guest.clone(), process.clone()))),
                        // What it left behind goes with it, at once.
                        Some(reason) => process.kill(reason),
                    }
                }
                Some(Said::Gone) => break true,
                Some(_) => {}
                None => {
                    // Somebody killed the keeper. Its descendants are the guest's now.
                    guest.processes.keepers.borrow_mut().remove(&process.keeper);
                    crate::init::end_strays(&guest).await;
                    break false;
                }
            },
            () = sleep_until(due), if deadline.is_some() => {
                if polite && process.exited.get().is_none() {
                    polite = false;
                    process.ask_to_end(ExitReason::Timeout);
                    deadline = Some(Instant::now() + limits.grace);
                } else {
                    process.kill(ExitReason::Timeout);
                    deadline = None;
                }
            }
        }
    };
    process.ctl.take();
    process.gone.set(true);
    process.changed.notify_waiters();
    let kept = Kept { known, ctl };
    if keeper_lives {
        kept.wait_for_more();
    }
    settle(guest, process).await;
}

/// Tells the end, once everything printed before it was read.
async fn settle(guest: Rc<Guest>, process: Rc<Process>) {
    loop {
        let changed = process.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // A process that was ended is over only when its descendants are.
        let over = process.gone.get() || process.ending.get().is_none();
        if over && process.drained.get() >= process.streams {
            break;
        }
        changed.await;
    }
    if process.status.borrow().is_some() {
        return;
    }
    process.log.borrow_mut().flush();
    let log = process.log.borrow();
    let (code, signal) = decode(process.exited.get());
    let hits = process.counts.since(&guest);
    let reason = match (process.ending.get(), process.exited.get()) {
        (Some(reason), _) => reason,
        (None, Some(_)) => limits::reason(&hits, code, signal),
        (None, None) => ExitReason::Lost,
    };
    let (output_end, truncated) = (log.end(), log.truncated());
    let status = ExitStatus { code, signal, reason, output_end, truncated, limits: hits };
    drop(log);
    *process.status.borrow_mut() = Some(status);
    guest.processes.note_end(process.id);
    process.changed.notify_waiters();
}

/// As a shell tells it.
pub fn shell_code(status: i32) -> i32 {
    match decode(Some(status)) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 125,
    }
}

/// What `waitpid` said.
fn decode(status: Option<i32>) -> (Option<i32>, Option<i32>) {
    match status {
        Some(status) if libc::WIFEXITED(status) => (Some(libc::WEXITSTATUS(status)), None),
        Some(status) if libc::WIFSIGNALED(status) => (None, Some(libc::WTERMSIG(status))),
        _ => (None, None),
    }
}

/// What the keeper says next; none when it is gone.
pub async fn listen(ctl: &AsyncFd<OwnedFd>) -> Option<Said> {
    let mut buffer = [0u8; MESSAGE];
    loop {
        let mut ready = ctl.readable().await.ok()?;
        let read = ready.try_io(|fd| {
            let (_, n) = rustix::net::recv(fd.get_ref(), &mut buffer[..], RecvFlags::empty())?;
            Ok(n)
        });
        match read {
            Ok(Ok(n)) => return Said::parse(&buffer[..n]),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // It left without reading our last word. What it said before is still to come.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Ok(Err(_)) => return None,
            Err(_would_block) => {}
        }
    }
}
