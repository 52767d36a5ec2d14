//! The binary `seawall`: reads what was asked, does it, and ends with a code that means something.

mod adopt;
mod app;
mod args;
mod attached;
mod claims;
mod commands;
mod config;
mod duration;
mod exit;
mod input;
mod lookup;
mod memory;
mod output;
mod remote;
mod signals;
mod terminal;
mod turns;
mod workspaces;

use args::Cli;
use clap::Parser;
use output::LogWriter;
use seawall_server::Telemetry;
use std::io::IsTerminal;
use std::{process::ExitCode, time::Duration};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (json, attached) = (cli.json, cli.command.is_attached());
    let _telemetry = match start_log(&cli) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            exit::report(&error, json);
            return ExitCode::from(exit::FAILED as u8);
        }
    };
    let code = match run(cli) {
        Ok(code) => code,
        Err(error) => {
            exit::report(&error, json);
            exit::code_of(&error, attached)
        }
    };
    // A shell sees eight bits of it.
    ExitCode::from((code & 0xff) as u8)
}

/// How many tasks a busy thread of the server runs before it polls for sockets that became ready. With tokio's default of 61,
/// requests whose every step takes half a millisecond, such as large answers, delay each read of all others by 30 ms.
const TASKS_BETWEEN_POLLS: u32 = 4;

fn run(cli: Cli) -> anyhow::Result<i32> {
    let runtime = match cli.command.is_service() {
        true => {
            let mut threads = tokio::runtime::Builder::new_multi_thread();
            threads.enable_all().event_interval(TASKS_BETWEEN_POLLS).build()?
        }
        // One thread: a command waits much and computes little, and threads would wake each other for each word.
        false => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    let result = runtime.block_on(commands::dispatch(cli));
    // Cut-off work drops what it holds, e.g. half-written files; a stalled stdout gets no longer.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Words on stderr; of a service with times, as lines of JSON where `SEAWALL_LOG_FORMAT=json` says so, and traces to a
/// collector where one is named.
fn start_log(cli: &Cli) -> anyhow::Result<Option<Telemetry>> {
    let service = cli.command.is_service();
    // Pulling an image can take minutes, so a command shows its progress too.
    let default = if service { "info" } else { "warn,seawall_providers::docker::image=info" };
    let filter = EnvFilter::try_from_env("SEAWALL_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let (ansi, writer) = (std::io::stderr().is_terminal(), |json| move || LogWriter { json });
    if !service {
        let text = fmt::layer().with_writer(writer(false)).with_ansi(ansi).with_target(false).without_time();
        tracing_subscriber::registry().with(filter).with(text).init();
        return Ok(None);
    }
    let flags = config::Flags { data: cli.data.clone(), config: cli.config.clone() };
    // What is wrong with the settings is told when they are used.
    let otlp = config::load(&flags).ok().and_then(|settings| settings.server.otlp);
    let telemetry = otlp.map(|endpoint| Telemetry::new(&endpoint)).transpose()?;
    let json = std::env::var("SEAWALL_LOG_FORMAT").is_ok_and(|format| format == "json");
    let layers = tracing_subscriber::registry().with(filter).with(telemetry.as_ref().map(Telemetry::layer));
    match json {
        true => layers.with(fmt::layer().json().flatten_event(true).with_writer(writer(true))).init(),
        false => {
            layers.with(fmt::layer().with_writer(writer(false)).with_ansi(ansi).with_target(false)).init()
        }
    }
    Ok(telemetry)
}
