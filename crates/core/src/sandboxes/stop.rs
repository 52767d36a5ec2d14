//! Stopping boxes: their volumes and records stay.

use super::{MAX_GRACE, Sandboxes, admit, info, unsynced};
use crate::{
    Result,
    lifecycle::{self, Answer, Ask},
    ports::Record,
};
use seawall_api::{
    SandboxId,
    sandbox::{EndReason, SandboxInfo, SandboxState},
};
use std::time::Duration;

impl Sandboxes {
    /// Ends every process in it, politely and after `grace` by force. A grace beyond [`MAX_GRACE`] is cut to that.
    pub async fn stop(&self, id: SandboxId, grace: Duration) -> Result<SandboxInfo> {
        self.stop_because(id, grace, EndReason::Stopped).await
    }

    /// Stops a sandbox as [`Sandboxes::stop`] does, and records the given reason.
    pub async fn stop_because(
        &self,
        id: SandboxId,
        grace: Duration,
        reason: EndReason,
    ) -> Result<SandboxInfo> {
        let record = self.record(id).await?;
        unsynced::check(&record)?;
        self.stop_box(record, grace, reason).await
    }

    /// As [`Sandboxes::stop_because`], whether a bucket has its files or not: its volume stays, and so does its mark.
    pub(crate) async fn stop_unsaved(
        &self,
        id: SandboxId,
        grace: Duration,
        reason: EndReason,
    ) -> Result<SandboxInfo> {
        self.stop_box(self.record(id).await?, grace, reason).await
    }

    async fn stop_box(&self, mut record: Record, grace: Duration, reason: EndReason) -> Result<SandboxInfo> {
        let id = record.id;
        let provider = self.inner.providers.get(&record.provider)?;
        let found = self.find_box(&record.provider, id).await?;
        let now = info(&record, found.as_ref());
        if found.is_none() || lifecycle::answer(now.state, Ask::Stop) == Answer::Nothing {
            return Ok(now);
        }
        self.forget_guest(id).await;
        let mark = self.mark(&record);
        provider.stop(id, grace.min(MAX_GRACE)).await?;
        admit::count_stopped(&mark, &record);
        record.state = SandboxState::Stopped;
        tracing::info!(sandbox = %id, %reason, "sandbox stopped");
        record.reason = Some(reason);
        self.note(&record).await;
        let found = self.find_box(&record.provider, id).await?;
        Ok(info(&record, found.as_ref()))
    }
}
