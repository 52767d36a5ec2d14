//! What turns need of others, as small as it can be.

use async_trait::async_trait;
use futures::future::BoxFuture;
use seawall_core::{
    Error, Result,
    agents::ModelApi,
    budget::Budget,
    hooks::{Hook, HookContext, HookKind, Moment},
    ports::gateway::{Access, Gateway, WebhookCall, Webhooks},
    workspaces::Buckets,
};
use seawall_sync::bucket::SharedBucket;
use seawall_wire::Duplex;
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// Buckets that cannot be opened while they are away. Once they can, files go nowhere.
#[derive(Debug, Clone, Default)]
pub struct AwayBuckets(Arc<AtomicBool>);

impl AwayBuckets {
    pub fn take_away(&self, away: bool) {
        self.0.store(away, Ordering::Relaxed);
    }
}

#[async_trait]
impl Buckets for AwayBuckets {
    async fn open(&self, _url: Option<&str>) -> Result<Option<SharedBucket>> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Error::unavailable("a test took the bucket away")),
            false => Ok(None),
        }
    }
}

/// Buckets whose opening waits at a gate while that is shut. Files go nowhere.
#[derive(Debug, Clone)]
pub struct GatedBuckets {
    shut: watch::Sender<bool>,
    /// How many have come to the gate while it was shut.
    came: watch::Sender<u32>,
}

impl GatedBuckets {
    pub fn new() -> GatedBuckets {
        GatedBuckets { shut: watch::Sender::new(false), came: watch::Sender::new(0) }
    }

    pub fn shut(&self) {
        self.shut.send_replace(true);
    }

    pub fn open(&self) {
        self.shut.send_replace(false);
    }

    /// Ends when somebody waits at the gate.
    pub async fn came(&self) {
        self.came.subscribe().wait_for(|came| *came > 0).await.unwrap();
    }
}

#[async_trait]
impl Buckets for GatedBuckets {
    async fn open(&self, _url: Option<&str>) -> Result<Option<SharedBucket>> {
        if *self.shut.borrow() {
            self.came.send_modify(|came| *came += 1);
            self.shut.subscribe().wait_for(|shut| !shut).await.unwrap();
        }
        Ok(None)
    }
}

/// Buckets that cannot be opened, and take ten seconds to fail.
#[derive(Debug)]
pub struct SlowFailure;

#[async_trait]
impl Buckets for SlowFailure {
    async fn open(&self, _url: Option<&str>) -> Result<Option<SharedBucket>> {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Err(Error::unavailable("a test keeps the bucket out of reach"))
    }
}

/// A gateway without a key.
#[derive(Default)]
pub struct Keyless {
    /// The budget from which it would reserve.
    pub budget: OnceLock<Budget>,
}

#[async_trait]
impl Gateway for Keyless {
    async fn serve(&self, _connection: Box<dyn Duplex>, _access: Arc<Access>) {}

    fn check(&self, api: ModelApi) -> Result<()> {
        Err(Error::unavailable(format!("there is no key for {api:?}; set it")))
    }

    fn count_in(&self, budget: &Budget) {
        self.budget.set(budget.clone()).unwrap();
    }
}

/// Somebody else's server.
#[derive(Debug, Default)]
pub struct FakeWebhooks {
    pub calls: Mutex<Vec<WebhookCall>>,
    /// How many more calls it answers with an error.
    pub failures: Mutex<u32>,
}

#[async_trait]
impl Webhooks for FakeWebhooks {
    async fn call(&self, call: &WebhookCall) -> Result<()> {
        self.calls.lock().unwrap().push(call.clone());
        let mut failures = self.failures.lock().unwrap();
        if *failures == 0 {
            return Ok(());
        }
        *failures -= 1;
        Err(Error::unavailable("it answered 503"))
    }
}

/// A hook in Rust.
pub struct Own {
    kind: HookKind,
    work: Box<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>,
}

impl Own {
    pub fn hook(
        kind: HookKind,
        work: impl Fn() -> BoxFuture<'static, Result<()>> + Send + Sync + 'static,
    ) -> Arc<dyn Hook> {
        Arc::new(Own { kind, work: Box::new(work) })
    }
}

#[async_trait]
impl Hook for Own {
    fn kind(&self) -> HookKind {
        self.kind
    }

    fn name(&self) -> &str {
        "own"
    }

    async fn run(&self, _context: &HookContext, _moment: &Moment) -> Result<()> {
        (self.work)().await
    }
}
