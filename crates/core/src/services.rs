//! The composition root: the one place where the parts of the service are put together.

mod activity;

pub use activity::Activity;

use crate::{
    Result, Sandboxes, Turns,
    accounts::{self, AccountCatalog, AccountLimits, Ledger},
    delivery::Courier,
    hooks::{Hook, Hooks},
    keys::Keys,
    mounts::MountGrants,
    ports::{
        Claims, Clock,
        gateway::{Gateway, Webhooks},
        store::Stores,
    },
    providers::Providers,
    repositories::SourceHosts,
    rows::RowRecords,
    service::SandboxService,
    templates::Templates,
    turns::{Secrets, TurnParts},
    workspaces::{Buckets, WorkspaceMaker, WorkspaceSettings},
};
use async_trait::async_trait;
use seawall_api::sandbox::Timeouts;
use seawall_sync::{
    bucket::SharedBucket,
    versions::{Memory, NoMemory, Turnstile},
};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The operations that a server, or another program at the edge, calls.
#[derive(Clone)]
pub struct Services {
    pub sandboxes: SandboxService,
    pub turns: Turns,
    pub stores: Stores,
    pub hooks: Hooks,
    pub courier: Courier,
    pub keys: Keys,
    pub accounts: AccountCatalog,
    pub clock: Arc<dyn Clock>,
    /// C5: the default of requests that do not decide it.
    pub delete_terminates_sandbox: bool,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

/// The parts of a service.
///
/// [`ServiceParts::new`] takes the parts that every service needs. The other fields have defaults: no limits, no bucket,
/// no templates, no gateway. [`ServiceParts::build`] makes the service.
#[derive(Clone)]
pub struct ServiceParts {
    pub sandboxes: Sandboxes,
    pub stores: Stores,
    pub claims: Arc<dyn Claims>,
    pub clock: Arc<dyn Clock>,
    /// The name of this machine in leases.
    pub node: String,
    /// The boot of this machine, as the kernel names it. `None` means that the machine never goes down during a turn.
    pub boot: Option<String>,
    /// The limits of accounts whose settings have none.
    pub limits: AccountLimits,
    /// Whether accounts may have volumes that no limit holds for.
    pub allow_unlimited_disk: bool,
    pub buckets: Arc<dyn Buckets>,
    pub workspaces: WorkspaceSettings,
    /// Serialises commits to buckets that do not refuse a second create.
    pub turnstile: Option<Arc<dyn Turnstile>>,
    pub memory: Arc<dyn Memory>,
    /// Hooks of every template, after the defaults.
    pub hooks: Vec<Arc<dyn Hook>>,
    pub templates: Templates,
    /// C1: the template of an agent id.
    pub agents: BTreeMap<String, String>,
    pub mounts: MountGrants,
    /// The hosts whose repositories tenants may name.
    pub source_hosts: SourceHosts,
    pub timeouts: Timeouts,
    pub gateway: Option<Arc<dyn Gateway>>,
    pub webhooks: Option<Arc<dyn Webhooks>>,
    /// The server's environment, for tokens that templates name.
    pub secrets: Secrets,
    /// Signs the tokens of keys.
    pub signing_secret: [u8; 32],
    pub delete_terminates_sandbox: bool,
}

impl fmt::Debug for ServiceParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceParts").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ServiceParts {
    pub fn new(
        sandboxes: Sandboxes,
        stores: Stores,
        claims: Arc<dyn Claims>,
        clock: Arc<dyn Clock>,
        node: impl Into<String>,
    ) -> ServiceParts {
        ServiceParts {
            sandboxes,
            stores,
            claims,
            clock,
            node: node.into(),
            boot: None,
            limits: AccountLimits::NONE,
            allow_unlimited_disk: true,
            buckets: Arc::new(NoBucket),
            workspaces: WorkspaceSettings::default(),
            turnstile: None,
            memory: Arc::new(NoMemory),
            hooks: Vec::new(),
            templates: Templates::default(),
            agents: BTreeMap::new(),
            mounts: MountGrants::default(),
            source_hosts: SourceHosts::default(),
            timeouts: Timeouts::default(),
            gateway: None,
            webhooks: None,
            secrets: Arc::new(|_| None),
            signing_secret: [0; 32],
            delete_terminates_sandbox: false,
        }
    }

    pub fn build(self) -> Services {
        let clock = self.clock;
        let catalog = AccountCatalog::new(self.stores.accounts.clone(), self.limits);
        let stores = accounts::limited(self.stores, &catalog);
        let providers = Some(self.sandboxes.providers().clone());
        let ledger = Ledger::new(stores.sandboxes.clone(), stores.stored.clone(), catalog.clone(), providers);
        let boxes = self.sandboxes.with_ledger(ledger);
        let mut maker = WorkspaceMaker::new(boxes.clone(), self.buckets, clock.clone(), self.workspaces)
            .with_memory(self.memory)
            .with_stored(stores.stored.clone());
        if let Some(turnstile) = self.turnstile {
            maker = maker.with_turnstile(turnstile);
        }
        let hooks = Hooks::new(stores.hook_runs.clone(), stores.outbox.clone(), boxes.clone(), clock.clone())
            .with_notes(stores.sandboxes.clone(), stores.conversations.clone());
        let hooks = self.hooks.into_iter().fold(hooks, Hooks::with);
        let mut courier = Courier::new(stores.outbox.clone(), stores.messages.clone());
        if let Some(webhooks) = self.webhooks {
            courier = courier.with_webhooks(webhooks);
        }
        let templates = Arc::new(self.templates);
        let sandboxes =
            SandboxService::new(boxes, maker, hooks.clone(), stores.sandboxes.clone(), clock.clone())
                .with_templates(templates.clone(), stores.conversations.clone())
                .with_turns(stores.turns.clone())
                .with_mounts(self.mounts)
                .with_sources(self.source_hosts, self.gateway.clone())
                .with_timeouts(self.timeouts)
                .with_accounts(catalog.clone(), self.allow_unlimited_disk);
        let turns = Turns::new(TurnParts {
            accounts: catalog.clone(),
            stores: stores.clone(),
            service: sandboxes.clone(),
            hooks: hooks.clone(),
            templates,
            agents: self.agents,
            gateway: self.gateway,
            courier: courier.clone(),
            claims: self.claims,
            clock: clock.clone(),
            node: self.node,
            boot: self.boot,
            secrets: self.secrets,
        });
        let keys = Keys::new(stores.accounts.clone(), clock.clone(), self.signing_secret)
            .with_accounts(catalog.clone());
        let delete_terminates_sandbox = self.delete_terminates_sandbox;
        Services {
            sandboxes,
            turns,
            stores,
            hooks,
            courier,
            keys,
            accounts: catalog,
            clock,
            delete_terminates_sandbox,
        }
    }
}

impl Sandboxes {
    /// Sandboxes whose records are rows of a store. `node` is the machine that the boxes belong to.
    pub fn on_rows(
        providers: Providers,
        stores: &Stores,
        claims: Arc<dyn Claims>,
        clock: Arc<dyn Clock>,
        node: &str,
    ) -> Sandboxes {
        let records = RowRecords::new(stores.sandboxes.clone(), claims, Some(node.to_owned()));
        Sandboxes::new(providers, Arc::new(records), clock)
    }
}

/// Files go nowhere.
struct NoBucket;

#[async_trait]
impl Buckets for NoBucket {
    async fn open(&self, _: Option<&str>) -> Result<Option<SharedBucket>> {
        Ok(None)
    }
}
