//! Making, looking, stopping, ending: a sandbox as a thing of its account.

use super::{
    SandboxService, Wanted, coded, created,
    ending::Ending,
    owned::{NO_TEMPLATE, gone},
    wishes::{check_network, with_wishes, with_workspace},
};
use crate::{
    Error, ExecOutput, ExecRequest, Result,
    budget::Reservation,
    exec::Captured,
    hooks::{Moment, is_own_key},
    ports::{
        Volumes,
        store::{Page, Paged, SandboxFilter, SandboxRow},
    },
    repositories::is_address,
    sandboxes::{Left, NewSandbox, check_wishes},
    shares::to_its_end,
    templates::Template,
};
use futures::FutureExt;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    files::FileRef,
    http::{CreateSandbox, ProviderInfo, SandboxMetrics},
    sandbox::{Egress, EndReason, HostMount, Sandbox, SandboxInfo, SandboxSpec, SandboxState, WORKDIR},
};
use serde_json::{Map, Value};
use std::time::Duration;

/// How long processes may take to end, where nothing is said.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// How a sandbox shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndSandbox {
    /// Its files are pushed first.
    pub sync: bool,
    /// Also where that fails, or where it has work that no bucket has.
    pub force: bool,
    /// None: they go where the bucket has them.
    pub volumes: Option<Volumes>,
    /// All versions of its files are deleted too; also of one that was ended before.
    pub delete_versions: bool,
}

impl SandboxService {
    /// V1, and H2: cold start runs also for a sandbox without a conversation.
    pub async fn create(&self, account: AccountId, ask: &CreateSandbox) -> Result<Sandbox> {
        self.create_with(account, ask, false).await
    }

    /// Like [`SandboxService::create`]. With `on_host` the request may name a provider without isolation: the caller can run
    /// any process on this machine anyway.
    pub async fn create_with(
        &self,
        account: AccountId,
        ask: &CreateSandbox,
        on_host: bool,
    ) -> Result<Sandbox> {
        check_wishes(ask)?;
        let ask = &with_workspace(ask);
        let id = ask.id.unwrap_or_else(SandboxId::generate);
        let permit = self.heavy.starts.enter(account).await;
        let alone = self.queues.wait(id).await;
        if let Some(row) = self.rows.find(id).await? {
            drop((alone, permit));
            return self.made_before(account, row, ask).await;
        }
        let (service, ask) = (self.clone(), ask.clone());
        to_its_end(async move {
            let _held = (permit, alone);
            service.create_alone(account, id, &ask, on_host).await
        })
        .await
    }

    /// The id is nobody's.
    async fn create_alone(
        &self,
        account: AccountId,
        id: SandboxId,
        ask: &CreateSandbox,
        on_host: bool,
    ) -> Result<Sandbox> {
        let invalid = |error: Error| error.with_code("invalid_config");
        let template = self.template_of(ask.template.as_deref()).map_err(invalid)?;
        let provider = ask.provider.clone().or_else(|| template.sandbox.provider.clone());
        let name = provider.as_deref().unwrap_or(self.sandboxes.providers().default_name()).to_owned();
        let provides = self.sandboxes.providers().get(&name).map_err(invalid)?;
        if !on_host {
            self.check_provider(ask, &name)?;
        }
        self.mounts.check(account, &ask.mounts)?;
        check_network(account, ask)?;
        self.check_source(account, ask, &template)?;
        self.check_times(account, &ask.timeouts).await?;
        let (conversation, agent, turn, cancelled) = (None, None, None, None);
        let moved = false;
        let wanted = Wanted { account, sandbox: id, conversation, agent, turn, template, cancelled, moved };
        let spec = self.spec_of(&wanted, provides.capabilities().isolation)?;
        let (spec, kept) = self.with_volume(id, &name, spec, true).await?;
        self.refuse_orphan(account, id, kept && spec.volume.is_none())?;
        check_user(&spec, ask).map_err(invalid)?;
        let spec = with_wishes(spec, ask);
        let new = NewSandbox {
            id: Some(id),
            account: Some(account),
            name: ask.name.clone(),
            template: Some(wanted.template.name.clone()),
            provider,
            spec: self.bounded(account, spec, &*provides, kept).await?,
        };
        let follows = ask.image.is_none() && provides.capabilities().images;
        if !ask.start {
            self.sandboxes.create(new).await.map_err(|error| created(id, error))?;
            if follows {
                self.note_image(&wanted, wanted.template.sandbox.image.as_ref()).await;
            }
            return self.get(account, id).await;
        }
        let volumes = if kept { Volumes::Keep } else { Volumes::Delete };
        self.launch(new, volumes, Left::Nothing).await.map_err(|error| created(id, error))?;
        if follows {
            self.note_image(&wanted, wanted.template.sandbox.image.as_ref()).await;
        }
        self.cold_start(&wanted, volumes, Left::Nothing, !kept).await?;
        self.get(account, id).await
    }

    fn check_source(&self, account: AccountId, ask: &CreateSandbox, template: &Template) -> Result<()> {
        let Some(source) = &ask.workspace_source else { return Ok(()) };
        if !is_address(source) {
            let message = "`workspace_source` must be https://HOST/OWNER/REPOSITORY, with at least two parts after the host and \
                           without credentials";
            return Err(Error::invalid(message).with_code("invalid_config"));
        }
        if template.git.is_some() {
            let message = "the template has a repository of its own; leave `workspace_source` out";
            return Err(Error::invalid(message).with_code("invalid_config"));
        }
        self.source_hosts.check(account, source)
    }

    /// Whether a sandbox that was made earlier may still have its mounts: those that no template furnishes must be granted
    /// to its account now.
    pub(super) fn check_mounts(&self, account: AccountId, spec: &SandboxSpec) -> Result<()> {
        let furnished: Vec<HostMount> = self.templates.all().flat_map(Template::furnished).collect();
        let asked: Vec<HostMount> =
            spec.mounts.iter().filter(|mount| !furnished.contains(mount)).cloned().collect();
        self.mounts.check(account, &asked)
    }

    /// What is not walled off from this machine is for its operator to choose: by the default, or by a template.
    fn check_provider(&self, ask: &CreateSandbox, name: &str) -> Result<()> {
        let providers = self.sandboxes.providers();
        let isolates = providers.get(name)?.capabilities().isolation;
        if ask.provider.is_none() || isolates || name == providers.default_name() {
            return Ok(());
        }
        let message = format!(
            "the provider `{name}` isolates nothing: only a template, or the server's default, may name it"
        );
        Err(Error::new(ErrorKind::Denied, message).with_code("provider_denied"))
    }

    /// Asked for again: the same is the same, ended is ended, and another's id is taken.
    async fn made_before(&self, account: AccountId, row: SandboxRow, ask: &CreateSandbox) -> Result<Sandbox> {
        let id = row.id;
        if row.account_id != account {
            return Err(Error::not_found(format!("there is no sandbox {id}")));
        }
        if row.state == SandboxState::Terminated {
            return Err(gone(id));
        }
        let other = |asked: &Option<String>, is: Option<&str>| asked.is_some() && asked.as_deref() != is;
        if row.name != ask.name
            || other(&ask.template, row.template.as_deref())
            || other(&ask.provider, Some(&row.provider))
            || with_wishes(row.spec.clone(), ask) != row.spec
        {
            return Err(Error::conflict(format!("sandbox {id} exists and is not as asked for")));
        }
        if ask.start {
            self.ensure_live(&self.wanted_of(&row).await?).await?;
        }
        self.get(account, id).await
    }

    /// Also of those that were ended.
    pub async fn get(&self, account: AccountId, id: SandboxId) -> Result<Sandbox> {
        let row = self.row(account, id).await?;
        let info = self.sandboxes.get(id).await?;
        let published = self.sandboxes.published(&info).await?;
        let ports = published.into_iter().map(|(port, address)| (port, address.to_string())).collect();
        Ok(Sandbox { ports, ..self.seen(row, info) })
    }

    /// What each row of a page of [`SandboxService::list`] takes in memory.
    pub async fn sizes(&self, account: AccountId, filter: &SandboxFilter, page: &Page) -> Result<Vec<u64>> {
        self.rows.sizes(account, filter, page).await
    }

    /// Newest first.
    pub async fn list(
        &self,
        account: AccountId,
        filter: &SandboxFilter,
        page: &Page,
    ) -> Result<Paged<Sandbox>> {
        let found = self.rows.list(account, filter, page).await?;
        let mut items = Vec::with_capacity(found.items.len());
        for row in found.items {
            match self.sandboxes.get(row.id).await {
                Ok(info) => items.push(self.seen(row, info)),
                // Removed since the list was made.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(sandbox = %row.id, error = %error.chain(), "its box cannot be looked at");
                    let info = as_recorded(&row);
                    items.push(self.seen(row, info));
                }
            }
        }
        Ok(Paged { items, next: found.next })
    }

    pub async fn start(&self, account: AccountId, id: SandboxId) -> Result<Sandbox> {
        let row = self.live_row(account, id).await?;
        self.ensure_live(&self.wanted_of(&row).await?).await?;
        // V1: it answers, and its workspace is there.
        let reached = self.sandboxes.guest(id).await?.stat(FileRef::new(WORKDIR), true).await;
        if let Err(error) = reached {
            let message = format!("sandbox {id} runs and cannot be reached; stop it and start it again");
            return Err(coded("not_accessible", message, error.into()));
        }
        self.get(account, id).await
    }

    pub async fn stop(
        &self,
        account: AccountId,
        id: SandboxId,
        grace: Option<Duration>,
        force: bool,
    ) -> Result<Sandbox> {
        self.live_row(account, id).await?;
        let _permit = self.heavy.ends.enter(account).await;
        match force {
            true => self.sandboxes.give_up_unsynced(id).await?,
            false => self.refuse_if_busy(account, id).await?,
        }
        self.sandboxes.stop(id, grace.unwrap_or(GRACE)).await?;
        self.get(account, id).await
    }

    /// V2: for good. What was ended before stays so.
    pub async fn end(&self, account: AccountId, id: SandboxId, how: &EndSandbox) -> Result<Sandbox> {
        let permit = self.heavy.ends.enter(account).await;
        let ending = self.before_end(account, id, how.sync).await;
        // One after the other, and not while somebody makes it ready.
        let alone = self.queues.wait(id).await;
        let (service, how) = (self.clone(), *how);
        // Also where the caller hangs up: a box that was started to be saved is stopped again.
        to_its_end(async move {
            let _held = (permit, alone);
            service.end_alone(account, id, &how, ending).await
        })
        .await
    }

    async fn end_alone(
        &self,
        account: AccountId,
        id: SandboxId,
        how: &EndSandbox,
        ending: Ending,
    ) -> Result<Sandbox> {
        let row = match self.row(account, id).await {
            Err(error) if error.kind() == ErrorKind::NotFound && !how.force => {
                // A turn may be about to make it.
                self.refuse_if_busy(account, id).await?;
                return Err(error);
            }
            found => found?,
        };
        // Before anything is ended: where that cannot be done, nothing is.
        let versions = match how.delete_versions {
            true => self.deletable(&row).await?,
            false => None,
        };
        if row.state == SandboxState::Terminated {
            if let Some(versions) = versions {
                self.delete_versions(&row, &versions).await?;
            }
            return self.get(account, id).await;
        }
        refuse_to_keep(account, how.volumes)?;
        if !how.force {
            self.refuse_if_busy(account, id).await?;
        }
        let mut last = self.get(account, id).await?;
        let wanted = match self.wanted_of(&row).await {
            // Whoever does not want it saved does not need to know where.
            Err(error) if error.code() == NO_TEMPLATE && (how.force || !how.sync) => self.bare(&row),
            found => found?,
        };
        self.terminate_with(&wanted, how, ending).await?;
        if let Some(versions) = versions {
            self.delete_versions(&row, &versions).await?;
        }
        match self.get(account, id).await {
            // One without a template leaves no record.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                last.info.state = SandboxState::Terminated;
                last.info.reason = Some(EndReason::Terminated);
                Ok(last)
            }
            other => other,
        }
    }

    /// A turn is somebody's work.
    async fn refuse_if_busy(&self, account: AccountId, id: SandboxId) -> Result<()> {
        let Some(turns) = &self.turns else { return Ok(()) };
        match turns.running_in(account, id).await? {
            None => Ok(()),
            Some(turn) => {
                let message =
                    format!("turn {turn} runs in sandbox {id}: wait for it, cancel it, or use force");
                Err(Error::conflict(message).with_code("busy").without_effect())
            }
        }
    }

    /// With a sync first, unless that is not wanted. Where the sync fails it goes on, unless forced.
    pub async fn terminate(&self, wanted: &Wanted, sync: bool, force: bool) -> Result<()> {
        let ending = self.before_end(wanted.account, wanted.sandbox, sync).await;
        let how = EndSandbox { sync, force, volumes: None, delete_versions: false };
        self.terminate_with(wanted, &how, ending).await
    }

    /// `ending` is held until it is gone.
    async fn terminate_with(&self, wanted: &Wanted, how: &EndSandbox, mut ending: Ending) -> Result<()> {
        let id = wanted.sandbox;
        // It must be theirs.
        if self.row(wanted.account, id).await?.state == SandboxState::Terminated {
            return Ok(());
        }
        let moment = Moment::Terminate { reason: EndReason::Terminated };
        let log = async move {
            tracing::info!(sandbox = %id, "sandbox ends");
            Ok(())
        };
        // First, so that what it writes is saved too.
        match self.hooks.run(&wanted.context(), &moment, Some(log.boxed())).await {
            Err(error) if how.force => {
                tracing::error!(sandbox = %id, error = %error.chain(), "terminated by force, though a hook failed");
            }
            done => done.map_err(|error| error.with_code("hook_failed"))?,
        }
        let synced = match how.sync {
            true => self.saved_for_good(wanted, how.force, &mut ending).await?,
            false => false,
        };
        if how.force {
            self.sandboxes.give_up_unsynced(id).await?;
        }
        // What is in the bucket need not be here; what is not, stays. A volume that others may use stays unless told.
        let shares = self.row(wanted.account, id).await?.spec.volume.is_some();
        // Nobody counts what tenants leave behind, so they leave nothing. A volume that others use stays in any case.
        let gone = wanted.account != AccountId::LOCAL || (synced && !shares);
        let volumes = how.volumes.unwrap_or(if gone { Volumes::Delete } else { Volumes::Keep });
        self.sandboxes.remove(id, volumes).await
    }

    /// V6. The service's own keys stay as they are.
    pub async fn set_metadata(
        &self,
        account: AccountId,
        id: SandboxId,
        changes: &Map<String, Value>,
    ) -> Result<Sandbox> {
        self.live_row(account, id).await?;
        if let Some(key) = changes.keys().find(|key| is_own_key(key)) {
            return Err(Error::invalid(format!("`{key}` is the service's own; choose another key")));
        }
        self.rows.merge_metadata(account, id, changes).await?;
        self.get(account, id).await
    }

    pub async fn exec(&self, account: AccountId, id: SandboxId, request: ExecRequest) -> Result<ExecOutput> {
        self.exec_captured(account, id, request, None).await.map(ExecOutput::from)
    }

    /// As [`SandboxService::exec`], with the output as it was gathered. What `room` has no bytes for is counted as truncated.
    pub async fn exec_captured(
        &self,
        account: AccountId,
        id: SandboxId,
        request: ExecRequest,
        room: Option<Reservation>,
    ) -> Result<Captured> {
        let done = crate::exec::run(&self.guest(account, id).await?, request, room).await;
        match done {
            // It may have been ended under the command's feet.
            Err(error) => match self.row(account, id).await {
                Ok(row) if row.state == SandboxState::Terminated => Err(gone(id).with_source(error)),
                _ => Err(error),
            },
            done => done,
        }
    }

    pub async fn metrics(&self, account: AccountId, id: SandboxId) -> Result<SandboxMetrics> {
        let guest = self.guest_if_running(account, id).await?;
        let provider = self.row(account, id).await?.provider;
        let used = self.sandboxes.providers().get(&provider)?.usage(id).await?;
        let (info, processes) = (guest.info().await?, guest.processes().await?);
        Ok(SandboxMetrics {
            uptime_s: info.uptime_s,
            idle_s: info.idle_s,
            processes_running: info.processes_running,
            memory_bytes: used.memory_bytes,
            cpu_seconds: used.cpu_seconds,
            processes,
        })
    }

    pub async fn providers(&self, account: AccountId) -> Vec<ProviderInfo> {
        let providers = self.sandboxes.providers();
        let mut infos = Vec::new();
        for provider in providers.all() {
            let why = providers.why_not(provider).await;
            infos.push(ProviderInfo {
                name: provider.name().to_owned(),
                default: provider.name() == providers.default_name(),
                usable: why.is_none(),
                // The reason can name paths and addresses of this machine.
                why: why.filter(|_| account == AccountId::LOCAL),
                // Plain data of ours.
                capabilities: serde_json::to_value(provider.capabilities()).unwrap_or_default(),
            });
        }
        infos
    }
}

fn as_recorded(row: &SandboxRow) -> SandboxInfo {
    SandboxInfo {
        id: row.id,
        name: row.name.clone(),
        provider: row.provider.clone(),
        state: row.state,
        reason: row.reason.clone(),
        spec: row.spec.clone(),
        created_at: row.created_at,
        started_at: row.started_at,
        egress: Egress::default(),
    }
}

/// Whoever works in a volume owns it: others who share it could not write any more.
fn check_user(template: &SandboxSpec, ask: &CreateSandbox) -> Result<()> {
    match template.volume.is_some() && ask.user.is_some() && ask.user != template.user {
        true => Err(Error::invalid(
            "sandboxes of this template share a volume, and all have the template's user; leave the user out",
        )),
        false => Ok(()),
    }
}

/// The disk of what was ended is counted for nobody.
fn refuse_to_keep(account: AccountId, volumes: Option<Volumes>) -> Result<()> {
    if volumes != Some(Volumes::Keep) || account == AccountId::LOCAL {
        return Ok(());
    }
    let message = "only the operator's account may keep volumes of sandboxes that are ended: files are kept as versions in the \
                   bucket; or stop the sandbox instead";
    Err(Error::new(ErrorKind::Denied, message).with_code("volumes_denied"))
}
