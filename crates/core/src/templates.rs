//! Templates: what a kind of agent needs. Four are built in; users' own have the same power.
//!
//! A template is plain data, checked when it is loaded: what it asks for and cannot have is an error before the first
//! sandbox. Adding one is adding a file, or a function here.

mod check;

use crate::{
    Error, Result,
    agents::{ClaudeCode, Codex, Driver, Shell},
    hooks::HookKind,
};
use seawall_api::sandbox::{HostMount, Limits, SandboxSpec, Timeouts};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Where the agent's program is in a box.
pub const PROGRAM_DIR: &str = "/opt/agent";
/// Stands for one that is still to be named.
const NO_REPOSITORY: &str = "https://github.com/owner/repo";
/// C1: where nothing else is said.
pub const DEFAULT: &str = "shell";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Template {
    /// Of its file.
    #[serde(skip_deserializing)]
    pub name: String,
    pub description: String,
    pub agent: AgentPart,
    pub sandbox: SandboxPart,
    pub sync: SyncPart,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<GitPart>,
    pub hooks: HooksPart,
}

/// Which program answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentPart {
    /// `shell`, `claude-code`, `codex`.
    pub driver: String,
    /// The folder of this machine with its program. None: what the image has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Of a turn.
    pub timeout_seconds: u64,
}

impl Default for AgentPart {
    fn default() -> Self {
        AgentPart {
            driver: DEFAULT.to_owned(),
            program: None,
            model: None,
            system_prompt: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            timeout_seconds: 3600,
        }
    }
}

/// What the sandbox is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxPart {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub env: BTreeMap<String, String>,
    pub limits: Limits,
    pub mounts: Vec<HostMount>,
    /// A command that the guest starts once after each start. An empty list means the image's own command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    pub ports: Vec<u16>,
    pub read_only_root: bool,
    pub allow_network: bool,
    /// A network of the operator's. It excludes `allow_network`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// T5: when it ends by itself. What is not said here is as the server has it.
    pub timeouts: Timeouts,
}

/// S12: where the files go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncPart {
    /// False: the files are nowhere but in the sandbox.
    pub enabled: bool,
    /// None: the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// None: the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,
    /// False: nothing is pulled at a cold start; pushes go on.
    pub init_from_bucket: bool,
    /// S6: what a cold start restores. None: the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// The data volume, with placeholders: sandboxes for which it is the same share it. None: one for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

impl Default for SyncPart {
    fn default() -> Self {
        let (bucket, key_prefix, version, volume) = (None, None, None, None);
        SyncPart { enabled: true, bucket, key_prefix, init_from_bucket: true, version, volume }
    }
}

/// A repository that is cloned at the first cold start. Its token stays on the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct GitPart {
    /// E.g. `https://github.com/owner/repo`.
    pub repo: String,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// The server's environment variable with the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    pub push: bool,
}

impl GitPart {
    /// The address of the repository as git's servers know it.
    pub fn url(&self) -> String {
        let url = self.repo.trim_end_matches('/').to_owned();
        if url.ends_with(".git") { url } else { format!("{url}.git") }
    }

    /// Makes git take the server on the loopback for the repository's host.
    pub fn environment(&self, port: u16) -> Vec<(String, String)> {
        let bare = self.repo.trim_start_matches("https://").trim_start_matches("http://");
        let scheme = if self.repo.starts_with("https://") { "https" } else { "http" };
        let host = bare.split('/').next().unwrap_or_default();
        let settings = [
            (format!("url.http://127.0.0.1:{port}/git/{host}/.insteadOf"), format!("{scheme}://{host}/")),
            ("credential.helper".to_owned(), String::new()),
        ];
        let mut all = vec![
            ("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string()),
            ("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned()),
        ];
        for (number, (key, value)) in settings.into_iter().enumerate() {
            all.push((format!("GIT_CONFIG_KEY_{number}"), key));
            all.push((format!("GIT_CONFIG_VALUE_{number}"), value));
        }
        all
    }
}

/// What runs beside, or instead of, the defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct HooksPart {
    pub cold_start: Vec<HookPart>,
    pub message: Vec<HookPart>,
    pub stream_finish: Vec<HookPart>,
    pub terminate: Vec<HookPart>,
}

impl HooksPart {
    pub fn of(&self, kind: HookKind) -> &[HookPart] {
        match kind {
            HookKind::ColdStart => &self.cold_start,
            HookKind::Message => &self.message,
            HookKind::StreamFinish => &self.stream_finish,
            HookKind::Terminate => &self.terminate,
        }
    }
}

/// One hook: a command in the sandbox, or a call to somebody else's server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HookPart {
    /// For `sh -c`, in /work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Where a POST goes, by the outbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// The server's environment variable with the key of the signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    pub when: When,
    /// H2: its failure fails what it belongs to. Cold starts are critical in any case.
    pub critical: bool,
    pub timeout_seconds: u64,
}

impl Default for HookPart {
    fn default() -> Self {
        let (run, webhook, secret_env) = (None, None, None);
        HookPart { run, webhook, secret_env, when: When::After, critical: false, timeout_seconds: 60 }
    }
}

/// H3: beside the default, or in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Before,
    After,
    Instead,
}

impl Template {
    /// The variables of the server's environment that the template names.
    pub fn variables(&self) -> impl Iterator<Item = String> {
        let HooksPart { cold_start, message, stream_finish, terminate } = &self.hooks;
        let hooks = [cold_start, message, stream_finish, terminate].into_iter().flatten();
        let token = self.git.as_ref().and_then(|git| git.token_env.clone());
        hooks.filter_map(|hook| hook.secret_env.clone()).chain(token).collect::<Vec<_>>().into_iter()
    }

    pub fn driver(&self) -> Result<Arc<dyn Driver>> {
        driver(&self.agent.driver)
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.agent.timeout_seconds)
    }

    /// What a sandbox of this kind is. The folder with the program is in it, to be read.
    pub fn spec(&self, mounts: bool) -> Result<SandboxSpec> {
        let part = &self.sandbox;
        let mut spec = SandboxSpec {
            image: part.image.clone(),
            env: part.env.clone(),
            user: part.user.clone(),
            limits: part.limits,
            mounts: part.mounts.clone(),
            timeouts: part.timeouts,
            command: part.command.clone(),
            ports: part.ports.clone(),
            read_only_root: part.read_only_root,
            allow_network: part.allow_network,
            network: part.network.clone(),
            runtime: part.runtime.clone(),
            ..SandboxSpec::default()
        };
        if let Some(program) = self.program()?.filter(|_| mounts) {
            spec.mounts.push(program_mount(program));
        }
        Ok(spec)
    }

    /// The folders of the host that sandboxes of this kind are given, whether or not they are there.
    pub fn furnished(&self) -> impl Iterator<Item = HostMount> {
        let program = self.agent.program.as_deref().map(program_mount);
        self.sandbox.mounts.iter().cloned().chain(program)
    }

    /// The folder with the agent's program. An error with the command that installs it, where it is not there.
    pub fn program(&self) -> Result<Option<&Path>> {
        let Some(folder) = &self.agent.program else { return Ok(None) };
        let driver = self.driver()?;
        match folder.join(driver.program()).is_file() {
            true => Ok(Some(folder)),
            false => Err(Error::invalid(format!(
                "the template `{}` needs {} in {}, and it is not there; install it with: {}",
                self.name,
                driver.program(),
                folder.display(),
                driver.install_hint()
            ))),
        }
    }

    /// The built-in `github` names no repository of anybody's.
    pub fn check_repository(&self) -> Result<()> {
        match self.git.as_ref().is_some_and(|git| git.repo == NO_REPOSITORY) {
            true => Err(Error::invalid(format!(
                "the template `{}` names no repository yet: make a template of your own with `base = \"github\"` and \
                 set `git.repo`",
                self.name
            ))),
            false => Ok(()),
        }
    }
}

/// To be read: what a box could write would run in the next one.
fn program_mount(folder: &Path) -> HostMount {
    HostMount { source: folder.display().to_string(), target: PROGRAM_DIR.to_owned(), writable: false }
}

/// The one place where drivers are listed.
pub fn driver(name: &str) -> Result<Arc<dyn Driver>> {
    let all: [Arc<dyn Driver>; 3] = [Arc::new(Shell), Arc::new(ClaudeCode), Arc::new(Codex)];
    let names: Vec<&str> = all.iter().map(|driver| driver.name()).collect();
    let known = names.join(", ");
    all.into_iter()
        .find(|driver| driver.name() == name)
        .ok_or_else(|| Error::invalid(format!("there is no agent driver `{name}`; there are {known}")))
}

/// All that there are, by name.
#[derive(Debug, Clone)]
pub struct Templates(BTreeMap<String, Template>);

impl Default for Templates {
    fn default() -> Self {
        Templates(built_in().into_iter().map(|template| (template.name.clone(), template)).collect())
    }
}

impl Templates {
    /// A user's own. One with the name of a built-in one takes its place.
    pub fn add(&mut self, mut template: Template) -> Result<()> {
        template.check()?;
        // As it is, and as it is shown (H2).
        template.hooks.cold_start.iter_mut().for_each(|hook| hook.critical = true);
        self.0.insert(template.name.clone(), template);
        Ok(())
    }

    /// H7: a name that is not known is an error that says which are.
    pub fn get(&self, name: &str) -> Result<&Template> {
        self.0.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            Error::invalid(format!("there is no template `{name}`; there are {}", known.join(", ")))
        })
    }

    pub fn all(&self) -> impl Iterator<Item = &Template> {
        self.0.values()
    }
}

fn built_in() -> Vec<Template> {
    let named = |name: &str, description: &str, driver: &str| Template {
        name: name.to_owned(),
        description: description.to_owned(),
        agent: AgentPart { driver: driver.to_owned(), ..AgentPart::default() },
        ..Template::default()
    };
    vec![
        named("shell", "the prompt is a command", "shell"),
        named("claude-code", "Claude Code; its key stays on the server", "claude-code"),
        named("codex", "Codex; its key stays on the server", "codex"),
        Template {
            git: Some(GitPart { repo: NO_REPOSITORY.to_owned(), push: true, ..GitPart::default() }),
            ..named(
                "github",
                "a repository, cloned at the start; set `git.repo` in a template of your own",
                "shell",
            )
        },
    ]
}
