//! A provider around another one that fails, dawdles and cuts connections, as told.

use super::{cut::CutAfter, lock};
use crate::{
    Error, Result,
    ports::{AccountTotals, BoxEvents, BoxInfo, Capabilities, Provider, Volumes},
};
use async_trait::async_trait;
use seawall_api::{AccountId, ErrorKind, SandboxId, sandbox::SandboxSpec};
use seawall_wire::Duplex;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

/// The calls of a provider that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    Create,
    Start,
    Stop,
    Remove,
    Get,
    List,
    Watch,
    Connect,
    Check,
}

#[derive(Debug, Default)]
struct Plan {
    failures: HashMap<Op, (u32, ErrorKind)>,
    delays: HashMap<Op, Duration>,
    cut_after: Option<usize>,
}

/// What goes wrong from now on. Cheap to clone; all clones are one plan.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

impl Faults {
    /// The next `times` calls of `op` fail without reaching the provider.
    pub fn fail(&self, op: Op, times: u32, kind: ErrorKind) {
        lock(&self.0).failures.insert(op, (times, kind));
    }

    /// Every call of `op` waits first.
    pub fn delay(&self, op: Op, by: Duration) {
        lock(&self.0).delays.insert(op, by);
    }

    /// Each connection given out from now on dies after this many bytes, read and written together.
    pub fn cut_after(&self, bytes: usize) {
        lock(&self.0).cut_after = Some(bytes);
    }

    /// Nothing goes wrong any more. Connections that were given out to be cut still will be.
    pub fn heal(&self) {
        *lock(&self.0) = Plan::default();
    }

    async fn meet(&self, op: Op) -> Result<()> {
        let delay = lock(&self.0).delays.get(&op).copied();
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        match lock(&self.0).failures.get_mut(&op) {
            Some((times, kind)) if *times > 0 => {
                *times -= 1;
                Err(Error::new(*kind, format!("{op:?} fails because a test said so")))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Clone)]
pub struct FaultyProvider {
    inner: Arc<dyn Provider>,
    faults: Faults,
}

impl fmt::Debug for FaultyProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyProvider").field("faults", &self.faults).finish_non_exhaustive()
    }
}

impl FaultyProvider {
    pub fn new(inner: Arc<dyn Provider>) -> Self {
        FaultyProvider::with(inner, Faults::default())
    }

    /// One whose plan others have already.
    pub fn with(inner: Arc<dyn Provider>, faults: Faults) -> Self {
        FaultyProvider { inner, faults }
    }

    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }
}

#[async_trait]
impl Provider for FaultyProvider {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn check(&self) -> Result<()> {
        self.faults.meet(Op::Check).await?;
        self.inner.check().await
    }

    async fn probe(&self) -> Result<()> {
        self.faults.meet(Op::Check).await?;
        self.inner.probe().await
    }

    fn sums_limits(&self) -> bool {
        self.inner.sums_limits()
    }

    async fn prepare(&self, spec: &SandboxSpec, account: AccountId) -> Result<()> {
        self.inner.prepare(spec, account).await
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec, account: AccountId) -> Result<BoxInfo> {
        self.faults.meet(Op::Create).await?;
        self.inner.create(id, spec, account).await
    }

    async fn set_account_totals(&self, account: AccountId, totals: &AccountTotals) -> Result<()> {
        self.inner.set_account_totals(account, totals).await
    }

    async fn start(&self, id: SandboxId) -> Result<BoxInfo> {
        self.faults.meet(Op::Start).await?;
        self.inner.start(id).await
    }

    async fn stop(&self, id: SandboxId, grace: Duration) -> Result<()> {
        self.faults.meet(Op::Stop).await?;
        self.inner.stop(id, grace).await
    }

    async fn has_volume(&self, name: &str) -> Result<bool> {
        self.inner.has_volume(name).await
    }

    async fn remove(&self, id: SandboxId, volumes: Volumes) -> Result<()> {
        self.faults.meet(Op::Remove).await?;
        self.inner.remove(id, volumes).await
    }

    async fn get(&self, id: SandboxId) -> Result<BoxInfo> {
        self.faults.meet(Op::Get).await?;
        self.inner.get(id).await
    }

    async fn list(&self) -> Result<Vec<BoxInfo>> {
        self.faults.meet(Op::List).await?;
        self.inner.list().await
    }

    async fn ids(&self) -> Result<Vec<SandboxId>> {
        self.faults.meet(Op::List).await?;
        self.inner.ids().await
    }

    async fn watch(&self) -> Result<BoxEvents> {
        self.faults.meet(Op::Watch).await?;
        self.inner.watch().await
    }

    async fn remove_account(&self, account: AccountId) -> Result<()> {
        self.inner.remove_account(account).await
    }

    fn connects_cheaply(&self) -> bool {
        self.inner.connects_cheaply()
    }

    async fn connect(&self, id: SandboxId) -> Result<Box<dyn Duplex>> {
        self.faults.meet(Op::Connect).await?;
        let connection = self.inner.connect(id).await?;
        let cut = lock(&self.faults.0).cut_after;
        Ok(match cut {
            Some(bytes) => Box::new(CutAfter::new(connection, bytes)),
            None => connection,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_counted_and_delays_are_waited() {
        let faults = Faults::default();
        faults.fail(Op::Start, 2, ErrorKind::Unavailable);
        faults.delay(Op::Get, Duration::from_secs(5));
        for _ in 0..2 {
            assert!(faults.meet(Op::Start).await.unwrap_err().is_retryable());
        }
        faults.meet(Op::Start).await.unwrap();
        let before = tokio::time::Instant::now();
        faults.meet(Op::Get).await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(5));
        faults.fail(Op::List, 1, ErrorKind::Internal);
        faults.heal();
        faults.meet(Op::List).await.unwrap();
    }
}
