//! Being attached to a process: its output is ours, our input, signals and terminal are its.

use crate::{
    exit, input,
    output::{self, Closed},
    signals::{self, SIGHUP, SIGINT, SIGPIPE, Signals},
    terminal::{self, RawMode},
};
use anyhow::{Context, Result};
use seawall_api::{
    ErrorKind, ProcessId,
    exec::{ExitStatus, OutputStream},
};
use seawall_wire::{Guest, Process, ProcessInput, ProcessOutput};
use std::{convert::Infallible, time::Duration};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    time::{Instant, sleep},
};

/// How long the last word to a process may take.
const FAREWELL: Duration = Duration::from_secs(3);

const END_OF_TRANSMISSION: u8 = 4;
/// How soon that key is pressed again.
const KEY_AGAIN: Duration = Duration::from_millis(500);

/// How long, and how often, an input that broke is tried again.
const MEND_FOR: Duration = Duration::from_secs(30);
const MEND_PAUSE: Duration = Duration::from_millis(100);

/// How we are attached.
#[derive(Debug, Clone, Copy)]
pub struct Attachment {
    pub tty: bool,
    pub stdin: bool,
    /// SIGTERM ends us, not the process: whoever attached cleans up after it.
    pub leave_on_terminate: bool,
}

/// Stays until the process ends, or until we must go. Returns our exit code.
pub async fn stay(process: Process, guest: &Guest, how: Attachment, signals: &mut Signals) -> Result<i32> {
    let ended = {
        let _raw = if how.tty { RawMode::enter()? } else { None };
        stay_until_end(process, guest, how, signals).await?
    };
    // Said after the terminal is itself again.
    match ended {
        Ended::Left(code) => Ok(code),
        Ended::Exited { status, lost } => {
            if lost > 0 {
                output::note(format!("{lost} bytes of output were dropped before they could be read"));
            }
            for limit in &status.limits {
                output::note(format!("the sandbox reached its limit `{}` meanwhile", limit.setting()));
            }
            if status.truncated > 0 {
                output::note(format!(
                    "{} bytes of output beyond the limit were thrown away",
                    status.truncated
                ));
            }
            Ok(status.shell_code())
        }
    }
}

enum Ended {
    Exited { status: ExitStatus, lost: u64 },
    Left(i32),
}

async fn stay_until_end(
    mut process: Process,
    guest: &Guest,
    how: Attachment,
    signals: &mut Signals,
) -> Result<Ended> {
    let input = process.input();
    let id = process.id();
    let code = tokio::select! {
        ended = show(&mut process, guest) => return ended,
        left = async {
            match how.tty {
                true => Err(signals.next().await),
                false => Ok(pass_signals(guest, id, &input, how.leave_on_terminate, signals).await),
            }
        } => match left {
            Ok(code) => code,
            // In raw mode keys are the process's; a signal comes from elsewhere and means that the terminal goes. Nobody shows
            // the process's end any more: how it ends by this is not how we end.
            Err(signal) => {
                tell(guest, id, SIGHUP).await;
                exit::by_signal(signal)
            }
        },
        broken = feed(&input, how) => {
            // Half of its input must not pass for the whole.
            guest.kill(id).await?;
            return Err(broken.context("the input did not arrive whole, so the command was ended"));
        }
        never = follow_size(&input, how.tty) => match never? {},
    };
    Ok(Ended::Left(code))
}

async fn show(process: &mut Process, guest: &Guest) -> Result<Ended> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    let mut lost = 0;
    loop {
        let written = match process.next().await? {
            ProcessOutput::Data { stream: OutputStream::Stderr, bytes, .. } => {
                print(&mut stderr, &bytes).await
            }
            ProcessOutput::Data { bytes, .. } => print(&mut stdout, &bytes).await,
            ProcessOutput::Gap { from, to } => {
                lost += to.saturating_sub(from);
                Ok(())
            }
            ProcessOutput::End(status) => return Ok(Ended::Exited { status, lost }),
            _ => Ok(()),
        };
        match written {
            Ok(()) => {}
            Err(error) if error.is::<Closed>() => {
                // What the kernel would tell it, were it on our side of the pipe.
                tell(guest, process.id(), SIGPIPE).await;
                return Ok(Ended::Left(exit::by_signal(SIGPIPE)));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Flushed at once, so that stdout and stderr keep their order.
pub async fn print(to: &mut (impl AsyncWrite + Unpin + ?Sized), bytes: &[u8]) -> Result<()> {
    to.write_all(bytes).await.map_err(output::closed_or)?;
    to.flush().await.map_err(output::closed_or)
}

/// Returns only when we must go. Without a terminal of its own the process cannot see Ctrl-C, so it
/// is told; the second time it is ended with all its descendants, the third time we leave.
async fn pass_signals(
    guest: &Guest,
    process: ProcessId,
    input: &ProcessInput,
    leave_on_terminate: bool,
    signals: &mut Signals,
) -> i32 {
    for count in 1.. {
        let signal = signals.next().await;
        if count > 2 || (leave_on_terminate && signal != SIGINT) {
            return exit::by_signal(signal);
        }
        let told = if count == 1 {
            input.signal(signal).await
        } else {
            tokio::select! {
                told = guest.kill(process) => told,
                signal = signals.next() => return exit::by_signal(signal),
            }
        };
        if let Err(error) = told {
            tracing::warn!("the signal did not reach the process: {error}");
        }
    }
    exit::by_signal(SIGINT)
}

/// A signal that has arrived when this returns, since we are about to go.
async fn tell(guest: &Guest, process: ProcessId, signal: i32) {
    match tokio::time::timeout(FAREWELL, guest.signal(process, signal)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("the signal did not reach the process: {error}"),
        Err(_) => tracing::warn!("the signal did not reach the process in time"),
    }
}

/// Returns only when the way in broke.
async fn feed(input: &ProcessInput, how: Attachment) -> anyhow::Error {
    if how.stdin {
        let mut is_empty = true;
        let mut chunks = input::chunks();
        while let Some(chunk) = chunks.recv().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    tracing::warn!("cannot read stdin: {error}");
                    break;
                }
            };
            is_empty = false;
            // What a process does not want any more the guest throws away; an error is the wire's. A key that is pressed twice
            // harms less than a terminal that ends; bytes of a file must not be written twice.
            let written = again_if(how.tty, || input.write(&chunk)).await;
            if let Err(error) = written {
                return error.into();
            }
        }
        if how.tty {
            return end_terminal(input).await;
        }
        // An input without a byte can be closed as often as it takes.
        if let Err(error) = again_if(is_empty, || input.close()).await
            && error.kind() != ErrorKind::NotFound
        {
            return error.into();
        }
    }
    std::future::pending().await
}

/// Does something with the input of a process, again and again where that does no harm and only the wire is broken: another server
/// takes the place of one that ends.
async fn again_if<F>(is_harmless: bool, mut work: impl FnMut() -> F) -> seawall_wire::Result<()>
where
    F: Future<Output = seawall_wire::Result<()>>,
{
    let give_up = Instant::now() + MEND_FOR;
    loop {
        match work().await {
            Err(error) if is_harmless && error.is_retryable() && Instant::now() < give_up => {
                sleep(MEND_PAUSE).await;
            }
            done => return done,
        }
    }
}

/// A terminal has no end, only a key for it. The first may go by while the program sets its terminal up, or end no more
/// than a line.
async fn end_terminal(input: &ProcessInput) -> anyhow::Error {
    loop {
        match input.write(&[END_OF_TRANSMISSION]).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return std::future::pending().await,
            Err(error) => return error.into(),
            Ok(()) => tokio::time::sleep(KEY_AGAIN).await,
        }
    }
}

async fn follow_size(input: &ProcessInput, tty: bool) -> Result<Infallible> {
    if tty {
        let mut changes = signals::window_changes().context("the terminal cannot be followed")?;
        // Once at first: it may have changed before anybody listened.
        let mut changed = Some(());
        while changed.is_some() {
            if let Err(error) = input.resize(terminal::size()).await {
                tracing::debug!("the new size did not reach the process: {error}");
            }
            changed = changes.recv().await;
        }
    }
    Ok(std::future::pending().await)
}
