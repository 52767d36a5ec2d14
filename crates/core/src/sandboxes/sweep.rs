//! The sweep: records and boxes compared, in both directions.
//!
//! - A box without a record is removed, and its volume is kept.
//! - An interrupted removal is finished.
//! - A record whose box was never made is removed; a complete box is kept.
//! - A record whose box has vanished is marked `lost`.
//!
//! A sweep leaves alone every sandbox that another task is making or removing.

use super::{Left, Sandboxes, make};
use crate::{
    Error, Result,
    ports::{BoxState, Provider, Record, RecordHead, Volumes},
};
use seawall_api::{
    ErrorKind, SandboxId,
    http::Reconciliation,
    sandbox::{EndReason, SandboxState},
};
use std::sync::Arc;

/// The report of a sweep, and its first error.
pub(crate) struct Sweep {
    pub found: Reconciliation,
    pub error: Option<Error>,
}

impl Sweep {
    fn note(&mut self, id: SandboxId, done: Result<()>) {
        if let Err(error) = done {
            tracing::warn!(sandbox = %id, error = %error.chain(), "a sandbox could not be reconciled");
            self.error.get_or_insert(error);
        }
    }

    /// Notes that a provider does not answer. The sweep skips its sandboxes.
    fn note_silent(&mut self, provider: &'static str, error: Error) {
        tracing::warn!(provider, error = %error.chain(), "the sandboxes of a provider are not reconciled");
        self.found.unavailable.push(provider.to_owned());
        self.error.get_or_insert(error);
    }

    fn is_dry(&self) -> bool {
        self.found.dry_run
    }
}

impl Sandboxes {
    /// Compares boxes with records in both directions and mends differences (P8). The first error is returned after
    /// everything else was done.
    pub async fn sweep(&self) -> Result<Reconciliation> {
        let sweep = self.sweep_all(false).await;
        sweep.error.map_or(Ok(sweep.found), Err)
    }

    /// Compares boxes with records:
    ///
    /// 1. Boxes without a record are removed, and their volumes are kept.
    /// 2. Removals that were cut short are finished, and creations that were cut short are taken back.
    /// 3. Records without a box are marked as lost.
    ///
    /// The sweep skips sandboxes that another task makes or removes, damaged boxes, and sandboxes of providers that do not
    /// answer. A dry run only reports.
    pub(crate) async fn sweep_all(&self, dry_run: bool) -> Sweep {
        let mut sweep = Sweep { found: Reconciliation { dry_run, ..Reconciliation::default() }, error: None };
        for provider in self.inner.providers.all() {
            // Boxes first: a record precedes its box, so a box without one has no owner.
            match provider.ids().await {
                Ok(ids) => {
                    for id in ids {
                        let done = self.remove_unknown(provider, id, &mut sweep).await;
                        sweep.note(id, done);
                    }
                }
                Err(error) => sweep.note_silent(provider.name(), error),
            }
        }
        if let Err(error) = self.compare_all(&mut sweep).await {
            sweep.error.get_or_insert(error);
        }
        sweep
    }

    async fn compare_all(&self, sweep: &mut Sweep) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.heads(after).await?;
            for head in &page.items {
                if !sweep.found.unavailable.contains(&head.provider) {
                    let done = self.compare(head, sweep).await;
                    sweep.note(head.id, done);
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn remove_unknown(
        &self,
        provider: &Arc<dyn Provider>,
        id: SandboxId,
        sweep: &mut Sweep,
    ) -> Result<()> {
        // Damaged records and boxes are skipped.
        if !self.is_nobodys(id).await || is_damaged(provider, id).await? {
            return Ok(());
        }
        // The task that makes the box holds the claim, and its record may be on its way.
        let Some(_claim) = self.inner.records.try_claim(id).await? else { return Ok(()) };
        if self.is_nobodys(id).await {
            if !sweep.is_dry() {
                tracing::warn!(sandbox = %id, provider = provider.name(), "removing a box without a record");
                provider.remove(id, Volumes::Keep).await?;
            }
            sweep.found.removed.push(id);
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

    /// Whether no record wants a box of this id. A terminated sandbox has none.
    async fn is_nobodys(&self, id: SandboxId) -> bool {
        match self.head(id).await {
            Ok(record) => record.is_none_or(|record| record.state == SandboxState::Terminated),
            Err(_) => false,
        }
    }

    /// Finishes a removal, or takes back a creation, whose process is gone.
    async fn settle(&self, id: SandboxId, sweep: &mut Sweep) -> Result<()> {
        let Some(_claim) = self.inner.records.try_claim(id).await? else { return Ok(()) };
        // It may have been settled between the list and the claim.
        match self.inner.records.get(id).await? {
            Some(now) if now.state == SandboxState::Stopping => {
                let volumes = now.removing.unwrap_or(Volumes::Keep);
                let removed = match sweep.is_dry() {
                    true => Ok(()),
                    false => self.remove_claimed(id, volumes, Left::ByTemplate).await,
                };
                match removed {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => sweep.found.finished.push(id),
                }
            }
            // A whole box is kept: the caller that requested it may know its id.
            Some(now)
                if now.state == SandboxState::Creating
                    && self.find_box(&now.provider, id).await?.is_none() =>
            {
                if !sweep.is_dry() {
                    self.take_back(now).await?;
                }
                sweep.found.unmade.push(id);
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes back a creation that made no box.
    async fn take_back(&self, record: Record) -> Result<()> {
        tracing::warn!(sandbox = %record.id, "a sandbox was never made");
        let was_ended = record.reason == Some(EndReason::Terminated);
        // The volume of a sandbox that was ended before can have its files.
        let volumes = if was_ended { Volumes::Keep } else { make::of_nobody(record.account_id) };
        self.inner.providers.get(&record.provider)?.remove(record.id, volumes).await?;
        let mark = self.mark(&record);
        self.leave(record, if was_ended { Left::ByTemplate } else { Left::Nothing }, &mark).await
    }

    async fn is_lost(&self, head: &RecordHead) -> Result<bool> {
        let over = matches!(head.state, SandboxState::Lost | SandboxState::Terminated | SandboxState::Failed);
        Ok(!over && self.find_box(&head.provider, head.id).await?.is_none())
    }

    /// Marks a sandbox as lost, unless its record changed since its page was read.
    async fn mark_lost(&self, id: SandboxId, sweep: &mut Sweep) -> Result<()> {
        let Some(mut record) = self.inner.records.get(id).await? else { return Ok(()) };
        let is_settled = !matches!(record.state, SandboxState::Stopping | SandboxState::Creating);
        if !is_settled || !self.is_lost(&RecordHead::from(&record)).await? {
            return Ok(());
        }
        if !sweep.is_dry() {
            tracing::warn!(sandbox = %record.id, state = %record.state, "the box of a sandbox is gone");
            record.state = SandboxState::Lost;
            record.reason = Some(EndReason::Lost);
            match self.inner.records.update(&record).await {
                // Another task has removed the sandbox.
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                updated => updated?,
            }
        }
        sweep.found.lost.push(record.id);
        Ok(())
    }
}

/// Whether the box of an id cannot be read.
async fn is_damaged(provider: &Arc<dyn Provider>, id: SandboxId) -> Result<bool> {
    match provider.get(id).await {
        Ok(found) => Ok(found.state == BoxState::Damaged),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
