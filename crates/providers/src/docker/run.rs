//! Starting and ending a container, and the way to its guest.

use super::{
    daemon::{is_conflict, is_missing},
    exec_stream,
    labels::container_name,
    make::is_native_runtime,
    program,
    provider::{DockerProvider, Found},
    sockets::Socket,
    volumes,
};
use crate::boxes::io_error;
use bollard::{
    container::LogOutput,
    query_parameters::{
        KillContainerOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
        StartContainerOptions, WaitContainerOptions,
    },
};
use futures::StreamExt;
use rustix::fd::OwnedFd;
use seawall_api::{ErrorKind, SandboxId, hello::Role, sandbox::EndReason};
use seawall_core::{
    Error, Result,
    ports::{BoxState, ToBox},
};
use seawall_jail::order::HostFolder;
use seawall_wire::{Duplex, Guest};
use std::{fs, os::unix::fs::MetadataExt, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// How long a guest may take to connect after its container was started.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long a guest may take to dial the socket of a host. After that the daemon carries the wire.
const DIAL_PATIENCE: Duration = Duration::from_secs(2);
/// How long a guest may take to take the order to end.
const ASK_PATIENCE: Duration = Duration::from_secs(5);
/// How often the state of a container is read while its guest does not connect.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time beyond the grace for the guest to answer and the daemon to clean up.
const STOP_SLACK: Duration = Duration::from_secs(3);
/// How long the daemon may take to end or remove a container.
pub const DAEMON_PATIENCE: Duration = Duration::from_secs(60);

impl DockerProvider {
    /// Starts a container. One that cannot be started as it is, because its guest is too old or because what it was made
    /// with is gone, is made again with its volume.
    pub(super) async fn start_container(&self, found: &Found) -> Result<()> {
        let (daemon, id) = (&self.inner.daemon, found.info.id);
        let docker = daemon.docker().await?;
        let name = container_name(id);
        let start = || docker.start_container(&name, None::<StartContainerOptions>);
        let first = match found.speaks_our_protocol {
            false => None,
            true => match start().await {
                Ok(()) => return Ok(()),
                Err(error) => Some(error.to_string()),
            },
        };
        match first {
            Some(why) if why.contains(program::GUEST_PATH) => {
                self.ensure_program(self.image_of(&found.info.spec)?, true).await?;
            }
            // A network that was removed, or a removal that the daemon did not finish.
            Some(why) if why.contains("network") || why.contains("marked for removal") => {
                self.rebuild(found, &why).await?;
            }
            None => self.rebuild(found, "its guest is too old for this version of seawall").await?,
            Some(_) => {}
        }
        start().await.map_err(|error| daemon.failed(&format!("starting sandbox {id}"), error))
    }

    /// Makes a container again. Its volume stays; its root file system is the image's.
    async fn rebuild(&self, found: &Found, why: &str) -> Result<()> {
        tracing::warn!(sandbox = %found.info.id, why, "the container is made again");
        self.remove_container(found.info.id).await?;
        self.plan(found.info.id, &found.info.spec, found.account).await.map(drop)
    }

    /// Removes a container whose data volume is gone, and fails with `not_found`: a start would give it an empty one, and
    /// nothing would restore its files.
    pub(super) async fn check_volume(&self, found: &Found) -> Result<()> {
        let id = found.info.id;
        let name = found.info.spec.volume_of(id);
        let has_none = found.info.state == BoxState::Created || found.info.spec.has_host_workspace();
        if has_none || volumes::exists(&self.inner.daemon, &self.inner.installation, &name).await? {
            return Ok(());
        }
        tracing::warn!(sandbox = %id, volume = found.info.volume, "the data volume is gone; the container is removed");
        self.remove_container(id).await?;
        Err(Error::not_found(format!("the data volume of sandbox {id} is gone")))
    }

    /// Waits until the guest of a container that was just started connects.
    pub(super) async fn wait_for_guest(&self, id: SandboxId, socket: Option<Socket>) -> Result<Found> {
        let connected = timeout(START_PATIENCE, async {
            let found = self.inspect(id).await?;
            self.reach(&found, socket).await.map(|_connection| found)
        });
        match connected.await {
            Ok(Err(error)) if error.kind() == ErrorKind::Stopped => {
                let said = self.log_of(id).await;
                if said.contains("there is no user") {
                    return Err(Error::invalid(said));
                }
                Err(Error::internal(format!("the guest of {id} did not start: {said}")).with_source(error))
            }
            Ok(result) => result,
            Err(_) => Err(Error::new(ErrorKind::Timeout, format!("the guest of {id} does not connect"))),
        }
    }

    /// Compares the folders of this machine in a container with those that were checked before its start. The daemon
    /// resolves their names once more, and a box may have replaced a folder by a link since the check.
    pub(super) async fn check_folders(&self, found: &Found, checked: &[(HostFolder, OwnedFd)]) -> Result<()> {
        let pid = found.info.pid.unwrap_or_default();
        let same = |(folder, fd): &(HostFolder, OwnedFd)| {
            let inside = fs::metadata(format!("/proc/{pid}/root{}", folder.target)).ok();
            let checked = rustix::fs::fstat(fd).ok();
            inside.zip(checked).is_some_and(|(inside, checked)| {
                (inside.dev(), inside.ino()) == (checked.st_dev, checked.st_ino)
            })
        };
        let Some((folder, _)) = checked.iter().find(|one| !same(one)) else { return Ok(()) };
        self.end(found, Duration::ZERO).await?;
        let message =
            format!("`{}` in the sandbox is not the folder that was checked; start it again", folder.target);
        Err(Error::new(ErrorKind::Denied, message))
    }

    /// The last lines that a guest wrote.
    pub(super) async fn log_of(&self, id: SandboxId) -> String {
        let Ok(docker) = self.inner.daemon.docker().await else { return String::new() };
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail("5").build();
        let parts: Vec<_> = docker.logs(&container_name(id), Some(options)).collect().await;
        let text = parts.into_iter().flatten().map(|part: LogOutput| part.to_string());
        text.collect::<String>().trim().to_owned()
    }

    /// A connection to the guest of a container: by a socket that it dials, or through the daemon.
    pub(super) async fn reach(&self, found: &Found, socket: Option<Socket>) -> Result<Box<dyn Duplex>> {
        if found.info.state != BoxState::Running {
            return Err(self.stopped(found));
        }
        let id = found.info.id;
        let is_process = is_native_runtime(&found.info.spec);
        let guest = found.info.pid.filter(|pid| is_process && self.uses_sockets(*pid, &found.container));
        if let Some(guest) = guest {
            let folder = self.inner.folders.wires(id);
            let socket = match socket {
                Some(socket) => socket,
                None => Socket::bind(&folder).map_err(|error| io_error(&folder, error))?,
            };
            tokio::select! {
                dialled = timeout(DIAL_PATIENCE, socket.accept(guest)) => match dialled {
                    Ok(stream) => return Ok(Box::new(stream.map_err(|error| io_error(&folder, error))?)),
                    Err(_) => tracing::warn!(sandbox = %id, "a guest dials no socket; the wire goes through the daemon"),
                },
                ended = self.ended(id) => return Err(ended),
            }
        }
        match exec_stream::connect(&self.inner.daemon, id).await {
            Ok(stream) => Ok(stream),
            // The state of an ended container explains more than the daemon's error.
            Err(error) => match self.inspect(id).await {
                Ok(now) if now.info.state != BoxState::Running => Err(self.stopped(&now).with_source(error)),
                _ => Err(error),
            },
        }
    }

    /// Waits until a container does not run, and returns that as an error.
    pub(super) async fn ended(&self, id: SandboxId) -> Error {
        loop {
            sleep(CHECK_INTERVAL).await;
            match self.inspect(id).await {
                Ok(found) if found.info.state == BoxState::Running => {}
                Ok(found) => return self.stopped(&found),
                Err(error) => return error,
            }
        }
    }

    /// Whether process 1 of a container is a process of this machine, so that the kernel reports its number as a peer.
    pub(super) fn uses_sockets(&self, pid: u32, container: &str) -> bool {
        self.may_use_sockets()
            && fs::read_to_string(format!("/proc/{pid}/cgroup"))
                .is_ok_and(|groups| groups.contains(container))
    }

    pub(super) fn stopped(&self, found: &Found) -> Error {
        let id = found.info.id;
        let why = match (&found.info.state, &found.info.reason) {
            (BoxState::Paused, _) => "it is paused; `docker unpause` continues it".to_owned(),
            (_, Some(EndReason::Failed(why))) if why == "oom" => {
                "it reached its limit `memory_mb` (failed: oom)".to_owned()
            }
            (_, Some(reason)) => reason.to_string(),
            (_, None) => "it was not started".to_owned(),
        };
        Error::new(ErrorKind::Stopped, format!("sandbox {id} does not run: {why}"))
    }

    /// Ends everything in a container.
    pub(super) async fn end(&self, found: &Found, grace: Duration) -> Result<()> {
        let id = found.info.id;
        let docker = self.inner.daemon.docker().await?;
        match found.info.state {
            BoxState::Running | BoxState::Paused => {}
            _ => return Ok(()),
        }
        if found.info.state == BoxState::Running && !grace.is_zero() {
            let connector = Arc::new(ToBox { provider: Arc::new(self.clone()), id });
            let asked = timeout(ASK_PATIENCE, Guest::new(id, Role::Client, connector).shutdown(grace)).await;
            if matches!(asked, Ok(Ok(()))) && self.wait_ended(id, grace + STOP_SLACK).await? {
                return Ok(());
            }
        }
        self.inner.folders.write_end(id, &EndReason::Stopped)?;
        let kill = KillContainerOptionsBuilder::default().signal("SIGKILL").build();
        match docker.kill_container(&container_name(id), Some(kill)).await {
            // The container has already ended.
            Err(error) if is_missing(&error) || is_conflict(&error) => {}
            other => {
                other.map_err(|error| self.inner.daemon.failed(&format!("ending sandbox {id}"), error))?
            }
        }
        match self.wait_ended(id, DAEMON_PATIENCE).await? {
            true => Ok(()),
            false => Err(Error::unavailable(format!("the processes of sandbox {id} do not end"))),
        }
    }

    /// Waits until a container has ended. Returns false after `patience`.
    pub(super) async fn wait_ended(&self, id: SandboxId, patience: Duration) -> Result<bool> {
        let docker = self.inner.daemon.docker().await?;
        let mut ended = docker.wait_container(&container_name(id), None::<WaitContainerOptions>);
        match timeout(patience, ended.next()).await {
            Err(_) => Ok(false),
            // The daemon reports an exit code other than 0 as an error of this call.
            Ok(_) => match self.inspect(id).await {
                Ok(found) => Ok(!matches!(found.info.state, BoxState::Running | BoxState::Paused)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
                Err(error) => Err(error),
            },
        }
    }

    pub(super) async fn remove_container(&self, id: SandboxId) -> Result<()> {
        let daemon = &self.inner.daemon;
        let docker = daemon.docker().await?;
        let give_up = Instant::now() + DAEMON_PATIENCE;
        loop {
            // `v` removes volumes without a name, which the image can declare.
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            match docker.remove_container(&container_name(id), Some(options)).await {
                Ok(()) => return Ok(()),
                Err(error) if is_missing(&error) => return Ok(()),
                // Another call removes it.
                Err(error) if is_conflict(&error) && Instant::now() < give_up => sleep(CHECK_INTERVAL).await,
                Err(error) => return Err(daemon.failed(&format!("removing sandbox {id}"), error)),
            }
        }
    }
}
