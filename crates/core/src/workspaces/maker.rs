//! S12: which bucket, and where in it, for whom.

use super::{WorkspaceSettings, Workspaces, account_name};
use crate::{Error, Result, Sandboxes, ports::Clock, templates::SyncPart};
use async_trait::async_trait;
use seawall_api::AccountId;
use seawall_sync::{
    bucket::SharedBucket,
    versions::{Memory, NoMemory, Turnstile},
};
use std::{fmt, sync::Arc, time::Duration};

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
        let (turnstile, memory) = (None, Arc::new(NoMemory));
        WorkspaceMaker { sandboxes, buckets, clock, turnstile, memory, settings }
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
        let made = Workspaces::new(self.sandboxes.clone(), bucket, self.clock.clone(), settings);
        let made = made.with_memory(self.memory.clone());
        Ok(Some(match &self.turnstile {
            Some(turnstile) => made.with_turnstile(turnstile.clone()),
            None => made,
        }))
    }
}

/// An agent's id is the caller's, and becomes part of a key.
fn tame(agent: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '_' };
    agent.chars().take(100).map(safe).collect()
}
