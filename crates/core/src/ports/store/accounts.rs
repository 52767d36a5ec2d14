//! Accounts and keys. These are the server's own: who may call them is decided by a key's scope, before.

use super::{Page, Paged};
use crate::{Error, Result};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, KeyId,
    account::{Account, ApiKey},
};
use serde_json::{Map, Value};
use std::time::Duration;

/// SHA-256 of a key's secret. The secret itself is nowhere.
pub type KeyHash = [u8; 32];

/// How many keys an account may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyLimits {
    /// Keys that are neither revoked nor expired.
    pub live: u64,
    /// All keys, those that are over too.
    pub all: u64,
    /// How long a key that is over stays in the list at least. Then it is removed where a new one needs its place.
    pub keep_over: Duration,
}

impl KeyLimits {
    pub const NONE: KeyLimits = KeyLimits { live: u64::MAX, all: u64::MAX, keep_over: Duration::ZERO };

    /// Refuses one more key beside those that are there.
    pub fn check(&self, live: u64, all: u64) -> Result<()> {
        let (limit, value, used) = match live >= self.live {
            true => ("keys", self.live, live),
            false if all >= self.all => ("all_keys", self.all, all),
            false => return Ok(()),
        };
        Err(Error::limit_reached(
            limit,
            value,
            used,
            "revoke keys that nobody uses; those stay in the list for a day",
        ))
    }
}

#[async_trait]
pub trait Accounts: Send + Sync {
    /// `already_exists` where the id is taken by another.
    async fn create(&self, account: &Account) -> Result<()>;

    /// `not_found` where there is none.
    async fn get(&self, account: AccountId) -> Result<Account>;

    /// Oldest first. For operators: it shows all accounts.
    async fn list(&self, page: &Page) -> Result<Paged<Account>>;

    /// Replaces all settings.
    async fn set_settings(&self, account: AccountId, settings: &Map<String, Value>) -> Result<()>;

    /// Suspends an account, or resumes it with `None`.
    async fn set_suspended(&self, account: AccountId, at: Option<Timestamp>) -> Result<()>;

    /// Marks an account as being deleted, and suspends it. The first time counts; it cannot be taken back.
    async fn begin_deletion(&self, account: AccountId, at: Timestamp) -> Result<()>;

    /// Deletes up to `limit` rows of each kind that belong to an account and to nothing else: hook runs, idempotency
    /// keys, sessions, usage. How many went; 0 means that none is left.
    async fn erase(&self, account: AccountId, limit: u32) -> Result<u64>;

    /// Deletes an account and its keys. `conflict` where it has sandboxes or conversations; removing what is gone
    /// succeeds.
    async fn remove(&self, account: AccountId) -> Result<()>;

    /// Adds a key to its account. `already_exists` where the id or the hash is taken by another, and the code `limit_reached`
    /// where the account has as many keys as `limits` allows at the key's time of creation.
    async fn add_key(&self, key: &ApiKey, hash: &KeyHash, limits: &KeyLimits) -> Result<()>;

    /// All keys of an account, revoked ones too, oldest first.
    async fn keys(&self, account: AccountId) -> Result<Vec<ApiKey>>;

    /// Whoever has the secret: this is how an account is found. Revoked and expired ones too: the caller says so.
    async fn find_key(&self, hash: &KeyHash) -> Result<Option<ApiKey>>;

    /// Those of these keys that are good at a time: known, not revoked, not expired, and of an account that is not suspended. For
    /// keys of which something is open.
    async fn good_keys(&self, keys: &[KeyId], at: Timestamp) -> Result<Vec<KeyId>>;

    /// From then on the key is worth nothing. Of several times the earliest counts.
    async fn revoke_key(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()>;

    /// When it was last used. Not synced; an older time changes nothing.
    async fn touch_key(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()>;
}
