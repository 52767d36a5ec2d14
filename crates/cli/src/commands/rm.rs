//! `seawall rm`: removes sandboxes. Their data volumes stay unless asked otherwise.

use super::completions::sandboxes;
use super::each;
use crate::{exit, output, session::Session};
use anyhow::Result;
use clap::Args;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxInfo, SandboxState},
};
use seawall_client::EndSandbox;
use seawall_core::Error;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  seawall rm -f --volumes $(seawall ls -q)    # everything, files included"
)]
pub struct RmArgs {
    /// Which ones: ids or names
    #[arg(required = true, value_name = "ID", add = sandboxes())]
    pub ids: Vec<String>,

    /// Stop the running ones first, and remove also what has work that its bucket lacks
    #[arg(short = 'f', long)]
    pub force: bool,

    /// Delete their files too; otherwise the volume is kept
    #[arg(long)]
    pub volumes: bool,

    /// Delete all versions of their files too; also of sandboxes that were removed before, by the whole id
    #[arg(long)]
    pub versions: bool,
}

pub async fn rm(session: &Session, args: &RmArgs) -> Result<i32> {
    // Other accounts keep no volumes, so their files are saved first unless they are to be deleted.
    let is_local = session.client.account().await?.id == AccountId::LOCAL;
    each(session, &args.ids, async |reference| remove(session, args, is_local, reference).await).await
}

async fn remove(session: &Session, args: &RmArgs, is_local: bool, reference: &str) -> Result<()> {
    let found = match session.find(reference).await {
        Ok(sandbox) => Some(sandbox.info),
        // A sandbox whose record cannot be read is still removed by its id, by force.
        Err(error) if args.force && reference.parse::<SandboxId>().is_ok() && !is_missing(&error) => None,
        Err(error) => return Err(error),
    };
    if let Some(info) = found.as_ref().filter(|info| !args.force && (runs(info) || is_damaged(info))) {
        return Err(refused(reference, info));
    }
    let id = found.map_or_else(|| reference.parse(), |info| Ok(info.id))?;
    let keeps = is_local && !args.volumes;
    let end = EndSandbox {
        sync: !is_local && !args.volumes,
        force: args.force,
        delete_volumes: Some(!keeps),
        delete_versions: args.versions,
    };
    session.client.end_sandbox(id, &end).await?;
    match session.json {
        true => {
            let volumes = if keeps { "keep" } else { "delete" };
            output::json_line(&serde_json::json!({ "id": id, "removed": true, "volumes": volumes }))
        }
        false => output::line(id),
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    exit::kind_of(error) == Some(ErrorKind::NotFound)
}

fn is_damaged(info: &SandboxInfo) -> bool {
    matches!(&info.reason, Some(EndReason::Failed(kind)) if kind == "damaged")
}

fn runs(info: &SandboxInfo) -> bool {
    matches!(info.state, SandboxState::Running | SandboxState::Paused)
}

/// Builds the error for a sandbox that needs `--force`: it runs, or processes may still live in it.
fn refused(reference: &str, info: &SandboxInfo) -> anyhow::Error {
    let (state, id) = (info.state, info.id);
    let message = match is_damaged(info) {
        true => format!("sandbox `{reference}` is damaged: get rid of it with `seawall rm -f`"),
        false => format!(
            "sandbox `{reference}` is {state}: stop it with `seawall stop {id}`, or remove it anyway with `seawall rm -f`"
        ),
    };
    Error::conflict(message).into()
}
