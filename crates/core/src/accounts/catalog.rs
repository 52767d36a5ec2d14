//! Which settings hold for an account now.

use super::{limit::AccountLimits, settings::AccountSettings};
use crate::{Error, Result, ports::store::Accounts};
use jiff::Timestamp;
use seawall_api::{AccountId, ErrorKind, account::Account};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// The cache TTL of an account's row. A change that another process makes holds within this time.
const TTL: Duration = Duration::from_secs(1);
/// Accounts that are cached at the most.
const MOST_CACHED: usize = 10_000;

/// The accounts of the database with their effective settings, cached for a second. Cheap to clone.
#[derive(Clone)]
pub struct AccountCatalog(Arc<Inner>);

struct Inner {
    accounts: Arc<dyn Accounts>,
    /// The limits of every account but `local`, where its own settings say nothing.
    defaults: AccountLimits,
    cached: Mutex<HashMap<AccountId, Cached>>,
}

#[derive(Clone)]
struct Cached {
    read_at: Instant,
    settings: Arc<AccountSettings>,
    suspended_at: Option<Timestamp>,
}

impl fmt::Debug for AccountCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountCatalog").finish_non_exhaustive()
    }
}

impl AccountCatalog {
    pub fn new(accounts: Arc<dyn Accounts>, defaults: AccountLimits) -> AccountCatalog {
        AccountCatalog(Arc::new(Inner { accounts, defaults, cached: Mutex::default() }))
    }

    /// The settings of an account. One without a row has the defaults: `local` has no row before its first key.
    pub async fn settings(&self, account: AccountId) -> Result<Arc<AccountSettings>> {
        Ok(self.read(account).await?.settings)
    }

    /// Since when an account is suspended. `None` where it is not.
    pub async fn suspended_at(&self, account: AccountId) -> Result<Option<Timestamp>> {
        Ok(self.read(account).await?.suspended_at)
    }

    /// Refuses everything that a suspended account asks for.
    pub async fn refuse_suspended(&self, account: AccountId) -> Result<()> {
        match self.suspended_at(account).await? {
            Some(_) => {
                let message = "this account is suspended; its operator can resume it";
                Err(Error::new(ErrorKind::Denied, message).with_code("account_suspended"))
            }
            None => Ok(()),
        }
    }

    /// Drops the cached row of an account that this process has just changed.
    pub fn forget(&self, account: AccountId) {
        self.lock().remove(&account);
    }

    async fn read(&self, account: AccountId) -> Result<Cached> {
        let fresh = |cached: &&Cached| cached.read_at.elapsed() < TTL;
        if let Some(cached) = self.lock().get(&account).filter(fresh) {
            return Ok(cached.clone());
        }
        let read = match self.0.accounts.get(account).await {
            Ok(row) => self.load(&row),
            Err(error) if error.kind() == ErrorKind::NotFound => Cached {
                read_at: Instant::now(),
                settings: Arc::new(AccountSettings::with_limits(self.defaults(account))),
                suspended_at: None,
            },
            Err(error) => return Err(error),
        };
        let mut cached = self.lock();
        if cached.len() >= MOST_CACHED {
            cached.clear();
        }
        cached.insert(account, read.clone());
        Ok(read)
    }

    fn load(&self, row: &Account) -> Cached {
        let (settings, wrong) = AccountSettings::load(self.defaults(row.id), &row.settings);
        for problem in &wrong {
            tracing::warn!(account = %row.id, problem, "a setting of an account is wrong and counts as zero");
        }
        Cached { read_at: Instant::now(), settings: Arc::new(settings), suspended_at: row.suspended_at }
    }

    fn defaults(&self, account: AccountId) -> AccountLimits {
        if account == AccountId::LOCAL { AccountLimits::NONE } else { self.0.defaults }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AccountId, Cached>> {
        self.0.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
