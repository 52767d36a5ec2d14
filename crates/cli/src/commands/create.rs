//! `seawall create`: a sandbox that stays.

use crate::{
    app::App,
    args::{SpecArgs, key_value},
    output,
};
use anyhow::{Context, Result};
use clap::Args;
use seawall_api::{AccountId, SandboxId, sandbox::SandboxInfo};
use seawall_core::{NewSandbox, ports::Volumes};

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

pub async fn create(app: &App, args: &CreateArgs) -> Result<i32> {
    args.spec.refuse_without_server()?;
    let id = SandboxId::generate();
    let mut new = args.spec.new_sandbox(id);
    new.spec.env = args.env.iter().cloned().collect();
    new.spec.user = args.user.clone();
    app.settings.mounts.check(AccountId::LOCAL, &new.spec.mounts)?;
    let info =
        if args.no_start { app.sandboxes.create(new).await? } else { made_and_started(app, new).await? };
    if app.json {
        output::json(&info)?
    } else {
        output::line(info.id)?
    }
    Ok(0)
}

/// What cannot be started is not left behind.
async fn made_and_started(app: &App, new: NewSandbox) -> Result<SandboxInfo> {
    let id = new.id.unwrap_or_else(SandboxId::generate);
    match app.sandboxes.launch(NewSandbox { id: Some(id), ..new }).await {
        Ok((info, _guest)) => Ok(info),
        // Nothing was made.
        Err(error) if app.sandboxes.get(id).await.is_err() => Err(error.into()),
        Err(error) => {
            if let Err(left) = app.sandboxes.remove(id, Volumes::Delete).await {
                tracing::warn!("sandbox {id} is left behind: {}", left.chain());
            }
            Err(error).context("the sandbox could not be started, and was removed")
        }
    }
}
