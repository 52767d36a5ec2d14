//! The flags that say what a sandbox is, shared by `run` and `create`.

use super::key_value;
use crate::duration;
use clap::Args;
use seawall_api::{
    SandboxId,
    http::CreateSandbox,
    sandbox::{HostMount, Limits, Timeouts},
};
use std::time::Duration;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct SpecArgs {
    /// A name of your own, usable instead of the id
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// The template that it is made from [default: `shell`]
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,

    /// Stop it after so long without use, e.g. 30m; 0 is never [default: the server's]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub idle: Option<Duration>,

    /// Stop it so long after its start, e.g. 4h; 0 is never [default: the server's]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub lifetime: Option<Duration>,

    /// How it is isolated [default: `provider` of seawall.toml]
    #[arg(long, value_name = "NAME", env = "SEAWALL_PROVIDER")]
    pub provider: Option<String>,

    /// What it is made from, where the provider takes images
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,

    /// A label of your own; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    pub labels: Vec<(String, String)>,

    /// At most so many cores, e.g. 0.5
    #[arg(long, value_name = "N")]
    pub cpus: Option<f64>,

    /// At most so much memory
    #[arg(long, value_name = "MB")]
    pub memory_mb: Option<u64>,

    /// At most so much disk
    #[arg(long, value_name = "MB")]
    pub disk_mb: Option<u64>,

    /// At most so many processes at once
    #[arg(long, value_name = "N")]
    pub max_processes: Option<u64>,

    /// At most so many MiB a second read from the data disk, and as many written
    #[arg(long, value_name = "MB")]
    pub disk_io_mb_s: Option<u64>,

    /// At most so many reads a second of the data disk, and as many writes
    #[arg(long, value_name = "N")]
    pub disk_iops: Option<u64>,

    /// A folder of this machine, to read; with `:rw` also to write. The operator must allow it
    #[arg(long = "mount", value_name = "FOLDER:PLACE[:rw]", value_parser = mount)]
    pub mounts: Vec<HostMount>,

    /// A command line that is started once after each start, by a shell of the image
    #[arg(long = "command", value_name = "COMMAND")]
    pub start_command: Option<String>,

    /// Start what the image starts by itself
    #[arg(long, conflicts_with = "start_command")]
    pub image_command: bool,

    /// A port to make reachable on a random port of 127.0.0.1; may be repeated
    #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub ports: Vec<u16>,

    /// Let the root file system only be read
    #[arg(long)]
    pub read_only_root: bool,

    /// Let it reach public addresses; private networks, this machine and other sandboxes stay out of reach
    #[arg(long)]
    pub allow_network: bool,

    /// A Docker network of your own that it joins, without Seawall's rules
    #[arg(long, value_name = "NAME", conflicts_with = "allow_network")]
    pub network: Option<String>,

    /// The container runtime that starts it, e.g. runsc; the operator must allow it
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<String>,

    /// A folder of this machine that is the workspace, in place of a volume. The operator must allow it to be written
    #[arg(long, value_name = "FOLDER")]
    pub workspace: Option<String>,

    /// A repository to clone into the workspace, e.g. https://github.com/owner/repo
    #[arg(long, value_name = "URL")]
    pub source: Option<String>,

    /// Your own name for a group of sandboxes
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
}

fn mount(text: &str) -> Result<HostMount, String> {
    let (rest, writable) = match (text.strip_suffix(":rw"), text.strip_suffix(":ro")) {
        (Some(rest), _) => (rest, true),
        (_, Some(rest)) => (rest, false),
        _ => (text, false),
    };
    match rest.rsplit_once(':') {
        Some((source, target)) if source.starts_with('/') && target.starts_with('/') => {
            // As shells complete the names of folders.
            let [source, target] = [source, target].map(|path| path.trim_end_matches('/').to_owned());
            Ok(HostMount { source, target, writable })
        }
        _ => Err("write it as /folder:/place or /folder:/place:rw".to_owned()),
    }
}

impl SpecArgs {
    /// Builds the request for such a sandbox. The client chooses the id, so that it can remove the sandbox whatever happens.
    pub fn create(&self, id: SandboxId) -> CreateSandbox {
        CreateSandbox {
            id: Some(id),
            name: self.name.clone(),
            template: self.template.clone(),
            provider: self.provider.clone().filter(|name| !name.is_empty()),
            image: self.image.clone(),
            labels: self.labels.iter().cloned().collect(),
            limits: Limits {
                cpus: self.cpus,
                memory_mb: self.memory_mb,
                disk_mb: self.disk_mb,
                max_processes: self.max_processes,
                disk_io_mb_s: self.disk_io_mb_s,
                disk_iops: self.disk_iops,
            },
            timeouts: Timeouts {
                idle_seconds: self.idle.map(|time| time.as_secs()),
                max_lifetime_seconds: self.lifetime.map(|time| time.as_secs()),
            },
            mounts: self.mounts.clone(),
            command: self.command(),
            ports: self.ports.clone(),
            read_only_root: self.read_only_root.then_some(true),
            allow_network: self.allow_network.then_some(true),
            network: self.network.clone(),
            runtime: self.runtime.clone(),
            project_id: self.project.clone(),
            workspace_path: self.workspace.clone(),
            workspace_source: self.source.clone(),
            start: true,
            ..CreateSandbox::default()
        }
    }

    fn command(&self) -> Option<Vec<String>> {
        let by_shell = |line: &String| ["/bin/sh", "-c", line].map(str::to_owned).to_vec();
        self.start_command.as_ref().map(by_shell).or(self.image_command.then(Vec::new))
    }
}
