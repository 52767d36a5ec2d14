//! The command line and the server of one binary.
//!
//! A command is a client of the server of its data folder ([`session`]), which it starts where none runs ([`starting`]). Only
//! [`serving`] opens the database and makes sandboxes. Start with `commands`.

pub mod app;
mod args;
mod attached;
mod commands;
pub mod config;
mod duration;
pub mod exit;
mod input;
mod lookup;
pub mod memory;
pub mod output;
pub mod serving;
mod session;
pub mod signals;
mod starting;
mod terminal;

use anyhow::Result;
use args::Cli;
use clap::Parser;
use commands::serve;
use output::LogWriter;
use seawall_client::{Client, LocalServer};
use seawall_server::Telemetry;
use serving::log::CappedLog;
use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};
use tracing_subscriber::{EnvFilter, fmt, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt};

/// How many tasks a busy thread of the server runs before it polls for sockets that became ready. With tokio's default of 61,
/// requests whose every step takes half a millisecond, such as large answers, delay each read of all others by 30 ms.
const TASKS_BETWEEN_POLLS: u32 = 4;

pub fn main() -> ExitCode {
    commands::completions::answer();
    let cli = Cli::parse();
    let (json, attached) = (cli.json, cli.command.is_attached());
    let code = match start(cli) {
        Ok(code) => code,
        Err(error) => {
            exit::report(&error, json);
            exit::code_of(&error, attached)
        }
    };
    // A shell sees eight bits of it.
    ExitCode::from((code & 0xff) as u8)
}

fn start(cli: Cli) -> Result<i32> {
    // Before there is a second thread or an open file.
    let starter = if cli.command.is_background() { Some(serve::detach()?) } else { None };
    let _telemetry = start_log(&cli)?;
    let runtime = match cli.command.is_service() {
        true => server_runtime()?,
        // One thread: a command waits much and computes little, and threads would wake each other for each word.
        false => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    let result = runtime.block_on(commands::dispatch(cli, starter));
    // Cancelled work removes its half-written files. A stalled stdout gets no longer than this.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// The threads of a server.
pub(crate) fn server_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().event_interval(TASKS_BETWEEN_POLLS).build()
}

/// A client of the server of a data folder that starts none.
pub(crate) fn client_of(data: &Path) -> Result<Client> {
    Ok(Client::local(LocalServer::new(data), None)?)
}

/// The version of this program.
pub(crate) fn version() -> String {
    // Tests of upgrades name another.
    std::env::var("SEAWALL_TEST_VERSION").unwrap_or_else(|_| env!("CARGO_PKG_VERSION").to_owned())
}

/// Returns whether a version precedes another. A version without a number precedes none.
pub(crate) fn is_older(one: &str, other: &str) -> bool {
    let parts = |text: &str| -> Option<Vec<u64>> { text.split('.').map(|part| part.parse().ok()).collect() };
    parts(one).zip(parts(other)).is_some_and(|(one, other)| one < other)
}

/// The destination of log lines.
#[derive(Clone)]
enum Log {
    Stderr(LogWriter),
    Capped(CappedLog),
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Log::Stderr(stderr) => stderr.write(bytes),
            Log::Capped(log) => log.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// Starts the log on stderr. A server's log has times, is JSON with `SEAWALL_LOG_FORMAT=json`, and a server can send traces
/// to a collector.
fn start_log(cli: &Cli) -> Result<Option<Telemetry>> {
    let service = cli.command.is_service();
    let default = if service { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("SEAWALL_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let ansi = io::stderr().is_terminal();
    if !service {
        let writer = Log::Stderr(LogWriter { json: false });
        let text = fmt::layer().with_writer(writer).with_ansi(ansi).with_target(false).without_time();
        tracing_subscriber::registry().with(filter).with(text).init();
        return Ok(None);
    }
    let flags =
        config::Flags { data: cli.data.clone(), config: cli.config.clone(), no_config: cli.no_config };
    // Errors of the settings are reported later, when the command uses them.
    let settings = config::load(&flags).ok();
    let otlp = settings.as_ref().and_then(|settings| settings.server.otlp.clone());
    let telemetry = otlp.map(|endpoint| Telemetry::new(&endpoint)).transpose()?;
    let json = std::env::var("SEAWALL_LOG_FORMAT").is_ok_and(|format| format == "json");
    let writer = match settings.filter(|_| cli.command.is_background()) {
        Some(settings) => Log::Capped(CappedLog::new(&settings.data)),
        None => Log::Stderr(LogWriter { json }),
    };
    let layers = tracing_subscriber::registry().with(filter).with(telemetry.as_ref().map(Telemetry::layer));
    match json {
        true => layers.with(fmt::layer().json().flatten_event(true).with_writer(writer)).init(),
        false => layers.with(fmt::layer().with_writer(writer).with_ansi(ansi).with_target(false)).init(),
    }
    Ok(telemetry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(is_older("0.1.0", "0.1.1") && is_older("0.9.0", "0.10.0") && is_older("0.1.0", "1.0.0"));
        assert!(!is_older("0.1.1", "0.1.0") && !is_older("0.1.0", "0.1.0") && !is_older("x", "0.1.0"));
    }
}
