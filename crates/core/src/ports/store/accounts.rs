//! Accounts and keys. These are the server's own: who may call them is decided by a key's scope, before.

use super::{Page, Paged};
use crate::Result;
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, KeyId,
    account::{Account, ApiKey},
};
use serde_json::{Map, Value};

/// SHA-256 of a key's secret. The secret itself is nowhere.
pub type KeyHash = [u8; 32];

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

    /// Adds a key to its account. `already_exists` where the id or the hash is taken by another.
    async fn add_key(&self, key: &ApiKey, hash: &KeyHash) -> Result<()>;

    /// All keys of an account, revoked ones too, oldest first.
    async fn keys(&self, account: AccountId) -> Result<Vec<ApiKey>>;

    /// Whoever has the secret: this is how an account is found. Revoked and expired ones too: the caller says so.
    async fn find_key(&self, hash: &KeyHash) -> Result<Option<ApiKey>>;

    /// From then on the key is worth nothing. Of several times the earliest counts.
    async fn revoke_key(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()>;

    /// When it was last used. Not synced; an older time changes nothing.
    async fn touch_key(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()>;
}
