//! What an account uses of its limits.

use super::limit::{AccountLimits, Limit};
use crate::{Result, Services};
use jiff::{Timestamp, tz::TimeZone};
use seawall_api::{
    AccountId,
    account::{AccountUsage, LimitUse},
    conversation::Usage,
};

impl Services {
    /// Every limit of an account that counts something, with what is in use now. Bounds per sandbox have no use of
    /// their own and are left out.
    pub async fn account_usage(&self, account: AccountId) -> Result<AccountUsage> {
        let limits = self.accounts.settings(account).await?.limits;
        let counts = self.sandboxes.boxes().counts(account).await?;
        let conversations = self.stores.conversations.count(account).await?;
        let now = self.clock.now();
        let (day, month) = (day_of(now), month_of(now));
        let today = tokens(&self.stores.turns.used_since(account, day).await?);
        let this_month = tokens(&self.stores.turns.used_since(account, month).await?);
        let uses = [
            (Limit::Sandboxes, counts.sandboxes),
            (Limit::RunningSandboxes, counts.running),
            (Limit::DiskMb, counts.disk_mb),
            (Limit::Conversations, conversations),
            (Limit::TokensPerDay, today),
            (Limit::TokensPerMonth, this_month),
        ];
        let limits = uses.into_iter().map(|(limit, used)| limit_use(&limits, limit, used)).collect();
        Ok(AccountUsage { account_id: account, limits })
    }
}

fn limit_use(limits: &AccountLimits, limit: Limit, used: u64) -> LimitUse {
    let value = limits.get(limit).map(|value| limit.shown(value));
    LimitUse { name: limit.name().to_owned(), value, used: limit.shown(used) }
}

fn tokens(usage: &Usage) -> u64 {
    usage.input_tokens.saturating_add(usage.output_tokens).saturating_add(usage.cache_tokens)
}

/// Midnight, in UTC.
pub fn day_of(now: Timestamp) -> Timestamp {
    let day = now.to_zoned(TimeZone::UTC).start_of_day();
    day.map_or(now, |day| day.timestamp())
}

/// Midnight of the first day of the month, in UTC.
pub fn month_of(now: Timestamp) -> Timestamp {
    let first = now.to_zoned(TimeZone::UTC).first_of_month();
    first.and_then(|first| first.start_of_day()).map_or(now, |first| first.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_months_begin_at_midnight() {
        let now: Timestamp = "2026-11-15T21:17:00Z".parse().unwrap();
        assert_eq!(day_of(now), "2026-11-15T00:00:00Z".parse().unwrap());
        assert_eq!(month_of(now), "2026-11-01T00:00:00Z".parse().unwrap());
    }
}
