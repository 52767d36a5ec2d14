//! Turns, wired from the settings; and the process that runs one apart from its terminal.

use crate::{app::App, config::templates, memory::FileMemory, workspaces};
use anyhow::{Context, Result};
use async_trait::async_trait;
use seawall_api::{AccountId, ErrorKind, TurnId, account::Account};
use seawall_core::{
    Services, Turns,
    accounts::{self, Ledger},
    delivery::Courier,
    hooks::Hooks,
    ports::{Clock as _, SystemClock, store::Page},
    service::SandboxService,
    turns::TurnParts,
    workspaces::{Buckets, LeaseTurnstile, WorkspaceMaker},
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

/// Everything, as a server has it.
pub async fn services(app: &App) -> Result<Services> {
    let settings = &app.settings;
    let clock = Arc::new(SystemClock);
    let buckets = Opened { default: settings.sync.bucket(&settings.data), own: OnceCell::new() };
    let maker = WorkspaceMaker::new(
        app.sandboxes.clone(),
        Arc::new(buckets),
        clock.clone(),
        workspaces::settings(settings),
    )
    .with_turnstile(Arc::new(LeaseTurnstile::new(app.stores.leases.clone())))
    .with_memory(Arc::new(FileMemory::new(&settings.data)))
    .with_stored(app.stores.stored.clone());
    let catalog = app.catalog();
    let stores = accounts::limited(app.stores.clone(), &catalog);
    let sandboxes = app.sandboxes.clone().with_ledger(Ledger::new(
        stores.sandboxes.clone(),
        stores.stored.clone(),
        catalog.clone(),
    ));
    let hooks = Hooks::new(stores.hook_runs.clone(), stores.outbox.clone(), sandboxes.clone(), clock.clone())
        .with_notes(stores.sandboxes.clone(), stores.conversations.clone());
    let templates = Arc::new(templates(&settings.agents, &settings.data)?);
    let service =
        SandboxService::new(sandboxes, maker, hooks.clone(), stores.sandboxes.clone(), clock.clone())
            .with_templates(templates.clone(), stores.conversations.clone())
            .with_turns(stores.turns.clone())
            .with_mounts(settings.mounts.clone())
            .with_timeouts(settings.server.timeouts)
            .with_accounts(catalog.clone(), settings.accounts.allow_unlimited_disk);
    let gateway = HttpGateway::new(settings.agents.models.clone()).context("cannot speak to models")?;
    let turns = Turns::new(TurnParts {
        accounts: catalog.clone(),
        service: service.clone(),
        hooks,
        templates,
        agents: settings.agents.agents.clone(),
        gateway: Some(Arc::new(gateway)),
        courier: courier(app)?,
        claims: app.claims.clone(),
        clock: clock.clone(),
        node: app.node.clone(),
        boot: boot(),
        secrets: Arc::new(|name| std::env::var(name).ok().filter(|value| !value.is_empty())),
        stores: stores.clone(),
    });
    Ok(Services {
        sandboxes: service,
        turns,
        stores,
        keys: app.keys()?.with_accounts(catalog.clone()),
        accounts: catalog,
        clock,
        delete_terminates_sandbox: settings.server.delete_terminates_sandbox,
    })
}

pub fn courier(app: &App) -> Result<Courier> {
    let courier = Courier::new(app.stores.outbox.clone(), app.stores.messages.clone());
    Ok(courier.with_webhooks(Arc::new(HttpWebhooks::new()?)))
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
