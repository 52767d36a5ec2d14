//! What an account uses of its limits.

use super::limit::{AccountLimits, Limit};
use crate::{Result, Services, ports::store::Day};
use seawall_api::{
    AccountId,
    account::{AccountUsage, LimitUse},
};

impl Services {
    /// Every limit of an account that counts something, with what is in use now. Bounds per sandbox have no use of
    /// their own and are left out.
    pub async fn account_usage(&self, account: AccountId) -> Result<AccountUsage> {
        let limits = self.accounts.settings(account).await?.limits;
        let counts = self.sandboxes.boxes().counts(account).await?;
        let conversations = self.stores.conversations.count(account).await?;
        let charged = self.stores.tokens.charge(account, &[], Day::of(self.clock.now())).await?;
        let stored = self.stores.stored.total(account).await?;
        let uses = [
            (Limit::Sandboxes, counts.sandboxes),
            (Limit::RunningSandboxes, counts.running),
            (Limit::DiskMb, counts.disk_mb),
            (Limit::Conversations, conversations),
            (Limit::StoredMb, stored.div_ceil(1 << 20)),
            (Limit::TokensPerDay, charged.day),
            (Limit::TokensPerMonth, charged.month),
        ];
        let limits = uses.into_iter().map(|(limit, used)| limit_use(&limits, limit, used)).collect();
        Ok(AccountUsage { account_id: account, limits })
    }
}

fn limit_use(limits: &AccountLimits, limit: Limit, used: u64) -> LimitUse {
    let value = limits.get(limit).map(|value| limit.shown(value));
    LimitUse { name: limit.name().to_owned(), value, used: limit.shown(used) }
}
