//! The one service that the CLI and the server call for sandboxes.
//!
//! Invariant: intent first. A record exists before its box is made and until its box is gone, so a crash
//! at any point leaves something to clean up, never a box that nobody knows.

mod admit;
mod attend;
pub(crate) mod check;
mod disk;
mod make;
mod ports;
mod renew;
mod stop;
mod sweep;
mod unsynced;
mod volumes;
mod watch;

use crate::{
    Error, ExecOutput, ExecRequest, Providers, Result,
    accounts::{Ledger, Mark},
    exec,
    lifecycle::{self, Answer, Ask},
    ports::{BoxInfo, Clock, Provider, Record, Records, ToBox, Volumes},
    steps::reached,
    tunnels::{self, Expose, Serve},
};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    exec::StartProcess,
    hello::Role,
    message::Attach,
    sandbox::{Egress, EndReason, SandboxInfo, SandboxSpec, SandboxState},
};
use seawall_wire::{Connector, Guest, Process};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicU64},
    time::Duration,
};

pub(crate) use admit::{Purpose, counted_disk};
pub(crate) use check::{LONGEST_VOLUME, spec as check_spec, wishes as check_wishes};
pub use watch::SandboxEvent;

/// The longest that processes may be given to end by themselves.
pub const MAX_GRACE: Duration = Duration::from_secs(60);

/// What a new sandbox shall be.
#[derive(Debug, Clone, Default)]
pub struct NewSandbox {
    /// None: a new one.
    pub id: Option<SandboxId>,
    /// None: `local`.
    pub account: Option<AccountId>,
    pub name: Option<String>,
    pub template: Option<String>,
    /// None: the default of this installation.
    pub provider: Option<String>,
    pub spec: SandboxSpec,
}

#[derive(Clone)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

struct Inner {
    providers: Providers,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    guests: Mutex<HashMap<SandboxId, Guest>>,
    published: ports::Published,
    /// For how many seconds guests may rely on this process to end what is over.
    attended: AtomicU64,
    /// Admits what is made or started. Unset where no account has limits: commands of the operator.
    ledger: OnceLock<Ledger>,
}

impl fmt::Debug for Sandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandboxes").field("providers", &self.inner.providers).finish_non_exhaustive()
    }
}

impl Sandboxes {
    pub fn new(providers: Providers, records: Arc<dyn Records>, clock: Arc<dyn Clock>) -> Sandboxes {
        Sandboxes {
            inner: Arc::new(Inner {
                providers,
                records,
                clock,
                guests: Mutex::default(),
                published: ports::Published::default(),
                attended: AtomicU64::new(0),
                ledger: OnceLock::new(),
            }),
        }
    }

    /// Holds accounts to their limits from now on. The first ledger counts.
    pub fn with_ledger(self, ledger: Ledger) -> Sandboxes {
        let _ = self.inner.ledger.set(ledger);
        self
    }

    /// Ends when all that is known is written down. Before a process ends.
    pub async fn flush(&self) {
        self.inner.records.flush().await;
    }

    pub fn providers(&self) -> &Providers {
        &self.inner.providers
    }

    pub async fn get(&self, id: SandboxId) -> Result<SandboxInfo> {
        let record = self.record(id).await?;
        let found = self.find_box(&record.provider, id).await?;
        Ok(info(&record, found.as_ref()))
    }

    /// All of them, oldest first.
    pub async fn list(&self) -> Result<Vec<SandboxInfo>> {
        let records = self.inner.records.list().await?;
        let mut boxes: HashMap<SandboxId, BoxInfo> = HashMap::new();
        let mut silent = Vec::new();
        for provider in self.inner.providers.all() {
            match provider.list().await {
                Ok(found) => boxes.extend(found.into_iter().map(|found| (found.id, found))),
                Err(error) => {
                    // The others' sandboxes are still worth seeing; of these the last known state is.
                    tracing::warn!(provider = provider.name(), error = %error.chain(), "a provider does not answer");
                    silent.push(provider.name());
                }
            }
        }
        let seen = |record: &Record| match silent.contains(&record.provider.as_str()) {
            true => as_recorded(record),
            false => info(record, boxes.get(&record.id)),
        };
        Ok(records.iter().map(seen).collect())
    }

    pub async fn start(&self, id: SandboxId) -> Result<SandboxInfo> {
        self.start_as(id, Purpose::Use).await
    }

    /// As [`Sandboxes::start`], to save what no bucket has: no limit of the account stands in the way of that.
    pub(crate) async fn start_to_save(&self, id: SandboxId) -> Result<SandboxInfo> {
        self.start_as(id, Purpose::Save).await
    }

    async fn start_as(&self, id: SandboxId, purpose: Purpose) -> Result<SandboxInfo> {
        let mut record = self.record(id).await?;
        let provider = self.inner.providers.get(&record.provider)?;
        let found = self.find_box(&record.provider, id).await?;
        let now = info(&record, found.as_ref());
        match lifecycle::answer(now.state, Ask::Start) {
            Answer::Nothing => return Ok(now),
            Answer::Refuse(why) => return Err(refused(id, now.state, why)),
            Answer::Remake | Answer::Go => {}
        }
        let _admitted = self.admit(&record, true, purpose).await?;
        if found.is_none() {
            if record.started_at.is_some() && !provider.has_volume(&record.spec.volume_of(id)).await? {
                tracing::warn!(sandbox = %id, unsynced = record.unsynced, "the data volume is gone; files come from the bucket alone");
            }
            provider.create(id, &record.spec, record.account_id).await?;
        }
        let found = provider.start(id).await?;
        reached("the box runs");
        self.set_deadlines(&record).await;
        record.state = SandboxState::Running;
        record.reason = None;
        record.started_at = Some(self.inner.clock.now());
        self.note_started(&provider, &record).await?;
        tracing::info!(sandbox = %id, provider = provider.name(), "sandbox started");
        Ok(info(&record, Some(&found)))
    }

    /// Works from every state. The record of one that has a template stays, as terminated: its conversation can
    /// have it made again. Of others nothing stays.
    pub async fn remove(&self, id: SandboxId, volumes: Volumes) -> Result<()> {
        let _claim = self.inner.records.claim(id).await?;
        self.remove_claimed(id, volumes, Left::ByTemplate).await
    }

    /// As [`Sandboxes::remove`], of what could not be made as it should be.
    pub(crate) async fn unmake(&self, id: SandboxId, volumes: Volumes, left: Left) -> Result<()> {
        let _claim = self.inner.records.claim(id).await?;
        self.remove_claimed(id, volumes, left).await
    }

    async fn remove_claimed(&self, id: SandboxId, volumes: Volumes, left: Left) -> Result<()> {
        let mut record = self.record(id).await?;
        unsynced::check(&record)?;
        let provider = self.inner.providers.get(&record.provider)?;
        let mark = self.mark(&record);
        record.state = SandboxState::Stopping;
        record.reason = Some(EndReason::Terminated);
        record.removing = Some(volumes);
        let recorded = async {
            if let Err(error) = self.inner.records.update(&record).await {
                // A full disk must not keep anybody from removing what fills it.
                tracing::warn!(sandbox = %id, error = %error.chain(), "a removal could not be recorded beforehand");
            }
        };
        // Its processes may end before that is on disk; nothing else goes. What fails is tried again below.
        let ended = async {
            self.forget_guest(id).await;
            let _ = provider.stop(id, Duration::ZERO).await;
        };
        futures::future::join(recorded, ended).await;
        reached("the removal is recorded");
        provider.remove(id, volumes).await?;
        if volumes == Volumes::Delete {
            self.remove_shared(&provider, &record).await?;
        }
        reached("the box is removed");
        admit::count_stopped(&mark, &record);
        self.leave(record, left, &mark).await?;
        reached("the record is removed");
        tracing::info!(sandbox = %id, ?volumes, "sandbox removed");
        Ok(())
    }

    /// What stays of a sandbox whose box is gone.
    async fn leave(&self, mut record: Record, left: Left, mark: &Option<(Ledger, Mark)>) -> Result<()> {
        record.removing = None;
        (record.state, record.reason) = match left {
            Left::ByTemplate if record.template.is_some() => {
                (SandboxState::Terminated, Some(EndReason::Terminated))
            }
            Left::Failed => (SandboxState::Failed, Some(EndReason::Failed("cold_start".to_owned()))),
            Left::Nothing | Left::ByTemplate => {
                self.inner.records.remove(record.id).await?;
                admit::count_removed(mark, &record);
                return Ok(());
            }
        };
        match self.inner.records.update(&record).await {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if record.state == SandboxState::Terminated {
            admit::count_removed(mark, &record);
        }
        Ok(())
    }

    /// Removes whatever there is under an id, also where its record or its box is damaged.
    pub async fn purge(&self, id: SandboxId, volumes: Volumes) -> Result<()> {
        let _claim = self.inner.records.claim(id).await?;
        self.forget_guest(id).await;
        for provider in self.inner.providers.all() {
            provider.remove(id, volumes).await?;
        }
        let record = self.inner.records.get(id).await.ok().flatten();
        self.inner.records.remove(id).await?;
        if let Some(record) = &record {
            admit::count_removed(&self.mark(record), record);
        }
        tracing::info!(sandbox = %id, ?volumes, "sandbox purged");
        Ok(())
    }

    /// As [`Sandboxes::note`]; but what somebody removed meanwhile must not run on.
    async fn note_started(&self, provider: &Arc<dyn Provider>, record: &Record) -> Result<()> {
        match self.inner.records.get(record.id).await {
            Ok(now) if now.as_ref().is_none_or(|now| now.state == SandboxState::Terminated) => {
                provider.remove(record.id, make::of_nobody(record.account_id)).await?;
                Err(Error::not_found(format!("sandbox {} was removed while it was started", record.id)))
            }
            _ => {
                self.note(record).await;
                Ok(())
            }
        }
    }

    /// The box has changed already, and it is the truth: a record that lags behind is told of, no more.
    async fn note(&self, record: &Record) {
        if let Err(error) = self.inner.records.note(record).await {
            tracing::warn!(sandbox = %record.id, error = %error.chain(), "a change could not be recorded");
        }
    }

    /// The client of a running sandbox's guest.
    pub async fn guest(&self, id: SandboxId) -> Result<Guest> {
        let record = self.record(id).await?;
        let now = info(&record, self.find_box(&record.provider, id).await?.as_ref());
        match lifecycle::answer(now.state, Ask::Use) {
            Answer::Refuse(why) => Err(refused(id, now.state, why)),
            _ => self.client(id, &record.provider),
        }
    }

    pub async fn exec(&self, id: SandboxId, request: ExecRequest) -> Result<ExecOutput> {
        exec::run(&self.guest(id).await?, request, None).await.map(ExecOutput::from)
    }

    /// Starts a process and attaches to it: a command, or a terminal (P6).
    pub async fn spawn(&self, id: SandboxId, start: StartProcess) -> Result<Process> {
        Ok(self.guest(id).await?.start(start).await?)
    }

    /// Attaches to a process that was started before.
    pub async fn attach(&self, id: SandboxId, attach: Attach) -> Result<Process> {
        Ok(self.guest(id).await?.attach(attach).await?)
    }

    /// Serves a port of the sandbox's loopback from here; 0 lets the guest choose. Takes the control wire.
    pub async fn serve_port(&self, id: SandboxId, port: u16, serve: Serve) -> Result<Expose> {
        let record = self.record(id).await?;
        let epoch = self.inner.records.next_epoch(id).await?;
        let control = Guest::new(id, Role::Control { epoch }, self.connector(id, &record.provider)?);
        tunnels::serve(control, port, serve).await
    }

    async fn record(&self, id: SandboxId) -> Result<Record> {
        self.inner.records.get(id).await?.ok_or_else(|| no_sandbox(id))
    }

    async fn find_box(&self, provider: &str, id: SandboxId) -> Result<Option<BoxInfo>> {
        match self.inner.providers.get(provider)?.get(id).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn connector(&self, id: SandboxId, provider: &str) -> Result<Arc<dyn Connector>> {
        Ok(Arc::new(ToBox { provider: self.inner.providers.get(provider)?, id }))
    }

    fn client(&self, id: SandboxId, provider: &str) -> Result<Guest> {
        let connector = self.connector(id, provider)?;
        let mut guests = self.inner.guests.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(guests.entry(id).or_insert_with(|| Guest::new(id, Role::Client, connector)).clone())
    }

    async fn forget_guest(&self, id: SandboxId) {
        self.unpublish(id).await;
        let guest = self.inner.guests.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(guest) = guest {
            guest.disconnect().await;
        }
    }
}

fn no_sandbox(id: SandboxId) -> Error {
    Error::not_found(format!("there is no sandbox {id}; `seawall ls` lists those that are there"))
}

/// What is left of a sandbox that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// The record, where it has a template, as of one that was ended.
    ByTemplate,
    /// The record, as of one that failed and can be made again.
    Failed,
}

fn info(record: &Record, found: Option<&BoxInfo>) -> SandboxInfo {
    let (state, reason) = lifecycle::reconcile(record.state, record.reason.as_ref(), found);
    let egress = found.map(|found| found.egress).unwrap_or_default();
    SandboxInfo { state, reason, egress, ..as_recorded(record) }
}

fn as_recorded(record: &Record) -> SandboxInfo {
    SandboxInfo {
        id: record.id,
        name: record.name.clone(),
        provider: record.provider.clone(),
        state: record.state,
        reason: record.reason.clone(),
        spec: record.spec.clone(),
        created_at: record.created_at,
        started_at: record.started_at,
        egress: Egress::default(),
    }
}

fn refused(id: SandboxId, state: SandboxState, why: &str) -> Error {
    let kind = match state {
        SandboxState::Creating | SandboxState::Stopping => ErrorKind::Unavailable,
        SandboxState::Terminated => ErrorKind::Gone,
        _ => ErrorKind::Stopped,
    };
    Error::new(kind, format!("sandbox {id} is {state}: {why}"))
}
