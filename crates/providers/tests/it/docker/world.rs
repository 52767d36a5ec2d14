//! An installation of its own on the daemon of the tests, and commands in its sandboxes.

use seawall_api::{AccountId, SandboxId, exec::StartProcess, hello::Role, sandbox::SandboxSpec};
use seawall_core::{
    Result,
    ports::{BoxInfo, Provider, ToBox, Volumes},
};
use seawall_providers::docker::{DockerProvider, DockerSettings};
use seawall_wire::{Guest, ProcessOutput};
use std::{
    env,
    io::Write,
    path::Path,
    process::{Command, Output},
    sync::Arc,
};
use tempfile::TempDir;

pub const DEBIAN: &str = "seawall-test/debian";
/// One static program, `/busybox`, and nothing else.
pub const STATIC: &str = "seawall-test/static";

pub struct World {
    pub provider: DockerProvider,
    host: String,
    installation: String,
    settings: DockerSettings,
    data: TempDir,
}

impl World {
    /// None, with the reason, where there is no daemon.
    pub fn new(name: &str) -> Option<World> {
        World::with(name, DockerSettings { image: Some(DEBIAN.to_owned()), ..DockerSettings::default() })
    }

    pub fn with(name: &str, settings: DockerSettings) -> Option<World> {
        let Ok(host) = env::var("SEAWALL_TEST_DOCKER") else {
            let required = env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all");
            assert!(!required, "SEAWALL_TEST_DOCKER names no daemon: see scripts/docker");
            // Not captured, so that it is counted.
            let _ =
                writeln!(std::io::stderr(), "skipped docker::{name}: SEAWALL_TEST_DOCKER names no daemon");
            return None;
        };
        Some(World::on(&host, settings))
    }

    /// An installation on the daemon at an address.
    pub fn on(host: &str, settings: DockerSettings) -> World {
        let data = tempfile::tempdir().unwrap();
        let settings = DockerSettings { host: Some(host.to_owned()), ..settings };
        let installation = SandboxId::generate().to_string();
        let provider = DockerProvider::open(data.path(), &installation, settings.clone()).unwrap();
        World { provider, host: host.to_owned(), installation, settings, data }
    }

    pub fn installation(&self) -> &str {
        &self.installation
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// The provider of this data folder after the address of the daemon was changed.
    pub fn moved_to(&self, host: &str) -> DockerProvider {
        let settings = DockerSettings { host: Some(host.to_owned()), ..self.settings.clone() };
        DockerProvider::open(self.data(), &self.installation, settings).unwrap()
    }

    pub fn data(&self) -> &Path {
        self.data.path()
    }

    pub async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<BoxInfo> {
        self.provider.create(id, spec, AccountId::LOCAL).await
    }

    /// The provider of another host process on the same data folder.
    pub fn reopen(&self) -> DockerProvider {
        DockerProvider::open(self.data(), &self.installation, self.settings.clone()).unwrap()
    }

    /// A sandbox that runs.
    pub async fn sandbox(&self, spec: SandboxSpec) -> (SandboxId, Guest) {
        let id = SandboxId::generate();
        (id, self.start(id, spec).await)
    }

    pub async fn start(&self, id: SandboxId, spec: SandboxSpec) -> Guest {
        self.create(id, &spec).await.unwrap();
        self.provider.start(id).await.unwrap();
        self.guest(id)
    }

    pub fn guest(&self, id: SandboxId) -> Guest {
        Guest::new(id, Role::Client, Arc::new(ToBox { provider: Arc::new(self.provider.clone()), id }))
    }

    pub async fn remove(&self, id: SandboxId) {
        self.provider.remove(id, Volumes::Delete).await.unwrap();
    }

    /// What Docker's own client prints.
    pub fn docker(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } =
            Command::new("docker").args(["--host", &self.host]).args(args).output().unwrap();
        assert!(status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap().trim().to_owned()
    }
}

/// How a command ended, and what it printed.
pub async fn sh(guest: &Guest, user: Option<&str>, script: &str) -> (Option<i32>, String) {
    run(guest, user, &["sh", "-c", script]).await
}

pub async fn run(guest: &Guest, user: Option<&str>, args: &[&str]) -> (Option<i32>, String) {
    let mut start = StartProcess::new(args.iter().copied());
    start.user = user.map(str::to_owned);
    let mut process = guest.start(start).await.unwrap();
    let mut out = Vec::new();
    loop {
        match process.next().await.unwrap() {
            ProcessOutput::Data { bytes, .. } => out.extend_from_slice(&bytes),
            ProcessOutput::End(status) => {
                return (status.code, String::from_utf8_lossy(&out).into_owned());
            }
            _ => {}
        }
    }
}
