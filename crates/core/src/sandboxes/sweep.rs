//! The sweep: records and boxes compared, in both directions.

use super::{Left, Sandboxes};
use crate::{
    Error, Result,
    ports::{BoxState, Provider, RecordHead, Volumes},
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
            for id in provider.ids().await? {
                let done = self.remove_unknown(provider, id, &mut sweep).await;
                failed.note(id, done);
            }
        }
        let mut after = None;
        loop {
            let page = self.heads(after).await?;
            for head in &page.items {
                failed.note(head.id, self.compare(head, &mut sweep).await);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        match failed.0 {
            Some(error) => Err(error),
            None => Ok(sweep),
        }
    }

    async fn remove_unknown(
        &self,
        provider: &Arc<dyn Provider>,
        id: SandboxId,
        sweep: &mut Sweep,
    ) -> Result<()> {
        // A record that cannot be read is no reason to remove what it is about, and nor is a box that cannot.
        if !self.is_nobodys(id).await || is_damaged(provider, id).await? {
            return Ok(());
        }
        // Whoever makes it right now holds the claim, and its record may be on its way.
        let Some(_claim) = self.inner.records.try_claim(id).await? else { return Ok(()) };
        if self.is_nobodys(id).await {
            tracing::warn!(sandbox = %id, provider = provider.name(), "removing a box without a record");
            provider.remove(id, Volumes::Keep).await?;
            sweep.removed.push(id);
        }
        Ok(())
    }

    async fn compare(&self, head: &RecordHead, sweep: &mut Sweep) -> Result<()> {
        match head.state {
            SandboxState::Stopping | SandboxState::Creating => self.settle(head.id, sweep).await,
            _ if self.is_lost(head).await? => self.mark_lost(head.id, sweep).await,
            _ => Ok(()),
        }
    }

    /// A box that no record wants. What is terminated has none.
    async fn is_nobodys(&self, id: SandboxId) -> bool {
        match self.head(id).await {
            Ok(record) => record.is_none_or(|record| record.state == SandboxState::Terminated),
            Err(_) => false,
        }
    }

    /// What was being made or removed by somebody who is gone.
    async fn settle(&self, id: SandboxId, sweep: &mut Sweep) -> Result<()> {
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
            Some(now)
                if now.state == SandboxState::Creating
                    && self.find_box(&now.provider, id).await?.is_none() =>
            {
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

    async fn is_lost(&self, head: &RecordHead) -> Result<bool> {
        let over = matches!(head.state, SandboxState::Lost | SandboxState::Terminated | SandboxState::Failed);
        Ok(!over && self.find_box(&head.provider, head.id).await?.is_none())
    }

    /// Looks once more: its record may have changed since its page was read.
    async fn mark_lost(&self, id: SandboxId, sweep: &mut Sweep) -> Result<()> {
        let Some(mut record) = self.inner.records.get(id).await? else { return Ok(()) };
        let is_settled = !matches!(record.state, SandboxState::Stopping | SandboxState::Creating);
        if !is_settled || !self.is_lost(&RecordHead::from(&record)).await? {
            return Ok(());
        }
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

/// Whether a box is there that cannot be read.
async fn is_damaged(provider: &Arc<dyn Provider>, id: SandboxId) -> Result<bool> {
    match provider.get(id).await {
        Ok(found) => Ok(found.state == BoxState::Damaged),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
