//! `seawall run`: one command in a sandbox of its own, which is gone afterwards, files included.

use crate::{
    app::App,
    args::{ProcessArgs, SpecArgs},
    attached::{self, Attachment},
    exit, output,
    signals::Signals,
};
use anyhow::Result;
use clap::Args;
use seawall_api::{AccountId, ErrorKind, SandboxId, exec::StartProcess};
use seawall_core::{NewSandbox, ports::Volumes};
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall run -- python3 -c 'print(6*7)'
  seawall run --timeout 30s -e MODE=test -- make check
  echo 'print(1)' | seawall run -- python3 -      stdin is forwarded
  seawall run -t                                  a shell, to look around

Ctrl-C is passed on to the command; the second one kills it. The sandbox goes in any case.")]
pub struct RunArgs {
    #[command(flatten)]
    pub process: ProcessArgs,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,

    #[command(flatten)]
    pub spec: SpecArgs,
}

pub async fn run(app: &App, args: &RunArgs) -> Result<i32> {
    let start = args.process.start(&app.settings, &args.command, false)?;
    app.settings.mounts.check(AccountId::LOCAL, &args.spec.mounts)?;
    let mut signals = Signals::listen()?;
    // Chosen here, so that it can be removed however far the making came.
    let id = SandboxId::generate();
    let result = one_off(app, args.spec.new_sandbox(id), start, &mut signals).await;
    // Signals are still listened to, and no longer heeded: this must finish.
    if let Err(error) = remove(app, id).await {
        output::note(format!(
            "sandbox {id} is left behind ({}): remove it with `seawall rm -f --volumes {id}`",
            exit::message_of(&error)
        ));
    }
    result
}

async fn one_off(app: &App, new: NewSandbox, start: StartProcess, signals: &mut Signals) -> Result<i32> {
    let making = async { anyhow::Ok(app.sandboxes.launch(new).await?.1) };
    let guest = match finished(making, signals).await? {
        Ok(guest) => guest,
        Err(signal) => return Ok(exit::by_signal(signal)),
    };
    let how = Attachment { tty: start.tty.is_some(), stdin: start.stdin, leave_on_terminate: true };
    let process = guest.start(start).await?;
    attached::stay(process, &guest, how, signals).await
}

/// Lets the making finish, since half a sandbox is harder to clean up; a second signal abandons it. The first
/// signal, where there was one.
pub async fn finished<T>(
    making: impl Future<Output = Result<T>>,
    signals: &mut Signals,
) -> Result<std::result::Result<T, i32>> {
    tokio::pin!(making);
    let mut told = None;
    loop {
        tokio::select! {
            made = &mut making => return made.map(|made| told.map_or(Ok(made), Err)),
            signal = signals.next() => {
                if let Some(first) = told {
                    return Ok(Err(first));
                }
                told = Some(signal);
            }
        }
    }
}

async fn remove(app: &App, id: SandboxId) -> Result<()> {
    let gone = |error: &seawall_core::Error| error.kind() == ErrorKind::NotFound;
    // Its one command has ended, so nothing deserves a grace.
    match app.sandboxes.stop(id, Duration::ZERO).await {
        Err(error) if gone(&error) => return Ok(()),
        Err(error) => tracing::debug!("stopping {id}: {}", error.chain()),
        Ok(_) => {}
    }
    match app.sandboxes.remove(id, Volumes::Delete).await {
        Err(error) if !gone(&error) => Err(error.into()),
        _ => Ok(()),
    }
}
