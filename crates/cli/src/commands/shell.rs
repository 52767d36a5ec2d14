//! `seawall shell`: a terminal in a sandbox.

use super::completions::sandboxes;
use crate::{
    args::add_terminal,
    attached::{self, Attachment},
    session::Session,
    signals::Signals,
};
use anyhow::Result;
use clap::Args;
use seawall_api::exec::StartProcess;

#[derive(Debug, Args)]
pub struct ShellArgs {
    /// In which sandbox: an id or a name
    #[arg(add = sandboxes())]
    pub id: String,

    /// The directory to start in [default: /work]
    #[arg(short = 'w', long, value_name = "DIR")]
    pub workdir: Option<String>,

    /// The user to be: a name, UID or UID:GID
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,
}

pub async fn shell(session: &Session, args: &ShellArgs) -> Result<i32> {
    let mut signals = Signals::listen()?;
    let (_, guest) = session.guest(&args.id).await?;
    // No arguments and a terminal: the guest finds the shell.
    let mut start = StartProcess::new(Vec::<String>::new());
    start.cwd = args.workdir.clone();
    start.user = args.user.clone();
    start.stdin = true;
    add_terminal(&mut start);
    let process = guest.start(start).await?;
    let how = Attachment { tty: true, stdin: true, leave_on_terminate: true };
    attached::stay(process, &guest, how, &mut signals).await
}
