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
mod signals;
mod terminal;
mod turns;
mod workspaces;

use args::Cli;
use clap::Parser;
use std::io::IsTerminal;
use std::{process::ExitCode, time::Duration};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    let (json, attached) = (cli.json, cli.command.is_attached());
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

fn run(cli: Cli) -> anyhow::Result<i32> {
    // One thread: a command waits much and computes little, and threads would wake each other for each word.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(commands::dispatch(cli));
    // Cut-off work drops what it holds, e.g. half-written files; a stalled stdout gets no longer.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

fn start_log() {
    let filter = EnvFilter::try_from_env("SEAWALL_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
}
