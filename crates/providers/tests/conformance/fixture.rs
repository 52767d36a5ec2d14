//! The providers under test, each on a substrate of its own, with the ways to break it.

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use seawall_api::SandboxId;
use seawall_core::ports::Provider;
use seawall_providers::{
    docker::{DockerProvider, DockerSettings},
    local::LocalProvider,
    mock::MockProvider,
    native::{NativeProvider, NativeSettings},
};
use std::{env, fs, process::Command, sync::Arc};
use tempfile::TempDir;

#[async_trait]
pub trait Fixture: Send + Sync {
    fn provider(&self) -> Arc<dyn Provider>;

    /// A second provider on the same substrate: the host process was restarted.
    fn reopen(&self) -> Result<Arc<dyn Provider>>;

    /// Another installation beside this one. What holds its substrate comes with it.
    fn elsewhere(&self) -> Result<Arc<dyn Fixture>>;

    /// Whether boxes have python3. Those without an image of their own see the host's.
    fn has_python(&self) -> bool {
        let found = Command::new("python3").arg("-c").arg("").status();
        found.is_ok_and(|status| status.success())
    }

    /// Whether cases that fill the machine run.
    fn has_room(&self) -> bool {
        true
    }

    /// Ends the guest of a box at once, as a crash would.
    async fn crash_guest(&self, id: SandboxId) -> Result<()>;

    /// Processes of the substrate whose command line has this argument.
    fn alive(&self, argument: &str) -> Vec<u32>;
}

pub type MakeFixture = fn() -> Result<Arc<dyn Fixture>>;

pub fn all() -> Vec<(&'static str, MakeFixture)> {
    let mut all: Vec<(&'static str, MakeFixture)> = vec![
        ("mock", || Ok(Arc::new(Mock::new()))),
        ("local", || Ok(Arc::new(Local::new()?))),
        ("native", || Ok(Arc::new(Native::new()?))),
    ];
    if env::var_os(DOCKER).is_some() {
        all.push(("docker", || Ok(Arc::new(Docker::new(DOCKER, DEBIAN)?))));
    }
    if env::var_os(DOCKER_TCP).is_some() {
        all.push(("docker_tcp", || Ok(Arc::new(Docker::new(DOCKER_TCP, DEBIAN)?))));
        all.push(("docker_busybox", || Ok(Arc::new(Docker::new(DOCKER, "seawall-test/busybox")?))));
    }
    all
}

/// An image with python3, which `scripts/docker` makes.
const DEBIAN: &str = "seawall-test/debian";
/// The address of a Docker daemon's socket.
const DOCKER: &str = "SEAWALL_TEST_DOCKER";
/// The address of the same daemon on the network, for the longer suite.
const DOCKER_TCP: &str = "SEAWALL_TEST_DOCKER_TCP";

/// Why providers are missing from the suite.
pub fn skipped() -> Option<String> {
    let set = |name| env::var_os(name).is_some();
    match (set(DOCKER), set(DOCKER_TCP)) {
        (false, _) => Some(format!("skipped docker: {DOCKER} names no daemon")),
        (true, false) => Some("skipped docker_tcp, docker_busybox: `make test-docker` runs them".to_owned()),
        (true, true) => None,
    }
}

struct Docker {
    provider: Arc<DockerProvider>,
    data: TempDir,
    installation: String,
    settings: DockerSettings,
}

impl Docker {
    fn new(variable: &str, image: &str) -> Result<Self> {
        let host = env::var(variable).with_context(|| format!("{variable} is not set"))?;
        Docker::open(DockerSettings {
            host: Some(host),
            image: Some(image.to_owned()),
            ..DockerSettings::default()
        })
    }

    fn open(settings: DockerSettings) -> Result<Self> {
        let (data, installation) = (TempDir::new()?, SandboxId::generate().to_string());
        let provider = Arc::new(DockerProvider::open(data.path(), &installation, settings.clone())?);
        Ok(Docker { provider, data, installation, settings })
    }
}

#[async_trait]
impl Fixture for Docker {
    fn provider(&self) -> Arc<dyn Provider> {
        self.provider.clone()
    }

    fn reopen(&self) -> Result<Arc<dyn Provider>> {
        Ok(Arc::new(DockerProvider::open(self.data.path(), &self.installation, self.settings.clone())?))
    }

    fn elsewhere(&self) -> Result<Arc<dyn Fixture>> {
        Ok(Arc::new(Docker::open(self.settings.clone())?))
    }

    fn has_python(&self) -> bool {
        self.settings.image.as_deref() == Some(DEBIAN)
    }

    fn has_room(&self) -> bool {
        env::var_os(DOCKER_TCP).is_some()
    }

    async fn crash_guest(&self, id: SandboxId) -> Result<()> {
        kill(self.provider(), id).await
    }

    fn alive(&self, argument: &str) -> Vec<u32> {
        with_argument(argument)
    }
}

struct Mock {
    provider: MockProvider,
}

impl Mock {
    fn new() -> Self {
        Mock { provider: MockProvider::new() }
    }
}

#[async_trait]
impl Fixture for Mock {
    fn provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.provider.clone())
    }

    fn reopen(&self) -> Result<Arc<dyn Provider>> {
        Ok(Arc::new(self.provider.reopen()))
    }

    fn elsewhere(&self) -> Result<Arc<dyn Fixture>> {
        Ok(Arc::new(Mock::new()))
    }

    async fn crash_guest(&self, id: SandboxId) -> Result<()> {
        self.provider.crash(id);
        Ok(())
    }

    /// Its processes are tasks: the machine has none.
    fn alive(&self, _argument: &str) -> Vec<u32> {
        Vec::new()
    }
}

struct Local {
    provider: Arc<LocalProvider>,
    data: TempDir,
}

impl Local {
    fn new() -> Result<Self> {
        let data = TempDir::new()?;
        // Other users must be able to reach what is theirs in it.
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(data.path(), open)?;
        let provider = Arc::new(LocalProvider::open(data.path())?);
        Ok(Local { provider, data })
    }
}

#[async_trait]
impl Fixture for Local {
    fn provider(&self) -> Arc<dyn Provider> {
        self.provider.clone()
    }

    fn reopen(&self) -> Result<Arc<dyn Provider>> {
        Ok(Arc::new(LocalProvider::open(self.data.path())?))
    }

    fn elsewhere(&self) -> Result<Arc<dyn Fixture>> {
        Ok(Arc::new(Local::new()?))
    }

    async fn crash_guest(&self, id: SandboxId) -> Result<()> {
        kill(self.provider(), id).await
    }

    fn alive(&self, argument: &str) -> Vec<u32> {
        with_argument(argument)
    }
}

async fn kill(provider: Arc<dyn Provider>, id: SandboxId) -> Result<()> {
    let pid = provider.get(id).await?.pid.context("a running box has a pid")?;
    let killed = Command::new("kill").arg("-KILL").arg(pid.to_string()).status()?;
    ensure!(killed.success(), "the guest {pid} could not be killed");
    Ok(())
}

/// Processes of this machine, boxes' included, with an argument.
fn with_argument(argument: &str) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let has_argument = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(has_argument).collect()
}

struct Native {
    provider: Arc<NativeProvider>,
    data: TempDir,
}

impl Native {
    fn new() -> Result<Self> {
        let data = TempDir::new()?;
        let provider = Arc::new(NativeProvider::open(data.path(), NativeSettings::default())?);
        Ok(Native { provider, data })
    }
}

#[async_trait]
impl Fixture for Native {
    fn provider(&self) -> Arc<dyn Provider> {
        self.provider.clone()
    }

    fn reopen(&self) -> Result<Arc<dyn Provider>> {
        Ok(Arc::new(NativeProvider::open(self.data.path(), NativeSettings::default())?))
    }

    fn elsewhere(&self) -> Result<Arc<dyn Fixture>> {
        Ok(Arc::new(Native::new()?))
    }

    async fn crash_guest(&self, id: SandboxId) -> Result<()> {
        kill(self.provider(), id).await
    }

    fn alive(&self, argument: &str) -> Vec<u32> {
        with_argument(argument)
    }
}
