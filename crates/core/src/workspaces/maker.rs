//! S12: which bucket, and where in it, for whom.

use super::{Account, Slots, WorkspaceSettings, Workspaces, account_name};
use crate::{
    Error, Result, Sandboxes,
    ports::{Clock, store::Stored},
    templates::SyncPart,
};
use async_trait::async_trait;
use seawall_api::AccountId;
use seawall_sync::{
    bucket::SharedBucket,
    versions::{Memory, NoMemory, Turnstile},
};
use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

/// Opens buckets. What cannot be opened is an error that says what to do.
#[async_trait]
pub trait Buckets: Send + Sync {
    /// By its address; none: the server's. None comes back where files go nowhere.
    async fn open(&self, url: Option<&str>) -> Result<Option<SharedBucket>>;
}

/// How long a sync waits for that of another sandbox in the same volume.
const SHARED_WAIT: Duration = Duration::from_secs(600);

/// What a prefix may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub account: AccountId,
    pub conversation: Option<String>,
    pub agent: Option<String>,
    /// The volume that the sandbox shares with others, where it does.
    pub volume: Option<String>,
}

#[derive(Clone)]
pub struct WorkspaceMaker {
    sandboxes: Sandboxes,
    buckets: Arc<dyn Buckets>,
    clock: Arc<dyn Clock>,
    turnstile: Option<Arc<dyn Turnstile>>,
    memory: Arc<dyn Memory>,
    settings: WorkspaceSettings,
    stored: Option<Arc<dyn Stored>>,
    slots: Slots,
}

impl fmt::Debug for WorkspaceMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkspaceMaker").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl WorkspaceMaker {
    pub fn new(
        sandboxes: Sandboxes,
        buckets: Arc<dyn Buckets>,
        clock: Arc<dyn Clock>,
        settings: WorkspaceSettings,
    ) -> WorkspaceMaker {
        let (turnstile, memory, stored, slots) = (None, Arc::new(NoMemory), None, Slots::default());
        WorkspaceMaker { sandboxes, buckets, clock, turnstile, memory, settings, stored, slots }
    }

    /// Counts what is stored, by account.
    pub fn with_stored(mut self, stored: Arc<dyn Stored>) -> Self {
        self.stored = Some(stored);
        self
    }

    pub fn stored(&self) -> Option<&Arc<dyn Stored>> {
        self.stored.as_ref()
    }

    pub fn with_turnstile(mut self, turnstile: Arc<dyn Turnstile>) -> Self {
        self.turnstile = Some(turnstile);
        self
    }

    pub fn with_memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memory = memory;
        self
    }

    pub fn settings(&self) -> &WorkspaceSettings {
        &self.settings
    }

    /// The workspaces of a kind of sandbox; none where their files go nowhere.
    pub async fn at(&self, sync: &SyncPart, names: &Names) -> Result<Option<Workspaces>> {
        if !sync.enabled {
            return Ok(None);
        }
        let Some(bucket) = self.buckets.open(sync.bucket.as_deref()).await? else { return Ok(None) };
        let key_prefix = sync.key_prefix.clone().unwrap_or_else(|| self.settings.key_prefix.clone());
        if names.volume.is_some() {
            let wrong = |why: String| Error::invalid(format!("`key_prefix` is `{key_prefix}`: {why}"));
            WorkspaceSettings::check_shared(&key_prefix).map_err(wrong)?;
        }
        let settings = WorkspaceSettings {
            account: account_name(names.account),
            volume: names.volume.clone(),
            lock_wait: match names.volume {
                // Another one may be pushing, or restoring, all of it.
                Some(_) => self.settings.lock_wait.max(SHARED_WAIT),
                None => self.settings.lock_wait,
            },
            conversation: names.conversation.clone(),
            agent: names.agent.clone().map(|agent| tame(&agent)),
            key_prefix,
            ..self.settings.clone()
        };
        Ok(Some(self.made(names.account, bucket, settings)))
    }

    fn made(&self, account: AccountId, bucket: SharedBucket, settings: WorkspaceSettings) -> Workspaces {
        let mut made = Workspaces::new(self.sandboxes.clone(), bucket, self.clock.clone(), settings)
            .with_memory(self.memory.clone())
            .with_slots(self.slots.clone());
        if let Some(turnstile) = &self.turnstile {
            made = made.with_turnstile(turnstile.clone());
        }
        if let Some(stored) = &self.stored {
            made = made.with_account(Account::new(account, stored.clone()));
        }
        made
    }

    /// The workspaces in whose bucket a place is, as [`Stored`] names it, and its prefix there. None where none of the
    /// buckets has it: the default one, and those at these addresses.
    pub async fn find(
        &self,
        addresses: &BTreeSet<String>,
        account: AccountId,
        place: &str,
    ) -> Result<Option<(Workspaces, String)>> {
        let all = std::iter::once(None).chain(addresses.iter().map(|address| Some(address.as_str())));
        let (mut found, mut failed): (Option<(SharedBucket, String)>, _) = (None, None);
        for address in all {
            let bucket = match self.buckets.open(address).await {
                Ok(Some(bucket)) => bucket,
                Ok(None) => continue,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let root = format!("{}/", bucket.place().trim_end_matches('/'));
            let Some(prefix) = place.strip_prefix(&root).filter(|prefix| !prefix.is_empty()) else {
                continue;
            };
            // One bucket may be a part of another.
            if found.as_ref().is_none_or(|(_, longer)| prefix.len() < longer.len()) {
                found = Some((bucket, prefix.to_owned()));
            }
        }
        match (found, failed) {
            (Some((bucket, prefix)), _) => {
                Ok(Some((self.made(account, bucket, self.settings.clone()), prefix)))
            }
            // It may be in the one that cannot be opened.
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }
}

/// An agent's id is the caller's, and becomes part of a key.
fn tame(agent: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '_' };
    agent.chars().take(100).map(safe).collect()
}
