//! The state of a server and of its providers.

use crate::SandboxId;
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
