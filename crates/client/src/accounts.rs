//! Accounts, keys, and what the server has to offer.

use crate::{Client, Page, Result};
use reqwest::Method;
use seawall_api::{
    AccountId, KeyId,
    account::{Account, AccountUsage, ApiKey},
    http::{
        CreateAccount, CreateKey, Health, List, NewKey, ProviderInfo, Reconciliation, RotateKey, SetSettings,
    },
};
use serde_json::{Map, Value};

impl Client {
    /// Whether the server is there. It needs no key.
    pub async fn health(&self) -> Result<Health> {
        self.get(&["health"]).answer().await
    }

    /// Whether it can do its work.
    pub async fn ready(&self) -> Result<Health> {
        self.get(&["ready"]).answer().await
    }

    /// The kinds of agents.
    pub async fn templates(&self) -> Result<List<Value>> {
        self.get(&["templates"]).answer().await
    }

    pub async fn template(&self, name: &str) -> Result<Value> {
        self.get(&["templates", name]).answer().await
    }

    pub async fn providers(&self) -> Result<List<ProviderInfo>> {
        self.get(&["providers"]).answer().await
    }

    /// Compares sandboxes with the boxes of all providers, and mends differences unless it is a dry run. For operators.
    pub async fn reconcile(&self, dry_run: bool) -> Result<Reconciliation> {
        self.post(&["reconcile"]).query("dry_run", dry_run).answer().await
    }

    /// The key's own.
    pub async fn account(&self) -> Result<Account> {
        self.get(&["account"]).answer().await
    }

    /// What the key's own account uses of its limits.
    pub async fn account_usage(&self) -> Result<AccountUsage> {
        self.get(&["account", "usage"]).answer().await
    }

    /// What another account uses of its limits. For operators.
    pub async fn usage_of_account(&self, account: AccountId) -> Result<AccountUsage> {
        self.get(&["accounts", &account.to_string(), "usage"]).answer().await
    }

    /// All settings of the key's own account: what is not named is gone.
    pub async fn set_settings(&self, settings: &Map<String, Value>) -> Result<Account> {
        let settings = SetSettings { settings: settings.clone() };
        self.change(Method::PUT, &["account", "settings"]).json(&settings).answer().await
    }

    pub async fn keys(&self) -> Result<List<ApiKey>> {
        self.get(&["keys"]).answer().await
    }

    /// The secret is in the answer, and nowhere else.
    pub async fn create_key(&self, new: &CreateKey) -> Result<NewKey> {
        self.post(&["keys"]).json(new).answer().await
    }

    pub async fn revoke_key(&self, key: KeyId) -> Result<()> {
        self.change(Method::DELETE, &["keys", &key.to_string()]).done().await
    }

    pub async fn rotate_key(&self, key: KeyId, rotate: &RotateKey) -> Result<NewKey> {
        self.post(&["keys", &key.to_string(), "rotate"]).json(rotate).answer().await
    }

    /// For operators.
    pub async fn accounts(&self, page: &Page) -> Result<List<Account>> {
        self.get(&["accounts"]).page(page).answer().await
    }

    /// For operators.
    pub async fn create_account(&self, new: &CreateAccount) -> Result<Account> {
        self.post(&["accounts"]).json(new).answer().await
    }

    /// Deletes an account with all that is its own. For operators.
    pub async fn delete_account(&self, account: AccountId) -> Result<()> {
        self.change(Method::DELETE, &["accounts", &account.to_string()]).done().await
    }

    /// For operators.
    pub async fn suspend_account(&self, account: AccountId) -> Result<Account> {
        self.post(&["accounts", &account.to_string(), "suspend"]).answer().await
    }

    /// For operators.
    pub async fn resume_account(&self, account: AccountId) -> Result<Account> {
        self.post(&["accounts", &account.to_string(), "resume"]).answer().await
    }

    /// For operators.
    pub async fn create_key_of(&self, account: AccountId, new: &CreateKey) -> Result<NewKey> {
        self.post(&["accounts", &account.to_string(), "keys"]).json(new).answer().await
    }

    /// For operators.
    pub async fn set_settings_of(
        &self,
        account: AccountId,
        settings: &Map<String, Value>,
    ) -> Result<Account> {
        let settings = SetSettings { settings: settings.clone() };
        let path = ["accounts", &account.to_string(), "settings"];
        self.change(Method::PUT, &path).json(&settings).answer().await
    }

    /// What was done with the account's keys, the latest first.
    pub async fn audit(&self, limit: Option<u32>) -> Result<List<Value>> {
        self.get(&["audit"]).maybe("limit", limit).answer().await
    }
}
