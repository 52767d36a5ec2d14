//! The workspace service, wired from the settings: the bucket, and the database where the bucket needs one.

use crate::{app::App, config::Settings, memory::FileMemory, turns};
use anyhow::{Context, Result};
use seawall_api::{AccountId, SandboxId};
use seawall_core::{
    Workspaces,
    ports::SystemClock,
    service::{SandboxService, Wanted},
    workspaces::{Account, LeaseTurnstile, WorkspaceSettings},
};
use seawall_sync::{bucket::SharedBucket, state::CommitRef, stores};
use std::sync::Arc;

/// The bucket that the settings name.
pub async fn bucket(settings: &Settings) -> Result<SharedBucket> {
    let url = settings.sync.bucket(&settings.data);
    let opened = stores::open(&url, &|name| std::env::var(name).ok()).await;
    opened.with_context(|| format!("cannot use the bucket {url}"))
}

pub fn settings(settings: &Settings) -> WorkspaceSettings {
    let sync = &settings.sync;
    WorkspaceSettings {
        key_prefix: sync.key_prefix.clone(),
        stale_after: sync.stale_after,
        limits: sync.limits,
        bounds: sync.bounds,
        ..WorkspaceSettings::default()
    }
}

/// Where the files of a sandbox go: its template may have a bucket or a prefix of its own.
pub async fn of(app: &App, id: SandboxId) -> Result<Workspaces> {
    Ok(with_notes(app, id).await?.0)
}

/// Where the files of a sandbox go, and where it is noted that they did.
pub async fn with_notes(app: &App, id: SandboxId) -> Result<(Workspaces, Notes)> {
    let row = app.stores.sandboxes.find(id).await?.filter(|row| row.template.is_some());
    let Some(row) = row else { return Ok((open(app).await?, Notes(None))) };
    let service = turns::services(app).await?.sandboxes;
    let wanted = service.wanted_of(&row).await?;
    let found = service.workspaces(&wanted).await?.with_context(|| {
        format!("the files of sandbox {id} go nowhere: its template has `sync.enabled = false`")
    })?;
    Ok((found, Notes(Some((service, wanted)))))
}

/// The row of a sandbox that has a template (V6); others have none.
pub struct Notes(Option<(SandboxService, Wanted)>);

impl Notes {
    pub async fn synced(&self, workspaces: &Workspaces, version: Option<&CommitRef>) {
        if let Notes(Some((service, wanted))) = self {
            service.note_synced(wanted, workspaces, version).await;
        }
    }
}

pub async fn open(app: &App) -> Result<Workspaces> {
    let settings = settings(&app.settings);
    let bucket = bucket(&app.settings).await?;
    let workspaces = Workspaces::new(app.sandboxes.clone(), bucket, Arc::new(SystemClock), settings);
    let turnstile = LeaseTurnstile::new(app.stores.leases.clone());
    let account = Account::new(AccountId::LOCAL, app.stores.stored.clone());
    Ok(workspaces
        .with_account(account)
        .with_turnstile(Arc::new(turnstile))
        .with_memory(Arc::new(FileMemory::new(&app.settings.data))))
}
