//! Making the box of a sandbox again for another image, with its volume (P8).

use super::Sandboxes;
use crate::{
    Error, Result,
    ports::{BoxState, Volumes},
};
use seawall_api::{AccountId, SandboxId, sandbox::SandboxSpec};

impl Sandboxes {
    /// Fails if a provider could not make a box of this specification, and does what takes long, such as pulling an image.
    pub(crate) async fn prepare(&self, provider: &str, spec: &SandboxSpec, account: AccountId) -> Result<()> {
        self.inner.providers.get(provider)?.prepare(spec, account).await
    }

    /// Gives a sandbox that does not run another image. Its volume stays; all else in the box is lost, as with any new
    /// box. The old box stays if the provider could not make the new one. The caller holds the sandbox's queue.
    pub(crate) async fn renew(&self, id: SandboxId, image: Option<String>) -> Result<()> {
        let _claim = self.inner.records.claim(id).await?;
        let mut record = self.record(id).await?;
        let provider = self.inner.providers.get(&record.provider)?;
        let found = self.find_box(&record.provider, id).await?;
        if let Some(found) = &found
            && !matches!(found.state, BoxState::Created | BoxState::Stopped)
        {
            return Err(Error::unavailable(format!("sandbox {id} does not rest")));
        }
        record.spec.image = image;
        provider.prepare(&record.spec, record.account_id).await?;
        self.inner.records.update(&record).await?;
        if found.is_some() {
            self.forget_guest(id).await;
            provider.remove(id, Volumes::Keep).await?;
            provider.create(id, &record.spec, record.account_id).await?;
        }
        tracing::info!(sandbox = %id, image = record.spec.image, "the box was made again for another image");
        Ok(())
    }
}
