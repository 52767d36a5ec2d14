//! The files of a sandbox and their versions.

use crate::{Client, Result};
use seawall_api::{
    SandboxId,
    http::{List, RestoreVersion, SyncFiles, Version},
};
use serde_json::Value;

impl Client {
    /// Brings the files and their bucket to the same version. What was done, or with `dry_run` what would be.
    pub async fn sync(&self, id: SandboxId, sync: &SyncFiles) -> Result<Value> {
        self.post(&["sandboxes", &id.to_string(), "sync"]).json(sync).answer().await
    }

    /// Also of a sandbox that is gone.
    pub async fn versions(&self, id: SandboxId) -> Result<List<Version>> {
        self.get(&["sandboxes", &id.to_string(), "versions"]).answer().await
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
