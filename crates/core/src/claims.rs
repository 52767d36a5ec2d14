//! Claims to sandboxes and turns within the one server of a data folder: at most one task makes, ends or runs one at a time.

use crate::{
    Result,
    ports::{Claim, Claims},
    queues::Queues,
};
use async_trait::async_trait;
use seawall_api::SandboxId;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The claims of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct HostClaims {
    queues: Queues,
    /// The last epoch of a control wire. One counter serves all sandboxes.
    epoch: Arc<AtomicU64>,
}

impl HostClaims {
    /// Claims of a server whose epochs are above every epoch of the servers before it.
    pub fn after_epoch(last: u64) -> HostClaims {
        HostClaims { queues: Queues::default(), epoch: Arc::new(AtomicU64::new(last)) }
    }
}

#[async_trait]
impl Claims for HostClaims {
    async fn claim(&self, id: SandboxId) -> Result<Claim> {
        Ok(Box::new(self.queues.wait(id).await))
    }

    async fn try_claim(&self, id: SandboxId) -> Result<Option<Claim>> {
        Ok(self.queues.try_take(id).map(|turn| Box::new(turn) as Claim))
    }

    async fn next_epoch(&self, _id: SandboxId) -> Result<u64> {
        Ok(self.epoch.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_claim_is_held_once_and_epochs_grow() {
        let (claims, id) = (HostClaims::after_epoch(7), SandboxId::generate());
        let held = claims.claim(id).await.unwrap();
        assert!(claims.try_claim(id).await.unwrap().is_none());
        assert!(claims.clone().try_claim(SandboxId::generate()).await.unwrap().is_some());
        drop(held);
        assert!(claims.try_claim(id).await.unwrap().is_some());
        assert_eq!((claims.next_epoch(id).await.unwrap(), claims.next_epoch(id).await.unwrap()), (8, 9));
    }
}
