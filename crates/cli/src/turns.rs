//! Turns, wired from the settings; and the process that runs one apart from its terminal.

use crate::{
    app::App,
    config::{machine, templates},
    memory::FileMemory,
    workspaces,
};
use anyhow::{Context, Result};
use async_trait::async_trait;
use seawall_api::{AccountId, ErrorKind, TurnId, account::Account};
use seawall_core::{
    ServiceParts, Services, Turns,
    ports::{Clock as _, SystemClock, store::Page},
    workspaces::{Buckets, LeaseTurnstile},
};
use seawall_gateway::{HttpGateway, HttpWebhooks};
use seawall_sync::{bucket::SharedBucket, stores};
use std::{
    os::unix::fs::OpenOptionsExt,
    process::{Command, Stdio},
    sync::Arc,
};
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

pub async fn open(app: &App) -> Result<Turns> {
    Ok(services(app).await?.turns)
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
        workspaces: workspaces::settings(settings),
        turnstile: Some(Arc::new(LeaseTurnstile::new(stores.leases.clone()))),
        memory: Arc::new(FileMemory::new(&settings.data)),
        templates: templates(&settings.agents, &settings.data)?,
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

/// This boot of the machine, by the name that the kernel gave it. Unlike the time of the boot, no set clock changes it.
fn boot() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The account of the command line.
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

/// A process of its own runs the turn: Ctrl-C or a closed terminal ends only the view.
pub fn run_apart(app: &App, turn: TurnId) -> Result<()> {
    let log = app.settings.data.join("turns.log");
    let log = std::fs::File::options().create(true).append(true).mode(0o600).open(log)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--data").arg(&app.settings.data);
    if let Some(config) = &app.config {
        command.arg("--config").arg(config);
    }
    command.args(["run-turn", &turn.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().context("cannot start the process that runs the turn")?;
    Ok(())
}

/// Turns whose process died are taken up again, by processes of their own.
pub async fn take_up(app: &App) -> Result<()> {
    let mut page = Page::first(100);
    loop {
        let running = app.stores.turns.running(&page).await?;
        // Turns of other accounts are their server's, which holds them to their limits.
        for turn in running.items.into_iter().filter(|turn| turn.account_id == AccountId::LOCAL) {
            let id = seawall_api::SandboxId::try_from(turn.id.as_uuid())?;
            // The process that runs it holds the claim.
            if app.claims.try_claim(id).await?.is_some() {
                run_apart(app, turn.id)?;
            }
        }
        match running.next {
            Some(next) => page = Page::first(100).after(next),
            None => return Ok(()),
        }
    }
}
