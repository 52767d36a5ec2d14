//! The sandbox service (V): sandboxes as their users mean them, by account, with their files.
//!
//! [`SandboxService::ensure`] is what every operation begins with: what runs is left alone, what is gone is made again
//! with its workspace. A cold start that fails leaves nothing behind.

mod bounds;
mod ending;
mod entrances;
mod errors;
mod files;
mod manage;
mod owned;
mod reconcile;
mod remake;
mod rescue;
mod restore;
mod source;
mod stored;
mod versions;
mod wishes;

pub(crate) use entrances::{Closing, Entrances, Watched};
pub use files::{ListFiles, ReadAsk, Source};
pub use manage::EndSandbox;
pub use owned::shown;
pub(crate) use owned::{gone, told};
pub use stored::{AccountFiles, Expired};

use self::{
    errors::{coded, created, rebuilt},
    remake::{has_program, made_again},
};
use crate::{
    Error, Result, Sandboxes,
    accounts::AccountCatalog,
    hooks::{HookContext, Hooks, Moment},
    mounts::MountGrants,
    ports::{
        Clock, Volumes,
        gateway::Gateway,
        store::{Conversations, LAST_PLACE, SandboxRow, SandboxRows, Turns},
    },
    queues::Queues,
    repositories::SourceHosts,
    sandboxes::{Left, NewSandbox},
    shares::{HeavyWork, to_its_end},
    templates::{Template, Templates},
    workspaces::{Names, WorkspaceMaker, progress::Running, volumes},
};
use futures::FutureExt;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, SandboxId, TurnId,
    sandbox::{EndReason, SandboxSpec, SandboxState, Timeouts},
};
use serde_json::{Map, Value, json};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::watch;

/// V6: the key of a row's metadata.
const LAST_SYNCED: &str = "last_synced_at";
/// How often it was made anew after its end.
const LIVES: &str = "lives";
/// Its cold start came to its end.
const READY: &str = "ready";
/// The newest version that was pushed or restored.
const LAST_VERSION: &str = "last_version";
/// Its files came in part: a pull of its cold start failed.
const IN_PART: &str = "in_part";
/// The template by which that was decided.
const FILES_OF: &str = "files_of";
/// The image that the template named when the sandbox got it. A sandbox whose request named an image has no such note.
const TEMPLATE_IMAGE: &str = "template_image";

/// False: it was once.
fn is_ready(metadata: &Map<String, Value>) -> bool {
    metadata.get(READY) == Some(&Value::Bool(true))
}

/// For whom a sandbox is wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub account: AccountId,
    pub sandbox: SandboxId,
    pub conversation: Option<ConversationId>,
    pub agent: Option<String>,
    pub turn: Option<TurnId>,
    pub template: Arc<Template>,
    /// Whether the turn is not wanted any more. None: nobody can say so.
    pub cancelled: Option<watch::Receiver<bool>>,
    /// The conversation worked in another sandbox before, so the files here can be older than those in the bucket.
    pub moved: bool,
}

impl Wanted {
    pub fn context(&self) -> HookContext {
        HookContext {
            account: self.account,
            template: self.template.clone(),
            conversation: self.conversation,
            turn: self.turn,
            sandbox: self.sandbox,
            cancelled: self.cancelled.clone(),
        }
    }

    fn names(&self) -> Names {
        Names {
            account: self.account,
            conversation: self.conversation.map(|id| id.to_string()),
            agent: self.agent.clone(),
            volume: None,
        }
    }

    /// S12: the volume that it shares with others, by its template.
    fn volume(&self) -> Option<String> {
        volumes::name(&self.template.sync, &self.names(), self.sandbox)
    }
}

/// A sandbox that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ready {
    /// It was made, or made again.
    pub cold: bool,
    /// The version that its files were brought to just now.
    pub version: Option<i64>,
}

#[derive(Clone)]
pub struct SandboxService {
    pub(crate) sandboxes: Sandboxes,
    pub(crate) workspaces: WorkspaceMaker,
    pub(crate) hooks: Hooks,
    pub(crate) rows: Arc<dyn SandboxRows>,
    pub(crate) clock: Arc<dyn Clock>,
    templates: Arc<Templates>,
    conversations: Option<Arc<dyn Conversations>>,
    /// T5: of what says nothing itself.
    timeouts: Timeouts,
    /// Folders of the host that requests may name.
    mounts: Arc<MountGrants>,
    source_hosts: Arc<SourceHosts>,
    /// The way of a clone to its repository. `None` where the server reaches none.
    gateway: Option<Arc<dyn Gateway>>,
    turns: Option<Arc<dyn Turns>>,
    /// The limits of accounts. `None` where there is only the operator's.
    catalog: Option<AccountCatalog>,
    /// Whether tenants may have volumes that nothing limits.
    allow_unlimited_disk: bool,
    /// Who makes a sandbox ready, stops or ends it stands in its queue; others wait.
    pub(crate) queues: Queues,
    pub(crate) entrances: Entrances,
    /// How far the syncs are that callers wait for.
    syncing: Running,
    /// Permits for work of accounts. They are taken before a queue, and never two of one kind.
    pub(crate) heavy: HeavyWork,
}

impl fmt::Debug for SandboxService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxService").finish_non_exhaustive()
    }
}

impl SandboxService {
    pub fn new(
        sandboxes: Sandboxes,
        workspaces: WorkspaceMaker,
        hooks: Hooks,
        rows: Arc<dyn SandboxRows>,
        clock: Arc<dyn Clock>,
    ) -> SandboxService {
        SandboxService {
            sandboxes,
            workspaces,
            hooks,
            rows,
            clock,
            templates: Arc::default(),
            conversations: None,
            timeouts: Timeouts::default(),
            mounts: Arc::default(),
            source_hosts: Arc::default(),
            gateway: None,
            turns: None,
            catalog: None,
            allow_unlimited_disk: false,
            queues: Queues::default(),
            entrances: Entrances::default(),
            syncing: Running::default(),
            heavy: HeavyWork::default(),
        }
    }

    /// How much heavy work accounts may do at the same time.
    pub fn with_heavy_work(mut self, heavy: HeavyWork) -> SandboxService {
        self.heavy = heavy;
        self
    }

    /// What turns run in is not stopped or ended without force.
    pub fn with_turns(mut self, turns: Arc<dyn Turns>) -> SandboxService {
        self.turns = Some(turns);
        self
    }

    /// Holds every account but `local` to its bounds per sandbox.
    pub fn with_accounts(mut self, catalog: AccountCatalog, allow_unlimited_disk: bool) -> SandboxService {
        self.catalog = Some(catalog);
        self.allow_unlimited_disk = allow_unlimited_disk;
        self
    }

    /// What sandboxes may be made from, and whose they may be.
    pub fn with_templates(
        mut self,
        templates: Arc<Templates>,
        conversations: Arc<dyn Conversations>,
    ) -> SandboxService {
        self.templates = templates;
        self.conversations = Some(conversations);
        self
    }

    /// T5: when sandboxes end by themselves, unless they or their template say otherwise.
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> SandboxService {
        self.timeouts = timeouts;
        self
    }

    /// The folders of the host that requests may name, by account.
    pub fn with_mounts(mut self, mounts: MountGrants) -> SandboxService {
        self.mounts = Arc::new(mounts);
        self
    }

    /// The hosts of repositories that requests may name, and the way there.
    pub fn with_sources(mut self, hosts: SourceHosts, gateway: Option<Arc<dyn Gateway>>) -> SandboxService {
        self.source_hosts = Arc::new(hosts);
        self.gateway = gateway;
        self
    }

    pub fn boxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// Whether a sandbox is walled off from this machine's files.
    pub(crate) async fn isolates(&self, id: SandboxId) -> Result<bool> {
        let provider = self.sandboxes.get(id).await?.provider;
        Ok(self.sandboxes.providers().get(&provider)?.capabilities().isolation)
    }

    /// V2: it runs when this returns, with its files, and is this account's. What was ended is made anew.
    pub async fn ensure(&self, wanted: &Wanted) -> Result<Ready> {
        self.ensure_to_its_end(wanted, false).await
    }

    /// As [`SandboxService::ensure`], but what was ended, perhaps just now, stays so.
    async fn ensure_live(&self, wanted: &Wanted) -> Result<Ready> {
        self.ensure_to_its_end(wanted, true).await
    }

    /// Also where the caller hangs up: a box must not come to run after its admission is gone, and nobody else may be at it
    /// meanwhile.
    async fn ensure_to_its_end(&self, wanted: &Wanted, is_live: bool) -> Result<Ready> {
        let permit = self.heavy.starts.enter(wanted.account).await;
        let alone = self.queues.wait(wanted.sandbox).await;
        let (service, wanted) = (self.clone(), wanted.clone());
        to_its_end(async move {
            let _held = (permit, alone);
            if is_live {
                service.live_row(wanted.account, wanted.sandbox).await?;
            }
            service.ensure_alone(&wanted).await
        })
        .await
    }

    async fn ensure_alone(&self, wanted: &Wanted) -> Result<Ready> {
        let id = wanted.sandbox;
        self.entrances.note(id);
        let Some(row) = self.rows.find(id).await? else {
            return self.make(wanted, None, Left::Nothing).await;
        };
        if row.account_id != wanted.account {
            return Err(Error::not_found(format!("there is no sandbox {id}")));
        }
        if row.state == SandboxState::Terminated {
            return self.make(wanted, Some(&row), Left::ByTemplate).await;
        }
        if self.lacks_program(wanted, &row.spec).await? {
            return self.replace(wanted).await;
        }
        // Those that were made by hand have no template, and are ready as they are.
        let is_ready = row.template.is_none() || is_ready(&row.metadata);
        let mut state = self.sandboxes.get(id).await?.state;
        if state == SandboxState::Running && self.entrances.take_over(id, row.started_at) {
            state = self.sandboxes.stop_unsaved(id, manage::GRACE, EndReason::MaxLifetime).await?.state;
        }
        match state {
            SandboxState::Running => self.sandboxes.take_place(row.account_id, id).await?,
            _ => self.check_mounts(row.account_id, &row.spec)?,
        }
        let is_ready = is_ready && !self.renew_before_start(wanted, &row, state).await;
        match state {
            // Whoever made it died, or failed, before it was ready.
            SandboxState::Running if !is_ready => {
                // Of one that never was, nothing is left where it fails again; its volume may be older than it is.
                let has = |key: &str| row.metadata.contains_key(key);
                let worked = row.unsynced.is_some() || has(LAST_SYNCED);
                let left = if worked || has(READY) || has(LIVES) { Left::Failed } else { Left::Nothing };
                // Whoever made it died before its files were there.
                let empty = !has(READY) && row.unsynced.is_none();
                self.cold_start(wanted, Volumes::Keep, left, empty).await
            }
            SandboxState::Running => self.freshen(wanted, &row.metadata).await,
            SandboxState::Stopped | SandboxState::Paused if is_ready => {
                match self.sandboxes.start(id).await {
                    // The files of the box are gone, and the provider gave it up.
                    Err(error) if error.kind() == ErrorKind::NotFound => self.start_cold(wanted).await,
                    started => {
                        started?;
                        self.freshen(wanted, &row.metadata).await
                    }
                }
            }
            SandboxState::Created
            | SandboxState::Stopped
            | SandboxState::Paused
            | SandboxState::Lost
            | SandboxState::Failed => self.start_cold(wanted).await,
            state => Err(Error::unavailable(format!(
                "sandbox {id} is {state}: somebody is at it; try again in a moment"
            ))),
        }
    }

    /// Starts a sandbox whose cold start did not end, or whose box is gone.
    async fn start_cold(&self, wanted: &Wanted) -> Result<Ready> {
        let id = wanted.sandbox;
        self.note(wanted, READY, Value::Bool(false)).await;
        self.sandboxes.start(id).await.map_err(|error| rebuilt(id, error))?;
        self.cold_start(wanted, Volumes::Keep, Left::Failed, false).await
    }

    /// `before`: what it was when it was ended. It is made again with the same configuration (V2). `left`: what stays
    /// of it where that fails.
    async fn make(&self, wanted: &Wanted, before: Option<&SandboxRow>, left: Left) -> Result<Ready> {
        let template = &wanted.template;
        let provider = before.map(|row| row.provider.clone()).or_else(|| template.sandbox.provider.clone());
        let name = provider.as_deref().unwrap_or(self.sandboxes.providers().default_name()).to_owned();
        let isolates = self.sandboxes.providers().get(&name)?.capabilities().isolation;
        let spec = match before {
            // Where nothing is walled off, the program is where it is.
            Some(row) if !isolates || has_program(template, &row.spec) => row.spec.clone(),
            Some(row) => made_again(&row.spec, self.spec_of(wanted, isolates)?),
            None => self.spec_of(wanted, isolates)?,
        };
        if before.is_some() {
            self.check_mounts(wanted.account, &spec)?;
        }
        let (spec, kept) = self.with_volume(wanted.sandbox, &name, spec, before.is_none()).await?;
        self.refuse_orphan(
            wanted.account,
            wanted.sandbox,
            before.is_none() && kept && spec.volume.is_none(),
        )?;
        let spec = match before {
            Some(_) => spec,
            None => {
                let provider = self.sandboxes.providers().get(&name)?;
                self.bounded(wanted.account, spec, &*provider, kept).await?
            }
        };
        let new = NewSandbox {
            id: Some(wanted.sandbox),
            account: Some(wanted.account),
            template: Some(template.name.clone()),
            provider,
            spec,
            ..NewSandbox::default()
        };
        if let Some(before) = before {
            let lives = before.metadata.get(LIVES).and_then(Value::as_u64).unwrap_or(0);
            self.note(wanted, READY, Value::Null).await;
            self.note(wanted, LIVES, json!(lives + 1)).await;
        }
        let told = if before.is_some() { rebuilt } else { created };
        let volumes = if kept { Volumes::Keep } else { Volumes::Delete };
        let takes_image = before.is_none_or(|row| row.spec != new.spec);
        self.launch(new, volumes, left).await.map_err(|error| told(wanted.sandbox, error))?;
        if takes_image && self.sandboxes.providers().get(&name)?.capabilities().images {
            self.note_image(wanted, template.sandbox.image.as_ref()).await;
        }
        self.cold_start(wanted, volumes, left, !kept).await
    }

    /// H2: a box that was made and cannot be started goes again.
    async fn launch(&self, new: NewSandbox, volumes: Volumes, left: Left) -> Result<()> {
        let id = new.id;
        let launched = self.sandboxes.launch(new).await;
        if let (Err(error), Some(id)) = (&launched, id)
            // Then it is another's.
            && !matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)
            && self.sandboxes.is_unstarted(id).await.unwrap_or(false)
        {
            self.undo(id, volumes, left).await;
        }
        launched.map(drop)
    }

    /// Files that it had before stay its own. And whether its volume is not ours to delete: it was there before, or may be
    /// another's by now.
    async fn with_volume(
        &self,
        id: SandboxId,
        provider: &str,
        mut spec: SandboxSpec,
        is_new: bool,
    ) -> Result<(SandboxSpec, bool)> {
        let has_own = self.sandboxes.providers().get(provider)?.has_volume(&id.to_string()).await?;
        if is_new && has_own {
            spec.volume = None;
        }
        let kept = has_own || spec.volume.is_some();
        Ok((spec, kept))
    }

    /// A volume without a record may be another account's: only the operator gets the files of such an id.
    fn refuse_orphan(&self, account: AccountId, id: SandboxId, orphan: bool) -> Result<()> {
        if !orphan || account == AccountId::LOCAL {
            return Ok(());
        }
        let message = format!("the id {id} cannot be used; leave it out, and one is made");
        Err(Error::invalid(message).with_code("invalid_id"))
    }

    fn spec_of(&self, wanted: &Wanted, isolates: bool) -> Result<SandboxSpec> {
        let mut spec = wanted.template.spec(isolates)?;
        spec.timeouts = spec.timeouts.or(self.timeouts);
        spec.volume = wanted.volume();
        Ok(spec)
    }

    /// H2: with or without a bucket. Where it fails the box goes, and the error says what to do.
    /// `empty`: what it has of files is nothing that was there before.
    async fn cold_start(&self, wanted: &Wanted, volumes: Volumes, left: Left, empty: bool) -> Result<Ready> {
        let version = Arc::new(Mutex::new(None));
        let (service, what, found) = (self.clone(), wanted.clone(), version.clone());
        let restore = async move {
            let restored = service.restore_files(&what, empty, volumes == Volumes::Delete).await?;
            service.clone_source(&what).await?;
            *found.lock().unwrap_or_else(PoisonError::into_inner) = restored;
            Ok(())
        };
        let ran = self.hooks.run(&wanted.context(), &Moment::ColdStart, Some(restore.boxed())).await;
        if let Err(error) = ran {
            self.undo(wanted.sandbox, volumes, left).await;
            return Err(error.with_code("hook_failed"));
        }
        let ready = [(READY.to_owned(), Value::Bool(true)), (IN_PART.to_owned(), Value::Null)];
        self.note_all(wanted, &Map::from_iter(ready)).await;
        let version = *version.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Ready { cold: true, version })
    }

    async fn undo(&self, id: SandboxId, volumes: Volumes, left: Left) {
        let undone = async {
            if left != Left::Nothing && self.sandboxes.unsynced(id).await?.is_some() {
                // H8: what no bucket has stays as it is, and the next use tries again.
                return Ok(());
            }
            self.sandboxes.give_up_unsynced(id).await?;
            self.sandboxes.unmake(id, volumes, left).await
        };
        if let Err(error) = undone.await {
            tracing::error!(sandbox = %id, error = %error.chain(), "a half-made sandbox could not be removed; the next sweep does it");
        }
    }
}
