//! `seawall create`: a sandbox that stays.

use super::run::finished;
use crate::{
    args::{SpecArgs, key_value},
    exit, output,
    session::Session,
    signals::Signals,
};
use anyhow::Result;
use clap::Args;
use seawall_api::{ErrorKind, SandboxId, http::CreateSandbox, sandbox::SandboxInfo};
use seawall_client::EndSandbox;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  ID=$(seawall create --name demo -e MODE=test)\n  seawall exec $ID -- env"
)]
pub struct CreateArgs {
    /// Only make it; start it later with `seawall start`
    #[arg(long)]
    pub no_start: bool,

    /// Set a variable for every process in it; may be repeated
    #[arg(short = 'e', long = "env", value_name = "KEY=VALUE", value_parser = key_value)]
    pub env: Vec<(String, String)>,

    /// Who runs its processes unless told otherwise: a name, UID or UID:GID
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,

    #[command(flatten)]
    pub spec: SpecArgs,
}

pub async fn create(session: &Session, args: &CreateArgs) -> Result<i32> {
    let mut signals = Signals::listen()?;
    let id = SandboxId::generate();
    let new = CreateSandbox {
        env: args.env.iter().cloned().collect(),
        user: args.user.clone(),
        start: !args.no_start,
        ..args.spec.create(id)
    };
    let making = async { anyhow::Ok(session.client.create_sandbox(&new).await?) };
    let made = match finished(making, &mut signals).await? {
        Ok(made) => made,
        Err(signal) => {
            discard(session, id).await;
            return Ok(exit::by_signal(signal));
        }
    };
    warn_of_provider(&made.info);
    match session.json {
        true => output::json(&made)?,
        false => output::line(made.info.id)?,
    }
    Ok(0)
}

/// Removes the sandbox of an interrupted creation. The client chose the id a moment ago, so no other sandbox has it.
async fn discard(session: &Session, id: SandboxId) {
    let end = EndSandbox { sync: false, force: true, delete_volumes: Some(true), delete_versions: false };
    match session.client.end_sandbox(id, &end).await {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Gone) => output::note(
            format!("sandbox {id} is left behind ({error}): remove it with `seawall rm -f --volumes {id}`"),
        ),
        _ => {}
    }
}

/// The provider `local` is for development: its sandboxes are plain processes.
pub fn warn_of_provider(info: &SandboxInfo) {
    if info.provider == "local" {
        output::note("the provider `local` isolates nothing: its processes can do all that you can");
    }
}
