//! Making, listing, starting, stopping and removing, through a server.

use super::{Remote, wanted};
use crate::{
    commands::{create::CreateArgs, each, inspect::InspectArgs, ls, rm, start::StartArgs, stop::StopArgs},
    duration, output,
};
use anyhow::Result;
use seawall_api::{
    AccountId, SandboxId,
    http::StopSandbox,
    sandbox::{Sandbox, SandboxInfo, SandboxState},
};
use seawall_client::EndSandbox;
use seawall_core::ports::Volumes;

pub async fn create(remote: &Remote, args: &CreateArgs) -> Result<i32> {
    let mut new = args.spec.new_sandbox(SandboxId::generate());
    new.spec.env = args.env.iter().cloned().collect();
    new.spec.user = args.user.clone();
    let made = remote.client.create_sandbox(&wanted(new, !args.no_start)).await?;
    match remote.json {
        true => output::json(&made)?,
        false => output::line(made.info.id)?,
    }
    Ok(0)
}

pub async fn ls(remote: &Remote, args: &ls::LsArgs) -> Result<i32> {
    let all = remote.all().await?;
    if remote.json {
        output::json(&all)?;
        return Ok(0);
    }
    let all: Vec<SandboxInfo> = all.into_iter().map(|sandbox| sandbox.info).collect();
    ls::text(&all, args)?;
    Ok(0)
}

pub async fn start(remote: &Remote, args: &StartArgs) -> Result<i32> {
    each(remote, &args.ids, async |reference| {
        let id = remote.find(reference).await?.info.id;
        told(remote, &remote.client.start_sandbox(id).await?)
    })
    .await
}

pub async fn stop(remote: &Remote, args: &StopArgs) -> Result<i32> {
    let ask = StopSandbox { grace_ms: args.grace.map(duration::millis), force: args.force };
    each(remote, &args.ids, async |reference| {
        let id = remote.find(reference).await?.info.id;
        told(remote, &remote.client.stop_sandbox(id, &ask).await?)
    })
    .await
}

fn told(remote: &Remote, sandbox: &Sandbox) -> Result<()> {
    match remote.json {
        true => output::json_line(sandbox),
        false => output::line(sandbox.info.id),
    }
}

pub async fn rm(remote: &Remote, args: &rm::RmArgs) -> Result<i32> {
    each(remote, &args.ids, async |reference| remove(remote, args, reference).await).await
}

async fn remove(remote: &Remote, args: &rm::RmArgs, reference: &str) -> Result<()> {
    let info = remote.find(reference).await?.info;
    if rm::runs(&info) && !args.force {
        return Err(rm::refused(reference, &info));
    }
    let (force, delete_versions) = (args.force, args.versions);
    let (sync, keeps) = match remote.client.account().await?.id {
        // As on this machine: what is to be saved is saved by `sync`, before.
        AccountId::LOCAL => (false, !args.volumes),
        // Other accounts keep no volumes, so what is in it is saved.
        _ => (!args.volumes, false),
    };
    let delete_volumes = Some(!keeps);
    let end = EndSandbox { sync, force, delete_volumes, delete_versions };
    remote.client.end_sandbox(info.id, &end).await?;
    rm::report(remote, info.id, if keeps { Volumes::Keep } else { Volumes::Delete })
}

pub async fn inspect(remote: &Remote, args: &InspectArgs) -> Result<i32> {
    let found = remote.find(&args.id).await?;
    // A list of sandboxes omits published ports; a single sandbox has them.
    let sandbox = remote.client.sandbox(found.info.id).await?;
    let mut shown = serde_json::to_value(&sandbox)?;
    // What cannot be asked now is left out; the rest is still worth seeing.
    if sandbox.info.state == SandboxState::Running
        && let Ok(metrics) = remote.client.metrics(sandbox.info.id).await
        && let Some(fields) = shown.as_object_mut()
    {
        fields.insert("metrics".to_owned(), serde_json::to_value(metrics)?);
    }
    output::json(&shown)?;
    Ok(0)
}
