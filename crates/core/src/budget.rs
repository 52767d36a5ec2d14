//! A byte budget for bodies in flight: what requests and answers may hold in memory, per account and per server.
//!
//! Bytes are reserved before they are held. A [`Reservation`] gives them back when it is dropped. An account never has more
//! than its own part, so it cannot take what another one needs; where the server's whole budget is used, waiters are served in
//! the order in which they came.

use crate::{Error, Result};
use seawall_api::{AccountId, ErrorKind};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// How long [`Budget::reserve`] waits for bytes that others hold.
const PATIENCE: Duration = Duration::from_secs(2);
/// The code of the error where there is no room.
pub const MEMORY_BUDGET: &str = "memory_budget";

/// The sizes of a [`Budget`], in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetLimits {
    pub server: u64,
    /// Upper bound for one account. Callers without an account share one such part.
    pub account: u64,
}

/// A byte budget. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    limits: BudgetLimits,
    server: Arc<Semaphore>,
    /// Accounts that hold or await bytes.
    accounts: Mutex<HashMap<Option<AccountId>, Weak<Semaphore>>>,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl Budget {
    /// An account's part is at most the whole.
    pub fn new(limits: BudgetLimits) -> Budget {
        let server = limits.server.clamp(1, MOST);
        let limits = BudgetLimits { server, account: limits.account.clamp(1, server) };
        let semaphore = Arc::new(Semaphore::new(permits(limits.server)));
        Budget(Arc::new(Shared { limits, server: semaphore, accounts: Mutex::default() }))
    }

    pub fn limits(&self) -> BudgetLimits {
        self.0.limits
    }

    /// Bytes of the server's budget that nobody holds.
    pub fn free(&self) -> u64 {
        self.0.server.available_permits() as u64
    }

    /// Returns a reservation of no bytes, which can grow.
    pub fn open(&self, account: Option<AccountId>) -> Reservation {
        let share = self.share(account);
        Reservation { budget: self.clone(), share, held: None }
    }

    /// Reserves bytes at once. None where they are not free now.
    pub fn try_reserve(&self, account: Option<AccountId>, bytes: u64) -> Option<Reservation> {
        let mut reservation = self.open(account);
        reservation.try_grow(bytes).then_some(reservation)
    }

    /// Reserves bytes, and waits a moment for them where others hold them. What is larger than three quarters of the account's
    /// part is reserved as those: it passes where nothing else that is large does. Fails with the code [`MEMORY_BUDGET`], which may be retried.
    pub async fn reserve(&self, account: Option<AccountId>, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.open(account);
        reservation.grow(bytes).await?;
        Ok(reservation)
    }

    fn share(&self, account: Option<AccountId>) -> Arc<Semaphore> {
        let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = accounts.get(&account).and_then(Weak::upgrade) {
            return share;
        }
        accounts.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(permits(self.0.limits.account)));
        accounts.insert(account, Arc::downgrade(&share));
        share
    }
}

/// A permit is a byte, and tokio takes a u32 of them at once.
const MOST: u64 = u32::MAX as u64;

fn permits(bytes: u64) -> usize {
    usize::try_from(bytes.min(MOST)).unwrap_or(usize::MAX)
}

fn number(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Bytes of a [`Budget`] that are held until this is dropped.
pub struct Reservation {
    budget: Budget,
    share: Arc<Semaphore>,
    held: Option<Held>,
}

struct Held {
    account: OwnedSemaphorePermit,
    server: OwnedSemaphorePermit,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Reservation {
    pub fn bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.server.num_permits() as u64)
    }

    /// Reserves more at once. False, and nothing has changed, where that is not free now.
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        if bytes > MOST {
            return false;
        }
        let account = self.share.clone().try_acquire_many_owned(number(bytes));
        let server = self.budget.0.server.clone().try_acquire_many_owned(number(bytes));
        match (account, server) {
            (Ok(account), Ok(server)) => {
                self.hold(Held { account, server });
                true
            }
            _ => false,
        }
    }

    /// Reserves more, and waits a moment for it; see [`Budget::reserve`].
    pub async fn grow(&mut self, bytes: u64) -> Result<()> {
        let most = (self.budget.0.limits.account / 4 * 3).saturating_sub(self.bytes());
        let bytes = bytes.min(most);
        if self.try_grow(bytes) {
            return Ok(());
        }
        let waited = timeout(PATIENCE, async {
            let account = self.share.clone().acquire_many_owned(number(bytes)).await.ok()?;
            let server = self.budget.0.server.clone().acquire_many_owned(number(bytes)).await.ok()?;
            Some(Held { account, server })
        });
        match waited.await {
            Ok(Some(held)) => {
                self.hold(held);
                Ok(())
            }
            _ => Err(no_room(self.budget.0.limits.account)),
        }
    }

    fn hold(&mut self, more: Held) {
        match &mut self.held {
            Some(held) => {
                held.account.merge(more.account);
                held.server.merge(more.server);
            }
            None => self.held = Some(more),
        }
    }

    /// Gives back all but these bytes. Of fewer nothing is given back.
    pub fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes().saturating_sub(bytes);
        let Some(held) = &mut self.held else { return };
        let excess = permits(excess);
        drop((held.account.split(excess), held.server.split(excess)));
    }

    /// Gives back these bytes.
    pub fn release(&mut self, bytes: u64) {
        self.shrink_to(self.bytes().saturating_sub(bytes));
    }

    /// Takes over what another reservation of the same account holds.
    pub fn merge(&mut self, mut other: Reservation) {
        if let Some(held) = other.held.take() {
            self.hold(held);
        }
    }
}

fn no_room(limit: u64) -> Error {
    let message = format!(
        "bodies of this account in flight need more than {limit} bytes of the server's memory, or all accounts together more \
         than it has; send less at once, or try again in a moment"
    );
    Error::new(ErrorKind::Unavailable, message).with_code(MEMORY_BUDGET)
}

/// Estimates what JSON takes in memory once it is parsed: two copies of its bytes, and a value for each element. Texts count
/// as one element, whatever is in them.
pub fn json_weight(json: &[u8]) -> u64 {
    // A `serde_json::Value` has 32 bytes, vectors grow by doubling, and a map's entry has a key too.
    const ELEMENT: u64 = 96;
    let (mut elements, mut in_text, mut escaped) = (1_u64, false, false);
    for byte in json {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b',' | b'[' | b'{') => elements += 1,
            _ => {}
        }
    }
    2 * json.len() as u64 + elements * ELEMENT
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Option<AccountId> = Some(AccountId::LOCAL);

    fn budget(server: u64, account: u64) -> Budget {
        Budget::new(BudgetLimits { server, account })
    }

    #[test]
    fn k5_an_account_has_its_part_and_leaves_the_rest() {
        let budget = budget(100, 40);
        let other = Some(AccountId::generate());
        let mine = budget.try_reserve(ME, 40).unwrap();
        assert!(budget.try_reserve(ME, 1).is_none());
        let theirs = budget.try_reserve(other, 40).unwrap();
        let nobodys = budget.try_reserve(None, 20).unwrap();
        assert!(budget.try_reserve(None, 1).is_none(), "the server has no more");
        drop(nobodys);
        assert_eq!(budget.free(), 20);
        drop((mine, theirs));
        assert_eq!(budget.free(), 100);
        drop(budget.try_reserve(other, 1));
        assert_eq!(budget.0.accounts.lock().unwrap().len(), 1, "accounts that hold nothing are forgotten");
    }

    #[test]
    fn k5_reservations_grow_shrink_and_merge() {
        let budget = budget(100, 50);
        let mut one = budget.open(ME);
        assert!(one.try_grow(30) && one.try_grow(20) && !one.try_grow(1));
        assert_eq!(one.bytes(), 50);
        one.release(20);
        one.shrink_to(40);
        assert_eq!((one.bytes(), budget.free()), (30, 70));
        one.merge(budget.try_reserve(ME, 10).unwrap());
        assert_eq!((one.bytes(), budget.free()), (40, 60));
        drop(one);
        assert_eq!(budget.free(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn k5_what_is_not_free_is_waited_for_and_then_refused() {
        let budget = budget(100, 50);
        let held = [budget.reserve(ME, 36).await.unwrap(), budget.reserve(ME, 14).await.unwrap()];
        let error = budget.reserve(ME, 1).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), (MEMORY_BUDGET, true));
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.reserve(ME, 1000).await.map(|all| all.bytes()) }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(
            waiting.await.unwrap().unwrap(),
            36,
            "what is larger than most of the part passes as that"
        );
        assert_eq!(budget.free(), 100);
    }

    #[test]
    fn json_of_many_elements_is_heavier_than_its_text() {
        let list = format!("[{}0]", "0,".repeat(1000));
        assert!(json_weight(list.as_bytes()) > 96 * 1000);
        let text = format!("{{\"a\": \"{}\\\",[\"}}", ",".repeat(1000));
        assert!(json_weight(text.as_bytes()) < 3 * 1000);
    }
}
