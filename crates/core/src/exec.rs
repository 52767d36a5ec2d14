//! A command run to its end, with its output gathered (P5).

use crate::{Error, Result, Sandboxes};
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

pub(crate) async fn run(guest: &Guest, request: ExecRequest) -> Result<ExecOutput> {
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
    let output = gather(&mut process, request.max_output);
    tokio::pin!(output, feed);
    let (status, stdout, stderr) = tokio::select! {
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
    };
    Ok(ExecOutput {
        status,
        stdout: stdout.kept,
        stderr: stderr.kept,
        stdout_truncated: stdout.dropped,
        stderr_truncated: stderr.dropped,
        duration: begun.elapsed(),
    })
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

/// One stream, up to a limit.
#[derive(Debug, Default)]
struct Gathered {
    kept: Vec<u8>,
    dropped: u64,
}

impl Gathered {
    fn add(&mut self, bytes: &[u8], max: usize) {
        let room = if self.dropped > 0 { 0 } else { max - self.kept.len() };
        let take = room.min(bytes.len());
        self.kept.extend_from_slice(&bytes[..take]);
        let first_cut = take < bytes.len() && self.dropped == 0;
        self.dropped = self.dropped.saturating_add((bytes.len() - take) as u64);
        if first_cut {
            self.drop_cut_character();
        }
    }

    /// Text that was cut must not end in half a character.
    fn drop_cut_character(&mut self) {
        if let Err(error) = std::str::from_utf8(&self.kept)
            && error.error_len().is_none()
        {
            self.dropped = self.dropped.saturating_add((self.kept.len() - error.valid_up_to()) as u64);
            self.kept.truncate(error.valid_up_to());
        }
    }
}

async fn gather(process: &mut Process, max: usize) -> Result<(ExitStatus, Gathered, Gathered)> {
    let (mut stdout, mut stderr) = (Gathered::default(), Gathered::default());
    loop {
        match process.next().await? {
            ProcessOutput::Data { stream: OutputStream::Stderr, bytes, .. } => stderr.add(&bytes, max),
            ProcessOutput::Data { bytes, .. } => stdout.add(&bytes, max),
            ProcessOutput::Gap { from, to } => stdout.dropped = stdout.dropped.saturating_add(to - from),
            ProcessOutput::Reconnected | ProcessOutput::Drained => {}
            ProcessOutput::End(status) => {
                stdout.dropped = stdout.dropped.saturating_add(status.truncated);
                return Ok((status, stdout, stderr));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathering_stops_at_the_limit_between_characters() {
        let mut gathered = Gathered::default();
        gathered.add("ab€cd".as_bytes(), 4);
        assert_eq!((gathered.kept.as_slice(), gathered.dropped), (&b"ab"[..], 5));
        gathered.add(b"more", 4);
        assert_eq!((gathered.kept.as_slice(), gathered.dropped), (&b"ab"[..], 9));
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_to_the_limit() {
        let mut gathered = Gathered::default();
        gathered.add(&[0xff, 0xfe, 0xff, 0xfe], 3);
        assert_eq!((gathered.kept.len(), gathered.dropped), (3, 1));
    }
}
