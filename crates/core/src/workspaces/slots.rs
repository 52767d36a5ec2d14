//! How many syncs run at once, and how many of them may be large.
//!
//! What a guest tells of its files is held in memory, several times over, until its sync is done. So each account has a
//! number of syncs, and one of a workspace with many files waits for one of few permits: its account's, then the
//! server's. Nothing of it is in memory before it has them. The operator's own account has no such bounds.

use crate::{Error, Result};
use async_trait::async_trait;
use seawall_api::AccountId;
use seawall_sync::versions::Gate;
use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::sync::{
    OnceCell, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit, RwLock, Semaphore,
};

/// Syncs of an account at once.
const OF_ACCOUNT: usize = 8;
/// Of which so many may be large.
const LARGE_OF_ACCOUNT: usize = 1;
/// Large syncs of all accounts at once.
const LARGE: usize = 2;
/// How long a large sync waits for others.
const PATIENCE: Duration = Duration::from_secs(600);

/// Entries, bytes of names and bytes of a manifest from which on a sync is large.
pub const LARGE_FILES: usize = 20_000;
pub const LARGE_NAMES: u64 = 4 << 20;
const LARGE_MANIFEST: u64 = 8 << 20;

/// Clones share everything but their patience.
#[derive(Clone)]
pub struct Slots {
    inner: Arc<Inner>,
    /// How long [`Slots::enter`] and [`Slots::enter_alone`] wait, and [`Held::large`] at the most. `None`: as long as it takes.
    patience: Option<Duration>,
}

struct Inner {
    accounts: Mutex<HashMap<AccountId, Weak<OfAccount>>>,
    places: Mutex<HashMap<String, Weak<RwLock<()>>>>,
    large: Arc<Semaphore>,
}

struct OfAccount {
    syncs: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").finish_non_exhaustive()
    }
}

impl Default for Slots {
    fn default() -> Self {
        let (accounts, places) = (Mutex::default(), Mutex::default());
        let inner = Inner { accounts, places, large: Arc::new(Semaphore::new(LARGE)) };
        Slots { inner: Arc::new(inner), patience: None }
    }
}

/// The right to use the versions at a place, for one sync or another use. Given back when it is dropped.
pub struct Held {
    slots: Slots,
    account: Option<(Arc<OfAccount>, OwnedSemaphorePermit)>,
    _place: Guard,
    /// The right to hold many entries in memory, once that was needed.
    large: OnceCell<Vec<OwnedSemaphorePermit>>,
}

/// While somebody uses what is at a place, nobody deletes all of it.
enum Guard {
    Used(#[expect(dead_code, reason = "held, not used")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held, not used")] OwnedRwLockWriteGuard<()>),
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl Slots {
    /// Returns the same slots for a caller that gives up with `unavailable` after this time. The server's own rounds
    /// are such callers: an account that keeps its slots occupied must not hold up the others' turn.
    pub fn with_patience(&self, patience: Duration) -> Slots {
        Slots { patience: Some(patience), ..self.clone() }
    }

    /// Waits until an account may run one more sync.
    pub async fn enter(&self, account: AccountId, place: &str) -> Result<Held> {
        self.bounded(async {
            let account = self.account(account).await?;
            let guard = Guard::Used(self.place(place).read_owned().await);
            Ok(self.held(account, guard))
        })
        .await
    }

    fn held(&self, account: Option<(Arc<OfAccount>, OwnedSemaphorePermit)>, guard: Guard) -> Held {
        Held { slots: self.clone(), account, _place: guard, large: OnceCell::new() }
    }

    async fn bounded<T>(&self, wait: impl Future<Output = Result<T>>) -> Result<T> {
        match self.patience {
            None => wait.await,
            Some(patience) => tokio::time::timeout(patience, wait).await.unwrap_or_else(|_| {
                Err(Error::unavailable("other syncs of the account take all its slots, or use this place"))
            }),
        }
    }

    /// As [`Slots::enter`], and waits until nothing is at the place. Nothing begins there while it is held.
    pub async fn enter_alone(&self, account: AccountId, place: &str) -> Result<Held> {
        self.bounded(async {
            let account = self.account(account).await?;
            let guard = Guard::Alone(self.place(place).write_owned().await);
            Ok(self.held(account, guard))
        })
        .await
    }

    async fn account(&self, account: AccountId) -> Result<Option<(Arc<OfAccount>, OwnedSemaphorePermit)>> {
        Ok(match account {
            AccountId::LOCAL => None,
            other => {
                let made = || OfAccount {
                    syncs: Arc::new(Semaphore::new(OF_ACCOUNT)),
                    large: Arc::new(Semaphore::new(LARGE_OF_ACCOUNT)),
                };
                let own = shared(&self.inner.accounts, &other, made);
                let permit = acquire(&own.syncs).await?;
                Some((own, permit))
            }
        })
    }

    fn place(&self, place: &str) -> Arc<RwLock<()>> {
        shared(&self.inner.places, &place.to_owned(), || RwLock::new(()))
    }
}

impl Held {
    /// Waits until this one may be large.
    pub async fn large(&self) -> Result<()> {
        self.large.get_or_try_init(|| self.permits()).await.map(drop)
    }

    async fn permits(&self) -> Result<Vec<OwnedSemaphorePermit>> {
        let Some((account, _)) = &self.account else { return Ok(Vec::new()) };
        let both = async {
            let own = acquire(&account.large).await?;
            Ok(vec![own, acquire(&self.slots.inner.large).await?])
        };
        let patience = self.slots.patience.map_or(PATIENCE, |own| own.min(PATIENCE));
        match tokio::time::timeout(patience, both).await {
            Ok(both) => both,
            Err(_) => {
                Err(Error::unavailable("other workspaces with many files are being synced; try again later"))
            }
        }
    }
}

#[async_trait]
impl Gate for Held {
    async fn admit(&self, bytes: u64) -> seawall_sync::Result<()> {
        if bytes < LARGE_MANIFEST {
            return Ok(());
        }
        self.large().await.map_err(|error| seawall_sync::Error::new(error.kind(), error.chain()))
    }
}

async fn acquire(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    // Nobody closes them.
    permits.clone().acquire_owned().await.map_err(|error| Error::internal("no permit").with_source(error))
}

/// What belongs to a key while somebody uses it.
fn shared<K, V>(all: &Mutex<HashMap<K, Weak<V>>>, key: &K, make: impl FnOnce() -> V) -> Arc<V>
where
    K: Hash + Eq + Clone,
{
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = all.get(key).and_then(Weak::upgrade) {
        return found;
    }
    // Those that nobody uses are forgotten here, so that there are never many.
    all.retain(|_, one| one.strong_count() > 0);
    let made = Arc::new(make());
    all.insert(key.clone(), Arc::downgrade(&made));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn k5_syncs_of_an_account_are_few_and_anothers_go_on() {
        let (slots, one, other) = (Slots::default(), AccountId::generate(), AccountId::generate());
        let mut held = Vec::new();
        for number in 0..OF_ACCOUNT {
            held.push(slots.enter(one, &number.to_string()).await.unwrap());
        }
        assert!(slots.enter(one, "more").now_or_never().is_none());
        assert!(slots.enter(other, "theirs").now_or_never().is_some());
        held.pop();
        assert!(slots.enter(one, "more").now_or_never().is_some());
        for number in 0..10 * OF_ACCOUNT {
            held.push(slots.enter(AccountId::LOCAL, &number.to_string()).await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn k5_large_syncs_are_one_of_an_account_and_few_of_all() {
        let slots = Slots::default();
        let accounts: Vec<AccountId> = (0..=LARGE).map(|_| AccountId::generate()).collect();
        let mut held = Vec::new();
        for account in &accounts[..LARGE] {
            let one = slots.enter(*account, "a").await.unwrap();
            one.large().await.unwrap();
            one.large().await.unwrap();
            held.push(one);
        }
        let own = slots.enter(accounts[0], "b").await.unwrap();
        assert!(own.large().now_or_never().is_none());
        let third = slots.enter(accounts[LARGE], "c").await.unwrap();
        assert_eq!(third.large().await.unwrap_err().kind(), seawall_api::ErrorKind::Unavailable);
        held.pop();
        assert!(third.large().now_or_never().is_some());
        // Whoever gave up holds nothing.
        held.clear();
        assert!(own.large().now_or_never().is_some());
    }

    /// K11: a round of the server ends although an account keeps its slots, or a place, for itself.
    #[tokio::test(start_paused = true)]
    async fn k11_who_has_patience_for_a_while_only_gives_up() {
        let (slots, one) = (Slots::default(), AccountId::generate());
        let mut held = Vec::new();
        for number in 0..OF_ACCOUNT {
            held.push(slots.enter(one, &number.to_string()).await.unwrap());
        }
        let round = slots.with_patience(Duration::from_secs(30));
        for refused in [round.enter(one, "more").await, round.enter_alone(one, "more").await] {
            assert_eq!(refused.unwrap_err().kind(), seawall_api::ErrorKind::Unavailable);
        }
        // There is a slot, but the place is in use.
        held.pop();
        let refused = round.enter_alone(one, "0").await.unwrap_err();
        assert_eq!(refused.kind(), seawall_api::ErrorKind::Unavailable);
        assert!(round.enter(one, "0").await.is_ok());
    }

    #[tokio::test]
    async fn nothing_is_deleted_while_it_is_pushed() {
        let slots = Slots::default();
        let slot = slots.enter(AccountId::LOCAL, "here").await.unwrap();
        assert!(slots.enter_alone(AccountId::LOCAL, "elsewhere").now_or_never().is_some());
        let deleting = slots.enter_alone(AccountId::LOCAL, "here");
        tokio::pin!(deleting);
        assert!((&mut deleting).now_or_never().is_none());
        drop(slot);
        let alone = deleting.await;
        assert!(slots.enter(AccountId::LOCAL, "here").now_or_never().is_none());
        drop(alone);
        assert!(slots.enter(AccountId::LOCAL, "here").now_or_never().is_some());
    }
}
