//! `seawall run`: one command in a sandbox of its own, which is gone afterwards, files included.

use super::create::warn_of_provider;
use crate::{
    args::{ProcessArgs, SpecArgs},
    attached::{self, Attachment},
    exit, output,
    session::Session,
    signals::Signals,
};
use anyhow::Result;
use clap::Args;
use seawall_api::{ErrorKind, SandboxId, exec::StartProcess, http::CreateSandbox};
use seawall_client::EndSandbox;

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

pub async fn run(session: &Session, args: &RunArgs) -> Result<i32> {
    let start = args.process.start(&session.settings, &args.command, false)?;
    let mut signals = Signals::listen()?;
    // Chosen here, so that it can be removed however far the making came.
    let id = SandboxId::generate();
    let result = one_off(session, id, &args.spec.create(id), start, &mut signals).await;
    // Signals are still listened to, and no longer heeded: this must finish.
    if let Err(error) = remove(session, id).await {
        output::note(format!(
            "sandbox {id} is left behind ({}): remove it with `seawall rm -f --volumes {id}`",
            exit::message_of(&error)
        ));
    }
    result
}

async fn one_off(
    session: &Session,
    id: SandboxId,
    new: &CreateSandbox,
    start: StartProcess,
    signals: &mut Signals,
) -> Result<i32> {
    let making = async { anyhow::Ok(session.client.create_sandbox(new).await?) };
    match finished(making, signals).await? {
        Ok(sandbox) => warn_of_provider(&sandbox.info),
        Err(signal) => return Ok(exit::by_signal(signal)),
    }
    let guest = session.client.guest(id);
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

async fn remove(session: &Session, id: SandboxId) -> Result<()> {
    // The command has ended, so its files are not saved.
    let end = EndSandbox { sync: false, force: true, delete_volumes: Some(true), delete_versions: false };
    match session.client.end_sandbox(id, &end).await {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Gone) => Err(error.into()),
        _ => Ok(()),
    }
}
