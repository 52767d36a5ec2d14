//! A real `seawall serve`, on the data folder of the measurement.

use super::raw::Target;
use crate::{app::App, commands::serve::KEY_FILE, output};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsStr,
    fs::File,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// Until it says where it listens.
const START: Duration = Duration::from_secs(30);
/// Its own grace, and what it needs beyond it.
const GRACE_SECONDS: u64 = 5;
const STOP: Duration = Duration::from_secs(GRACE_SECONDS + 10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Lines of its log that are worth seeing when something failed.
const LAST_WORDS: usize = 20;
/// One account asks for everything here. The limits are counted as always, and never reached.
const LIMITS: &str = "rate_per_second = 1000000, rate_burst = 1000000, concurrency = 8192";

pub struct Server {
    process: Process,
    pub target: Target,
    log: PathBuf,
}

/// Ends with whoever holds it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Server {
    pub async fn start(app: &App) -> Result<Server> {
        let data = &app.settings.data;
        let (config, log) = (data.join("seawall.toml"), data.join("serve.log"));
        std::fs::write(&config, settings(app.settings.provider_name()))?;
        output::note(format!("the server has limits of its own in its seawall.toml: {LIMITS}"));
        let mut process =
            Process(command(app, &config, File::create(&log)?)?.spawn().context("cannot start the server")?);
        let stdout = process.0.stdout.take().context("the server has no stdout")?;
        let address = address(stdout).await;
        let address = address.with_context(|| format!("the server did not start:\n{}", end_of(&log)))?;
        let key = std::fs::read_to_string(data.join(KEY_FILE)).context("the server made no key")?;
        Ok(Server { process, target: Target { address, key: key.trim().into() }, log })
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub fn last_words(&self) -> String {
        end_of(&self.log)
    }

    /// Politely, and after its grace by force.
    pub async fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.process.0), Signal::TERM).context("the server is gone already")?;
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            if let Some(status) = self.process.0.try_wait()? {
                ensure!(status.success(), "the server ended with {status}:\n{}", self.last_words());
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        bail!("the server did not stop within {} s, and was killed", STOP.as_secs())
    }
}

fn settings(provider: &str) -> String {
    let limits = LIMITS.replace(", ", "\n");
    format!("provider = {provider:?}\n\n[server]\nshutdown_grace_seconds = {GRACE_SECONDS}\n{limits}\n")
}

/// As it would be started, and with nothing of this environment's settings: they are not this process's either.
fn command(app: &App, config: &Path, log: File) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--data").arg(&app.settings.data).arg("--config").arg(config);
    command.args(["serve", "--listen", "127.0.0.1:0", "--print-url"]);
    for (name, _) in std::env::vars_os() {
        if is_setting(&name) {
            command.env_remove(&name);
        }
    }
    command.env("SEAWALL_SYNC_BUCKET", app.settings.sync.bucket(&app.settings.data));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    Ok(command)
}

fn is_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["SEAWALL_", "SANDBOX_", "OTEL_"].iter().any(|prefix| name.starts_with(prefix))
}

/// What `--print-url` printed.
async fn address(stdout: ChildStdout) -> Result<SocketAddr> {
    let reading = tokio::task::spawn_blocking(move || -> std::io::Result<String> {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(line)
    });
    let line =
        tokio::time::timeout(START, reading).await.context("it does not say where it listens")???;
    let address = line.trim().strip_prefix("http://").context("it ended before it listened")?;
    address.parse::<SocketAddr>().with_context(|| format!("{address} is no address"))
}

fn end_of(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_toml() {
        let table: toml::Table = toml::from_str(&settings("native")).unwrap();
        assert_eq!(table["provider"].as_str(), Some("native"));
        let server = table["server"].as_table().unwrap();
        assert_eq!(server["rate_per_second"].as_integer(), Some(1_000_000));
        assert_eq!(server.len(), 4);
    }

    #[test]
    fn settings_of_the_environment_stay_here() {
        assert!(is_setting(OsStr::new("SEAWALL_DATABASE_URL")) && is_setting(OsStr::new("SEAWALL_URL")));
        assert!(!is_setting(OsStr::new("PATH")) && !is_setting(OsStr::new("HOME")));
    }
}
