//! Runs the measured product: the binary `seawall` of the same build.

use anyhow::{Context, Result, ensure};
use seawall_client::{Client, LocalServer};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Prefixes of variables that are settings of `seawall`.
const SETTINGS: [&str; 4] = ["SEAWALL_", "SANDBOX_", "OTEL_", "S3_BUCKET_"];

/// Runs commands of `seawall` on one data folder. None of this environment's settings reaches them.
pub struct Product {
    binary: PathBuf,
    data: PathBuf,
    config: Option<PathBuf>,
}

/// A command that has succeeded.
pub struct Ran {
    /// The time from start to exit.
    pub time: Duration,
    pub stdout: String,
}

impl Product {
    /// A product that reads no configuration file.
    pub fn new(data: &Path) -> Result<Product> {
        let binary = std::env::current_exe()?.with_file_name("seawall");
        ensure!(binary.is_file(), "there is no {}: build it with `cargo build --release`", binary.display());
        Ok(Product { binary, data: data.to_owned(), config: None })
    }

    /// With these settings, which are written to a file in the data folder.
    pub fn with_config(data: &Path, settings: &toml::Table) -> Result<Product> {
        let config = data.join("seawall.toml");
        std::fs::write(&config, toml::to_string(settings)?)?;
        Ok(Product { config: Some(config), ..Product::new(data)? })
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--data").arg(&self.data);
        match &self.config {
            Some(config) => command.arg("--config").arg(config),
            None => command.arg("--no-config"),
        };
        for (name, _) in std::env::vars_os() {
            if is_setting(&name) {
                command.env_remove(&name);
            }
        }
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end. A failed command is an error.
    pub async fn run(&self, args: &[&str]) -> Result<Ran> {
        timed(self.command(args)).await.with_context(|| format!("seawall {}", args.join(" ")))
    }

    /// A client of the folder's server. It starts none.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::local(LocalServer::new(&self.data), None)?)
    }

    /// The process of the folder's server.
    pub async fn server_pid(&self) -> Result<u32> {
        Ok(self.client()?.server_status().await?.server.pid)
    }

    pub async fn stop_server(&self) -> Result<()> {
        self.run(&["server", "stop"]).await?;
        Ok(())
    }
}

fn is_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    SETTINGS.iter().any(|prefix| name.starts_with(prefix))
}

/// Runs a command to its end. The clock runs in the thread that starts it.
pub async fn timed(mut command: Command) -> Result<Ran> {
    let running = tokio::task::spawn_blocking(move || {
        let begun = Instant::now();
        let output = command.output();
        (begun.elapsed(), output, command)
    });
    let (time, output, command) = running.await?;
    let output = output.with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, stderr.trim());
    Ok(Ran { time, stdout: String::from_utf8_lossy(&output.stdout).trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_environment_stay_here() {
        assert!(is_setting(OsStr::new("SEAWALL_DATABASE_URL")) && is_setting(OsStr::new("SEAWALL_URL")));
        assert!(!is_setting(OsStr::new("PATH")) && !is_setting(OsStr::new("AWS_ENDPOINT_URL")));
    }

    #[tokio::test]
    async fn a_command_that_fails_is_an_error_with_its_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo why >&2; exit 3"]);
        let error = timed(command).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("3: why"), "{error}");
        let mut command = Command::new("echo");
        command.arg("out");
        assert_eq!(timed(command).await.unwrap().stdout, "out");
    }
}
