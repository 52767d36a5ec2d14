//! A server in the background: this program again, in a session of its own.
//!
//! The starter hands the new process three descriptors: no input, a pipe on which it says that it is ready or why it is not, and
//! the log. Everything else that this process inherited is closed by the server itself before it does anything.

use super::Start;
use crate::{
    config::{Settings, templates},
    serving::{StartLock, environment, log},
};
use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use jiff::Timestamp;
use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// The number of failed starts within [`WINDOW`] after which automatic starts stop.
const MOST_FAILURES: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// Lines of the log that are shown when a server ends without a word.
const LINES: usize = 20;

/// The line that a server writes when it accepts requests.
pub const READY: &str = "ready";
/// The prefix of the line that a server writes when it fails.
pub const FAILED: &str = "failed: ";

/// Starts servers in the background.
pub struct Background;

#[async_trait]
impl Start for Background {
    async fn start(&self, settings: &Settings, lock: &mut StartLock) -> Result<()> {
        let failures = recent(&lock.failures());
        if failures.len() >= MOST_FAILURES {
            let last = failures.last().map_or("", |(_, why)| why);
            bail!(
                "the server failed to start {MOST_FAILURES} times within a minute, the last time because: {last}. Mend that, then \
                 `seawall server restart`"
            );
        }
        match start(settings).await {
            Ok(()) => {
                if !failures.is_empty() {
                    lock.set_failures("");
                }
                Ok(())
            }
            Err(error) => {
                let why = crate::exit::message_of(&error).replace('\n', " ");
                let lines = failures.into_iter().chain([(now(), why)]);
                let text: String = lines.map(|(at, why)| format!("{at} {why}\n")).collect();
                lock.set_failures(&text);
                Err(error)
            }
        }
    }

    async fn finish(&self) {}
}

fn now() -> i64 {
    Timestamp::now().as_millisecond()
}

/// The failures of the last minute, with their times.
fn recent(noted: &str) -> Vec<(i64, String)> {
    let since = now() - WINDOW.as_millis() as i64;
    let parsed = noted.lines().filter_map(|line| {
        let (at, why) = line.split_once(' ')?;
        Some((at.parse::<i64>().ok()?, why.to_owned()))
    });
    parsed.filter(|(at, _)| *at > since).collect()
}

async fn start(settings: &Settings) -> Result<()> {
    let log = log::open(&settings.data)?;
    let offset = log.metadata()?.len();
    let child = command(settings)?.stderr(log).spawn().context("cannot start the server")?;
    let said = tokio::task::spawn_blocking(move || listen(child)).await?;
    let (line, status) = said.context("the server that was started says nothing")?;
    if line == READY {
        return Ok(());
    }
    if let Some(why) = line.strip_prefix(FAILED) {
        bail!("the server could not be started: {why}");
    }
    let lines = log::lines_from(&settings.data, offset, LINES);
    bail!("the server ended before it answered ({status}):\n{lines}")
}

/// Reads the server's line, or its exit status if it wrote none. A ready server runs on.
fn listen(mut child: Child) -> std::io::Result<(String, String)> {
    let Some(stdout) = child.stdout.take() else { return Ok((String::new(), "it has no stdout".to_owned())) };
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let line = line.trim_end().to_owned();
    if line == READY {
        return Ok((line, String::new()));
    }
    let status = child.wait()?;
    Ok((line, status.to_string()))
}

fn command(settings: &Settings) -> Result<Command> {
    let named = templates(&settings.agents, &settings.data).map(|all| environment::named_by(&all));
    // The server reports errors of templates.
    let named = named.unwrap_or_default();
    let folder = std::env::current_dir().unwrap_or_else(|_| "/".into());
    // The file on disk may have been replaced by a newer version, or be gone.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("seawall").arg("--data").arg(&settings.data);
    match &settings.file {
        Some(file) => command.arg("--config").arg(file),
        None => command.arg("--no-config"),
    };
    command.args(["serve", "--background"]).current_dir("/").env_clear();
    command.envs(environment::inherited(std::env::vars_os(), &named, &folder));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_failures_are_forgotten() {
        let text = format!("1 long ago\n{} just now: a b\nnonsense\n", now());
        let found = recent(&text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, "just now: a b");
    }
}
