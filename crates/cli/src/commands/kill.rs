//! `seawall kill`: ends a process with its descendants, or sends it a signal.

use super::completions::sandboxes;
use crate::{lookup, session::Session, signals};
use anyhow::Result;
use clap::Args;

#[derive(Debug, Args)]
pub struct KillArgs {
    /// In which sandbox: an id or a name
    #[arg(add = sandboxes())]
    pub id: String,

    /// Which process: its id, tag or pid (see `seawall logs ID --processes`)
    pub process: String,

    /// Send this signal to its group, instead of ending it with all its descendants
    #[arg(short = 's', long, value_name = "SIGNAL", value_parser = signals::parse)]
    pub signal: Option<i32>,
}

pub async fn kill(session: &Session, args: &KillArgs) -> Result<i32> {
    let (_, guest) = session.guest(&args.id).await?;
    let processes = guest.processes().await?;
    let process = lookup::process(&processes, Some(&args.process))?.process;
    match args.signal {
        Some(signal) => guest.signal(process, signal).await?,
        None => guest.kill(process).await?,
    }
    Ok(0)
}
