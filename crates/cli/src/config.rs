//! Settings: defaults that work, then `seawall.toml`, then the environment, then flags.
//!
//! An unknown key is an error with a suggestion. A wrong value that has a safe default is replaced
//! by it, with a warning; one that has none (where the data lives) is an error.

use anyhow::{Context, Result, anyhow, bail, ensure};
use seawall_core::{mounts::MountGrants, repositories::SourceHosts, sandboxes::MAX_GRACE};
use seawall_providers::{docker::DockerSettings, native::NativeSettings};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};
use toml::{Table, Value};

mod accounts;
mod agents;
mod docker;
mod native;
mod retention;
mod server;
mod suggest;
mod sync;
#[cfg(test)]
mod tests;

pub use accounts::{AccountDefaults, machine};
pub use agents::{AgentSettings, templates};
pub use retention::RetentionSettings;
pub use server::ServerSettings;
pub use sync::SyncSettings;

const FILE: &str = "seawall.toml";
const TOP_KEYS: [&str; 17] = [
    "data",
    "provider",
    "exec",
    "stop",
    "native",
    "docker",
    "database",
    "sync",
    "models",
    "agents",
    "programs",
    "server",
    "sandboxes",
    "conversations",
    "accounts",
    "retention",
    "git",
];
const DATABASE_KEYS: [&str; 1] = ["url"];
const DATABASE_VAR: &str = "SEAWALL_DATABASE_URL";
const NATIVE_KEYS: [&str; 9] = [
    "cpus",
    "memory_mb",
    "max_processes",
    "open_files",
    "mounts",
    "disk_mb",
    "disk_io_mb_s",
    "disk_iops",
    "disk_reserve_mb",
];
const DOCKER_KEYS: [&str; 9] = [
    "host",
    "image",
    "images",
    "transport",
    "caches",
    "name_servers",
    "refused_ranges",
    "unchecked_network",
    "runtimes",
];
const GIT_KEYS: [&str; 1] = ["hosts"];
const EXEC_KEYS: [&str; 2] = ["timeout_seconds", "output_limit_bytes"];
const STOP_KEYS: [&str; 1] = ["grace_seconds"];
const TIMEOUT_VAR: &str = "SEAWALL_EXEC_TIMEOUT_SECONDS";
const LIMIT_VAR: &str = "SEAWALL_EXEC_OUTPUT_LIMIT_BYTES";
const GRACE_VAR: &str = "SEAWALL_STOP_GRACE_SECONDS";

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub data: PathBuf,
    /// The provider of sandboxes that name none. `None` lets the server choose.
    pub provider: Option<String>,
    /// Whether commands start a server in the background.
    pub background: Background,
    pub exec_timeout: Option<Duration>,
    pub output_limit: Option<u64>,
    pub stop_grace: Duration,
    pub native: NativeSettings,
    pub docker: DockerSettings,
    /// Folders of this machine that requests may mount, by account.
    pub mounts: MountGrants,
    /// The hosts whose repositories tenants may name for their workspaces.
    pub source_hosts: SourceHosts,
    /// The address of PostgreSQL. None: SQLite in the data folder.
    pub database: Option<String>,
    pub sync: SyncSettings,
    pub agents: AgentSettings,
    pub server: ServerSettings,
    pub accounts: AccountDefaults,
    pub retention: RetentionSettings,
    /// The file that was read.
    pub file: Option<PathBuf>,
}

/// The place of a command's server if none runs yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// In the background.
    Auto,
    /// In the process of the command.
    Never,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            data: PathBuf::from("/var/lib/seawall"),
            provider: None,
            background: Background::Auto,
            exec_timeout: None,
            output_limit: None,
            stop_grace: Duration::from_secs(5),
            native: NativeSettings::default(),
            docker: DockerSettings::default(),
            mounts: MountGrants::default(),
            source_hosts: SourceHosts::default(),
            database: None,
            sync: SyncSettings::default(),
            agents: AgentSettings::default(),
            server: ServerSettings::default(),
            accounts: AccountDefaults::default(),
            retention: RetentionSettings::default(),
            file: None,
        }
    }
}

impl Settings {
    /// The provider of commands that make boxes by themselves.
    pub fn provider_name(&self) -> &str {
        self.provider.as_deref().unwrap_or("native")
    }
}

/// What flags said, and the variables that clap reads for them.
#[derive(Debug, Default)]
pub struct Flags {
    pub data: Option<PathBuf>,
    pub config: Option<PathBuf>,
    /// No file is read.
    pub no_config: bool,
}

impl Flags {
    /// Flags from the environment alone, for a request for completions.
    pub fn of_environment() -> Flags {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
        Flags { data: path("SEAWALL_DATA"), config: path("SEAWALL_CONFIG"), no_config: false }
    }
}

/// The surroundings, so that tests can have their own.
pub(crate) struct Surroundings<'a> {
    pub var: &'a dyn Fn(&str) -> Option<OsString>,
    pub current_dir: PathBuf,
    pub root: bool,
}

/// The settings, and what was wrong with them but could be mended.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub settings: Settings,
    pub warnings: Vec<String>,
}

/// From the real surroundings; warnings go to the log.
pub fn load(flags: &Flags) -> Result<Settings> {
    let surroundings = Surroundings {
        var: &|name| std::env::var_os(name),
        current_dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
        root: rustix::process::geteuid().is_root(),
    };
    let loaded = load_from(flags, &surroundings)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(loaded.settings)
}

pub(crate) fn load_from(flags: &Flags, around: &Surroundings<'_>) -> Result<Loaded> {
    let mut layers = Layers { data: None, settings: Settings::default(), warnings: Vec::new() };
    if let Some(file) = find_file(flags, around)?.filter(|_| !flags.no_config) {
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        layers.file(&file, &text, around)?;
    }
    layers.environment(around)?;
    let flag = flags.data.clone().filter(|path| !path.as_os_str().is_empty());
    let data = match flag.or(layers.data) {
        Some(data) => data,
        None => default_data(around)?,
    };
    // Absolute, so that what runs elsewhere finds it too.
    let data = around.current_dir.join(data);
    Ok(Loaded { settings: Settings { data, ..layers.settings }, warnings: layers.warnings })
}

fn path_var(around: &Surroundings<'_>, name: &str) -> Option<PathBuf> {
    (around.var)(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn find_file(flags: &Flags, around: &Surroundings<'_>) -> Result<Option<PathBuf>> {
    if let Some(named) = flags.config.clone().filter(|path| !path.as_os_str().is_empty()) {
        let named = around.current_dir.join(named);
        if !named.is_file() {
            bail!("there is no configuration file {}: check --config or SEAWALL_CONFIG", named.display());
        }
        return Ok(Some(named));
    }
    let config_home = path_var(around, "XDG_CONFIG_HOME")
        .or_else(|| path_var(around, "HOME").map(|home| home.join(".config")))
        .map(|folder| folder.join("seawall").join(FILE));
    let places = [Some(around.current_dir.join(FILE)), config_home];
    Ok(places.into_iter().flatten().find(|place| place.is_file()))
}

fn default_data(around: &Surroundings<'_>) -> Result<PathBuf> {
    if around.root {
        return Ok(Settings::default().data);
    }
    let data_home = path_var(around, "XDG_DATA_HOME")
        .or_else(|| path_var(around, "HOME").map(|home| home.join(".local/share")));
    let data_home = data_home.ok_or_else(|| {
        anyhow!("HOME is not set, so there is no place for data: name one with --data or SEAWALL_DATA")
    })?;
    Ok(data_home.join("seawall"))
}

struct Layers {
    data: Option<PathBuf>,
    settings: Settings,
    warnings: Vec<String>,
}

impl Layers {
    fn file(&mut self, file: &Path, text: &str, around: &Surroundings<'_>) -> Result<()> {
        let shown = file.display().to_string();
        let table: Table = toml::from_str(text).with_context(|| format!("{shown} is not valid TOML"))?;
        check_keys(&shown, "", &table, &TOP_KEYS)?;
        if let Some(value) = table.get("data") {
            self.data = Some(data_path(&shown, file, value, around)?);
        }
        if let Some(value) = table.get("provider") {
            let name = value.as_str().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| anyhow!("{shown}: `provider` must be a name, e.g. \"native\""))?;
            self.settings.provider = Some(name.to_owned());
        }
        let exec = section(&shown, &table, "exec", &EXEC_KEYS)?;
        let stop = section(&shown, &table, "stop", &STOP_KEYS)?;
        let number = |section: Option<&Table>, key: &str| {
            section.and_then(|section| section.get(key)).map(|value| (whole(value), value.to_string()))
        };
        self.timeout(&format!("{shown}: `exec.timeout_seconds`"), number(exec, "timeout_seconds"));
        self.limit(&format!("{shown}: `exec.output_limit_bytes`"), number(exec, "output_limit_bytes"));
        self.grace(&format!("{shown}: `stop.grace_seconds`"), number(stop, "grace_seconds"));
        if let Some(native) = section(&shown, &table, "native", &NATIVE_KEYS)? {
            self.settings.native = native::settings(&shown, native)?;
            self.settings.mounts = native::mounts(&shown, native)?;
        }
        if let Some(docker) = section(&shown, &table, "docker", &DOCKER_KEYS)? {
            self.settings.docker = docker::settings(&shown, docker)?;
        }
        if let Some(git) = section(&shown, &table, "git", &GIT_KEYS)? {
            self.settings.source_hosts = SourceHosts::new(docker::names(&shown, "git", git, "hosts")?);
        }
        if let Some(value) = table.get("accounts") {
            let section = value.as_table();
            let section =
                section.ok_or_else(|| anyhow!("{shown}: `accounts` must be a section: [accounts]"))?;
            self.settings.accounts = accounts::settings(&shown, section)?;
        }
        self.sync_file(&shown, &table)?;
        self.agents_file(file, &shown, &table)?;
        self.server_file(file, &shown, &table)?;
        self.retention_file(&shown, &table)?;
        self.settings.file = Some(around.current_dir.join(file));
        let database = section(&shown, &table, "database", &DATABASE_KEYS)?;
        if let Some(value) = database.and_then(|section| section.get("url")) {
            let url = value.as_str().filter(|url| is_postgres(url));
            self.settings.database =
                Some(url.ok_or_else(|| not_postgres(&format!("{shown}: `database.url`")))?.to_owned());
        }
        Ok(())
    }

    fn environment(&mut self, around: &Surroundings<'_>) -> Result<()> {
        let url = (around.var)(DATABASE_VAR).filter(|url| !url.is_empty());
        if let Some(url) = url.map(|url| url.to_string_lossy().into_owned()) {
            // Not replaced by a default: data would go where nobody looks for it.
            ensure!(is_postgres(&url), not_postgres(DATABASE_VAR));
            self.settings.database = Some(url);
        }
        let number = |name: &str| -> Option<Number> {
            let text = (around.var)(name)?.to_string_lossy().trim().to_owned();
            (!text.is_empty()).then(|| (text.parse().ok(), text))
        };
        self.sync_environment(around);
        self.agents_environment(around);
        self.server_environment(around)?;
        self.timeout(TIMEOUT_VAR, number(TIMEOUT_VAR));
        self.limit(LIMIT_VAR, number(LIMIT_VAR));
        self.grace(GRACE_VAR, number(GRACE_VAR));
        Ok(())
    }

    fn timeout(&mut self, place: &str, value: Option<Number>) {
        match value {
            None => {}
            Some((Some(seconds), _)) if seconds > 0 => {
                self.settings.exec_timeout = Some(Duration::from_secs(seconds));
            }
            Some((_, shown)) => {
                self.replaced(place, &shown, "a number of seconds above 0", "no timeout", |settings| {
                    settings.exec_timeout = Settings::default().exec_timeout;
                })
            }
        }
    }

    fn limit(&mut self, place: &str, value: Option<Number>) {
        match value {
            None => {}
            Some((Some(bytes), _)) if bytes > 0 => self.settings.output_limit = Some(bytes),
            Some((_, shown)) => {
                self.replaced(place, &shown, "a number of bytes above 0", "no limit", |settings| {
                    settings.output_limit = Settings::default().output_limit;
                })
            }
        }
    }

    fn grace(&mut self, place: &str, value: Option<Number>) {
        match value {
            None => {}
            Some((Some(seconds), _)) if seconds <= MAX_GRACE.as_secs() => {
                self.settings.stop_grace = Duration::from_secs(seconds);
            }
            Some((_, shown)) => {
                self.replaced(place, &shown, "a number of seconds up to 60", "5 seconds", |settings| {
                    settings.stop_grace = Settings::default().stop_grace;
                })
            }
        }
    }

    fn replaced(&mut self, place: &str, shown: &str, wanted: &str, instead: &str, reset: fn(&mut Settings)) {
        reset(&mut self.settings);
        self.warnings.push(format!("{place} is {shown}, not {wanted}: using {instead}"));
    }
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

/// Without the value: it may hold a password.
fn not_postgres(place: &str) -> anyhow::Error {
    anyhow!(
        "{place} must be an address of PostgreSQL, e.g. postgres://user@host/seawall; without one SQLite is used"
    )
}

/// The number, where it is one, and how it was written.
type Number = (Option<u64>, String);

fn whole(value: &Value) -> Option<u64> {
    value.as_integer().and_then(|number| u64::try_from(number).ok())
}

fn section<'a>(file: &str, table: &'a Table, name: &str, keys: &[&str]) -> Result<Option<&'a Table>> {
    let Some(value) = table.get(name) else { return Ok(None) };
    let section = value.as_table().ok_or_else(|| anyhow!("{file}: `{name}` must be a section: [{name}]"))?;
    check_keys(file, &format!("{name}."), section, keys)?;
    Ok(Some(section))
}

fn check_keys(file: &str, prefix: &str, table: &Table, known: &[&str]) -> Result<()> {
    let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    let advice = match suggest::closest(key, known) {
        Some(close) => format!("did you mean `{prefix}{close}`?"),
        None => format!("known here: {}", known.join(", ")),
    };
    bail!("{file}: unknown key `{prefix}{key}`: {advice}")
}

/// A relative path is meant from the file it stands in.
fn data_path(shown: &str, file: &Path, value: &Value, around: &Surroundings<'_>) -> Result<PathBuf> {
    let text = value.as_str().filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| anyhow!("{shown}: `data` must be a path, e.g. \"/var/lib/seawall\""))?;
    if let (Some(rest), Some(home)) = (text.strip_prefix("~/"), path_var(around, "HOME")) {
        return Ok(home.join(rest));
    }
    Ok(file.parent().unwrap_or(Path::new(".")).join(text))
}
