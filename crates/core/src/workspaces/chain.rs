//! The versions of one workspace, with the right to use them and the count of what is stored for them.

use super::{Account, Workspaces, meter::Metered, slots::Held};
use crate::{Result, ports::Clock};
use seawall_api::{AccountId, SandboxId};
use seawall_sync::{
    bucket::{Scoped, SharedBucket},
    versions::{Pruned, Versions},
};
use std::{fmt, sync::Arc};

/// The service's clock, in milliseconds.
struct Milliseconds(Arc<dyn Clock>);

impl seawall_sync::versions::Clock for Milliseconds {
    fn now_ms(&self) -> i64 {
        self.0.now().as_millisecond()
    }
}

/// A chain of versions that is being used.
pub struct Chain {
    pub versions: Versions,
    pub held: Arc<Held>,
    metered: Option<Metered>,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("versions", &self.versions).finish_non_exhaustive()
    }
}

impl Chain {
    /// Corrects the count after something was stored, and returns how much that was. What cannot be corrected now is too
    /// high until the place is listed.
    pub async fn settle(&self) -> u64 {
        let Some(metered) = &self.metered else { return 0 };
        if let Err(error) = metered.settle().await {
            tracing::warn!(place = self.versions.place(), %error, "the count of what is stored stays too high");
        }
        metered.added().await
    }

    /// Counts what is there, after something was deleted.
    pub async fn recount(&self) {
        let Some(metered) = &self.metered else { return };
        if let Err(error) = metered.recount_alone().await {
            tracing::warn!(place = self.versions.place(), %error, "the count of what is stored stays too high");
        }
    }

    /// Counts anew whatever came of dropping versions: some objects may be gone.
    pub(super) async fn dropped(&self, done: seawall_sync::Result<Pruned>) -> Result<Pruned> {
        self.recount().await;
        Ok(done?)
    }
}

impl Workspaces {
    /// The versions of a sandbox, which may be gone. Waits until its account may use one more chain.
    pub(super) async fn chain(&self, workspace: SandboxId) -> Result<Chain> {
        self.chain_of(self.scoped(workspace)?).await
    }

    pub(super) async fn chain_of(&self, bucket: SharedBucket) -> Result<Chain> {
        let held = self.slots.enter(self.owner(), &bucket.place()).await?;
        Ok(self.chain_in(bucket, held))
    }

    /// As [`Workspaces::chain`], while nobody else uses it.
    pub(super) async fn chain_alone(&self, bucket: SharedBucket) -> Result<Chain> {
        let held = self.slots.enter_alone(self.owner(), &bucket.place()).await?;
        Ok(self.chain_in(bucket, held))
    }

    /// As [`Workspaces::chain_alone`], of what is not counted any more.
    pub(super) async fn uncounted_alone(&self, bucket: SharedBucket) -> Result<Versions> {
        let held = self.slots.enter_alone(self.owner(), &bucket.place()).await?;
        Ok(self.versions_in(bucket, Arc::new(held)))
    }

    fn owner(&self) -> AccountId {
        self.account.as_ref().map_or(AccountId::LOCAL, Account::id)
    }

    pub(super) fn scoped(&self, workspace: SandboxId) -> Result<SharedBucket> {
        self.beneath(&self.settings.prefix(workspace))
    }

    pub(super) fn beneath(&self, prefix: &str) -> Result<SharedBucket> {
        Ok(Arc::new(Scoped::new(self.bucket.clone(), prefix)?))
    }

    fn chain_in(&self, bucket: SharedBucket, held: Held) -> Chain {
        let held = Arc::new(held);
        let metered = self.account.clone().map(|account| Metered::new(bucket.clone(), account));
        let bucket: SharedBucket = match &metered {
            Some(metered) => Arc::new(metered.clone()),
            None => bucket,
        };
        let versions = self.versions_in(bucket, held.clone());
        Chain { versions, held, metered }
    }

    /// Versions that are only read, beside a chain that is used already.
    pub(super) fn versions_at(&self, workspace: SandboxId, held: Arc<Held>) -> Result<Versions> {
        Ok(self.versions_in(self.scoped(workspace)?, held))
    }

    fn versions_in(&self, bucket: SharedBucket, held: Arc<Held>) -> Versions {
        Versions::new(bucket, Arc::new(Milliseconds(self.clock.clone())))
            .with_turnstile(self.turnstile.clone())
            .with_memory(self.memory.clone())
            .with_limits(self.settings.limits)
            .with_gate(held)
    }
}
