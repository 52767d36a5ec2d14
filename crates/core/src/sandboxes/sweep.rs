//! The sweep: records and boxes compared, in both directions.

use super::Sandboxes;
use crate::{
    Result,
    ports::{Record, Volumes},
};
use seawall_api::{
    ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxState},
};
use serde::Serialize;
use std::time::Duration;

/// A box that is still being made after this long was left behind by a crash.
const CREATING_PATIENCE: Duration = Duration::from_secs(300);

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// Boxes that nobody knew; their volumes are kept.
    pub removed: Vec<SandboxId>,
    /// Records whose box is gone.
    pub lost: Vec<SandboxId>,
    /// Removals that a crash had cut short.
    pub finished: Vec<SandboxId>,
}

impl Sandboxes {
    /// Compares boxes with records, both ways (P8): boxes that nobody knows are removed, with their volumes
    /// kept; removals that were cut short are finished; records whose box is gone are marked.
    pub async fn sweep(&self) -> Result<Sweep> {
        let mut sweep = Sweep::default();
        for provider in self.inner.providers.all() {
            // Boxes first: a record precedes its box, so a box without one is nobody's.
            for found in provider.list().await? {
                // A record that cannot be read is no reason to remove what it is about.
                if matches!(self.inner.records.get(found.id).await, Ok(None)) {
                    tracing::warn!(sandbox = %found.id, provider = provider.name(), "removing a box without a record");
                    provider.remove(found.id, Volumes::Keep).await?;
                    sweep.removed.push(found.id);
                }
            }
        }
        for record in self.inner.records.list().await? {
            if record.state == SandboxState::Stopping {
                // If somebody is still at it, doing it twice does no harm.
                match self.remove(record.id, record.removing.unwrap_or(Volumes::Keep)).await {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => sweep.finished.push(record.id),
                }
            } else if self.is_lost(&record).await? {
                self.mark_lost(record, &mut sweep).await?;
            }
        }
        Ok(sweep)
    }

    async fn is_lost(&self, record: &Record) -> Result<bool> {
        let age = self.inner.clock.now().duration_since(record.created_at);
        let in_the_making = record.state == SandboxState::Creating && age.unsigned_abs() < CREATING_PATIENCE;
        let over =
            matches!(record.state, SandboxState::Lost | SandboxState::Terminated | SandboxState::Failed);
        Ok(!in_the_making && !over && self.find_box(record).await?.is_none())
    }

    async fn mark_lost(&self, mut record: Record, sweep: &mut Sweep) -> Result<()> {
        tracing::warn!(sandbox = %record.id, state = %record.state, "a sandbox's box is gone");
        record.state = SandboxState::Lost;
        record.reason = Some(EndReason::Lost);
        match self.inner.records.update(&record).await {
            // Removed meanwhile: no loss.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                sweep.lost.push(record.id);
                Ok(())
            }
        }
    }
}
