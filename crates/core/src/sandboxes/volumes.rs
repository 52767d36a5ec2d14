//! Data volumes: they outlive their sandboxes until somebody removes them.

use super::Sandboxes;
use crate::{
    Error, Result,
    ports::{Provider, Record, RecordHead, VolumeInfo, Volumes},
};
use seawall_api::{AccountId, ErrorKind, SandboxId, sandbox::SandboxState};
use std::sync::Arc;

impl Sandboxes {
    /// Removes what the sandboxes of a deleted account shared on each provider.
    pub(crate) async fn remove_shares(&self, account: AccountId) -> Result<()> {
        for provider in self.inner.providers.all() {
            provider.remove_account(account).await?;
        }
        Ok(())
    }

    /// Every data volume, also of sandboxes that are gone.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let mut all = Vec::new();
        for provider in self.inner.providers.all() {
            all.extend(provider.volumes().await?);
        }
        Ok(all)
    }

    /// Removes a volume whose sandboxes are gone: by the id of the one that had it, or by the name that they shared it by.
    pub async fn remove_volume(&self, name: &str) -> Result<()> {
        let id = name.parse::<SandboxId>().ok();
        let _claim = match id {
            Some(id) => Some(self.inner.records.claim(id).await?),
            None => None,
        };
        let user = match id {
            Some(id) => {
                let record = self.inner.records.get(id).await?;
                record.filter(|record| record.state != SandboxState::Terminated).map(|record| record.id)
            }
            None => self.user_of(name, None).await?,
        };
        if let Some(user) = user {
            let message = format!("sandbox {user} uses the volume; remove it with `seawall rm --volumes`");
            return Err(Error::conflict(message));
        }
        let (mut found, mut missing) = (false, None);
        for provider in self.inner.providers.all() {
            match provider.remove_volume(name).await {
                Err(error) if error.kind() == ErrorKind::NotFound => missing = Some(error),
                Err(error) => return Err(error),
                Ok(()) => found = true,
            }
        }
        missing.filter(|_| !found).map_or(Ok(()), Err)
    }

    /// The last of those who shared a volume takes it along.
    pub(super) async fn remove_shared(&self, provider: &Arc<dyn Provider>, last: &Record) -> Result<()> {
        let Some(name) = &last.spec.volume else { return Ok(()) };
        if let Some(user) = self.user_of(name, Some(last.id)).await? {
            tracing::info!(sandbox = %last.id, volume = name, %user, "the volume stays: another sandbox has it");
            return Ok(());
        }
        match provider.remove_volume(name).await {
            // A box without a record has it, or an earlier removal was cut short behind this.
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Ok(()),
            other => other,
        }
    }

    /// A sandbox, other than one, that would miss a shared volume.
    async fn user_of(&self, name: &str, but: Option<SandboxId>) -> Result<Option<SandboxId>> {
        // Of those that go together with their files none misses it.
        let has = |head: &&RecordHead| {
            head.volume.as_deref() == Some(name)
                && Some(head.id) != but
                && (but.is_none() || head.removing != Some(Volumes::Delete))
                && (but.is_some() || head.state != SandboxState::Terminated)
        };
        let mut after = None;
        loop {
            let page = self.heads(after).await?;
            match (page.items.iter().find(has), page.next) {
                (Some(head), _) => return Ok(Some(head.id)),
                (None, Some(next)) => after = Some(next),
                (None, None) => return Ok(None),
            }
        }
    }
}
