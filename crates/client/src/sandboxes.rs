//! Sandboxes: what they are, whether they run, and their ports.

use crate::{Client, Page, Result};
use reqwest::Method;
use seawall_api::{
    SandboxId,
    hook::HookRun,
    http::{CreatePortToken, CreateSandbox, List, PatchSandbox, PortToken, SandboxMetrics, StopSandbox},
    sandbox::{Sandbox, SandboxState},
};
use serde_json::{Map, Value};

/// What to list. None: all that are not terminated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListSandboxes {
    pub page: Page,
    pub state: Option<SandboxState>,
    pub name: Option<String>,
}

/// How a sandbox ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndSandbox {
    /// Save its files first.
    pub sync: bool,
    /// Also where they cannot be saved.
    pub force: bool,
    /// What becomes of its volume. None: it goes where the bucket has all of it.
    pub delete_volumes: Option<bool>,
    /// All versions of its files go too; also of one that ended before.
    pub delete_versions: bool,
}

impl Default for EndSandbox {
    fn default() -> Self {
        EndSandbox { sync: true, force: false, delete_volumes: None, delete_versions: false }
    }
}

impl Client {
    /// Runs of hooks in a sandbox, the newest first.
    pub async fn hook_runs(&self, id: SandboxId, page: &Page) -> Result<List<HookRun>> {
        self.get(&["sandboxes", &id.to_string(), "hooks"]).page(page).answer().await
    }

    pub async fn sandboxes(&self, list: &ListSandboxes) -> Result<List<Sandbox>> {
        let call = self.get(&["sandboxes"]).page(&list.page);
        call.maybe("state", list.state).maybe("name", list.name.as_deref()).answer().await
    }

    /// Mind `start` of the request: its default in Rust is not to.
    pub async fn create_sandbox(&self, new: &CreateSandbox) -> Result<Sandbox> {
        let call = self.post(&["sandboxes"]).json(new);
        // With an id of the caller's own, twice is once.
        if new.id.is_some() { call.idempotent().answer().await } else { call.answer().await }
    }

    pub async fn sandbox(&self, id: SandboxId) -> Result<Sandbox> {
        self.get(&["sandboxes", &id.to_string()]).answer().await
    }

    /// Sets keys, and takes away those whose value is null.
    pub async fn set_metadata(&self, id: SandboxId, metadata: &Map<String, Value>) -> Result<Sandbox> {
        let changes = PatchSandbox { metadata: metadata.clone() };
        self.change(Method::PATCH, &["sandboxes", &id.to_string()]).json(&changes).answer().await
    }

    /// Removes it for good. Ending one that has ended is fine.
    pub async fn end_sandbox(&self, id: SandboxId, end: &EndSandbox) -> Result<Sandbox> {
        let call = self.change(Method::DELETE, &["sandboxes", &id.to_string()]).idempotent();
        let volumes = end.delete_volumes.map(|delete| if delete { "delete" } else { "keep" });
        let versions = end.delete_versions.then_some("delete");
        let call = call.query("sync", end.sync).query("force", end.force).maybe("volumes", volumes);
        call.maybe("versions", versions).answer().await
    }

    pub async fn start_sandbox(&self, id: SandboxId) -> Result<Sandbox> {
        self.post(&["sandboxes", &id.to_string(), "start"]).idempotent().answer().await
    }

    pub async fn stop_sandbox(&self, id: SandboxId, stop: &StopSandbox) -> Result<Sandbox> {
        self.post(&["sandboxes", &id.to_string(), "stop"]).json(stop).idempotent().answer().await
    }

    pub async fn metrics(&self, id: SandboxId) -> Result<SandboxMetrics> {
        self.get(&["sandboxes", &id.to_string(), "metrics"]).answer().await
    }

    /// A token for one port, with the address that has it in it.
    pub async fn port_token(&self, id: SandboxId, port: u16, ask: &CreatePortToken) -> Result<PortToken> {
        let path = ["sandboxes", &id.to_string(), "ports", &port.to_string(), "token"];
        self.post(&path).json(ask).answer().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const SANDBOX: &str = r#"{
        "id": "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e", "name": "demo", "provider": "native", "state": "stopped",
        "reason": "failed: guest_died", "spec": {"limits": {"cpus": 0.5}}, "created_at": "2026-01-01T00:00:00Z",
        "metadata": {"a": 1}, "last_used_at": "2026-01-01T00:00:00Z", "of_a_later_version": true
    }"#;

    #[tokio::test]
    async fn a_sandbox_is_read_and_ended() {
        let server = testing::serve(vec![testing::answer(SANDBOX), testing::answer(SANDBOX)]).await;
        let client = Client::new(&server.url, None).unwrap();
        let id: SandboxId = "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e".parse().unwrap();
        let sandbox = client.sandbox(id).await.unwrap();
        assert_eq!((sandbox.info.id, sandbox.info.state), (id, SandboxState::Stopped));
        let end =
            EndSandbox { sync: false, force: true, delete_volumes: Some(true), ..EndSandbox::default() };
        client.end_sandbox(id, &end).await.unwrap();
        let asked = server.asked().await;
        let wanted = format!("DELETE /sandboxes/{id}?sync=false&force=true&volumes=delete HTTP/1.1");
        assert!(asked[1].starts_with(&wanted), "{}", asked[1]);
    }
}
