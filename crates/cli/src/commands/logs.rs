//! `seawall logs`: what a process printed, from any offset that is still kept.

use super::completions::sandboxes;
use crate::{
    attached, duration, lookup,
    output::{self, Screen, Table},
    session::Session,
};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use seawall_api::{
    exec::{OutputStream, ProcessInfo},
    message::Attach,
};
use seawall_wire::{Process, ProcessOutput};
use std::{borrow::Cow, io::IsTerminal as _};
use tokio::io::AsyncWrite;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall logs demo                     what the latest command printed
  seawall logs demo --processes         which ones there are
  seawall logs -f demo build            follow the one with the tag `build`
  seawall logs demo 0190 --from 4096    its output from that offset on")]
pub struct LogsArgs {
    /// Of which sandbox: an id or a name
    #[arg(add = sandboxes())]
    pub id: String,

    /// Which process: its id, tag or pid [default: the one started last]
    pub process: Option<String>,

    /// Stay until it ends
    #[arg(short = 'f', long)]
    pub follow: bool,

    /// Begin at this offset of its output, in bytes
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub from: u64,

    /// List the processes instead
    #[arg(long, conflicts_with_all = ["process", "follow", "from"])]
    pub processes: bool,
}

pub async fn logs(session: &Session, args: &LogsArgs) -> Result<i32> {
    let (_, guest) = session.guest(&args.id).await?;
    let mut processes = guest.processes().await?;
    if args.processes {
        processes.sort_by_key(|process| (process.started_at_ms, process.process));
        if session.json {
            output::json(&processes)?
        } else {
            table(&processes).print()?
        }
        return Ok(0);
    }
    let chosen = lookup::process(&processes, args.process.as_deref())?.process;
    let attach = Attach { process: chosen, from: args.from, hold: false, follow: args.follow };
    replay(guest.attach(attach).await?).await?;
    Ok(0)
}

/// What a process printed earlier drives no terminal of now. Into a file or a pipe it goes as it is.
async fn replay(mut process: Process) -> Result<()> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    let mut on_stdout = std::io::stdout().is_terminal().then(Screen::default);
    let mut on_stderr = std::io::stderr().is_terminal().then(Screen::default);
    loop {
        match process.next().await? {
            ProcessOutput::Data { stream: OutputStream::Stderr, bytes, .. } => {
                attached::print(&mut stderr, &shown(&mut on_stderr, &bytes)).await?;
            }
            ProcessOutput::Data { bytes, .. } => {
                attached::print(&mut stdout, &shown(&mut on_stdout, &bytes)).await?
            }
            ProcessOutput::Gap { from, to } => {
                output::note(format!("bytes {from} to {to} are no longer kept"));
            }
            ProcessOutput::Reconnected => {}
            ProcessOutput::End(_) | ProcessOutput::Drained => break,
        }
    }
    for (screen, to) in
        [(on_stdout, &mut stdout as &mut (dyn AsyncWrite + Unpin + Send)), (on_stderr, &mut stderr)]
    {
        if let Some(mut screen) = screen {
            attached::print(to, screen.end().as_bytes()).await?;
        }
    }
    Ok(())
}

fn shown<'b>(screen: &mut Option<Screen>, bytes: &'b [u8]) -> Cow<'b, [u8]> {
    match screen {
        Some(screen) => Cow::Owned(screen.show(bytes).into_bytes()),
        None => Cow::Borrowed(bytes),
    }
}

fn table(processes: &[ProcessInfo]) -> Table {
    let now = Timestamp::now().as_millisecond();
    let mut table = Table::new(&["PROCESS", "PID", "TAG", "AGE", "OUTPUT", "STATE", "COMMAND"]);
    for process in processes {
        let started = i64::try_from(process.started_at_ms).unwrap_or(now);
        let state = process.exit.as_ref().map_or_else(|| "running".to_owned(), ToString::to_string);
        table.row(vec![
            process.process.to_string(),
            process.pid.to_string(),
            process.tag.clone().unwrap_or_default(),
            duration::age((now - started) / 1000),
            process.output_end.to_string(),
            state,
            process.args.join(" "),
        ]);
    }
    table
}
