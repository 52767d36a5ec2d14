//! The providers under test, each on a substrate of its own, with the ways to break it.

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use seawall_api::SandboxId;
use seawall_core::ports::Provider;
use seawall_providers::{
    local::LocalProvider,
    mock::MockProvider,
    native::{NativeProvider, NativeSettings},
};
use std::{fs, process::Command, sync::Arc};
use tempfile::TempDir;

#[async_trait]
pub trait Fixture: Send + Sync {
    fn provider(&self) -> Arc<dyn Provider>;

    /// A second provider on the same substrate: the host process was restarted.
    fn reopen(&self) -> Result<Arc<dyn Provider>>;

    /// Another installation beside this one. What holds its substrate comes with it.
    fn elsewhere(&self) -> Result<Arc<dyn Fixture>>;

    /// Ends the guest of a box at once, as a crash would.
    async fn crash_guest(&self, id: SandboxId) -> Result<()>;

    /// Processes of the substrate whose command line has this argument.
    fn alive(&self, argument: &str) -> Vec<u32>;
}

pub type MakeFixture = fn() -> Result<Arc<dyn Fixture>>;

pub fn all() -> [(&'static str, MakeFixture); 3] {
    [
        ("mock", || Ok(Arc::new(Mock::new()))),
        ("local", || Ok(Arc::new(Local::new()?))),
        ("native", || Ok(Arc::new(Native::new()?))),
    ]
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
