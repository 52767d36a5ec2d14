//! Data volumes: they outlive their sandboxes until somebody removes them.

use super::Sandboxes;
use crate::{Error, Result, ports::VolumeInfo};
use seawall_api::{ErrorKind, SandboxId};

impl Sandboxes {
    /// Every data volume, also of sandboxes that are gone.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let mut all = Vec::new();
        for provider in self.inner.providers.all() {
            all.extend(provider.volumes().await?);
        }
        Ok(all)
    }

    /// Removes the volume of a sandbox that is gone.
    pub async fn remove_volume(&self, id: SandboxId) -> Result<()> {
        let _claim = self.inner.records.claim(id).await?;
        if self.inner.records.get(id).await?.is_some() {
            let message = format!("sandbox {id} uses the volume; remove it with `seawall rm --volumes`");
            return Err(Error::conflict(message));
        }
        let mut missing = None;
        for provider in self.inner.providers.all() {
            match provider.remove_volume(id).await {
                Err(error) if error.kind() == ErrorKind::NotFound => missing = Some(error),
                other => return other,
            }
        }
        missing.map_or(Ok(()), Err)
    }
}
