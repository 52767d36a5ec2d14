//! Boxes that do not run and are started only to be saved.
//!
//! No limit of their account stands in the way of that, so there is one at a time of each account, nobody may use it unless
//! there is a place for it, and it is stopped again, whatever the saving came to. What a caller that hung up left running is
//! stopped by the reaper.

use super::SandboxService;
use crate::{Result, shares::Permit};
use seawall_api::{AccountId, SandboxId, sandbox::EndReason};

impl SandboxService {
    /// Does the work while a box runs that is not to be used.
    pub(crate) async fn rescue<T>(
        &self,
        account: AccountId,
        id: SandboxId,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let _permit = self.heavy.rescues.enter(account).await;
        let reason = self.sandboxes.get(id).await?.reason.unwrap_or(EndReason::Stopped);
        self.start_to_save(account, id).await?;
        let done = work.await;
        let _alone = self.queues.wait(id).await;
        self.end_rescue(account, id, reason).await;
        done
    }

    /// Stops a box that runs only to be saved. True where it was one. For one who stands in the sandbox's queue.
    pub(crate) async fn end_rescue(&self, account: AccountId, id: SandboxId, reason: EndReason) -> bool {
        if !self.sandboxes.is_saving(account, id) {
            return false;
        }
        if let Err(error) = self.sandboxes.stop_again(id, reason).await {
            tracing::warn!(sandbox = %id, error = %error.chain(), "it was started to be saved, and could not be stopped yet");
        }
        true
    }

    /// The right to start one, where the account has none now.
    pub(crate) fn may_rescue(&self, account: AccountId) -> Option<Permit> {
        self.heavy.rescues.try_enter(account)
    }
}
