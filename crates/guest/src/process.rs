//! Processes: the table of those that run and of those that ended lately.
//!
//! [`keeper`] holds a command and its descendants, [`pool`] the keepers that wait for one, [`log`] its output, [`launch`] makes a request into
//! something that can be executed, [`run`] looks after one until its end, [`attach`] is a client at it.

pub mod attach;
pub mod handover;
pub mod keeper;
pub mod launch;
pub mod limits;
pub mod log;
pub mod plan;
pub mod pool;
pub mod run;
pub mod words;

use crate::{fault::Outcome, state::Guest};
use log::Log;
use rustix::{
    fd::OwnedFd,
    process::{Pid, Signal},
};
use seawall_api::{
    ErrorKind, Fault, ProcessId,
    exec::{ExitReason, ExitStatus, ProcessInfo, StartProcess, TtySize},
};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    os::fd::AsFd,
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::unix::AsyncFd,
    net::unix::pipe,
    sync::{Mutex, Notify},
    task::spawn_local,
    time::timeout,
};
use words::Tell;

/// Ended processes that are remembered, and what their output may cost in all.
const REMEMBERED: usize = 128;
const REMEMBERED_BYTES: usize = 16 << 20;
/// The longest tag.
const MAX_TAG: usize = 256;
/// How long a keeper may take to end what it keeps.
const KEEPER_PATIENCE: Duration = Duration::from_secs(5);
/// Processes that run at the same time; the guest's descriptors and memory are not endless.
const MAX_RUNNING: usize = 256;

#[derive(Default)]
pub struct Processes {
    table: RefCell<HashMap<ProcessId, Rc<Process>>>,
    /// In the order in which they ended.
    ended: RefCell<Vec<ProcessId>>,
    /// The guest's own children. Any other child is what a killed keeper left.
    keepers: RefCell<HashSet<u32>>,
    /// Those of them that have nothing to keep.
    waiting: RefCell<Vec<pool::Waiting>>,
    /// Somebody lets go of them in time.
    dismissing: Cell<bool>,
    /// The first host that comes has a command at once, mostly.
    pub expecting: Cell<bool>,
    /// Being started, with whom to tell when that is done.
    starting: RefCell<HashMap<ProcessId, Rc<Notify>>>,
}

/// Where input goes.
pub enum Input {
    Pipe(pipe::Sender),
    Tty(Rc<AsyncFd<OwnedFd>>),
    Closed,
}

pub struct Process {
    pub id: ProcessId,
    pub pid: u32,
    pub keeper: u32,
    pub args: Vec<String>,
    pub tag: Option<String>,
    pub tty: Option<Rc<AsyncFd<OwnedFd>>>,
    pub started_at_ms: u64,
    /// What the kernel had counted when it began.
    counts: limits::Counts,
    pub log: RefCell<Log>,
    /// Something new to read, or the end.
    pub changed: Notify,
    /// Readers moved on, so there may be room.
    pub room: Notify,
    pub input: Mutex<Input>,
    /// The keeper's ear, while there is a keeper: ended processes are many and descriptors few.
    ctl: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    /// Why its end is being brought about, if it is.
    ending: Cell<Option<ExitReason>>,
    /// The command itself ended; what it printed is being read to its end.
    exited: Cell<Option<i32>>,
    /// Streams whose output up to the exit was read.
    drained: Cell<usize>,
    streams: usize,
    /// No descendant is left.
    gone: Cell<bool>,
    /// Somebody sees to it that its keeper ends.
    watched: Cell<bool>,
    status: RefCell<Option<ExitStatus>>,
}

impl Processes {
    pub fn get(&self, id: ProcessId) -> Outcome<Rc<Process>> {
        self.table.borrow().get(&id).cloned().ok_or_else(|| {
            Fault::new(ErrorKind::NotFound, format!("there is no process {id} in the sandbox"))
        })
    }

    pub fn all(&self) -> Vec<Rc<Process>> {
        self.table.borrow().values().cloned().collect()
    }

    pub fn running(&self) -> usize {
        self.table.borrow().values().filter(|p| p.status.borrow().is_none()).count()
    }

    pub fn list(&self) -> Vec<ProcessInfo> {
        let mut list: Vec<_> = self.table.borrow().values().map(|p| p.info()).collect();
        list.sort_by_key(|info| (info.started_at_ms, info.process));
        list
    }

    /// Whether a child of the guest is one of its keepers.
    pub fn is_keeper(&self, pid: u32) -> bool {
        self.keepers.borrow().contains(&pid)
    }

    /// Ends those that wait for a command.
    pub fn let_keepers_go(&self) {
        self.waiting.take();
    }

    /// Those of which anything is left, a forgotten daemon included.
    fn has_room(&self) -> Outcome<()> {
        let alive =
            self.table.borrow().values().filter(|p| !p.gone.get() || p.status.borrow().is_none()).count();
        match alive >= MAX_RUNNING {
            true => Err(Fault::new(
                ErrorKind::Unavailable,
                format!("{MAX_RUNNING} processes run in the sandbox; end one first"),
            )),
            false => Ok(()),
        }
    }

    /// Remembers that a process ended, and forgets the oldest that nobody may still want. One that left
    /// descendants is never forgotten: they can be ended by its id only.
    fn note_end(&self, id: ProcessId) {
        let mut ended = self.ended.borrow_mut();
        ended.push(id);
        let mut table = self.table.borrow_mut();
        let mut cost: usize =
            ended.iter().filter_map(|id| table.get(id)).map(|p| p.log.borrow().used()).sum();
        while ended.len() > REMEMBERED || cost > REMEMBERED_BYTES {
            let gone = |id: &ProcessId| table.get(id).is_none_or(|p| p.gone.get());
            let acknowledged =
                |id: &ProcessId| table.get(id).is_none_or(|p| !p.log.borrow().has_unacknowledged());
            // What was not acknowledged goes last; the newest stays, whatever it costs.
            let old = &ended[..ended.len() - 1];
            let oldest = old.iter().position(|id| gone(id) && acknowledged(id));
            let Some(at) = oldest.or_else(|| old.iter().position(gone)) else { break };
            let id = ended.remove(at);
            if let Some(process) = table.remove(&id) {
                cost -= process.log.borrow().used();
            }
        }
    }
}

impl Process {
    pub fn status(&self) -> Option<ExitStatus> {
        self.status.borrow().clone()
    }

    pub fn info(&self) -> ProcessInfo {
        let log = self.log.borrow();
        ProcessInfo {
            process: self.id,
            pid: self.pid,
            args: self.args.clone(),
            tag: self.tag.clone(),
            tty: self.tty.is_some(),
            started_at_ms: self.started_at_ms,
            output_start: log.start(),
            output_end: log.end(),
            exit: self.status().map(|status| ExitStatus { output_end: log.end(), ..status }),
        }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// To the command's process group. Nothing happens when it has ended.
    pub fn signal(&self, signal: i32) -> Outcome<()> {
        if !(1..=64).contains(&signal) {
            return Err(crate::fault::invalid(format!("{signal} is not a signal (1 to 64)")));
        }
        if self.exited.get().is_none() {
            self.tell(Tell::Signal(signal));
        }
        Ok(())
    }

    /// Asks the command to end itself, and remembers why.
    pub fn ask_to_end(&self, reason: ExitReason) {
        if self.ending.get().is_none() && self.exited.get().is_none() {
            self.ending.set(Some(reason));
        }
        // A shell at a terminal ignores SIGTERM and obeys the hang-up.
        let signal = if self.tty.is_some() { libc::SIGHUP } else { libc::SIGTERM };
        self.tell(Tell::Signal(signal));
        self.room.notify_waiters();
    }

    /// Begins to end the command and everything that came from it.
    pub fn kill(self: &Rc<Self>, reason: ExitReason) {
        if self.ending.get().is_none() && self.exited.get().is_none() {
            self.ending.set(Some(reason));
        }
        self.tell(Tell::Kill);
        // A command may have stopped its keeper.
        self.signal_keeper(Signal::CONT);
        // What is not read any more must not keep its end from being told.
        self.room.notify_waiters();
        if !self.watched.replace(true) {
            spawn_local(end_keeper_in_time(self.clone()));
        }
    }

    /// A keeper that was not reaped keeps its number; one that is gone is not signalled.
    fn signal_keeper(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.keeper.cast_signed()).filter(|_| !self.gone.get()) {
            // It may have ended just now.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Returns when no descendant is left.
    pub async fn wait_gone(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.gone.get() {
                return;
            }
            changed.await;
        }
    }

    fn tell(&self, tell: Tell) {
        let Some(ctl) = self.ctl.borrow().clone() else { return };
        // The socket holds many messages; one that does not fit follows others that end it anyway. A
        // keeper that is gone needs none.
        let _ = rustix::net::send(
            ctl.get_ref().as_fd(),
            &tell.to_bytes(),
            rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT,
        );
    }

    pub fn resize(&self, size: TtySize) -> Outcome<()> {
        let Some(tty) = &self.tty else {
            return Err(crate::fault::invalid("the process has no terminal"));
        };
        rustix::termios::tcsetwinsize(tty.get_ref(), launch::winsize(size))
            .map_err(|errno| crate::fault::from_errno("the terminal's size", errno))
    }
}

/// A keeper that does not do its work is ended, and what it kept becomes the guest's to end.
async fn end_keeper_in_time(process: Rc<Process>) {
    if timeout(KEEPER_PATIENCE, process.wait_gone()).await.is_err() {
        crate::say!("the keeper of {} does not answer, and is ended", process.id);
        process.signal_keeper(Signal::KILL);
    }
}

/// Starts a process, or finds the one that was started under this id.
pub async fn start(guest: &Rc<Guest>, start: &StartProcess) -> Outcome<(Rc<Process>, bool)> {
    loop {
        if let Ok(process) = guest.processes.get(start.process) {
            return Ok((process, true));
        }
        let other = guest.processes.starting.borrow().get(&start.process).cloned();
        match other {
            Some(other) => other.notified().await,
            None => break,
        }
    }
    if start.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
        return Err(crate::fault::invalid(format!("a tag has at most {MAX_TAG} bytes")));
    }
    if guest.stopping.get().is_some() {
        return Err(Fault::new(ErrorKind::Stopped, "the sandbox is being stopped"));
    }
    guest.processes.has_room()?;
    let _starting = Starting::new(guest, start.process);
    Ok((run::launch(guest, start).await?, false))
}

/// Others who ask for the same id wait until this is dropped.
struct Starting {
    guest: Rc<Guest>,
    id: ProcessId,
}

impl Starting {
    fn new(guest: &Rc<Guest>, id: ProcessId) -> Self {
        guest.processes.starting.borrow_mut().insert(id, Rc::new(Notify::new()));
        Starting { guest: guest.clone(), id }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(waiting) = self.guest.processes.starting.borrow_mut().remove(&self.id) {
            waiting.notify_waiters();
        }
    }
}
