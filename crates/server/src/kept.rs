//! How many idempotency keys an account may have, and how many bytes of answers are kept for their repeats.
//!
//! The counts are the store's, looked up now and then, with what was added since. An account at its limit gets no new keys until
//! old ones are over; an answer that does not fit is kept as one that was too large, so that its call is not done again.

use crate::{error::ApiResult, state::AppState};
use seawall_api::AccountId;
use seawall_core::{Error, Result};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Bounds of one account. The operator's own has none.
const MAX_KEYS: u64 = 200_000;
const MAX_BYTES: u64 = 64 << 20;
/// How long a look is good, and how long where the account is at its limit.
const FRESH: Duration = Duration::from_secs(60);
const FRESH_AT_LIMIT: Duration = Duration::from_secs(5);

/// What is kept, by account.
#[derive(Debug, Default)]
pub struct Kept(Mutex<HashMap<AccountId, Use>>);

#[derive(Debug, Clone, Copy)]
struct Use {
    keys: u64,
    bytes: u64,
    looked: Instant,
}

impl Use {
    fn is_fresh(&self) -> bool {
        let full = self.keys >= MAX_KEYS || self.bytes >= MAX_BYTES;
        self.looked.elapsed() < if full { FRESH_AT_LIMIT } else { FRESH }
    }
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, HashMap<AccountId, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more key of an account. 429 `limit_reached` where it has as many as it may.
    pub async fn admit(&self, state: &AppState, account: AccountId) -> ApiResult<()> {
        if account == AccountId::LOCAL {
            return Ok(());
        }
        let known = self.lock().get(&account).filter(|found| found.is_fresh()).copied();
        if known.is_none() {
            self.look(state, account).await?;
        }
        let mut all = self.lock();
        let Some(found) = all.get_mut(&account) else { return Ok(()) };
        if found.keys >= MAX_KEYS {
            let advice = "wait until old keys are over, or send calls without a key";
            return Err(Error::limit_reached("idempotency_keys", MAX_KEYS, found.keys, advice).into());
        }
        found.keys += 1;
        Ok(())
    }

    async fn look(&self, state: &AppState, account: AccountId) -> Result<()> {
        let (keys, bytes) = state.services().stores.idempotency.kept(account).await?;
        let mut all = self.lock();
        // Accounts that have not called for a while are looked up again.
        all.retain(|_, found| found.looked.elapsed() < FRESH);
        all.insert(account, Use { keys, bytes, looked: Instant::now() });
        Ok(())
    }

    /// Counts an answer that is to be kept. False where the account keeps too much already.
    pub fn fits(&self, account: AccountId, bytes: u64) -> bool {
        if account == AccountId::LOCAL {
            return true;
        }
        let mut all = self.lock();
        let Some(found) = all.get_mut(&account) else { return true };
        let fits = found.bytes + bytes <= MAX_BYTES;
        if fits {
            found.bytes += bytes;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn k5_answers_that_are_kept_have_a_bound_for_each_account() {
        let (kept, mine, theirs) = (Kept::default(), AccountId::generate(), AccountId::generate());
        for account in [mine, theirs] {
            kept.lock().insert(account, Use { keys: 0, bytes: 0, looked: Instant::now() });
        }
        let large = 256 << 10;
        let count = (0..1000).filter(|_| kept.fits(mine, large)).count() as u64;
        assert_eq!(count, MAX_BYTES / large);
        assert!(kept.fits(mine, 0) && kept.fits(theirs, large) && kept.fits(AccountId::LOCAL, u64::MAX));
        assert!(kept.lock()[&mine].is_fresh());
        tokio::time::advance(FRESH_AT_LIMIT).await;
        assert!(!kept.lock()[&mine].is_fresh() && kept.lock()[&theirs].is_fresh());
    }
}
