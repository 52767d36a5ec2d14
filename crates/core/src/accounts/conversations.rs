//! Conversations within the limit of their account.

use super::{catalog::AccountCatalog, limit::Limit};
use crate::{
    Result,
    ports::store::{ConversationFilter, Conversations, HookUsage, NewConversation, Page, Paged},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ConversationId, ErrorKind, SandboxId, conversation::Conversation};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};
use tokio::sync::Mutex as AsyncMutex;

/// A store of conversations that refuses new ones to an account at its limit. Counting and making are one step, since
/// one server owns a database.
pub struct LimitedConversations {
    inner: Arc<dyn Conversations>,
    catalog: AccountCatalog,
    /// One at a time makes a conversation for an account.
    making: Mutex<HashMap<AccountId, Weak<AsyncMutex<()>>>>,
}

impl fmt::Debug for LimitedConversations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedConversations").finish_non_exhaustive()
    }
}

impl LimitedConversations {
    pub fn new(inner: Arc<dyn Conversations>, catalog: AccountCatalog) -> LimitedConversations {
        LimitedConversations { inner, catalog, making: Mutex::default() }
    }

    fn queue(&self, account: AccountId) -> Arc<AsyncMutex<()>> {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = making.get(&account).and_then(Weak::upgrade) {
            return queue;
        }
        making.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(AsyncMutex::new(()));
        making.insert(account, Arc::downgrade(&queue));
        queue
    }
}

#[async_trait]
impl Conversations for LimitedConversations {
    async fn ensure(&self, account: AccountId, new: &NewConversation) -> Result<(Conversation, bool)> {
        let limits = self.catalog.settings(account).await?.limits;
        let Some(most) = limits.get(Limit::Conversations) else {
            return self.inner.ensure(account, new).await;
        };
        let queue = self.queue(account);
        let _alone = queue.lock().await;
        match self.inner.get(account, new.id).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found.map(|known| (known, false)),
        }
        let used = self.inner.count(account).await?;
        if used >= most {
            return Err(Limit::Conversations.reached(most, used, "the conversation is refused; delete some"));
        }
        self.inner.ensure(account, new).await
    }

    async fn get(&self, account: AccountId, id: ConversationId) -> Result<Conversation> {
        self.inner.get(account, id).await
    }

    async fn count(&self, account: AccountId) -> Result<u64> {
        self.inner.count(account).await
    }

    async fn list(
        &self,
        account: AccountId,
        filter: &ConversationFilter,
        page: &Page,
    ) -> Result<Paged<Conversation>> {
        self.inner.list(account, filter, page).await
    }

    async fn set_template(
        &self,
        account: AccountId,
        id: ConversationId,
        template: Option<&str>,
        at: Timestamp,
    ) -> Result<()> {
        self.inner.set_template(account, id, template, at).await
    }

    async fn link(
        &self,
        account: AccountId,
        id: ConversationId,
        expected: Option<SandboxId>,
        sandbox: Option<SandboxId>,
        at: Timestamp,
    ) -> Result<()> {
        self.inner.link(account, id, expected, sandbox, at).await
    }

    async fn add_usage(&self, account: AccountId, used: &HookUsage) -> Result<bool> {
        self.inner.add_usage(account, used).await
    }

    async fn delete(&self, account: AccountId, id: ConversationId) -> Result<()> {
        self.inner.delete(account, id).await
    }
}
