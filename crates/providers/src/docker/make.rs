//! Creating the container of a sandbox.

use super::{
    container::Plan,
    daemon::is_conflict,
    disks,
    image::{self, Image},
    labels::{self, container_name},
    program,
    provider::{DockerProvider, FOREIGN},
    run::DAEMON_PATIENCE,
    volumes,
};
use crate::{
    boxes::io_error,
    native::{check_least, unenforceable},
    off_thread,
};
use bollard::query_parameters::CreateContainerOptionsBuilder;
use rustix::fd::{AsRawFd, OwnedFd};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{SandboxSpec, WORKDIR},
};
use seawall_core::{Error, Result, ports::BoxInfo};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// The pause before another attempt to create a container whose name the daemon has reserved.
const CONFLICT_PAUSE: Duration = Duration::from_millis(20);

/// Places of a container that nothing may be mounted over.
const OURS: [&str; 2] = [WORKDIR, "/run/seawall"];

impl DockerProvider {
    /// Returns the name of the image: that of the specification, or the operator's default.
    pub(super) fn image_of<'a>(&'a self, spec: &'a SandboxSpec) -> Result<&'a str> {
        let named = spec.image.as_deref().filter(|image| !image.is_empty());
        named.or(self.inner.settings.image.as_deref()).ok_or_else(|| {
            Error::invalid(
                "the provider `docker` needs an image: name one with --image, or set `image` in section [docker] of \
                 seawall.toml",
            )
        })
    }

    /// Accounts other than the operator's have the images that the operator lists: the daemon pulls from any address that
    /// a name holds, and with the operator's credentials.
    pub(super) fn check_image(&self, spec: &SandboxSpec, account: AccountId) -> Result<()> {
        let settings = &self.inner.settings;
        let Some(image) = spec.image.as_ref().filter(|_| account != AccountId::LOCAL) else { return Ok(()) };
        match settings.image.as_ref() == Some(image) || settings.images.iter().any(|pattern| matches(pattern, image)) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Denied,
                format!("the image `{image}` is not allowed here; the operator can list it in `images` of section [docker]"),
            )
            .with_code("image_denied")),
        }
    }

    pub(super) fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
        self.image_of(spec)?;
        let limits = &spec.limits;
        check_least(limits)?;
        self.check_runtime(spec)?;
        let taken = |target: &str| {
            target != WORKDIR
                && OURS
                    .iter()
                    .any(|ours| Path::new(ours).starts_with(target) || target.starts_with("/run/seawall"))
        };
        if let Some(mount) = spec.mounts.iter().find(|mount| taken(&mount.target)) {
            return Err(Error::invalid(format!(
                "`{}` cannot be the place of a mount: the sandbox needs it",
                mount.target
            )));
        }
        let unenforceable =
            [("disk_io_mb_s", limits.disk_io_mb_s.is_some()), ("disk_iops", limits.disk_iops.is_some())];
        match unenforceable.iter().find(|(_, asked)| *asked) {
            Some((name, _)) => Err(Error::new(
                ErrorKind::LimitUnenforceable,
                format!(
                    "the provider `docker` cannot enforce `{name}` here; leave it out, or use the provider `native`"
                ),
            )),
            None => Ok(()),
        }
    }

    /// Finds the image of a specification, and pulls it if the daemon lacks it. What a registry answered is for the operator:
    /// the answer can name addresses of the machine.
    pub(super) async fn find_image(&self, spec: &SandboxSpec, account: AccountId) -> Result<Image> {
        let name = self.image_of(spec)?;
        match image::find(&self.inner.daemon, name).await {
            Err(error) if account != AccountId::LOCAL && error.code() == "image_not_found" => {
                let message =
                    format!("the image `{name}` cannot be had here; check its name, or ask the operator");
                Err(Error::not_found(message).with_code("image_not_found").with_source(error))
            }
            found => found,
        }
    }

    fn check_runtime(&self, spec: &SandboxSpec) -> Result<()> {
        let Some(runtime) = &spec.runtime else { return Ok(()) };
        if !is_native_runtime(spec) && !spec.mounts.is_empty() {
            let message = format!(
                "the runtime `{runtime}` hides which folders it mounts, so none can be checked; leave the mounts out"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        match self.inner.settings.runtimes.contains(runtime) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Denied,
                format!("the runtime `{runtime}` is not allowed here; the operator can list it in `runtimes` of section [docker]"),
            )
            .with_code("runtime_denied")),
        }
    }

    /// Makes sure that the daemon has the guest. `anew` looks although an earlier look found it.
    pub(super) async fn ensure_program(&self, image: &str, anew: bool) -> Result<()> {
        let mut is_there = self.inner.program.lock().await;
        if anew || !*is_there {
            program::ensure(&self.inner.daemon, image).await?;
            *is_there = true;
        }
        Ok(())
    }

    pub(super) async fn plan(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        account: AccountId,
    ) -> Result<BoxInfo> {
        let image_name = self.image_of(spec)?;
        let image = self.find_image(spec, account).await?;
        self.ensure_program(image_name, false).await?;
        let (daemon, installation, volume) =
            (&self.inner.daemon, &self.inner.installation, spec.volume_of(id));
        let had_volume = volumes::check_owner(daemon, installation, &volume).await?;
        let network = self.network_of(spec, account)?;
        self.inner.networks.ready(daemon, &network, account).await?;
        let root_mb = self.make_disk(id, spec, account, &image).await?;
        let wires = self.inner.folders.make(id)?;
        let hosts = Some(wires).filter(|_| self.may_use_sockets());
        let plan = Plan {
            id,
            spec,
            account,
            installation: &self.inner.installation,
            image_name,
            image: &image,
            hosts: hosts.as_deref(),
            folders: self.folders(spec)?,
            defaults: self.inner.settings.defaults,
            // The size of a cache has no bound, so a sandbox with a limited disk has none.
            caches: if spec.limits.disk_mb.is_none() { &self.inner.settings.caches } else { &[] },
            root_mb,
            network: &network,
            name_servers: self.inner.networks.name_servers(),
        };
        let options = CreateContainerOptionsBuilder::default().name(&container_name(id)).build();
        let (daemon, body) = (&self.inner.daemon, plan.body()?);
        let give_up = Instant::now() + DAEMON_PATIENCE;
        loop {
            let made = daemon.docker().await?.create_container(Some(options.clone()), body.clone()).await;
            match made {
                Ok(made) => {
                    self.check_warnings(id, spec, &made.warnings).await?;
                    return Ok(self.inspect(id).await?.info);
                }
                // The daemon reserves a name before its container can be found, and frees it after the container is gone.
                Err(error) if is_conflict(&error) => match self.existing(id, spec).await {
                    Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < give_up => {
                        sleep(CONFLICT_PAUSE).await;
                    }
                    found => return found,
                },
                Err(error) => {
                    // The daemon makes volumes before it refuses a container.
                    if !had_volume {
                        volumes::remove(daemon, self.inner.disks.clone(), installation, &volume).await?;
                    }
                    return Err(daemon.failed(&format!("creating sandbox {id}"), error));
                }
            }
        }
    }

    /// Makes the data volume if `disk_mb` gives it a fixed size. Returns the bound of the root file system if the daemon
    /// has to enforce one.
    async fn make_disk(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        account: AccountId,
        image: &Image,
    ) -> Result<Option<u64>> {
        let Some(mb) = self.check_disk(spec, image).await? else { return Ok(None) };
        if spec.has_host_workspace() {
            return Ok(Some(mb).filter(|_| !spec.read_only_root));
        }
        let installation = &self.inner.installation;
        let volume = spec.volume_of(id);
        let name = labels::volume_name(&volume, installation);
        let (disks, place) = (self.inner.disks.clone(), name.clone());
        off_thread(move || disks.make(&place, mb)).await?;
        let labels = labels::of_volume(&volume, account, installation);
        let device = self.inner.disks.device(&name);
        volumes::make_on_device(&self.inner.daemon, labels, name, &device).await?;
        Ok(Some(mb).filter(|_| !spec.read_only_root))
    }

    /// Fails if the disk of a sandbox could not be limited. Returns its limit.
    pub(super) async fn check_disk(&self, spec: &SandboxSpec, image: &Image) -> Result<Option<u64>> {
        let Some(mb) = spec.limits.disk_mb else { return Ok(None) };
        if let Some(error) = disks::missing(self.may_use_sockets()) {
            return Err(error);
        }
        let no_root_limit = match spec.read_only_root {
            true => None,
            false => self.inner.daemon.no_root_limit().await?,
        };
        if let Some(why) = no_root_limit {
            let fix = "Add --read-only-root (`read_only_root`), or use the provider `native`";
            return Err(unenforceable("disk_mb", &why, fix));
        }
        if let Some(path) = image.volumes.iter().find(|path| path.as_str() != WORKDIR) {
            let why = format!("the image has a volume of its own at {path}, which has no bound");
            return Err(unenforceable("disk_mb", &why, "Use an image without VOLUME"));
        }
        Ok(Some(mb))
    }

    /// Refuses a container whose limits the daemon reports that it does not enforce.
    pub(super) async fn check_warnings(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        warnings: &[String],
    ) -> Result<()> {
        let limits = &spec.limits;
        let asked = limits.cpus.is_some() || limits.memory_mb.is_some() || limits.max_processes.is_some();
        match warnings.iter().find(|warning| warning.contains("limit") || warning.contains("CPU")) {
            Some(warning) if asked => {
                self.remove_container(id).await?;
                let message = format!("the Docker daemon cannot enforce a limit: {}", warning.trim());
                Err(Error::new(ErrorKind::LimitUnenforceable, message))
            }
            _ => Ok(()),
        }
    }

    /// The folders of this machine that a specification names, resolved.
    pub(super) fn folders(&self, spec: &SandboxSpec) -> Result<Vec<(PathBuf, String, bool)>> {
        if spec.mounts.is_empty() {
            return Ok(Vec::new());
        }
        if !self.may_use_sockets() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the Docker daemon is on another machine, which does not have the folders of this one; leave the mounts out",
            ));
        }
        let resolved = self.inner.host_folders.resolve(&spec.mounts)?;
        let path = |fd: &OwnedFd| fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        resolved
            .into_iter()
            .map(|(folder, fd)| {
                let source = path(&fd).map_err(|error| io_error(Path::new(&folder.target), error))?;
                Ok((source, folder.target, folder.writable))
            })
            .collect()
    }

    /// Returns the existing box of a sandbox if it has the same specification.
    pub(super) async fn existing(&self, id: SandboxId, spec: &SandboxSpec) -> Result<BoxInfo> {
        match self.inspect(id).await {
            Ok(found) if found.info.spec == *spec => Ok(found.info),
            Ok(_) => Err(Error::conflict(format!("a box for {id} exists with another spec"))),
            Err(error) if error.code() == FOREIGN => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "the Docker daemon has a container {} that is not of this installation; choose another sandbox id",
                    container_name(id)
                ),
            )),
            Err(error) => Err(error),
        }
    }
}

/// Whether the processes of a container are processes of the daemon's machine: other runtimes than Docker's own run them on
/// a kernel of their own.
pub fn is_native_runtime(spec: &SandboxSpec) -> bool {
    spec.runtime.as_deref().is_none_or(|runtime| matches!(runtime, "runc" | "crun" | "io.containerd.runc.v2"))
}

/// Whether a name matches a pattern, in which `*` matches any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.get(at..).is_some_and(|end| matches(rest, end)))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_images() {
        for (pattern, name, matching) in [
            ("debian:12", "debian:12", true),
            ("debian:12", "debian:12.1", false),
            ("debian:*", "debian:12", true),
            ("registry.example/*/tools:*", "registry.example/team/tools:1", true),
            ("registry.example/*", "evil.example/registry.example/x", false),
            ("*", "anything", true),
        ] {
            assert_eq!(matches(pattern, name), matching, "{pattern} {name}");
        }
    }
}
