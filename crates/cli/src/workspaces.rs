//! The workspace service, wired from the settings: the bucket, and a database where the bucket needs one.

use crate::{app::App, commands::db, config::Settings, memory::FileMemory};
use anyhow::{Context, Result};
use async_trait::async_trait;
use seawall_core::{
    Workspaces,
    ports::SystemClock,
    workspaces::{LeaseTurnstile, WorkspaceSettings},
};
use seawall_stores::SqlStore;
use seawall_sync::{bucket::SharedBucket, stores, versions::Turnstile};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// A database that is opened, once, when a bucket turns out to need its leases.
struct LazyTurnstile {
    settings: Settings,
    opened: OnceCell<LeaseTurnstile>,
}

impl LazyTurnstile {
    async fn open(&self) -> Result<LeaseTurnstile> {
        Ok(LeaseTurnstile::new(SqlStore::new(db::open(&self.settings).await?).stores().leases))
    }
}

#[async_trait]
impl Turnstile for LazyTurnstile {
    async fn admit(&self, name: &str, who: &str) -> seawall_sync::Result<bool> {
        let opened = self.opened.get_or_try_init(|| self.open()).await.map_err(|error| {
            seawall_sync::Error::unavailable(format!("{error:#}")).during("opening the database for a lease")
        })?;
        opened.admit(name, who).await
    }
}

/// The bucket that the settings name.
pub async fn bucket(settings: &Settings) -> Result<SharedBucket> {
    let url = settings.sync.bucket(&settings.data);
    let opened = stores::open(&url, &|name| std::env::var(name).ok()).await;
    opened.with_context(|| format!("cannot use the bucket {url}"))
}

pub async fn open(app: &App) -> Result<Workspaces> {
    let sync = &app.settings.sync;
    let settings = WorkspaceSettings {
        key_prefix: sync.key_prefix.clone(),
        stale_after: sync.stale_after,
        limits: sync.limits,
        ..WorkspaceSettings::default()
    };
    let bucket = bucket(&app.settings).await?;
    let workspaces = Workspaces::new(app.sandboxes.clone(), bucket, Arc::new(SystemClock), settings);
    let turnstile = LazyTurnstile { settings: app.settings.clone(), opened: OnceCell::new() };
    Ok(workspaces
        .with_turnstile(Arc::new(turnstile))
        .with_memory(Arc::new(FileMemory::new(&app.settings.data))))
}
