//! A command run to its end, with its output gathered (P5).

mod capture;

pub use capture::Capture;

use crate::{Error, Result, Sandboxes, budget::Reservation};
use bytes::Bytes;
use seawall_api::{
    SandboxId,
    exec::{ExitStatus, OutputStream, StartProcess},
};
use seawall_wire::{Guest, Process, ProcessOutput};
use std::time::{Duration, Instant};
use tokio::{sync::watch, time::timeout};

/// What is gathered of each stream unless the request says otherwise.
pub const DEFAULT_MAX_OUTPUT: usize = 8 << 20;

#[derive(Debug, Clone)]
pub struct ExecRequest {
    pub start: StartProcess,
    /// Given to the command, then closed.
    pub stdin: Option<Bytes>,
    /// Bytes gathered of each stream; the rest is counted.
    pub max_output: usize,
}

impl ExecRequest {
    pub fn new<S: Into<String>>(args: impl IntoIterator<Item = S>) -> Self {
        ExecRequest { start: StartProcess::new(args), stdin: None, max_output: DEFAULT_MAX_OUTPUT }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Bytes that were not gathered.
    pub stdout_truncated: u64,
    pub stderr_truncated: u64,
    pub duration: Duration,
}

impl From<Captured> for ExecOutput {
    fn from(captured: Captured) -> ExecOutput {
        ExecOutput {
            status: captured.status,
            stdout: captured.stdout.to_vec(),
            stderr: captured.stderr.to_vec(),
            stdout_truncated: captured.stdout.truncated(),
            stderr_truncated: captured.stderr.truncated(),
            duration: captured.duration,
        }
    }
}

/// As [`ExecOutput`], with the output as it was gathered.
#[derive(Debug)]
pub struct Captured {
    pub status: ExitStatus,
    pub stdout: Capture,
    pub stderr: Capture,
    pub duration: Duration,
    /// What both streams take of a byte budget. None where they were not counted.
    pub room: Option<Reservation>,
}

/// Runs a command to its end. What `room` has no bytes for is not kept: it is counted as truncated.
pub(crate) async fn run(
    guest: &Guest,
    request: ExecRequest,
    mut room: Option<Reservation>,
) -> Result<Captured> {
    let begun = Instant::now();
    let start = StartProcess { stdin: request.stdin.is_some(), ..request.start };
    let mut process = guest.start(start).await?;
    let input = process.input();
    let id = process.id();
    let feed = async {
        let Some(bytes) = request.stdin else { return Ok(()) };
        // A command may end without reading all of it; the guest throws the rest away.
        input.write(&bytes).await?;
        input.close().await
    };
    let (status, stdout, stderr) = {
        let output = gather(&mut process, request.max_output, room.as_mut());
        tokio::pin!(output, feed);
        tokio::select! {
            gathered = &mut output => gathered?,
            fed = &mut feed => {
                if let Err(error) = fed {
                    // Half of its input must not pass for the whole.
                    guest.kill(id).await?;
                    return Err(Error::unavailable("the input did not arrive whole, so the command was ended")
                        .with_source(error));
                }
                output.await?
            }
        }
    };
    Ok(Captured { status, stdout, stderr, duration: begun.elapsed(), room })
}

/// Between tries to end a command, and until that is given up.
const KILL_AGAIN: Duration = Duration::from_millis(500);
const GIVE_UP: Duration = Duration::from_secs(15);

/// A command for a turn. None where that was cancelled: then it has ended, or was never started.
pub(crate) async fn run_unless(
    sandboxes: &Sandboxes,
    sandbox: SandboxId,
    request: ExecRequest,
    cancelled: Option<watch::Receiver<bool>>,
) -> Result<Option<ExecOutput>> {
    if cancelled.as_ref().is_some_and(|cancelled| *cancelled.borrow()) {
        return Ok(None);
    }
    let process = request.start.process;
    let running = sandboxes.exec(sandbox, request);
    tokio::pin!(running);
    tokio::select! {
        output = &mut running => return output.map(Some),
        () = becomes_true(cancelled) => {}
    }
    // Where it is just being started, or the wire is away, the first time is too early.
    let ended = async {
        loop {
            let killed = async { Ok::<_, Error>(sandboxes.guest(sandbox).await?.kill(process).await?) }.await;
            if timeout(KILL_AGAIN, &mut running).await.is_ok() {
                return;
            }
            tracing::warn!(%sandbox, %process, ?killed, "a command goes on after its turn was cancelled");
        }
    };
    let _ = timeout(GIVE_UP, ended).await;
    Ok(None)
}

async fn becomes_true(wish: Option<watch::Receiver<bool>>) {
    if let Some(mut wish) = wish
        && wish.wait_for(|wish| *wish).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

async fn gather(
    process: &mut Process,
    max: usize,
    mut room: Option<&mut Reservation>,
) -> Result<(ExitStatus, Capture, Capture)> {
    let (mut stdout, mut stderr) = (Capture::default(), Capture::default());
    loop {
        match process.next().await? {
            ProcessOutput::Data { stream: OutputStream::Stderr, bytes, .. } => {
                stderr.add(&bytes, max, room.as_deref_mut());
            }
            ProcessOutput::Data { bytes, .. } => stdout.add(&bytes, max, room.as_deref_mut()),
            ProcessOutput::Gap { from, to } => stdout.skip(to - from),
            ProcessOutput::Reconnected | ProcessOutput::Drained => {}
            ProcessOutput::End(status) => {
                stdout.skip(status.truncated);
                return Ok((status, stdout, stderr));
            }
        }
    }
}
