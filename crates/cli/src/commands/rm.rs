//! `seawall rm`: removes sandboxes. Their data volumes stay unless asked otherwise.

use super::each;
use crate::{
    app::App,
    exit,
    lookup::{self, Place},
    output, turns, workspaces,
};
use anyhow::{Result, anyhow};
use clap::Args;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxInfo, SandboxState},
};
use seawall_core::{Error, ports::Volumes, service::EndSandbox};

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  seawall rm -f --volumes $(seawall ls -q)    # everything, files included"
)]
pub struct RmArgs {
    /// Which ones: ids or names
    #[arg(required = true, value_name = "ID")]
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

pub async fn rm(app: &App, args: &RmArgs) -> Result<i32> {
    each(app, &args.ids, async |reference| remove(app, args, reference).await).await
}

async fn remove(app: &App, args: &RmArgs, reference: &str) -> Result<()> {
    let volumes = if args.volumes { Volumes::Delete } else { Volumes::Keep };
    let info = match lookup::sandbox(app, reference).await {
        Ok(info) => info,
        // Of one that is gone the versions may be left.
        Err(error) if args.versions && exit::kind_of(&error) == Some(ErrorKind::NotFound) => {
            let id: SandboxId = reference.parse().map_err(|_| error)?;
            workspaces::of(app, id).await?.delete_versions(id).await?;
            return report(app, id, Volumes::Keep);
        }
        // What cannot even be read can still be got rid of, by force.
        Err(error) if args.force && exit::kind_of(&error) == Some(ErrorKind::Internal) => {
            let id = app.sandboxes.resolve(reference).await?;
            output::note(format!("sandbox {id} is damaged ({error}); removing all that is left of it"));
            app.sandboxes.purge(id, volumes).await?;
            return report(app, id, volumes);
        }
        Err(error) if exit::kind_of(&error) == Some(ErrorKind::Internal) => {
            return Err(error.context("get rid of it with `seawall rm -f`"));
        }
        Err(error) => return Err(error),
    };
    if is_damaged(&info) && !args.force {
        // Something may live in it all the same.
        let message = format!("sandbox {} is damaged; get rid of it with `seawall rm -f`", info.id);
        return Err(Error::conflict(message).into());
    }
    let runs = runs(&info);
    if runs && !args.force {
        return Err(refused(reference, &info));
    }
    if let Some(row) = app.stores.sandboxes.find(info.id).await?.filter(|row| row.template.is_some()) {
        // One of the service's: its hooks run, and its record stays.
        let tenant = row.account_id != AccountId::LOCAL;
        let volumes = if tenant { Volumes::Delete } else { volumes };
        let how = EndSandbox {
            sync: tenant && !args.volumes,
            force: args.force,
            volumes: Some(volumes),
            delete_versions: args.versions,
        };
        turns::services(app).await?.sandboxes.end(row.account_id, info.id, &how).await?;
        return report(app, info.id, volumes);
    }
    if args.force {
        app.sandboxes.give_up_unsynced(info.id).await?;
    }
    if runs {
        app.sandboxes.stop(info.id, app.settings.stop_grace).await?;
    }
    // Before the sandbox goes: only its record says where its versions are.
    let versions = workspaces::of(app, info.id).await;
    app.sandboxes.remove(info.id, volumes).await?;
    if args.versions {
        versions?.delete_versions(info.id).await?;
    }
    report(app, info.id, volumes)
}

fn is_damaged(info: &SandboxInfo) -> bool {
    matches!(&info.reason, Some(EndReason::Failed(kind)) if kind == "damaged")
}

pub fn runs(info: &SandboxInfo) -> bool {
    matches!(info.state, SandboxState::Running | SandboxState::Paused)
}

/// Without force nothing that runs is removed.
pub fn refused(reference: &str, info: &SandboxInfo) -> anyhow::Error {
    let (state, id) = (info.state, info.id);
    anyhow!(
        "sandbox `{reference}` is {state}: stop it with `seawall stop {id}`, or remove it anyway with `seawall rm -f`"
    )
}

pub fn report(app: &dyn Place, id: SandboxId, volumes: Volumes) -> Result<()> {
    if app.json() {
        output::json_line(&serde_json::json!({ "id": id, "removed": true, "volumes": volumes }))
    } else {
        output::line(id)
    }
}
