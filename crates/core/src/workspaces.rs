//! The files of sandboxes, kept as versions in a bucket.
//!
//! Invariant (H8): a sandbox whose work is not in the bucket is marked, and [`Sandboxes`] neither stops nor removes it
//! without force. The sync itself is `seawall-sync`; this brings it together with sandboxes, leases and settings.

mod chain;
mod lease;
mod maker;
mod meter;
mod pace;
pub(crate) mod progress;
mod session;
mod slots;
mod upkeep;
pub(crate) mod volumes;

pub use chain::Chain;
pub use lease::LeaseTurnstile;
pub use maker::{Buckets, Names, WorkspaceMaker};
pub use meter::Account;
pub use session::{Bounds, Session, SessionSettings};
pub use slots::{Held, Slots};
pub use upkeep::{Change, Difference};

use crate::{Error, Result, Sandboxes, ports::Clock};
use seawall_api::{AccountId, SandboxId, files::FileName};
use seawall_sync::{
    bucket::SharedBucket,
    disk::ScanAsk,
    engine::{Budget, DryRun, Engine, Options, Phase, Progress, Restored, Silent, SyncReport},
    state::Limits,
    versions::{Memory, NoMemory, Turnstile, VersionRecord, Versions},
    workspace::Workspace as _,
};
use serde::Serialize;
use std::{fmt, sync::Arc, time::Duration};
use tokio::sync::Notify;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceSettings {
    /// Whose workspaces they are.
    pub account: String,
    /// What a prefix may name beside the account and the sandbox.
    pub conversation: Option<String>,
    pub agent: Option<String>,
    /// The volume that it shares with other sandboxes: all of them have one workspace.
    pub volume: Option<String>,
    /// Where a workspace's versions lie, with placeholders.
    pub key_prefix: String,
    /// S7: what was synced longer ago than this is looked at before it is used.
    pub stale_after: Duration,
    /// How long a sync waits for another one of the same workspace.
    pub lock_wait: Duration,
    /// Of manifests: what is taken from the bucket.
    pub limits: Limits,
    /// Of workspaces: what is taken from a guest.
    pub bounds: Bounds,
}

/// S6.
pub const KEY_PREFIX: &str = "docs/{account}/{sandbox}";
/// What a prefix may name.
const PLACEHOLDERS: [&str; 4] = ["{account}", "{sandbox}", "{conversation}", "{agent}"];

impl Default for WorkspaceSettings {
    fn default() -> Self {
        WorkspaceSettings {
            account: "local".to_owned(),
            conversation: None,
            agent: None,
            volume: None,
            key_prefix: KEY_PREFIX.to_owned(),
            stale_after: Duration::from_secs(3600),
            lock_wait: Duration::from_secs(30),
            limits: Limits::default(),
            bounds: Bounds::default(),
        }
    }
}

impl WorkspaceSettings {
    /// Why a prefix cannot be used.
    pub fn check_prefix(prefix: &str) -> Result<(), String> {
        if let Some(why) = unknown_placeholder(prefix) {
            return Err(why);
        }
        if prefix.trim_matches('/').split('/').any(|part| matches!(part, "" | "." | ".."))
            || prefix.contains(['\0', '\\'])
        {
            return Err("it must be names with `/` between them: none of them empty, `.` or `..`".to_owned());
        }
        if !prefix.contains("{sandbox}") && !prefix.contains("{conversation}") {
            return Err(
                "without {sandbox} or {conversation} all sandboxes would have one workspace".to_owned()
            );
        }
        Ok(())
    }

    /// Why a prefix cannot be used for those that share a volume. Each volume has one history, and each history one
    /// volume: with two, what one has not would be deleted in the other.
    pub fn check_shared(prefix: &str) -> Result<(), String> {
        let others = ["{conversation}", "{agent}"].into_iter().find(|name| prefix.contains(name));
        match others {
            None if prefix.contains("{sandbox}") => Ok(()),
            _ => Err("where sandboxes share a volume it must name {sandbox}, which is the volume's name then, and \
                      neither {conversation} nor {agent}"
                .to_owned()),
        }
    }

    /// Where the versions of a sandbox lie. One without a conversation is named in its place, so that no two of
    /// them have one workspace by mistake.
    pub fn prefix(&self, workspace: SandboxId) -> String {
        let workspace = workspace.to_string();
        let conversation = self.conversation.as_deref().unwrap_or(&workspace);
        let agent = self.agent.as_deref().unwrap_or("none");
        let shared = self.volume.as_deref().unwrap_or(&workspace);
        fill(&self.key_prefix, &self.account, shared, conversation, agent)
    }
}

fn unknown_placeholder(pattern: &str) -> Option<String> {
    let rest = PLACEHOLDERS.iter().fold(pattern.to_owned(), |rest, name| rest.replace(name, "x"));
    let unknown = rest.contains(['{', '}']);
    unknown.then(|| format!("it may name {} and nothing else", PLACEHOLDERS.join(", ")))
}

/// What placeholders stand for has none in it: agents' ids are made tame before.
fn fill(pattern: &str, account: &str, sandbox: &str, conversation: &str, agent: &str) -> String {
    let values = [account, sandbox, conversation, agent];
    let pairs = PLACEHOLDERS.iter().zip(values);
    pairs.fold(pattern.to_owned(), |filled, (placeholder, value)| filled.replace(placeholder, value))
}

/// As keys and volumes have it.
fn account_name(account: AccountId) -> String {
    match account {
        AccountId::LOCAL => "local".to_owned(),
        other => other.to_string(),
    }
}

/// S7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Staleness {
    /// No state: everything has to be looked at.
    Cold,
    Stale,
    Fresh,
}

/// How old an agreement is, by the clock of whoever asks. One from the future is none to rely on.
pub fn staleness(last_synced_at: Option<i64>, now: i64, stale_after: Duration) -> Staleness {
    let limit = i64::try_from(stale_after.as_secs()).unwrap_or(i64::MAX);
    match last_synced_at {
        None | Some(0) => Staleness::Cold,
        Some(at) if (0..=limit).contains(&now.saturating_sub(at)) => Staleness::Fresh,
        Some(_) => Staleness::Stale,
    }
}

/// What is to be brought back.
#[derive(Debug, Clone, Default)]
pub struct Restore {
    /// By its timestamp or number; none: the newest.
    pub version: Option<i64>,
    /// One file or directory of it.
    pub path: Option<FileName>,
    /// Of another sandbox, which may be gone, and where its versions are.
    pub from: Option<(SandboxId, Workspaces)>,
}

#[derive(Clone)]
pub struct Workspaces {
    sandboxes: Sandboxes,
    bucket: SharedBucket,
    clock: Arc<dyn Clock>,
    turnstile: Option<Arc<dyn Turnstile>>,
    memory: Arc<dyn Memory>,
    settings: WorkspaceSettings,
    slots: Slots,
    /// Whose bytes they are, and where they are counted; none: nowhere.
    account: Option<Account>,
}

impl fmt::Debug for Workspaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspaces").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

/// The mark of a sandbox whose push did not end.
const UNDER_WAY: &str = "a push was under way, and did not end";

/// Hears when something is about to be pushed.
struct Marking {
    inner: Arc<dyn Progress>,
    pushes: Notify,
}

impl Progress for Marking {
    fn phase(&self, phase: Phase) {
        if matches!(phase, Phase::Uploading { .. }) {
            self.pushes.notify_one();
        }
        self.inner.phase(phase);
    }

    fn moved(&self, bytes: u64) {
        self.inner.moved(bytes);
    }
}

impl Workspaces {
    pub fn new(
        sandboxes: Sandboxes,
        bucket: SharedBucket,
        clock: Arc<dyn Clock>,
        settings: WorkspaceSettings,
    ) -> Self {
        let (turnstile, memory, slots, account) = (None, Arc::new(NoMemory), Slots::default(), None);
        Workspaces { sandboxes, bucket, clock, turnstile, memory, settings, slots, account }
    }

    /// Counts what is stored.
    pub fn with_account(mut self, account: Account) -> Self {
        self.account = Some(account);
        self
    }

    /// Stores nothing that brings the account above so many bytes.
    pub fn within(mut self, most: Option<u64>) -> Self {
        self.account = self.account.map(|account| account.within(most));
        self
    }

    /// Syncs share their number with those of other workspaces.
    pub fn with_slots(mut self, slots: Slots) -> Self {
        self.slots = slots;
        self
    }

    /// Bounds the time that each use waits for other syncs of the account, and for those at the same place.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.slots = self.slots.with_patience(patience);
        self
    }

    /// For stores that cannot refuse a second create.
    pub fn with_turnstile(mut self, turnstile: Arc<dyn Turnstile>) -> Self {
        self.turnstile = Some(turnstile);
        self
    }

    pub fn with_memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memory = memory;
        self
    }

    /// The workspace of a sandbox that runs, locked, and its versions.
    async fn open(&self, id: SandboxId) -> Result<(Session, Chain, Budget)> {
        let chain = self.chain(id).await?;
        let (guest, disk) = self.sandboxes.guest_with_disk(id).await?;
        let settings = SessionSettings {
            wait: self.settings.lock_wait,
            bounds: self.settings.bounds,
            shared: self.settings.volume.is_some(),
        };
        let session = Session::open(guest, settings, chain.held.clone()).await?;
        Ok((session, chain, self.settings.bounds.budget(disk)))
    }

    /// S7: pulls, pushes, or both, as is needed.
    pub async fn sync_files(&self, id: SandboxId, options: Options) -> Result<SyncReport> {
        self.sync_with_progress(id, options, Arc::new(Silent)).await
    }

    pub async fn sync_with_progress(
        &self,
        id: SandboxId,
        options: Options,
        progress: Arc<dyn Progress>,
    ) -> Result<SyncReport> {
        let synced = async {
            let (session, chain, budget) = self.open(id).await?;
            let marking = Arc::new(Marking { inner: progress, pushes: Notify::new() });
            let engine = Engine::new(&chain.versions, &session).with_options(options).with_budget(budget);
            let engine = engine.with_progress(marking.clone());
            let (mut marked, syncing) = (false, engine.sync());
            tokio::pin!(syncing);
            loop {
                tokio::select! {
                    synced = &mut syncing => {
                        let stored = chain.settle().await;
                        let mut report = synced?;
                        report.stats.bytes_stored = stored;
                        return Ok(report);
                    }
                    // H8: whoever kills us now leaves a sandbox that says so.
                    () = marking.pushes.notified(), if !marked => {
                        marked = true;
                        self.sandboxes.mark_unsynced(id, Some(UNDER_WAY.to_owned())).await?;
                    }
                }
            }
        };
        let synced: Result<SyncReport> = synced.await;
        self.settle(id, &synced).await;
        synced
    }

    /// H8: the mark, and S5: the statistics.
    async fn settle(&self, id: SandboxId, synced: &Result<SyncReport>) {
        let unsynced = match synced {
            Ok(report) => {
                log(id, report);
                report.problems.first().map(|(path, why)| format!("{path}: {why}"))
            }
            Err(error) => {
                tracing::error!(sandbox = %id, error = %error.chain(), "a workspace could not be synced");
                Some(error.chain())
            }
        };
        if let Err(error) = self.sandboxes.mark_unsynced(id, unsynced).await {
            tracing::error!(sandbox = %id, error = %error.chain(), "whether a workspace is synced could not be noted");
        }
    }

    /// What a sync would do.
    pub async fn dry_run(&self, id: SandboxId, options: Options) -> Result<DryRun> {
        let (session, chain, _) = self.open(id).await?;
        Ok(Engine::new(&chain.versions, &session).with_options(options).dry_run().await?)
    }

    /// S7: looks at the bucket where the workspace has none of it, or did so too long ago.
    pub async fn refresh(&self, id: SandboxId) -> Result<(Staleness, Option<SyncReport>)> {
        let found = {
            let (session, _chain, _) = self.open(id).await?;
            let scan = session.scan(ScanAsk::default()).await?;
            let last = scan.base.is_some().then_some(scan.last_synced_at).flatten();
            staleness(last, self.clock.now().as_second(), self.settings.stale_after)
        };
        match found {
            Staleness::Fresh => Ok((found, None)),
            _ => Ok((found, Some(self.sync_files(id, Options::default()).await?))),
        }
    }

    /// Brings a version back, or a part of it. What is in the workspace becomes a version first.
    pub async fn restore(
        &self,
        id: SandboxId,
        what: &Restore,
        progress: Arc<dyn Progress>,
    ) -> Result<Restored> {
        let restored = self.try_restore(id, what, progress).await?;
        self.settle(id, &Ok(restored.report.clone())).await;
        Ok(restored)
    }

    async fn try_restore(
        &self,
        id: SandboxId,
        what: &Restore,
        progress: Arc<dyn Progress>,
    ) -> Result<Restored> {
        let (session, chain, budget) = self.open(id).await?;
        let restored = async {
            let engine = Engine::new(&chain.versions, &session).with_progress(progress.clone());
            let engine = engine.with_budget(budget);
            if let Some((from, place)) = what.from.as_ref().filter(|(from, _)| *from != id) {
                let theirs = place.versions_at(*from, chain.held.clone())?;
                let version = newest_or(&theirs, what.version).await?;
                let source = Engine::new(&theirs, &session).with_progress(progress);
                let notes = source.copy_in(&version, what.path.as_ref()).await?;
                let mut report = engine.sync().await?;
                report.notes.extend(notes);
                return Ok(Restored { from: version.timestamp, saved: SyncReport::default(), report });
            }
            let version = newest_or(&chain.versions, what.version).await?;
            Ok(match &what.path {
                Some(path) => engine.restore_path(version.timestamp, path).await?,
                None => engine.restore(version.timestamp).await?,
            })
        };
        let restored: Result<Restored> = restored.await;
        let stored = chain.settle().await;
        let mut restored = restored?;
        restored.report.stats.bytes_stored = stored;
        Ok(restored)
    }
}

/// A version by its timestamp or number; without either the newest.
async fn newest_or(versions: &Versions, wanted: Option<i64>) -> Result<VersionRecord> {
    match wanted {
        Some(wanted) => Ok(versions.find(wanted).await?),
        None => versions.head().await?.version.ok_or_else(|| {
            Error::not_found(format!(
                "there is no version in {} yet; `seawall sync` makes one",
                versions.place()
            ))
        }),
    }
}

fn log(id: SandboxId, report: &SyncReport) {
    let stats = &report.stats;
    tracing::info!(
        sandbox = %id, direction = ?report.direction, downloaded = stats.files_downloaded,
        uploaded = stats.files_uploaded, deleted = stats.files_deleted, skipped = stats.files_skipped,
        bytes = stats.bytes_transferred, stored = stats.bytes_stored, duration_ms = stats.duration_ms, conflicts = report.notes.len(),
        problems = report.problems.len(), "workspace synced"
    );
    if let Some(problem) = &report.state_problem {
        tracing::warn!(sandbox = %id, problem, "the state file is written anew");
    }
    for note in &report.notes {
        tracing::warn!(sandbox = %id, ?note, "both sides changed");
    }
    for (path, why) in &report.problems {
        tracing::warn!(sandbox = %id, %path, why, "a file is not in the version");
    }
}

impl From<seawall_sync::Error> for Error {
    fn from(error: seawall_sync::Error) -> Self {
        Error::new(error.kind(), error.to_string()).with_source(error)
    }
}
