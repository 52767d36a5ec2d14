//! The measured `seawall serve`.

use super::raw::Target;
use crate::product::Product;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use seawall_cli::{output, serving::KEY_FILE};
use std::{
    fs::File,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Stdio},
    time::{Duration, Instant},
};
use toml::Table;

/// How long the server may take to print its address.
const START: Duration = Duration::from_secs(30);
/// The grace period of the server's shutdown, in seconds.
const GRACE_SECONDS: u32 = 5;
const STOP: Duration = Duration::from_secs(GRACE_SECONDS as u64 + 10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Lines of its log that are shown after a failure.
const LAST_LINES: usize = 20;
/// One account makes all requests. The limits are counted as usual, and are never reached.
const LIMITS: [(&str, i64); 3] =
    [("rate_per_second", 1_000_000), ("rate_burst", 1_000_000), ("concurrency", 8192)];

pub struct Server {
    process: Process,
    pub target: Target,
    log: PathBuf,
}

/// Killed when it is dropped.
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
    /// Starts the product with [`settings`].
    pub async fn start(product: &Product) -> Result<Server> {
        let (data, log) = (product.data(), product.data().join("serve.log"));
        let limits = LIMITS.map(|(name, value)| format!("{name} = {value}")).join(", ");
        output::note(format!("the server has limits of its own in its seawall.toml: {limits}"));
        let mut command = product.command(&["serve", "--listen", "127.0.0.1:0", "--print-url"]);
        command.stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut process = Process(command.spawn().context("cannot start the server")?);
        let stdout = process.0.stdout.take().context("the server has no stdout")?;
        let address = address(stdout).await;
        let address = address.with_context(|| format!("the server did not start:\n{}", end_of(&log)))?;
        let key = std::fs::read_to_string(data.join(KEY_FILE)).context("the server made no key")?;
        Ok(Server { process, target: Target { address, key: key.trim().into() }, log })
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub fn end_of_log(&self) -> String {
        end_of(&self.log)
    }

    /// Sends SIGTERM and waits for the exit. A server that outlives its grace period is killed.
    pub async fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.process.0), Signal::TERM).context("the server is gone already")?;
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            if let Some(status) = self.process.0.try_wait()? {
                ensure!(status.success(), "the server ended with {status}:\n{}", self.end_of_log());
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        bail!("the server did not stop within {} s, and was killed", STOP.as_secs())
    }
}

/// The settings of the measured server.
pub fn settings(provider: &str) -> Table {
    let mut server: Table = LIMITS.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    server.insert("shutdown_grace_seconds".to_owned(), GRACE_SECONDS.into());
    Table::from_iter([("provider".to_owned(), provider.into()), ("server".to_owned(), server.into())])
}

/// The address that `--print-url` prints.
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
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_those_of_a_file() {
        let text = toml::to_string(&settings("native")).unwrap();
        let table: Table = toml::from_str(&text).unwrap();
        assert_eq!(table["provider"].as_str(), Some("native"));
        let server = table["server"].as_table().unwrap();
        assert_eq!(server["rate_per_second"].as_integer(), Some(1_000_000));
        assert_eq!(server.len(), 4);
    }
}
