//! Processes of a mock box: tasks that play a script.

use super::{
    lock,
    output::{Next, Output, pieces},
    script::{Script, Step},
};
use bytes::Bytes;
use seawall_api::{
    ErrorKind, Fault, ProcessId,
    exec::{ExitReason, ExitStatus, OutputStream, ProcessInfo, StartProcess},
    message::Started,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::watch;

const KILL: i32 = 9;
const TERM: i32 = 15;
/// Longer than tokio's clock can count is for ever.
const FOR_EVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// What changes while a process lives. Everyone who waits, waits for a change of this.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) output: Output,
    stdin: VecDeque<Bytes>,
    stdin_closed: bool,
    ending: Option<(i32, ExitReason)>,
    exit: Option<ExitStatus>,
}

#[derive(Debug)]
pub(super) struct MockProcess {
    pub(super) id: ProcessId,
    pub(super) pid: u32,
    start: StartProcess,
    started_at_ms: u64,
    pub(super) live: watch::Sender<Live>,
}

impl MockProcess {
    fn new(pid: u32, start: StartProcess) -> Self {
        let live = Live {
            output: Output::new(start.when_full, start.output_limit),
            stdin: VecDeque::new(),
            stdin_closed: !start.stdin,
            ending: None,
            exit: None,
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        MockProcess {
            id: start.process,
            pid,
            start,
            started_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            live: watch::Sender::new(live),
        }
    }

    pub(super) fn info(&self) -> ProcessInfo {
        let live = self.live.borrow();
        ProcessInfo {
            process: self.id,
            pid: self.pid,
            args: self.start.args.clone(),
            tag: self.start.tag.clone(),
            tty: false,
            started_at_ms: self.started_at_ms,
            output_start: live.output.start,
            output_end: live.output.end,
            exit: live.exit.clone(),
        }
    }

    /// What is there now for a reader at `position`, and the exit if it has ended.
    pub(super) fn peek(&self, position: u64) -> (Next, Option<ExitStatus>) {
        let live = self.live.borrow();
        (live.output.next(position), live.exit.clone())
    }

    /// Waits until [`MockProcess::peek`] has something to tell.
    pub(super) async fn ready(&self, position: u64) {
        let mut live = self.live.subscribe();
        let told = |live: &Live| live.exit.is_some() || !matches!(live.output.next(position), Next::Nothing);
        // The sender is in `self`, so it outlives the wait.
        let _ = live.wait_for(told).await;
    }

    pub(super) fn input(&self, bytes: Bytes) {
        self.live.send_modify(|live| {
            if !live.stdin_closed {
                live.stdin.push_back(bytes);
            }
        });
    }

    pub(super) fn close_input(&self) {
        self.live.send_modify(|live| live.stdin_closed = true);
    }

    /// Signal 0 only asks whether it runs, as with kill(2).
    pub(super) fn signal(&self, signal: i32) {
        if signal != 0 {
            self.end(signal, ExitReason::Exited);
        }
    }

    fn end(&self, signal: i32, reason: ExitReason) {
        self.live.send_modify(|live| {
            live.ending.get_or_insert((signal, reason));
        });
    }

    /// Returns when it has ended.
    pub(super) async fn kill(&self, reason: ExitReason) {
        self.end(KILL, reason);
        let _ = self.live.subscribe().wait_for(|live| live.exit.is_some()).await;
    }

    async fn run(self: Arc<Self>, script: Script) {
        let timeout = self.start.timeout_ms.map_or(Duration::MAX, Duration::from_millis);
        let (code, signal, reason) = tokio::select! {
            biased;
            (signal, reason) = self.ending() => (None, Some(signal), reason),
            () = sleep(timeout) => (None, Some(TERM), ExitReason::Timeout),
            code = self.play(script) => (Some(code), None, ExitReason::Exited),
        };
        self.live.send_modify(|live| {
            let (output_end, truncated) = (live.output.end, live.output.truncated);
            live.exit = Some(ExitStatus { code, signal, reason, output_end, truncated, limits: Vec::new() });
        });
    }

    async fn ending(&self) -> (i32, ExitReason) {
        let mut live = self.live.subscribe();
        match live.wait_for(|live| live.ending.is_some()).await {
            Ok(live) => live.ending.unwrap_or((KILL, ExitReason::Lost)),
            Err(_) => (KILL, ExitReason::Lost),
        }
    }

    async fn play(&self, script: Script) -> i32 {
        for step in script.0 {
            match step {
                Step::Stdout(bytes) => self.print(OutputStream::Stdout, bytes).await,
                Step::Stderr(bytes) => self.print(OutputStream::Stderr, bytes).await,
                Step::Sleep(time) => sleep(time).await,
                Step::ReadStdinToEnd => {
                    while let Some(bytes) = self.read_stdin().await {
                        self.print(OutputStream::Stdout, bytes).await;
                    }
                }
                Step::WaitForSignal => std::future::pending::<()>().await,
                Step::Exit(code) => return code,
            }
        }
        0
    }

    async fn print(&self, stream: OutputStream, bytes: Bytes) {
        for piece in pieces(bytes) {
            let len = piece.len();
            let mut live = self.live.subscribe();
            let _ = live.wait_for(|live| live.output.has_room(len)).await;
            self.live.send_modify(|live| {
                let piece = live.output.admit(piece);
                if !piece.is_empty() {
                    live.output.push(stream, piece);
                }
            });
        }
    }

    async fn read_stdin(&self) -> Option<Bytes> {
        let mut live = self.live.subscribe();
        let _ = live.wait_for(|live| live.stdin_closed || !live.stdin.is_empty()).await;
        let mut bytes = None;
        self.live.send_modify(|live| bytes = live.stdin.pop_front());
        bytes
    }
}

async fn sleep(time: Duration) {
    match time > FOR_EVER {
        true => std::future::pending().await,
        false => tokio::time::sleep(time).await,
    }
}

#[derive(Debug, Default)]
pub(super) struct Processes {
    table: Mutex<BTreeMap<ProcessId, Arc<MockProcess>>>,
}

impl Processes {
    /// Starts a process, or finds the one that was started under its id.
    pub(super) fn start(
        &self,
        start: StartProcess,
        script: impl FnOnce(&StartProcess) -> Result<Script, Fault>,
    ) -> Result<(Arc<MockProcess>, Started), Fault> {
        let id = start.process;
        if let Ok(process) = self.get(id) {
            return Ok(resumed(process));
        }
        // A test's own code runs here, so no lock is held; hence the second look.
        let script = script(&start)?;
        let mut table = lock(&self.table);
        if let Some(process) = table.get(&id) {
            return Ok(resumed(process.clone()));
        }
        // Process 1 is the guest itself.
        let pid = u32::try_from(table.len()).unwrap_or(u32::MAX - 2) + 2;
        let process = Arc::new(MockProcess::new(pid, start));
        table.insert(id, process.clone());
        tokio::spawn(process.clone().run(script));
        Ok((process, Started { process: id, pid, resumed: false }))
    }

    pub(super) fn get(&self, id: ProcessId) -> Result<Arc<MockProcess>, Fault> {
        let process = lock(&self.table).get(&id).cloned();
        let missing = || Fault::new(ErrorKind::NotFound, format!("no process {id} in this sandbox"));
        process.ok_or_else(missing)
    }

    pub(super) fn list(&self) -> Vec<ProcessInfo> {
        lock(&self.table).values().map(|process| process.info()).collect()
    }

    pub(super) fn running(&self) -> usize {
        self.list().iter().filter(|process| process.exit.is_none()).count()
    }

    /// Their keeper is gone, and so are they.
    pub(super) fn abandon(&self) {
        for process in lock(&self.table).values() {
            process.end(KILL, ExitReason::Lost);
        }
    }

    /// Returns when none is left.
    pub(super) async fn end_all(&self, reason: ExitReason) {
        let all: Vec<_> = lock(&self.table).values().cloned().collect();
        for process in all {
            process.kill(reason).await;
        }
    }
}

fn resumed(process: Arc<MockProcess>) -> (Arc<MockProcess>, Started) {
    let started = Started { process: process.id, pid: process.pid, resumed: true };
    (process, started)
}
