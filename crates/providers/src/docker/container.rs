//! The configuration of a sandbox's container.

use super::{image::Image, labels, network::Network, program};
use crate::native::Defaults;
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountBindOptions, MountType,
    MountVolumeOptions, ResourcesUlimits,
};
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{SandboxSpec, WORKDIR},
};
use seawall_core::Result;
use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The mount point of the folder with the hosts' sockets. The guest has the same constant.
const HOSTS: &str = "/run/seawall/hosts";
/// In memory, for the guest's own sockets.
const RUN: &str = "/run/seawall";
const RUN_OPTIONS: &str = "rw,nosuid,nodev,noexec,size=1m,mode=755";
/// Folders for temporary files, which stay writable if the root file system is read-only.
const WRITABLE: [&str; 2] = ["/tmp", "/var/tmp"];
const WRITABLE_OPTIONS: &str = "rw,nosuid,nodev,exec,size=256m,mode=1777";
/// The capabilities that a native box keeps too (`seawall_jail::caps`).
const CAPABILITIES: [&str; 9] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
];
const MIB: u64 = 1 << 20;

/// All that decides about a container.
pub struct Plan<'a> {
    pub id: SandboxId,
    pub spec: &'a SandboxSpec,
    pub account: AccountId,
    pub installation: &'a str,
    pub image_name: &'a str,
    pub image: &'a Image,
    /// The folder with the hosts' sockets, where the daemon runs on this machine.
    pub hosts: Option<&'a Path>,
    /// Folders of the host, as they were checked.
    pub folders: Vec<(PathBuf, String, bool)>,
    pub defaults: Defaults,
    /// Paths of the caches that the sandboxes of an account share.
    pub caches: &'a [String],
    /// The bound of the root file system, where the daemon enforces it.
    pub root_mb: Option<u64>,
    pub network: &'a Network,
    pub name_servers: Vec<String>,
}

impl Plan<'_> {
    pub fn body(&self) -> Result<ContainerCreateBody> {
        let (id, spec) = (self.id, self.spec);
        let ours = [("SEAWALL_SANDBOX", id.to_string()), ("SEAWALL_WORK", WORKDIR.to_owned())];
        let ours = ours.into_iter().map(|(key, value)| format!("{key}={value}"));
        let users = spec.env.iter().map(|(key, value)| format!("{key}={value}"));
        Ok(ContainerCreateBody {
            image: Some(self.image_name.to_owned()),
            hostname: Some("sandbox".to_owned()),
            user: Some("0:0".to_owned()),
            env: Some(ours.chain(users).collect()),
            entrypoint: Some(vec![program::GUEST_PATH.to_owned()]),
            cmd: Some(self.arguments()),
            // Without Docker's network code a start is faster, and containers that start and end at the same time cannot
            // lock up the daemon: in Docker 20.10 they do, also in the network `none`. Only with it does a container
            // have a file of host names, which the guest cannot write into a read-only root.
            network_disabled: Some(!spec.read_only_root && *self.network == Network::None),
            working_dir: Some("/".to_owned()),
            labels: Some(labels::of_container(id, spec, self.account, self.installation, self.network)?),
            stop_signal: Some("SIGTERM".to_owned()),
            // The daemon would run the image's check in the container again and again.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            host_config: Some(self.host_config()),
            ..ContainerCreateBody::default()
        })
    }

    fn arguments(&self) -> Vec<String> {
        let workspace = self.folders.iter().find(|(_, target, _)| target == WORKDIR);
        // Files in a folder of the host belong to its owner, unless the request names another user.
        let owner = workspace.and_then(|(source, ..)| fs::metadata(source).ok());
        let owner = owner.map(|found| format!("{}:{}", found.uid(), found.gid()));
        let user = self.spec.user.as_ref().or(owner.as_ref()).or(self.image.user.as_ref());
        let mut arguments = vec![
            "--container".to_owned(),
            "--sandbox".to_owned(),
            self.id.to_string(),
            "--user".to_owned(),
            user.map_or("0", |user| user).to_owned(),
        ];
        if workspace.is_some() {
            arguments.push("--host-workspace".to_owned());
        }
        if let Some(workdir) = &self.image.workdir {
            arguments.extend(["--workdir".to_owned(), workdir.clone()]);
        }
        if let Some(command) = &self.spec.command {
            let command = if command.is_empty() { &self.image.command } else { command };
            arguments.push("--".to_owned());
            arguments.extend(command.iter().cloned());
        }
        arguments
    }

    fn host_config(&self) -> HostConfig {
        let (limits, defaults) = (&self.spec.limits, &self.defaults);
        let memory = limits.memory_mb.unwrap_or(defaults.memory_mb).saturating_mul(MIB).cast_signed();
        let open_files = defaults.open_files.cast_signed();
        let log = [("max-size", "1m"), ("max-file", "1")];
        HostConfig {
            mounts: Some(self.mounts()),
            tmpfs: Some(self.in_memory()),
            readonly_rootfs: Some(self.spec.read_only_root),
            storage_opt: self.root_mb.map(|mb| HashMap::from([("size".to_owned(), format!("{mb}m"))])),
            network_mode: Some(self.network.mode().to_owned()),
            dns: Some(self.name_servers.clone()).filter(|_| matches!(self.network, Network::Own { .. })),
            runtime: self.spec.runtime.clone(),
            ipc_mode: Some("private".to_owned()),
            privileged: Some(false),
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            nano_cpus: Some((limits.cpus.unwrap_or(defaults.cpus) * 1e9) as i64),
            memory: Some(memory),
            // The same value means that there is no swap.
            memory_swap: Some(memory),
            pids_limit: Some(limits.max_processes.unwrap_or(defaults.max_processes).cast_signed()),
            // `core_pattern` of the machine can start a program outside the container for each core dump.
            ulimits: Some(vec![bound("nofile", open_files), bound("core", 0)]),
            log_config: Some(HostConfigLogConfig {
                typ: Some("json-file".to_owned()),
                config: Some(log.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            }),
            ..HostConfig::default()
        }
    }

    /// Folders in memory. They count towards the memory of the container.
    fn in_memory(&self) -> HashMap<String, String> {
        let own = [(RUN, RUN_OPTIONS)].into_iter();
        let writable =
            WRITABLE.iter().filter(|_| self.spec.read_only_root).map(|folder| (*folder, WRITABLE_OPTIONS));
        own.chain(writable).map(|(folder, options)| (folder.to_owned(), options.to_owned())).collect()
    }

    fn mounts(&self) -> Vec<Mount> {
        let volume = self.spec.volume_of(self.id);
        let work = Mount {
            target: Some(WORKDIR.to_owned()),
            source: Some(labels::volume_name(&volume, self.installation)),
            typ: Some(MountType::VOLUME),
            volume_options: Some(MountVolumeOptions {
                // Files of the image would come back into every volume, also those that a user deleted.
                no_copy: Some(true),
                labels: Some(labels::of_volume(&volume, self.account, self.installation)),
                ..MountVolumeOptions::default()
            }),
            ..Mount::default()
        };
        let hosts = self.hosts.map(|folder| bind(folder, HOSTS, false));
        let folders = self.folders.iter().map(|(source, target, writable)| bind(source, target, *writable));
        let caches = self.caches.iter().map(|path| self.cache(path));
        let work = Some(work).filter(|_| !self.spec.has_host_workspace());
        work.into_iter().chain([program::mount(true)]).chain(hosts).chain(folders).chain(caches).collect()
    }
}

impl Plan<'_> {
    /// The cache of the account at a path. At first it has the files and the owner that the image has there.
    fn cache(&self, path: &str) -> Mount {
        Mount {
            target: Some(path.to_owned()),
            source: Some(labels::cache_name(path, self.account, self.installation)),
            typ: Some(MountType::VOLUME),
            volume_options: Some(MountVolumeOptions {
                labels: Some(labels::of_cache(path, self.account, self.installation)),
                ..MountVolumeOptions::default()
            }),
            ..Mount::default()
        }
    }
}

fn bound(name: &str, most: i64) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(most), hard: Some(most) }
}

fn bind(source: &Path, target: &str, writable: bool) -> Mount {
    Mount {
        target: Some(target.to_owned()),
        source: Some(source.display().to_string()),
        typ: Some(MountType::BIND),
        read_only: Some(!writable),
        bind_options: Some(MountBindOptions {
            create_mountpoint: Some(false),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}
