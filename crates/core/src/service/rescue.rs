//! Boxes that do not run and are started only to be saved.
//!
//! No limit of their account stands in the way of that, so there is one at a time of each account, nobody may use it unless
//! there is a place for it, and it is stopped again, whatever the saving came to and whoever hangs up meanwhile. What a
//! server that was killed left running is stopped by the reaper.
//!
//! Such starts are for boxes that ended by themselves with unsaved files, for boxes of interrupted turns, and for
//! stopped sandboxes that are deleted. A caller that wants to use one in that time gets 503 `waking`, or the limit's
//! refusal without a free place.

use super::{SandboxService, Wanted};
use crate::{
    Error, Result,
    shares::{Permit, to_its_end},
};
use seawall_api::{AccountId, SandboxId, sandbox::EndReason};
use seawall_sync::engine::SyncReport;
use std::time::Duration;
use tokio::time::timeout;

/// How long a bucket may take to have all that a box has.
const PUSH: Duration = Duration::from_secs(600);

impl SandboxService {
    /// Starts a box that is not to be used, pushes its files, and stops it again.
    pub(crate) async fn rescue(&self, wanted: &Wanted) -> Result<Option<SyncReport>> {
        let permit = self.heavy.rescues.enter(wanted.account).await;
        let (service, wanted) = (self.clone(), wanted.clone());
        to_its_end(async move {
            let (_permit, account, id) = (permit, wanted.account, wanted.sandbox);
            let reason = service.sandboxes.get(id).await?.reason.unwrap_or(EndReason::Stopped);
            service.start_to_save(account, id).await?;
            let done = service.push_in_time(&wanted, None).await;
            let _alone = service.queues.wait(id).await;
            service.end_rescue(account, id, reason).await;
            done
        })
        .await
    }

    /// Pushes, unless the bucket takes too long. `most`: as many bytes as the account may store, where that counts.
    pub(crate) async fn push_in_time(
        &self,
        wanted: &Wanted,
        most: Option<u64>,
    ) -> Result<Option<SyncReport>> {
        let late = |_| Err(Error::unavailable("the bucket does not answer"));
        timeout(PUSH, self.push_within(wanted, most)).await.unwrap_or_else(late)
    }

    /// Stops a box that runs only to be saved. True where it was one. For one who stands in the sandbox's queue.
    pub(crate) async fn end_rescue(&self, account: AccountId, id: SandboxId, reason: EndReason) -> bool {
        if !self.sandboxes.is_saving(account, id) {
            return false;
        }
        if let Err(error) = self.sandboxes.stop_unsaved(id, Duration::ZERO, reason).await {
            tracing::warn!(sandbox = %id, error = %error.chain(), "it was started to be saved, and could not be stopped yet");
        }
        true
    }

    /// The right to start one, where the account has none now.
    pub(crate) fn may_rescue(&self, account: AccountId) -> Option<Permit> {
        self.heavy.rescues.try_enter(account)
    }
}
