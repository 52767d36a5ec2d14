//! Sandboxes: what is asked for, what there is, and how it ended.

use crate::SandboxId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// Where the workspace is in every sandbox.
pub const WORKDIR: &str = "/work";

/// What a sandbox should be. It never changes after creation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxSpec {
    /// What it is made from. None: the provider's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// For every process in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The user's own. Keys that start with `seawall.` are ours and refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Who runs processes and owns files unless a call says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Folders of the host that it sees, where the operator allows it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<HostMount>,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Timeouts::is_empty")]
    pub timeouts: Timeouts,
    /// The data volume that it shares with others of its account (S12). None: its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// A command that the guest starts once after each start of the sandbox. Its end does not end the sandbox. An empty
    /// list means the entrypoint and command of the image, which are not run otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Ports of the sandbox that the server makes reachable on random ports of 127.0.0.1 while the sandbox runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// The root file system can only be read. `/work` and folders for temporary files can be written.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only_root: bool,
    /// Whether the sandbox can reach public addresses. Private networks, the host and other sandboxes are refused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_network: bool,
    /// The Docker network that the sandbox joins, without Seawall's rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The container runtime that starts it, such as `runsc`. The provider's default if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// The caller's own name for a group of sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// A repository that its first cold start clones into its workspace, e.g. `https://github.com/owner/repo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_source: Option<String>,
}

/// By what a sandbox reaches other machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Egress {
    /// The sandbox reaches no other machine.
    #[default]
    None,
    /// By a Docker network of Seawall's own, whose rules refuse all addresses that are not public.
    Docker,
    /// By a network on which no rules of Seawall's hold.
    External,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

impl SandboxSpec {
    /// What the data volume of such a sandbox is called.
    pub fn volume_of(&self, id: SandboxId) -> String {
        self.volume.clone().unwrap_or_else(|| id.to_string())
    }

    /// Whether a folder of the host is its workspace, in place of a data volume. Such a workspace is not synced.
    pub fn has_host_workspace(&self) -> bool {
        self.mounts.iter().any(|mount| mount.target == WORKDIR)
    }
}

/// When a sandbox ends by itself. None: as the server has it; 0: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeouts {
    /// After so long without use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// So long after its start, used or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lifetime_seconds: Option<u64>,
}

impl Timeouts {
    pub fn is_empty(&self) -> bool {
        *self == Timeouts::default()
    }

    /// These, and where they say nothing, others.
    pub fn or(self, others: Timeouts) -> Timeouts {
        Timeouts {
            idle_seconds: self.idle_seconds.or(others.idle_seconds),
            max_lifetime_seconds: self.max_lifetime_seconds.or(others.max_lifetime_seconds),
        }
    }
}

/// A folder of the host in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostMount {
    /// On the host. `hidden` in the answer to an account that may not ask for it itself.
    pub source: String,
    /// In the sandbox.
    pub target: String,
    #[serde(default)]
    pub writable: bool,
}

impl HostMount {
    /// A folder of the host as the workspace.
    pub fn workspace(source: String) -> HostMount {
        HostMount { source, target: WORKDIR.to_owned(), writable: true }
    }
}

/// Limits that were asked for. What a provider cannot enforce it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limits {
    /// Cores, fractions allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_processes: Option<u64>,
    /// MiB a second that it reads from the data disk, and as many that it writes to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_io_mb_s: Option<u64>,
    /// Reads a second on the data disk, and as many writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_iops: Option<u64>,
}

impl Limits {
    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }

    /// Returns these limits, and where one is not set, that of `others`.
    pub fn or(self, others: Limits) -> Limits {
        Limits {
            cpus: self.cpus.or(others.cpus),
            memory_mb: self.memory_mb.or(others.memory_mb),
            disk_mb: self.disk_mb.or(others.disk_mb),
            max_processes: self.max_processes.or(others.max_processes),
            disk_io_mb_s: self.disk_io_mb_s.or(others.disk_io_mb_s),
            disk_iops: self.disk_iops.or(others.disk_iops),
        }
    }

    /// The names of the limits that are set, as they stand in JSON.
    pub fn named(&self) -> Vec<&'static str> {
        let set = [
            ("cpus", self.cpus.is_some()),
            ("memory_mb", self.memory_mb.is_some()),
            ("disk_mb", self.disk_mb.is_some()),
            ("max_processes", self.max_processes.is_some()),
            ("disk_io_mb_s", self.disk_io_mb_s.is_some()),
            ("disk_iops", self.disk_iops.is_some()),
        ];
        set.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
    }
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SandboxState {
    /// Its intent is recorded; the box is being made.
    Creating,
    /// The box is there and was never started.
    Created,
    Running,
    Paused,
    Stopping,
    /// The box is there and does not run.
    Stopped,
    /// Removed for good.
    Terminated,
    /// It could not be made, or broke.
    Failed,
    /// Its box is gone and nobody asked for that.
    Lost,
}

impl SandboxState {
    pub const ALL: [SandboxState; 9] = [
        SandboxState::Creating,
        SandboxState::Created,
        SandboxState::Running,
        SandboxState::Paused,
        SandboxState::Stopping,
        SandboxState::Stopped,
        SandboxState::Terminated,
        SandboxState::Failed,
        SandboxState::Lost,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            SandboxState::Creating => "creating",
            SandboxState::Created => "created",
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
            SandboxState::Stopping => "stopping",
            SandboxState::Stopped => "stopped",
            SandboxState::Terminated => "terminated",
            SandboxState::Failed => "failed",
            SandboxState::Lost => "lost",
        }
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why a sandbox is not running any more, for programs: `terminated`, `idle`, `max_lifetime`,
/// `stopped`, `lost`, `failed: <kind>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum EndReason {
    /// Removed because somebody asked.
    Terminated,
    /// Stopped because somebody asked.
    Stopped,
    Idle,
    MaxLifetime,
    Lost,
    /// The kind says what: an [`ErrorKind`](crate::ErrorKind) or, e.g., `guest_died`.
    Failed(String),
}

/// Exit codes of process 1 of a container for ends by a deadline.
const IDLE_CODE: u8 = 71;
const MAX_LIFETIME_CODE: u8 = 72;

impl EndReason {
    /// Returns the exit code by which a guest that is process 1 of a container reports why it ended.
    pub fn exit_code(&self) -> u8 {
        match self {
            EndReason::Idle => IDLE_CODE,
            EndReason::MaxLifetime => MAX_LIFETIME_CODE,
            EndReason::Stopped | EndReason::Terminated => 0,
            EndReason::Lost | EndReason::Failed(_) => 1,
        }
    }

    /// Returns the reason that an exit code of such a guest reports.
    pub fn from_exit_code(code: i64) -> EndReason {
        match u8::try_from(code) {
            Ok(0) => EndReason::Stopped,
            Ok(IDLE_CODE) => EndReason::Idle,
            Ok(MAX_LIFETIME_CODE) => EndReason::MaxLifetime,
            _ => EndReason::Failed("guest_died".to_owned()),
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Terminated => f.write_str("terminated"),
            EndReason::Stopped => f.write_str("stopped"),
            EndReason::Idle => f.write_str("idle"),
            EndReason::MaxLifetime => f.write_str("max_lifetime"),
            EndReason::Lost => f.write_str("lost"),
            EndReason::Failed(kind) => write!(f, "failed: {kind}"),
        }
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use super::EndReason;
    use utoipa::{
        PartialSchema, ToSchema,
        openapi::{ObjectBuilder, RefOr, Schema, Type},
    };

    impl ToSchema for EndReason {}

    impl PartialSchema for EndReason {
        fn schema() -> RefOr<Schema> {
            let words = "terminated, stopped, idle, max_lifetime, lost, or `failed: ` and a kind";
            ObjectBuilder::new().schema_type(Type::String).description(Some(words)).into()
        }
    }
}

impl From<EndReason> for String {
    fn from(reason: EndReason) -> String {
        reason.to_string()
    }
}

/// A text that is no end reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an end reason")]
pub struct UnknownReason(String);

impl FromStr for EndReason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        Ok(match text {
            "terminated" => EndReason::Terminated,
            "stopped" => EndReason::Stopped,
            "idle" => EndReason::Idle,
            "max_lifetime" => EndReason::MaxLifetime,
            "lost" => EndReason::Lost,
            other => match other.strip_prefix("failed: ") {
                Some(kind) => EndReason::Failed(kind.to_owned()),
                None => return Err(UnknownReason(other.to_owned())),
            },
        })
    }
}

impl TryFrom<String> for EndReason {
    type Error = UnknownReason;
    fn try_from(text: String) -> Result<Self, UnknownReason> {
        text.parse()
    }
}

/// A sandbox as its users see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxInfo {
    pub id: SandboxId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub provider: String,
    pub state: SandboxState,
    /// Why it does not run, where it ran or should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    pub spec: SandboxSpec,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default)]
    pub egress: Egress,
}

/// A sandbox as the service knows it, with what belongs to its account.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sandbox {
    #[serde(flatten)]
    pub info: SandboxInfo,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Its files have changes that no version has, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsynced: Option<String>,
    /// `last_synced_at`, `last_version`, token totals, and what hooks and users put there.
    pub metadata: Map<String, Value>,
    /// The addresses on the server's machine of the ports that the sandbox publishes, by port.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<u16, String>,
    pub last_used_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_text_both_ways() {
        let all = [
            EndReason::Terminated,
            EndReason::Stopped,
            EndReason::Idle,
            EndReason::MaxLifetime,
            EndReason::Lost,
            EndReason::Failed("guest_died".into()),
        ];
        for reason in all {
            assert_eq!(reason.to_string().parse::<EndReason>().unwrap(), reason);
        }
        assert!("bored".parse::<EndReason>().is_err());
    }

    #[test]
    fn unknown_fields_of_a_spec_are_refused() {
        assert!(serde_json::from_str::<SandboxSpec>(r#"{"imgae": "x"}"#).is_err());
        assert_eq!(serde_json::to_string(&SandboxSpec::default()).unwrap(), "{}");
    }

    #[test]
    fn limits_say_which_are_set() {
        let limits = Limits { memory_mb: Some(64), ..Limits::default() };
        assert_eq!(limits.named(), ["memory_mb"]);
        assert!(!limits.is_empty());
    }
}
