//! `seawall run` through a server: a sandbox of its own for one command, and gone afterwards.

use super::{Remote, wanted};
use crate::{
    attached::{self, Attachment},
    commands::run::{RunArgs, finished},
    exit, output,
    signals::Signals,
};
use anyhow::Result;
use seawall_api::{ErrorKind, SandboxId, exec::StartProcess, http::CreateSandbox};
use seawall_client::EndSandbox;

pub async fn run(remote: &Remote, args: &RunArgs) -> Result<i32> {
    let start = args.process.start(&remote.settings, &args.command, false)?;
    let mut signals = Signals::listen()?;
    // Chosen here, so that it can be removed however far the making came.
    let id = SandboxId::generate();
    let new = wanted(args.spec.new_sandbox(id), true);
    let result = one_off(remote, id, &new, start, &mut signals).await;
    // Signals are still listened to, and no longer heeded: this must finish.
    if let Err(error) = remove(remote, id).await {
        output::note(format!(
            "sandbox {id} is left behind ({}): remove it with `seawall rm -f --volumes {id}`",
            exit::message_of(&error)
        ));
    }
    result
}

async fn one_off(
    remote: &Remote,
    id: SandboxId,
    new: &CreateSandbox,
    start: StartProcess,
    signals: &mut Signals,
) -> Result<i32> {
    let making = async { anyhow::Ok(remote.client.create_sandbox(new).await?) };
    if let Err(signal) = finished(making, signals).await? {
        return Ok(exit::by_signal(signal));
    }
    let guest = remote.client.guest(id);
    let how = Attachment { tty: start.tty.is_some(), stdin: start.stdin, leave_on_terminate: true };
    let process = guest.start(start).await?;
    attached::stay(process, &guest, how, signals).await
}

async fn remove(remote: &Remote, id: SandboxId) -> Result<()> {
    // Its one command has ended, so nothing of it is wanted.
    let end = EndSandbox { sync: false, force: true, delete_volumes: Some(true), delete_versions: false };
    match remote.client.end_sandbox(id, &end).await {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Gone) => Err(error.into()),
        _ => Ok(()),
    }
}
