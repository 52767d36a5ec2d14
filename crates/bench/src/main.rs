//! `seawall-bench`: measures what SPECIFICATION.md promises.
//!
//! Measurements of parts ([`boxes`], [`measure`], [`docker`], [`turns`], [`stores`]) open a scratch data folder in this process.
//! Measurements of the product ([`cli`], [`sync`], [`http`]) run the binary `seawall` of the same build ([`product`]).

mod args;
mod boxes;
mod cli;
mod docker;
mod figures;
mod http;
mod measure;
mod peers;
mod product;
mod rivals;
mod scratch;
mod stores;
mod sync;
mod turns;

use anyhow::Result;
use args::{Bench, BoxesArgs, Cli, CliArgs, DockerArgs, ExecArgs, HttpArgs, StoresArgs, SyncArgs, TurnsArgs};
use clap::Parser;
use figures::Report;
use product::Product;
use scratch::{Owned, Scratch, clear, clear_left_behind, remove_all};
use seawall_cli::{
    app::App,
    config::{self, Flags, Settings},
    exit,
    output::{self, LogWriter},
    signals::{SIGINT, Signals},
};
use std::{io::IsTerminal, process::ExitCode, time::Duration};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    let code = run(cli).unwrap_or_else(|error| {
        exit::report(&error, json);
        exit::code_of(&error, false)
    });
    // A shell sees eight bits of it.
    ExitCode::from((code & 0xff) as u8)
}

fn run(cli: Cli) -> Result<i32> {
    let filter = EnvFilter::try_from_env("SEAWALL_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).without_time();
    let log = log.with_ansi(std::io::stderr().is_terminal());
    log.with_writer(|| LogWriter { json: false }).init();
    // One thread, so that no thread is woken between the steps that are measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(dispatch(cli));
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

async fn dispatch(cli: Cli) -> Result<i32> {
    let Cli { config, json, what, boxes } = cli;
    if let Some(Bench::Stores(args)) = &what {
        return stores(args, json).await;
    }
    // No measurement uses the usual data folder.
    let data = Some(std::env::temp_dir());
    let settings = config::load(&Flags { data, config, no_config: false })?;
    clear_left_behind(&settings).await;
    match what {
        None => of_boxes(settings, &boxes, json).await,
        Some(Bench::Cli(args)) => of_cli(&settings, &args, json).await,
        Some(Bench::Exec(args)) => of_exec(settings, &args, json).await,
        Some(Bench::Docker(args)) => of_docker(settings, &args, json).await,
        Some(Bench::Stores(args)) => stores(&args, json).await,
        Some(Bench::Sync(args)) => of_sync(&settings, &args, json).await,
        Some(Bench::Turns(args)) => of_turns(&settings, &args, json).await,
        Some(Bench::Http(args)) => of_http(&settings, &args, json).await,
    }
}

async fn stores(args: &StoresArgs, json: bool) -> Result<i32> {
    let scratch = Scratch::new()?;
    // Two threads, as a server has: this program has one, and pgbench two.
    let (folder, wanted) = (scratch.path.clone(), args.clone());
    let measuring = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(stores::all(&folder, &wanted))
    });
    let measured = until_signal(async { measuring.await? }).await;
    judge(measured?, args.check, json)
}

async fn of_boxes(mut settings: Settings, args: &BoxesArgs, json: bool) -> Result<i32> {
    choose_provider(&mut settings, &args.common);
    let runs = args.common.runs;
    let measure = async |app: &App| {
        let mut report = Report::default();
        let create = boxes::all(app, runs, &mut report).await?;
        if args.compare {
            rivals::compare(&mut report, &app.settings.data, create)?;
        }
        Ok(report)
    };
    in_process(&settings, measure, args.common.check, json).await
}

async fn of_exec(mut settings: Settings, args: &ExecArgs, json: bool) -> Result<i32> {
    choose_provider(&mut settings, args);
    in_process(&settings, async |app: &App| measure::all(app, args.runs).await, args.check, json).await
}

fn choose_provider(settings: &mut Settings, args: &ExecArgs) {
    if let Some(provider) = args.provider.clone().filter(|name| !name.is_empty()) {
        settings.provider = Some(provider);
    }
}

async fn of_docker(mut settings: Settings, args: &DockerArgs, json: bool) -> Result<i32> {
    settings.provider = Some("docker".to_owned());
    settings.docker.image = args.image.clone().or(settings.docker.image);
    in_process(&settings, async |app: &App| docker::all(app, args.runs).await, args.check, json).await
}

async fn of_turns(settings: &Settings, args: &TurnsArgs, json: bool) -> Result<i32> {
    in_process(settings, async |app: &App| turns::all(app).await, args.check, json).await
}

async fn of_sync(settings: &Settings, args: &SyncArgs, json: bool) -> Result<i32> {
    let scratch = Scratch::new()?;
    let (provider, bucket) = (settings.provider_name(), sync::bucket(args, &scratch.path));
    let product = Product::with_config(&scratch.path, &sync::settings(provider, &bucket))?;
    let measured = until_signal(sync::all(&product, &bucket, args)).await;
    stopped(&product).await;
    clear(&scratch, settings).await;
    judge(measured?, args.check, json)
}

async fn of_cli(settings: &Settings, args: &CliArgs, json: bool) -> Result<i32> {
    let (used, empty) = (Scratch::new()?, Scratch::new()?);
    let products = (Product::new(&used.path)?, Product::new(&empty.path)?);
    let measured = until_signal(cli::all(&products.0, (&empty, &products.1), args.runs)).await;
    stopped(&products.0).await;
    stopped(&products.1).await;
    clear(&used, settings).await;
    clear(&empty, settings).await;
    judge(measured?, args.check, json)
}

async fn of_http(settings: &Settings, args: &HttpArgs, json: bool) -> Result<i32> {
    let (served, direct) = (Scratch::new()?, Scratch::new()?);
    let product = Product::with_config(&served.path, &http::settings(settings.provider_name()))?;
    let measured = until_signal(http::all(&product, direct.settings(settings), args.runs)).await;
    clear(&served, settings).await;
    clear(&direct, settings).await;
    judge(measured?, args.check, json)
}

/// Measures on a data folder that this process owns, and removes the folder's sandboxes.
async fn in_process(
    settings: &Settings,
    measure: impl AsyncFnOnce(&App) -> Result<Report>,
    check: bool,
    json: bool,
) -> Result<i32> {
    let scratch = Scratch::new()?;
    let owned = Owned::open(scratch.settings(settings)).await?;
    let measured = until_signal(measure(&owned.app)).await;
    remove_all(&owned.app).await;
    judge(measured?, check, json)
}

/// Runs a measurement. `None` means that a signal interrupted it.
async fn until_signal(measuring: impl Future<Output = Result<Report>>) -> Result<Option<Report>> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        report = measuring => report.map(Some),
        _ = signals.next() => Ok(None),
    }
}

async fn stopped(product: &Product) {
    if let Err(error) = product.stop_server().await {
        output::note(format!("the server of {} was not stopped: {error:#}", product.data().display()));
    }
}

/// Shows the figures. The exit code is 1 where a promise is checked and missed.
fn judge(report: Option<Report>, check: bool, json: bool) -> Result<i32> {
    let Some(report) = report else { return Ok(exit::by_signal(SIGINT)) };
    match json {
        true => output::json(&report.to_json())?,
        false => report.table().print()?,
    }
    Ok(if check && !report.all_kept() { exit::FAILED } else { 0 })
}
