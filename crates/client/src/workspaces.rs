//! The files of a sandbox and their versions.

use crate::{Client, Result};
use reqwest::Method;
use seawall_api::{
    SandboxId,
    http::{DroppedVersions, List, PruneVersions, RestoreVersion, SyncFiles, SyncProgress, Version},
};
use serde_json::Value;

impl Client {
    /// Brings the files and their bucket to the same version. What was done, or with `dry_run` what would be.
    pub async fn sync(&self, id: SandboxId, sync: &SyncFiles) -> Result<Value> {
        self.post(&["sandboxes", &id.to_string(), "sync"]).json(sync).idempotent().answer().await
    }

    /// How far the sync or restore is that runs now.
    pub async fn sync_progress(&self, id: SandboxId) -> Result<SyncProgress> {
        self.get(&["sandboxes", &id.to_string(), "progress"]).answer().await
    }

    /// Also of a sandbox that is gone.
    pub async fn versions(&self, id: SandboxId) -> Result<List<Version>> {
        self.get(&["sandboxes", &id.to_string(), "versions"]).answer().await
    }

    /// Deletes a version, by its name or number. The newest stays.
    pub async fn delete_version(&self, id: SandboxId, version: i64) -> Result<DroppedVersions> {
        let path = ["sandboxes", &id.to_string(), "versions", &version.to_string()];
        self.change(Method::DELETE, &path).answer().await
    }

    /// Drops old versions. Also of a sandbox that is gone.
    pub async fn prune_versions(&self, id: SandboxId, prune: &PruneVersions) -> Result<DroppedVersions> {
        self.post(&["sandboxes", &id.to_string(), "versions", "prune"]).json(prune).answer().await
    }

    /// Reads every version again and reports the damage.
    pub async fn verify_versions(&self, id: SandboxId) -> Result<Value> {
        self.post(&["sandboxes", &id.to_string(), "versions", "verify"]).idempotent().answer().await
    }

    /// What changed from one version to another, or to the newest.
    pub async fn diff(&self, id: SandboxId, from: i64, to: Option<i64>) -> Result<List<Value>> {
        let call = self.get(&["sandboxes", &id.to_string(), "versions", "diff"]);
        call.query("from", from).maybe("to", to).answer().await
    }

    /// Brings a version back. What is there becomes a version first.
    pub async fn restore(&self, id: SandboxId, restore: &RestoreVersion) -> Result<Value> {
        self.post(&["sandboxes", &id.to_string(), "restore"]).json(restore).answer().await
    }
}
