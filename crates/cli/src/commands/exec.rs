//! `seawall exec`: a command in a sandbox that runs.

use super::completions::sandboxes;
use crate::{
    args::ProcessArgs,
    attached::{self, Attachment},
    output,
    session::Session,
    signals::Signals,
};
use anyhow::Result;
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall exec demo -- make test
  tar c src | seawall exec demo -- tar x          stdin is forwarded
  seawall exec --timeout 2m demo -- ./agent       ended with all its descendants after two minutes
  P=$(seawall exec -d demo -- ./server); seawall logs -f demo $P

Ctrl-C is passed on to the command; the second one kills it.")]
pub struct ExecArgs {
    #[command(flatten)]
    pub process: ProcessArgs,

    /// Do not stay: print the id of the process, for logs and kill
    #[arg(short = 'd', long, conflicts_with_all = ["tty", "interactive"])]
    pub detach: bool,

    /// In which sandbox: an id or a name
    #[arg(add = sandboxes())]
    pub id: String,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

pub async fn exec(session: &Session, args: &ExecArgs) -> Result<i32> {
    let start = args.process.start(&session.settings, &args.command, args.detach)?;
    let mut signals = Signals::listen()?;
    let (_, guest) = session.guest(&args.id).await?;
    if args.detach {
        let started = guest.start_detached(start).await?;
        if session.json {
            output::json(&started)?
        } else {
            output::line(started.process)?
        }
        return Ok(0);
    }
    let how = Attachment { tty: start.tty.is_some(), stdin: start.stdin, leave_on_terminate: false };
    let process = guest.start(start).await?;
    tracing::debug!(process = %process.id(), "attached");
    attached::stay(process, &guest, how, &mut signals).await
}
