//! Bodies of the HTTP API that are not the things themselves: what is asked, pages, errors.
//!
//! Unknown fields of a request are refused: a misspelt wish must not pass for none.

mod exec;
mod service;

pub use exec::{
    CreateTerminal, Encoding, Exec, ExecEvent, ExecResult, SendSignal, TerminalControl, TerminalEvent,
};

pub use service::{
    ACCOUNT_HEADER, DatabaseCheck, Health, HealthStatus, LOCAL_SOCKET, ProviderInfo, Reconciliation,
    ServerInfo, ServerKind, ServerStatus, StopServer, SyncProgress, VolumeInfo,
};

use crate::{
    ConversationId, KeyId, SandboxId, TurnId,
    account::{ApiKey, KeyScope, LimitUse},
    exec::ProcessInfo,
    files::EntryKind,
    sandbox::{HostMount, Limits, Timeouts},
};
use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeOwned},
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// An error, as application/problem+json (RFC 9457).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `about:blank`, always: `code` is what programs look at.
    #[serde(rename = "type")]
    pub type_: String,
    /// What the status means.
    pub title: String,
    pub status: u16,
    /// For programs: stable.
    pub code: String,
    /// For people: what happened, and what to do about it.
    pub detail: String,
    /// Under which the server's log tells of it.
    pub request_id: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// The limit of the account that refused the call. Absent where it was something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitUse>,
    /// True where it is certain that the call changed nothing: it may be sent again, also with the same `Idempotency-Key`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nothing_done: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct List<T> {
    pub items: Vec<T>,
    /// For `after` of the next page; none: there are no more now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A new conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateConversation {
    /// The caller's own; none: a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ConversationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// Changes of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchConversation {
    /// Of the turns to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// C2: what an agent shall do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Prompt {
    pub prompt: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// What became of a turn when somebody asked for its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cancelled {
    pub turn_id: TurnId,
    /// False: it was over already.
    pub cancelled: bool,
}

/// A new sandbox. What is none is the template's, then the server's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateSandbox {
    /// The caller's own; asking twice for the same makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SandboxId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Limits::is_empty", deserialize_with = "object")]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Timeouts::is_empty", deserialize_with = "object")]
    pub timeouts: Timeouts,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<HostMount>,
    /// A command that the guest starts once after each start. An empty list means the image's own command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Ports that the server makes reachable on random ports of 127.0.0.1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// The root file system can only be read. `null` means the template's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root: Option<bool>,
    /// Whether the sandbox can reach public addresses. `null` means the template's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_network: Option<bool>,
    /// The Docker network that the sandbox joins. Only the operator may name one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The container runtime that starts it, such as `runsc`, if the operator allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// The caller's own name for a group of sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// A folder of the server's machine that is the workspace, if the operator allows it to be written. It is not synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_path: Option<String>,
    /// A repository that the first cold start clones into the workspace, e.g. `https://github.com/owner/repo`. Its host must
    /// be one that the operator lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_source: Option<String>,
    /// False: it is made and not started.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub start: bool,
}

/// Serde takes a list for an object whose fields are all optional. Here that is a mistake.
fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let fields = Map::<String, Value>::deserialize(deserializer)?;
    serde_json::from_value(Value::Object(fields)).map_err(de::Error::custom)
}

impl Default for CreateSandbox {
    fn default() -> Self {
        CreateSandbox {
            id: None,
            name: None,
            template: None,
            provider: None,
            image: None,
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            user: None,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            mounts: Vec::new(),
            command: None,
            ports: Vec::new(),
            read_only_root: None,
            allow_network: None,
            network: None,
            runtime: None,
            project_id: None,
            workspace_path: None,
            workspace_source: None,
            start: true,
        }
    }
}

fn yes() -> bool {
    true
}

fn is_true(flag: &bool) -> bool {
    *flag
}

/// Changes of a sandbox's metadata: keys are set, and taken away where the value is null.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchSandbox {
    pub metadata: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StopSandbox {
    /// How long processes may take to end before they are killed: at most 60,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Also where it has work that its bucket lacks.
    #[serde(default)]
    pub force: bool,
}

/// A file of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileInfo {
    /// As its user means it: absolute, e.g. `/work/src/main.rs`. Bytes that are no text are `\xNN`.
    pub path: String,
    pub name: String,
    pub kind: EntryKind,
    pub size: u64,
    pub mode: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub modified_at: Timestamp,
    /// Of a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// A directory with what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TreeNode {
    #[serde(flatten)]
    pub file: FileInfo,
    /// Of a directory that was looked into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    pub children: Option<Vec<TreeNode>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tree {
    pub root: TreeNode,
    /// It has more than a tree may have; ask for a part of it.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MakeDirectory {
    pub path: String,
    /// Those above it too; then it may be there already.
    #[serde(default = "yes")]
    pub parents: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MovePath {
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub overwrite: bool,
}

/// A version of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Version {
    /// Unix milliseconds: its name.
    pub version: i64,
    /// Counted from 1.
    pub sequence: u64,
    pub created_at: Timestamp,
    pub files: u64,
    pub bytes: u64,
}

/// Which versions stay. The newest always does, and so does what either rule keeps. At least one rule is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PruneVersions {
    /// How many of the newest versions stay. At most a billion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 1_000_000_000u64))]
    pub keep: Option<u64>,
    /// Versions younger than this stay. At most a hundred years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 3_155_760_000u64))]
    pub keep_for_seconds: Option<u64>,
}

impl PruneVersions {
    /// The largest `keep` that is accepted.
    pub const MOST_KEPT: u64 = 1_000_000_000;
    /// The largest `keep_for_seconds` that is accepted: a hundred years.
    pub const LONGEST_KEPT_SECONDS: u64 = 3_155_760_000;
}

/// What became of versions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DroppedVersions {
    /// How many are left.
    pub kept: u64,
    /// The versions that went, by their names.
    pub dropped: Vec<i64>,
    /// What only they had was deleted.
    pub objects_deleted: u64,
    pub bytes_deleted: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SyncFiles {
    /// Believe no state file: compare everything, delete nothing, write it anew.
    #[serde(default)]
    pub regenerate: bool,
    /// Read every file again, also those that look unchanged.
    #[serde(default)]
    pub rehash: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RestoreVersion {
    /// By its name or number; none: the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// One file or directory of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Of another sandbox of the account, which may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<SandboxId>,
}

/// What a sandbox uses now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxMetrics {
    pub uptime_s: u64,
    /// Since anybody used it.
    pub idle_s: u64,
    pub processes_running: u32,
    /// None: the provider cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    pub processes: Vec<ProcessInfo>,
}

/// P7: a token for one port of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatePortToken {
    /// None: an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_s: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortToken {
    /// For `?seawall_token=`, or the header `x-seawall-token`.
    pub token: String,
    /// With the token in it: for a browser.
    pub url: String,
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateAccount {
    pub name: String,
    #[serde(default)]
    pub settings: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetSettings {
    /// All of them: what is not named is gone.
    pub settings: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateKey {
    pub name: String,
    // Twice is once, so it is not asked for that each be there once.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<KeyScope>))]
    pub scopes: BTreeSet<KeyScope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A key, with its secret: this once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewKey {
    pub key: ApiKey,
    /// For `Authorization: Bearer`. It is stored nowhere.
    pub secret: String,
    /// The key whose place it takes, and until when that one is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<KeyId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RotateKey {
    /// How long the old one goes on working. None: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap_s: Option<u64>,
}
