//! What an account uses of its limits.

use super::limit::Limit;
use crate::{Result, Services, ports::store::Day};
use seawall_api::{AccountId, account::AccountUsage};

impl Services {
    /// Every limit of an account that counts something, with what is in use now. Bounds per sandbox have no use of
    /// their own and are left out.
    pub async fn account_usage(&self, account: AccountId) -> Result<AccountUsage> {
        let limits = self.accounts.settings(account).await?.limits;
        let counts = self.sandboxes.boxes().counts(account).await?;
        let conversations = self.stores.conversations.count(account).await?;
        let charged = self.stores.tokens.charge(account, &[], Day::of(self.clock.now())).await?;
        let stored = self.stores.stored.total(account).await?;
        let ended = self.stores.sandboxes.ended_bytes(account).await?;
        let held = self.sandboxes.boxes().held(account).await;
        let uses = [
            (Limit::Sandboxes, Some(counts.sandboxes)),
            (Limit::RunningSandboxes, Some(counts.running)),
            (Limit::Cpus, None),
            (Limit::MemoryMb, held.memory_bytes.map(to_mb)),
            (Limit::Processes, held.processes),
            (Limit::DiskIoMbS, None),
            (Limit::DiskMb, Some(counts.disk_mb)),
            (Limit::Conversations, Some(conversations)),
            (Limit::StoredMb, Some(to_mb(stored))),
            (Limit::EndedRecordsMb, Some(to_mb(ended))),
            (Limit::TokensPerDay, Some(charged.day)),
            (Limit::TokensPerMonth, Some(charged.month)),
        ];
        let limits = uses.into_iter().map(|(limit, used)| limit.in_use(&limits, used)).collect();
        Ok(AccountUsage { account_id: account, limits })
    }
}

fn to_mb(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
