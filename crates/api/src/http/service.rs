//! The state of a server and of its providers.

use crate::SandboxId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The report of a reconciliation, which compares sandboxes with the boxes of all providers (P8). A dry run mends nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reconciliation {
    /// Whether this was a dry run.
    pub dry_run: bool,
    /// Boxes without a record. They are removed, and their volumes are kept.
    pub removed: Vec<SandboxId>,
    /// Sandboxes whose removal was cut short. It is finished.
    pub finished: Vec<SandboxId>,
    /// Sandboxes whose creation was cut short. It is taken back.
    pub unmade: Vec<SandboxId>,
    /// Sandboxes whose box is gone. The next use makes it again, with its volume or from the bucket.
    pub lost: Vec<SandboxId>,
    /// Sandboxes that do not run and whose template names another image now. Their box is made again, with its volume.
    pub rebuilt: Vec<SandboxId>,
    /// Sandboxes whose template names another image now, and why their box is not made again yet.
    pub outdated: BTreeMap<SandboxId, String>,
    /// Providers that do not answer. Their sandboxes are skipped.
    pub unavailable: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderInfo {
    pub name: String,
    /// Sandboxes whose request and template name no provider use this one.
    pub default: bool,
    /// Whether it can make sandboxes now.
    #[serde(default)]
    pub usable: bool,
    /// The reason why the provider cannot be used, and the fix. Only the operator receives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub capabilities: Value,
}

/// The name of a server's socket in its data folder.
pub const LOCAL_SOCKET: &str = "seawall.sock";

/// Names the account that an operator acts for, by its name or id.
pub const ACCOUNT_HEADER: &str = "seawall-account";

/// The way in which a server was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    /// `seawall serve`, which its user or a supervisor stops.
    Foreground,
    /// A command started it; it ends by itself when it is idle.
    Background,
    /// Part of the process of a command, and ends with it.
    Hosted,
}

/// A running server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerInfo {
    /// Names this run of the server.
    pub instance: String,
    pub version: String,
    pub kind: ServerKind,
    pub pid: u32,
    pub started_at: Timestamp,
    /// The data folder.
    pub data: String,
    /// The addresses that it listens on, the local socket first.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The configuration file that it read, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The environment variables of the server that its settings depend on. Values of secrets are digests.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// A running server and its current work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerStatus {
    #[serde(flatten)]
    pub server: ServerInfo,
    pub running_sandboxes: u64,
    pub running_turns: u64,
    /// Open connections, the caller's included.
    pub connections: u64,
}

/// A request to stop a server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StopServer {
    /// Only this run of the server is to stop. Any, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Another server replaces this one, so this one does not wait for running turns: the other server continues them.
    #[serde(default)]
    pub replaced: bool,
}

/// The data volume of a sandbox, which may be gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeInfo {
    /// The id of its sandbox, or the name that sandboxes share it by.
    pub name: String,
    pub in_use: bool,
    /// Allocated on disk.
    pub bytes: u64,
    /// The folder on the server's machine, or the provider's name for the volume.
    pub place: String,
}

/// How far a sync or a restore is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SyncProgress {
    /// `scanning`, `looking`, `uploading`, `committing`, `downloading` or `agreeing`. Absent where none has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The number of files of this phase.
    pub files: u64,
    pub bytes: u64,
    pub bytes_done: u64,
}

/// The result of a check of the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatabaseCheck {
    pub ok: bool,
    pub conversations: u64,
    pub turns: u64,
    /// The totals that differ from the sums of their rows.
    pub wrong: Vec<String>,
}

/// Whether the server can do its work, part by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    pub status: HealthStatus,
    pub version: String,
    /// What was looked at, and what is wrong with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checks: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum HealthStatus {
    Ok,
    Unready,
}
