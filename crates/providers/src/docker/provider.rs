//! The provider itself: containers behind the contract.

use super::{
    daemon::{Daemon, is_missing},
    disks::{self, Disks},
    events,
    folders::Folders,
    labels::{self, container_name},
    network::{Network, NetworkSettings, Networks},
    sockets::Socket,
    state, volumes,
};
use crate::{
    boxes::{io_error, no_box, refuse_damaged},
    native::{Defaults, HostFolders, Mounts},
    off_thread,
};
use async_trait::async_trait;
use bollard::{
    models::ContainerInspectResponse,
    query_parameters::{InspectContainerOptions, ListContainersOptionsBuilder},
};
use futures::StreamExt;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    hello::{MIN_VERSION, Role},
    sandbox::{EndReason, Limits, SandboxSpec},
};
use seawall_core::{
    Error, Result,
    ports::{
        AccountTotals, BoxEvents, BoxInfo, BoxState, Capabilities, LimitKinds, Provider, ToBox, VolumeInfo,
        Volumes,
    },
};
use seawall_wire::{Duplex, Guest};
use std::{fmt, path::Path, sync::Arc, time::Duration};
use tokio::sync::{Mutex, watch};

/// Containers that are inspected at the same time.
const INSPECTIONS: usize = 8;

/// The code of the error of a container that another installation has.
pub(super) const FOREIGN: &str = "foreign_container";

/// How the wire reaches a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Sockets where the daemon is a local socket and runs its containers on this machine, else exec.
    #[default]
    Auto,
    /// Sockets in a folder that is mounted into the container.
    Sockets,
    /// The stdio of a process that the daemon runs in the container.
    Exec,
}

/// Settings of the operator.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DockerSettings {
    /// The daemon's address. `None` means `DOCKER_HOST`, the Docker context, or the default socket.
    pub host: Option<String>,
    /// The image of sandboxes that name none.
    pub image: Option<String>,
    /// Patterns of the images that accounts other than the operator's may name. `*` matches any text.
    pub images: Vec<String>,
    pub transport: Transport,
    /// Paths in the container at which the sandboxes of one account share a volume.
    pub caches: Vec<String>,
    pub defaults: Defaults,
    /// Folders of this machine that sandboxes may be given.
    pub mounts: Mounts,
    pub networks: NetworkSettings,
    /// The container runtimes that sandboxes may name.
    pub runtimes: Vec<String>,
}

#[derive(Clone)]
pub struct DockerProvider {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) daemon: Daemon,
    pub(super) settings: DockerSettings,
    /// A random name of this data folder among all that use the daemon.
    pub(super) installation: String,
    /// Whether this installation has made a container. One that has not needs no daemon.
    pub(super) used: watch::Sender<bool>,
    pub(super) folders: Folders,
    pub(super) disks: Arc<Disks>,
    pub(super) host_folders: HostFolders,
    pub(super) networks: Networks,
    /// Held while the volume of the guest is made. True once it was.
    pub(super) program: Mutex<bool>,
}

/// A container as it is now.
pub struct Found {
    pub info: BoxInfo,
    pub(super) container: String,
    pub(super) account: AccountId,
    /// Whether its guest speaks a version of the wire's protocol that this process speaks.
    pub(super) speaks_our_protocol: bool,
}

impl fmt::Debug for DockerProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DockerProvider").field("daemon", &self.inner.daemon.address).finish_non_exhaustive()
    }
}

impl DockerProvider {
    /// The containers of a data folder, which `installation` names. The daemon is first spoken to when it is needed.
    pub fn open(data: &Path, installation: &str, settings: DockerSettings) -> Result<DockerProvider> {
        let root = data.join("docker");
        crate::boxes::make_private(&root).map_err(|error| io_error(&root, error))?;
        let daemon = Daemon::new(settings.host.as_deref(), root.join("used"))?;
        let inner = Inner {
            installation: installation.to_owned(),
            used: watch::Sender::new(daemon.is_used()),
            daemon,
            folders: Folders::open(data)?,
            disks: Arc::new(Disks::new(data)),
            host_folders: HostFolders::new(data, settings.mounts.clone())?,
            networks: Networks::new(installation, settings.networks.clone()),
            program: Mutex::new(false),
            settings,
        };
        Ok(DockerProvider { inner: Arc::new(inner) })
    }

    /// Describes the daemon in one line: its address, its version, and the runtimes that sandboxes can name.
    pub async fn describe(&self) -> Result<String> {
        self.inner.daemon.describe().await
    }

    /// The address of the daemon.
    pub fn address(&self) -> &str {
        &self.inner.daemon.address.host
    }

    pub(super) fn daemon(&self) -> &Daemon {
        &self.inner.daemon
    }

    pub(super) fn installation(&self) -> &str {
        &self.inner.installation
    }

    /// Whether the wire may use sockets in a folder. A daemon behind a network address is on another machine.
    pub(super) fn may_use_sockets(&self) -> bool {
        match self.inner.settings.transport {
            Transport::Auto => self.inner.daemon.address.socket().is_some(),
            Transport::Sockets => true,
            Transport::Exec => false,
        }
    }

    pub(super) fn network_of(&self, spec: &SandboxSpec, account: AccountId) -> Result<Network> {
        self.inner.networks.of(spec, account, self.may_use_sockets())
    }

    /// Every box of this installation.
    pub(super) async fn boxes(&self) -> Result<Vec<BoxInfo>> {
        let ids = self.container_ids().await?;
        let inspections = ids.into_iter().map(|id| self.inspect(id));
        let found: Vec<Result<Found>> =
            futures::stream::iter(inspections).buffered(INSPECTIONS).collect().await;
        let present = found.into_iter().filter(|found| match found {
            // Another call removed the container after it was listed.
            Err(error) => error.kind() != ErrorKind::NotFound,
            Ok(_) => true,
        });
        present.map(|found| found.map(|found| found.info)).collect()
    }

    /// Every sandbox with a container. Rules of networks that another program has flushed are put into force again.
    async fn container_ids(&self) -> Result<Vec<SandboxId>> {
        if !self.is_used() {
            return Ok(Vec::new());
        }
        let filters = labels::filter(&self.inner.installation);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let daemon = &self.inner.daemon;
        let found = daemon.docker().await?.list_containers(Some(options)).await;
        let found = found.map_err(|error| daemon.failed("the containers", error))?;
        let all: Vec<labels::Labels> = found.into_iter().filter_map(|one| one.labels).collect();
        // Without rules a container can still be listed, stopped and removed.
        if all.iter().any(labels::has_rules)
            && let Err(error) = self.inner.networks.install().await
        {
            tracing::error!(error = %error.chain(), "containers have a network without rules");
        }
        let id = |labels: &labels::Labels| labels.get(labels::SANDBOX)?.parse().ok();
        let mut ids: Vec<SandboxId> = all.iter().filter_map(id).collect();
        ids.sort();
        Ok(ids)
    }

    /// A container of this installation; `not_found` where there is none.
    pub(super) async fn inspect(&self, id: SandboxId) -> Result<Found> {
        if !self.is_used() {
            return Err(no_box(id));
        }
        let daemon = &self.inner.daemon;
        let found = daemon
            .docker()
            .await?
            .inspect_container(&container_name(id), None::<InspectContainerOptions>)
            .await;
        let found = match found {
            Ok(found) => found,
            Err(error) if is_missing(&error) => return Err(no_box(id)),
            Err(error) => return Err(daemon.failed(&format!("sandbox {id}"), error)),
        };
        self.ours(id, found)
    }

    fn ours(&self, id: SandboxId, found: ContainerInspectResponse) -> Result<Found> {
        let installation = state::labels_of(&found).and_then(|labels| labels.get(labels::INSTALLATION));
        if installation != Some(&self.inner.installation) {
            return Err(no_box(id).with_code(FOREIGN));
        }
        let mut info = state::box_of(&found).ok_or_else(|| no_box(id))?;
        if let (Some(EndReason::Failed(_)), Some(end)) = (&info.reason, self.inner.folders.end(id)) {
            info.reason = Some(end);
        }
        let account = state::account_of(&found);
        let speaks_our_protocol = state::protocol_of(&found) >= MIN_VERSION;
        Ok(Found { info, container: found.id.unwrap_or_default(), account, speaks_our_protocol })
    }

    /// Notes that this installation has containers, before the first is made.
    async fn note_use(&self) -> Result<()> {
        if !self.is_used() {
            self.inner.daemon.note_use().await?;
            self.inner.used.send_replace(true);
        }
        Ok(())
    }

    pub(super) fn is_used(&self) -> bool {
        let is_known = *self.inner.used.borrow();
        if !is_known && self.inner.daemon.is_used() {
            // Another process made the first container.
            self.inner.used.send_replace(true);
            return true;
        }
        is_known
    }

    /// Waits until this installation has made a container.
    pub(super) async fn wait_until_used(&self) {
        // The sender lives as long as this provider.
        let _ = self.inner.used.subscribe().wait_for(|used| *used).await;
    }
}

#[async_trait]
impl Provider for DockerProvider {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: true,
            durable: true,
            programs: true,
            terminals: true,
            tunnels: true,
            file_watch: true,
            file_meta: true,
            images: true,
            users: true,
            pause: false,
            snapshot: false,
            fork: false,
            gpu: false,
            transparent_egress: false,
            limits: LimitKinds {
                cpus: true,
                memory: true,
                processes: true,
                disk: disks::missing(self.may_use_sockets()).is_none(),
                disk_io: false,
            },
        }
    }

    fn default_limits(&self) -> Limits {
        let defaults = &self.inner.settings.defaults;
        Limits {
            cpus: Some(defaults.cpus),
            memory_mb: Some(defaults.memory_mb),
            max_processes: Some(defaults.max_processes),
            ..Limits::default()
        }
    }

    async fn check(&self) -> Result<()> {
        if !self.is_used() {
            return Ok(());
        }
        self.probe().await
    }

    async fn probe(&self) -> Result<()> {
        let daemon = &self.inner.daemon;
        let answer = daemon.docker().await?.ping().await;
        answer.map(drop).map_err(|error| daemon.failed("the Docker daemon", error))
    }

    async fn prepare(&self, spec: &SandboxSpec, account: AccountId) -> Result<()> {
        self.check_spec(spec)?;
        self.check_image(spec, account)?;
        let image = self.find_image(spec, account).await?;
        self.check_disk(spec, &image).await.map(drop)
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec, account: AccountId) -> Result<BoxInfo> {
        self.check_spec(spec)?;
        self.check_image(spec, account)?;
        // The daemon is checked first, so that a failure leaves no trace.
        self.inner.daemon.docker().await?;
        self.note_use().await?;
        match self.inspect(id).await {
            Ok(_) => self.existing(id, spec).await,
            Err(error) if error.kind() == ErrorKind::NotFound => self.plan(id, spec, account).await,
            Err(error) => Err(error),
        }
    }

    async fn set_account_totals(&self, account: AccountId, totals: &AccountTotals) -> Result<()> {
        match account != AccountId::LOCAL && totals.disk_io_mb_s.or(totals.disk_iops).is_some() {
            true => Err(Error::new(
                ErrorKind::LimitUnenforceable,
                "the provider `docker` cannot enforce `disk_io_mb_s` of an account",
            )),
            false => Ok(()),
        }
    }

    /// The control groups of containers are the daemon's: below its own group, on another machine, or in a slice of systemd.
    fn sums_limits(&self) -> bool {
        true
    }

    async fn start(&self, id: SandboxId) -> Result<BoxInfo> {
        let found = self.inspect(id).await?;
        if found.info.state == BoxState::Running {
            return Ok(found.info);
        }
        refuse_damaged(&found.info)?;
        if found.info.state == BoxState::Paused {
            let docker = self.inner.daemon.docker().await?;
            let name = container_name(id);
            let failed = |error| self.inner.daemon.failed(&format!("continuing sandbox {id}"), error);
            docker.unpause_container(&name).await.map_err(failed)?;
            return Ok(self.inspect(id).await?.info);
        }
        // Folders are checked before the container starts, and compared with its mounts afterwards.
        let folders = self.inner.host_folders.resolve(&found.info.spec.mounts)?;
        self.inner.folders.forget_end(id)?;
        // The guest dials while the daemon still answers, so the socket is made first.
        let socket = match self.may_use_sockets() {
            true => {
                let folder = self.inner.folders.make(id)?;
                Some(Socket::bind(&folder).map_err(|error| io_error(&folder, error))?)
            }
            false => None,
        };
        let network = self.network_of(&found.info.spec, found.account)?;
        self.inner.networks.ready(&self.inner.daemon, &network, found.account).await?;
        self.check_volume(&found).await?;
        let disk = self.inner.disks.ready(&found.info.volume).await?;
        self.start_container(&found).await?;
        drop(disk);
        if let Err(error) = self.inner.networks.isolate(&network).await {
            self.end(&self.inspect(id).await?, Duration::ZERO).await?;
            return Err(error);
        }
        let started = self.wait_for_guest(id, socket).await?;
        self.check_folders(&started, &folders).await?;
        if started.info.spec.command.is_some() {
            // The guest starts the command at its first connection.
            let connector = Arc::new(ToBox { provider: Arc::new(self.clone()), id });
            Guest::new(id, Role::Client, connector).info().await?;
        }
        Ok(started.info)
    }

    async fn stop(&self, id: SandboxId, grace: Duration) -> Result<()> {
        let found = self.inspect(id).await?;
        self.end(&found, grace).await
    }

    async fn remove(&self, id: SandboxId, volumes: Volumes) -> Result<()> {
        let volume = match self.inspect(id).await {
            Ok(found) => {
                self.remove_container(id).await?;
                if found.info.spec.allow_network {
                    self.inner.networks.release(&self.inner.daemon, found.account).await?;
                }
                found.info.spec.volume_of(id)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => id.to_string(),
            Err(error) => return Err(error),
        };
        if volumes == Volumes::Delete && volume == id.to_string() && self.is_used() {
            volumes::remove(&self.inner.daemon, self.inner.disks.clone(), &self.inner.installation, &volume)
                .await?;
        }
        let inner = self.inner.clone();
        off_thread(move || inner.folders.remove(id)).await
    }

    async fn get(&self, id: SandboxId) -> Result<BoxInfo> {
        Ok(self.inspect(id).await?.info)
    }

    async fn list(&self) -> Result<Vec<BoxInfo>> {
        self.boxes().await
    }

    async fn ids(&self) -> Result<Vec<SandboxId>> {
        self.container_ids().await
    }

    async fn watch(&self) -> Result<BoxEvents> {
        events::watch(self.clone()).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        match self.is_used() {
            true => {
                volumes::list(&self.inner.daemon, self.inner.disks.clone(), &self.inner.installation).await
            }
            false => Ok(Vec::new()),
        }
    }

    async fn has_volume(&self, name: &str) -> Result<bool> {
        Ok(self.is_used() && volumes::exists(&self.inner.daemon, &self.inner.installation, name).await?)
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        match self.is_used()
            && volumes::remove(&self.inner.daemon, self.inner.disks.clone(), &self.inner.installation, name)
                .await?
        {
            true => Ok(()),
            false => Err(Error::not_found(format!("there is no volume {name}; see `seawall volumes`"))),
        }
    }

    async fn remove_account(&self, account: AccountId) -> Result<()> {
        match self.is_used() {
            true => volumes::remove_caches(&self.inner.daemon, &self.inner.installation, account).await,
            false => Ok(()),
        }
    }

    async fn connect(&self, id: SandboxId) -> Result<Box<dyn Duplex>> {
        self.reach(&self.inspect(id).await?, None).await
    }

    fn connects_cheaply(&self) -> bool {
        self.may_use_sockets()
    }
}
