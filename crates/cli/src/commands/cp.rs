//! `seawall cp`: files into a sandbox, or out of it.

use crate::{exit::Usage, output, session::Session, signals::Signals};
use anyhow::Result;
use clap::Args;
use progress::Progress;
use seawall_wire::Guest;
use sides::Side;
use std::ffi::OsString;

mod download;
mod names;
mod progress;
mod sides;
mod target;
mod tree;
mod upload;
mod walk;

/// So many files travel at once.
const IN_FLIGHT: usize = 8;
/// Larger files get a connection of their own.
const BULK: u64 = 1024 * 1024;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall cp ./src demo:/work/src        in
  seawall cp demo:/work/out.csv .        out
  seawall cp demo:out/. ./out            the contents of a directory (paths start in /work)
  echo hi | seawall cp - demo:note       one file from stdin, or with `demo:note -` to stdout

Directories are copied with all that is in them. Permissions, times and symlinks are kept; set-id bits are
not taken out of a sandbox. A local name with a colon is written ./like:this.")]
pub struct CpArgs {
    /// What to copy: a local path, `-` or ID:PATH
    #[arg(value_name = "SRC")]
    pub from: OsString,

    /// Where to: a local path, `-` or ID:PATH. A directory that is there gets the copy inside it
    #[arg(value_name = "DST")]
    pub to: OsString,
}

pub async fn cp(session: &Session, args: &CpArgs) -> Result<i32> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        copied = copy(session, args) => copied.map(|whole| if whole { 0 } else { crate::exit::FAILED }),
        // Dropping the copy takes its half-written files away.
        signal = signals.next() => Ok(crate::exit::by_signal(signal)),
    }
}

/// Whether everything was copied.
async fn copy(session: &Session, args: &CpArgs) -> Result<bool> {
    let progress = Progress::new();
    let copied = match (Side::parse(&args.from), Side::parse(&args.to)) {
        (Side::Box { sandbox, path }, Side::Local(to)) => {
            download::to_path(&guest(session, &sandbox).await?, &path, &to, &progress).await
        }
        (Side::Box { sandbox, path }, Side::Stream) => {
            download::to_stdout(&guest(session, &sandbox).await?, &path, &progress).await
        }
        (Side::Local(from), Side::Box { sandbox, path }) => {
            upload::from_path(&guest(session, &sandbox).await?, &from, &path, &progress).await
        }
        (Side::Stream, Side::Box { sandbox, path }) => {
            upload::from_stdin(&guest(session, &sandbox).await?, &path, &progress).await
        }
        (Side::Box { .. }, Side::Box { .. }) => {
            Err(Usage("both sides are in a sandbox: copy to a local path first, or to `-`".into()).into())
        }
        _ => Err(Usage("one side must be in a sandbox, as ID:PATH (e.g. demo:/work/file)".into()).into()),
    };
    progress.finish();
    copied?;
    if session.json {
        let (files, bytes) = progress.totals();
        let summary = serde_json::json!({ "files": files, "bytes": bytes });
        // Stdout may be the file itself.
        output::error_line(&summary);
    }
    Ok(progress.is_whole())
}

async fn guest(session: &Session, reference: &str) -> Result<Guest> {
    Ok(session.guest(reference).await?.1)
}
