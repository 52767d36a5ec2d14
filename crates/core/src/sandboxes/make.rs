//! Making a sandbox: the record first, so that a crash leaves something to clean up.
//!
//! | step | durability |
//! | --- | --- |
//! | the record, a row | committed before the box is made, so that a killed server leaves it; synced while the box is made, and before the call returns; synced first for a provider that stores no intent itself |
//! | the box's folder, then `box.json` | synced before the rest of the box is made; an empty folder is no box |
//! | directories, volume, group, process | none: `start` makes missing ones again |
//! | the state `running` | not waited for: the box itself reports it |
//!
//! `cli/tests/it/crash.rs` kills the server after every step that [`reached`](crate::steps::reached) marks.

use super::{Left, NewSandbox, Sandboxes, check, info};
use crate::{
    Error, Result,
    ports::{Durable, Provider, Record, Volumes},
    steps::reached,
};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxInfo, SandboxState},
};
use seawall_wire::Guest;
use std::sync::Arc;
use tokio::task::JoinHandle;

impl Sandboxes {
    /// Makes a sandbox and starts nothing. Asking twice for one id with the same spec is asking once.
    pub async fn create(&self, new: NewSandbox) -> Result<SandboxInfo> {
        self.make(new, false).await
    }

    /// [`Sandboxes::create`] and [`Sandboxes::start`] in one, with less to write in between.
    /// The client comes along: there is no need to look whether what was just started runs.
    pub async fn launch(&self, new: NewSandbox) -> Result<(SandboxInfo, Guest)> {
        let made = self.make(new, true).await?;
        let guest = self.client(made.id, &made.provider)?;
        Ok((made, guest))
    }

    /// Whether it was made, and never ran.
    pub(crate) async fn is_unstarted(&self, id: SandboxId) -> Result<bool> {
        let found = self.inner.records.get(id).await?;
        Ok(found.is_some_and(|record| record.state == SandboxState::Created && record.started_at.is_none()))
    }

    async fn make(&self, new: NewSandbox, start: bool) -> Result<SandboxInfo> {
        check::name(new.name.as_deref())?;
        check::spec(&new.spec)?;
        let provider = match &new.provider {
            Some(name) => self.inner.providers.get(name)?,
            None => self.inner.providers.get(self.inner.providers.default_name())?,
        };
        let id = new.id.unwrap_or_else(SandboxId::generate);
        let record = Record {
            id,
            account_id: new.account.unwrap_or(AccountId::LOCAL),
            name: new.name,
            provider: provider.name().to_owned(),
            template: new.template,
            state: SandboxState::Creating,
            reason: None,
            spec: new.spec,
            created_at: self.inner.clock.now(),
            started_at: None,
            removing: None,
            unsynced: None,
        };
        // Until it is made or given up: a sweep leaves it alone meanwhile.
        let _claim = self.inner.records.claim(id).await?;
        let _admitted = self.admit_new(&record, start).await?;
        let (record, ours, durable) = self.record_intent(&provider, record).await?;
        reached("the record is there");
        let made = match start && ours {
            true => self.make_running(&provider, record).await,
            false => self.make_box(&provider, record, ours).await,
        };
        let made = made?;
        // What this call returns is durable.
        durable.await.map_err(|error| Error::internal("a record was not synced").with_source(error))??;
        if start && !ours { self.start(made.id).await } else { Ok(made) }
    }

    /// The record that is there now, whether this call made it, and what ends when it is durable. Where a provider
    /// keeps no intent of its own it is durable already.
    async fn record_intent(
        &self,
        provider: &Arc<dyn Provider>,
        record: Record,
    ) -> Result<(Record, bool, JoinHandle<Result<()>>)> {
        let records = &self.inner.records;
        let inserted = match provider.keeps_intent() {
            true => records.insert_soon(&record).await,
            false => records.insert(&record).await.map(|()| Box::pin(async { Ok(()) }) as Durable),
        };
        match inserted {
            Ok(durable) => Ok((record, true, tokio::spawn(durable))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let known = self.record(record.id).await?;
                if known.state == SandboxState::Terminated {
                    return self.make_again(known, record).await;
                }
                let same = (&known.spec, &known.provider, &known.name)
                    == (&record.spec, &record.provider, &record.name);
                match same {
                    true => Ok((known, false, tokio::spawn(async { Ok(()) }))),
                    false => {
                        Err(Error::conflict(format!("sandbox {} exists and is not as asked for", record.id)))
                    }
                }
            }
            Err(error) => Err(error),
        }
    }

    /// One that was ended, as it was or as it is wanted now.
    async fn make_again(
        &self,
        known: Record,
        wanted: Record,
    ) -> Result<(Record, bool, JoinHandle<Result<()>>)> {
        if known.account_id != wanted.account_id {
            return Err(Error::conflict(format!("sandbox {} exists and is not as asked for", known.id)));
        }
        // The reason stays until it is made, so that giving up leaves what was there.
        let reason = Some(EndReason::Terminated);
        let mut again = Record { name: known.name, created_at: known.created_at, reason, ..wanted };
        if let Err(error) = self.inner.records.update(&again).await {
            if error.kind() != ErrorKind::Conflict {
                return Err(error);
            }
            // Its name is another's now.
            again.name = None;
            self.inner.records.update(&again).await?;
        }
        Ok((again, true, tokio::spawn(async { Ok(()) })))
    }

    /// A box that was made and cannot be started is kept: that may be tried again.
    async fn make_running(&self, provider: &Arc<dyn Provider>, mut record: Record) -> Result<SandboxInfo> {
        let id = record.id;
        if let Err(error) = provider.create(id, &record.spec, record.account_id).await {
            if error.kind() != ErrorKind::Conflict {
                self.give_up(provider, record, &error).await;
            }
            return Err(error);
        }
        reached("the box is made");
        let started = provider.start(id).await;
        reached("the box runs");
        record.state = if started.is_ok() { SandboxState::Running } else { SandboxState::Created };
        record.reason = None;
        record.started_at = started.is_ok().then(|| self.inner.clock.now());
        // Whoever starts a sandbox wants something of it. The guest is greeted first, and answers while the note is
        // written.
        let guest = self.client(id, &record.provider)?;
        let greeted = async {
            if started.is_ok() {
                guest.connect().await;
                self.set_deadlines(&record).await;
            }
        };
        let noted = async {
            tokio::task::yield_now().await;
            self.note_made(provider, &record).await
        };
        futures::future::join(greeted, noted).await.1?;
        tracing::info!(sandbox = %id, provider = provider.name(), started = started.is_ok(), "sandbox created");
        Ok(info(&record, Some(&started?)))
    }

    /// `ours`: this call recorded the intent, so it may also take it back.
    async fn make_box(
        &self,
        provider: &Arc<dyn Provider>,
        mut record: Record,
        ours: bool,
    ) -> Result<SandboxInfo> {
        match provider.create(record.id, &record.spec, record.account_id).await {
            Ok(found) => {
                reached("the box is made");
                if record.state == SandboxState::Creating {
                    record.state = SandboxState::Created;
                    record.reason = None;
                    self.note_made(provider, &record).await?;
                }
                tracing::info!(sandbox = %record.id, provider = provider.name(), "sandbox created");
                Ok(info(&record, Some(&found)))
            }
            Err(error) => {
                // A box that is there and not as asked for is not ours to clean up.
                if ours && error.kind() != ErrorKind::Conflict {
                    self.give_up(provider, record, &error).await;
                }
                Err(error)
            }
        }
    }

    /// Somebody may have removed the record meanwhile; then the box goes too.
    async fn note_made(&self, provider: &Arc<dyn Provider>, record: &Record) -> Result<()> {
        match self.inner.records.note(record).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                provider.remove(record.id, of_nobody(record.account_id)).await?;
                Err(Error::not_found(format!("sandbox {} was removed while it was made", record.id)))
            }
            other => other,
        }
    }

    /// A box that could not be made leaves nothing behind, or a record that says why.
    async fn give_up(&self, provider: &Arc<dyn Provider>, mut record: Record, error: &Error) {
        let id = record.id;
        let lived = record.reason == Some(EndReason::Terminated);
        let volumes = if lived { Volumes::Keep } else { of_nobody(record.account_id) };
        let cleaned = match provider.remove(id, volumes).await {
            Ok(()) if lived => self.leave(record.clone(), Left::ByTemplate, &self.mark(&record)).await,
            Ok(()) => self.inner.records.remove(id).await,
            Err(error) => Err(error),
        };
        if let Err(cleaning) = cleaned {
            tracing::error!(sandbox = %id, error = %cleaning.chain(), "cleaning up a half-made sandbox");
            record.state = SandboxState::Failed;
            record.reason = Some(EndReason::Failed(error.kind().to_string()));
            if let Err(error) = self.inner.records.update(&record).await {
                tracing::error!(sandbox = %id, error = %error.chain(), "recording a failed sandbox");
            }
        }
    }
}

/// What becomes of the volume of a sandbox that leaves no record. Nobody counts what tenants leave behind, so they leave nothing.
pub(super) fn of_nobody(account: AccountId) -> Volumes {
    match account {
        AccountId::LOCAL => Volumes::Keep,
        _ => Volumes::Delete,
    }
}
