//! The sweep: records and boxes compared, in both directions.

use super::{Left, Sandboxes};
use crate::{
    Error, Result,
    ports::{BoxInfo, BoxState, Provider, Record, Volumes},
};
use seawall_api::{
    ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxState},
};
use serde::Serialize;
use std::sync::Arc;

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// Boxes that nobody knew; their volumes are kept.
    pub removed: Vec<SandboxId>,
    /// Records whose box is gone.
    pub lost: Vec<SandboxId>,
    /// Removals that a crash had cut short.
    pub finished: Vec<SandboxId>,
    /// Records of what a crash kept from being made.
    pub unmade: Vec<SandboxId>,
}

/// The first error of a sweep.
struct Failed(Option<Error>);

impl Failed {
    fn note(&mut self, id: SandboxId, done: Result<()>) {
        if let Err(error) = done {
            tracing::warn!(sandbox = %id, error = %error.chain(), "a sandbox could not be looked at");
            self.0.get_or_insert(error);
        }
    }
}

impl Sandboxes {
    /// Compares boxes with records, both ways (P8): boxes that nobody knows are removed, with their volumes
    /// kept; what crashes cut short is finished or taken back; records whose box is gone are marked. What
    /// somebody is just making or removing is left alone, and so is a damaged box. What fails for one sandbox keeps no
    /// other from being looked at: the first error comes at the end.
    pub async fn sweep(&self) -> Result<Sweep> {
        let (mut sweep, mut failed) = (Sweep::default(), Failed(None));
        for provider in self.inner.providers.all() {
            // Boxes first: a record precedes its box, so a box without one is nobody's.
            for found in provider.list().await? {
                let done = self.remove_unknown(provider, &found, &mut sweep).await;
                failed.note(found.id, done);
            }
        }
        for record in self.inner.records.list().await? {
            let id = record.id;
            failed.note(id, self.compare(record, &mut sweep).await);
        }
        match failed.0 {
            Some(error) => Err(error),
            None => Ok(sweep),
        }
    }

    async fn remove_unknown(
        &self,
        provider: &Arc<dyn Provider>,
        found: &BoxInfo,
        sweep: &mut Sweep,
    ) -> Result<()> {
        // A record that cannot be read is no reason to remove what it is about, and nor is a box that cannot.
        if found.state == BoxState::Damaged || !self.is_nobodys(found.id).await {
            return Ok(());
        }
        // Whoever makes it right now holds the claim, and its record may be on its way.
        let Some(_claim) = self.inner.records.try_claim(found.id).await? else { return Ok(()) };
        if self.is_nobodys(found.id).await {
            tracing::warn!(sandbox = %found.id, provider = provider.name(), "removing a box without a record");
            provider.remove(found.id, Volumes::Keep).await?;
            sweep.removed.push(found.id);
        }
        Ok(())
    }

    async fn compare(&self, record: Record, sweep: &mut Sweep) -> Result<()> {
        match record.state {
            SandboxState::Stopping | SandboxState::Creating => self.settle(record, sweep).await,
            _ if self.is_lost(&record).await? => self.mark_lost(record, sweep).await,
            _ => Ok(()),
        }
    }

    /// A box that no record wants. What is terminated has none.
    async fn is_nobodys(&self, id: SandboxId) -> bool {
        match self.inner.records.get(id).await {
            Ok(record) => record.is_none_or(|record| record.state == SandboxState::Terminated),
            Err(_) => false,
        }
    }

    /// What was being made or removed by somebody who is gone.
    async fn settle(&self, record: Record, sweep: &mut Sweep) -> Result<()> {
        let id = record.id;
        let Some(_claim) = self.inner.records.try_claim(id).await? else { return Ok(()) };
        // It may have been settled between the list and the claim.
        match self.inner.records.get(id).await? {
            Some(now) if now.state == SandboxState::Stopping => {
                match self.remove_claimed(id, now.removing.unwrap_or(Volumes::Keep), Left::ByTemplate).await {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => sweep.finished.push(id),
                }
            }
            // A box that is whole is kept: whoever asked for it may know of it.
            Some(now) if now.state == SandboxState::Creating && self.find_box(&now).await?.is_none() => {
                tracing::warn!(sandbox = %id, "a sandbox was never made");
                self.inner.providers.get(&now.provider)?.remove(id, Volumes::Keep).await?;
                let was_ended = now.reason == Some(EndReason::Terminated);
                let mark = self.mark(&now);
                self.leave(now, if was_ended { Left::ByTemplate } else { Left::Nothing }, &mark).await?;
                sweep.unmade.push(id);
            }
            _ => {}
        }
        Ok(())
    }

    async fn is_lost(&self, record: &Record) -> Result<bool> {
        let over =
            matches!(record.state, SandboxState::Lost | SandboxState::Terminated | SandboxState::Failed);
        Ok(!over && self.find_box(record).await?.is_none())
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
