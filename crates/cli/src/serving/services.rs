//! The service of a server, wired from the settings.

use crate::{
    app::App,
    config::{Settings, machine},
    memory::FileMemory,
};
use anyhow::{Context, Result};
use async_trait::async_trait;
use seawall_api::{AccountId, ErrorKind, account::Account};
use seawall_core::{
    ServiceParts, Services,
    ports::{Clock as _, SystemClock},
    workspaces::{Buckets, LeaseTurnstile, WorkspaceSettings},
};
use seawall_gateway::{HttpGateway, HttpWebhooks};
use seawall_sync::{bucket::SharedBucket, stores};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Buckets by their address. The server's own is opened once.
struct Opened {
    default: String,
    own: OnceCell<SharedBucket>,
}

#[async_trait]
impl Buckets for Opened {
    async fn open(&self, url: Option<&str>) -> seawall_core::Result<Option<SharedBucket>> {
        let open = async |url: &str| -> seawall_core::Result<SharedBucket> {
            let opened = stores::open(url, &|name| std::env::var(name).ok()).await;
            opened.map_err(|error| {
                // One with a secret in it is refused, and must not be told.
                let shown = if url.contains('@') { "of that address" } else { url };
                let message = format!("cannot use the bucket {shown}");
                seawall_core::Error::new(error.kind(), message).with_source(error)
            })
        };
        match url {
            Some(url) if url != self.default => open(url).await.map(Some),
            _ => Ok(Some(self.own.get_or_try_init(|| open(&self.default)).await?.clone())),
        }
    }
}

/// The service, wired from the settings.
pub async fn services(app: &App) -> Result<Services> {
    let settings = &app.settings;
    let buckets = Opened { default: settings.sync.bucket(&settings.data), own: OnceCell::new() };
    let gateway = HttpGateway::new(settings.agents.models.clone()).context("cannot speak to models")?;
    let (sandboxes, stores, claims) = (app.sandboxes.clone(), app.stores.clone(), app.claims.clone());
    let parts = ServiceParts {
        boot: boot(),
        limits: settings.accounts.limits(&machine(&settings.data)),
        allow_unlimited_disk: settings.accounts.allow_unlimited_disk,
        buckets: Arc::new(buckets),
        workspaces: workspace_settings(settings),
        turnstile: Some(Arc::new(LeaseTurnstile::new(stores.leases.clone()))),
        memory: Arc::new(FileMemory::new(&settings.data)),
        templates: app.templates.clone(),
        agents: settings.agents.agents.clone(),
        mounts: settings.mounts.clone(),
        source_hosts: settings.source_hosts.clone(),
        timeouts: settings.server.timeouts,
        gateway: Some(Arc::new(gateway)),
        webhooks: Some(Arc::new(HttpWebhooks::new()?)),
        secrets: Arc::new(|name| std::env::var(name).ok().filter(|value| !value.is_empty())),
        signing_secret: app.secret()?,
        delete_terminates_sandbox: settings.server.delete_terminates_sandbox,
        ..ServiceParts::new(sandboxes, stores, claims, Arc::new(SystemClock), app.node.clone())
    };
    Ok(parts.build())
}

pub fn workspace_settings(settings: &Settings) -> WorkspaceSettings {
    let sync = &settings.sync;
    WorkspaceSettings {
        key_prefix: sync.key_prefix.clone(),
        stale_after: sync.stale_after,
        limits: sync.limits,
        bounds: sync.bounds,
        ..WorkspaceSettings::default()
    }
}

/// This boot of the machine, by the name that the kernel gave it. Unlike the time of the boot, no set clock changes it.
fn boot() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The operator's account, which is made with the first server.
pub async fn account(app: &App) -> Result<AccountId> {
    let local = Account::new(AccountId::LOCAL, "local".to_owned(), serde_json::Map::new(), SystemClock.now());
    match app.stores.accounts.get(local.id).await {
        Err(error) if error.kind() == ErrorKind::NotFound => match app.stores.accounts.create(&local).await {
            // Another process was quicker.
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.into()),
            _ => Ok(local.id),
        },
        other => Ok(other.map(|account| account.id)?),
    }
}
