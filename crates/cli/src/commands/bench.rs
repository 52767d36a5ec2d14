//! `seawall bench`: measures what SPECIFICATION.md promises.

use crate::{
    app::{App, check_data},
    config::Settings,
    exit, output,
    signals::Signals,
};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use figures::Report;
use seawall_api::SandboxId;
use seawall_core::ports::Volumes;
use std::{
    fs::{DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    time::Duration,
};

mod boxes;
mod docker;
mod figures;
mod http;
mod measure;
mod peers;
mod rivals;
mod stores;
mod sync;
mod turns;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Option<Bench>,

    #[command(flatten)]
    pub boxes: BenchBoxesArgs,
}

#[derive(Debug, Args)]
pub struct BenchBoxesArgs {
    #[command(flatten)]
    pub common: BenchExecArgs,

    /// Also measure what this machine has of bwrap, runc, crun, docker and podman, and hold ours against it
    #[arg(long)]
    pub compare: bool,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Commands, output, files, and the guest's size, on sandboxes of its own
    Exec(BenchExecArgs),
    /// Containers, compared with the same steps by the Docker daemon's API
    Docker(BenchDockerArgs),
    /// Messages and lists in the databases
    Stores(BenchStoresArgs),
    /// Pushing and restoring workspaces
    Sync(BenchSyncArgs),
    /// How fast an answer begins
    Turns(BenchTurnsArgs),
    /// A server: its reads, its memory with many listeners, and what HTTP adds
    Http(BenchHttpArgs),
}

#[derive(Debug, Args)]
pub struct BenchTurnsArgs {
    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
pub struct BenchDockerArgs {
    /// Throughputs are the best of so many runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// The image; it must have `sleep` and `true` [default: `image` of section [docker]]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
pub struct BenchHttpArgs {
    /// The best of so many runs counts, of reads
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Clone, Args)]
pub struct BenchSyncArgs {
    /// The best of so many runs counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Files of 4 KiB on average
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub files: usize,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,

    /// Also measure what this machine has of rclone, aws and restic, on the same bucket
    #[arg(long)]
    pub compare: bool,

    /// Leave out the 100,000 files and the file of 2 GiB
    #[arg(long)]
    pub quick: bool,

    /// Where to push to, e.g. s3://bucket [default: files]
    #[arg(long, value_name = "URL", env = "SEAWALL_BENCH_BUCKET")]
    pub bucket: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct BenchStoresArgs {
    /// The best of so many runs counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,

    /// An empty database of PostgreSQL to measure too, and pgbench with it; tables are made in it
    #[arg(long, value_name = "URL", env = "SEAWALL_BENCH_POSTGRES")]
    pub postgres: Option<String>,
}

#[derive(Debug, Args)]
pub struct BenchExecArgs {
    /// Throughputs are the best of so many runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,

    /// On which provider [default: `provider` of seawall.toml]
    #[arg(long, value_name = "NAME", env = "SEAWALL_PROVIDER")]
    pub provider: Option<String>,
}

pub async fn bench(mut settings: Settings, args: &BenchArgs, json: bool) -> Result<i32> {
    let (boxes, args) = match &args.what {
        Some(Bench::Stores(args)) => return of_stores(args, json).await,
        Some(Bench::Sync(args)) => return of_sync(settings, args, json).await,
        Some(Bench::Turns(args)) => return of_turns(settings, args, json).await,
        Some(Bench::Http(args)) => return of_http(settings, args, json).await,
        Some(Bench::Docker(args)) => return of_docker(settings, args, json).await,
        Some(Bench::Exec(exec)) => (None, exec),
        None => (Some(&args.boxes), &args.boxes.common),
    };
    if let Some(provider) = args.provider.clone().filter(|name| !name.is_empty()) {
        settings.provider = Some(provider);
    }
    clear_left_behind(&settings, json).await;
    let scratch = Scratch::new()?;
    settings.data = scratch.path.clone();
    settings.database = None;
    let app = App::open(settings, json).await?;
    let mut signals = Signals::listen()?;
    let measured = tokio::select! {
        report = measure(&app, args.runs, boxes) => report.map(Some),
        _ = signals.next() => Ok(None),
    };
    finish(&app, measured, args.check, json).await
}

async fn of_stores(args: &BenchStoresArgs, json: bool) -> Result<i32> {
    let scratch = Scratch::new()?;
    let mut signals = Signals::listen()?;
    // With two threads, as a server has: this program has one, and pgbench two.
    let (folder, wanted) = (scratch.path.clone(), args.clone());
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(stores::all(&folder, &wanted))
    });
    let report = tokio::select! {
        report = measured => report??,
        _ = signals.next() => return Ok(exit::by_signal(crate::signals::SIGINT)),
    };
    show(&report, json)?;
    let missed = args.check && !report.all_kept();
    Ok(if missed { exit::FAILED } else { 0 })
}

async fn of_sync(mut settings: Settings, args: &BenchSyncArgs, json: bool) -> Result<i32> {
    clear_left_behind(&settings, json).await;
    let scratch = Scratch::new()?;
    settings.data = scratch.path.clone();
    settings.database = None;
    settings.sync.bucket = args.bucket.clone().filter(|bucket| !bucket.is_empty());
    let app = App::open(settings, json).await?;
    let mut signals = Signals::listen()?;
    let measured = tokio::select! {
        report = sync::all(&app, args) => report.map(Some),
        _ = signals.next() => Ok(None),
    };
    finish(&app, measured, args.check, json).await
}

async fn of_turns(mut settings: Settings, args: &BenchTurnsArgs, json: bool) -> Result<i32> {
    clear_left_behind(&settings, json).await;
    let scratch = Scratch::new()?;
    settings.data = scratch.path.clone();
    settings.database = None;
    settings.sync.bucket = None;
    let app = App::open(settings, json).await?;
    let mut signals = Signals::listen()?;
    let measured = tokio::select! {
        report = turns::all(&app) => report.map(Some),
        _ = signals.next() => Ok(None),
    };
    finish(&app, measured, args.check, json).await
}

async fn of_http(mut settings: Settings, args: &BenchHttpArgs, json: bool) -> Result<i32> {
    clear_left_behind(&settings, json).await;
    let scratch = Scratch::new()?;
    settings.data = scratch.path.clone();
    settings.database = None;
    settings.sync.bucket = None;
    let app = App::open(settings, json).await?;
    let mut signals = Signals::listen()?;
    let measured = tokio::select! {
        report = http::all(&app, args.runs) => report.map(Some),
        _ = signals.next() => Ok(None),
    };
    finish(&app, measured, args.check, json).await
}

async fn of_docker(mut settings: Settings, args: &BenchDockerArgs, json: bool) -> Result<i32> {
    clear_left_behind(&settings, json).await;
    let scratch = Scratch::new()?;
    settings.data = scratch.path.clone();
    settings.database = None;
    settings.provider = Some("docker".to_owned());
    settings.docker.image = args.image.clone().or(settings.docker.image);
    let app = App::open(settings, json).await?;
    let mut signals = Signals::listen()?;
    let measured = tokio::select! {
        report = docker::all(&app, args.runs) => report.map(Some),
        _ = signals.next() => Ok(None),
    };
    finish(&app, measured, args.check, json).await
}

/// Clears up, shows, and judges.
async fn finish(app: &App, measured: Result<Option<Report>>, check: bool, json: bool) -> Result<i32> {
    remove_all(app).await;
    let Some(report) = measured? else { return Ok(exit::by_signal(crate::signals::SIGINT)) };
    show(&report, json)?;
    let missed = check && !report.all_kept();
    Ok(if missed { exit::FAILED } else { 0 })
}

async fn measure(app: &App, runs: u32, boxes: Option<&BenchBoxesArgs>) -> Result<Report> {
    let Some(args) = boxes else { return measure::all(app, runs).await };
    let mut report = Report::default();
    let create = boxes::all(app, runs, &mut report).await?;
    if args.compare {
        rivals::compare(&mut report, &app.settings.data, create)?;
    }
    Ok(report)
}

fn show(report: &Report, json: bool) -> Result<()> {
    if json { output::json(&report.to_json()) } else { report.table().print() }
}

/// How data folders of measurements are called, in the folder for temporary files.
const SCRATCH: &str = "seawall-bench-";

/// A data folder of its own, so that nobody's sandboxes are touched or counted. Whoever lives holds its lock.
struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    fn new() -> Result<Self> {
        // Short: sockets are made in it.
        let id = SandboxId::generate().to_string();
        let tail = id.rsplit('-').next().unwrap_or_default();
        let path = std::env::temp_dir().join(format!("{SCRATCH}{tail}"));
        DirBuilder::new()
            .mode(0o711)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        let lock = File::create(path.join(".bench"))?;
        lock.lock()?;
        Ok(Scratch { path, _lock: lock })
    }

    /// Folders of measurements that were killed, with the sandboxes in them: nobody else would find those.
    fn left_behind() -> Vec<Scratch> {
        let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(SCRATCH));
        let dead = ours.filter_map(|entry| {
            let path = entry.path();
            // Everybody can make a folder of that name there.
            check_data(&path).ok()?;
            let lock = File::open(path.join(".bench")).ok()?;
            lock.try_lock().ok()?;
            Some(Scratch { path, _lock: lock })
        });
        dead.collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// What a measurement that was killed left.
async fn clear_left_behind(settings: &Settings, json: bool) {
    for scratch in Scratch::left_behind() {
        output::note(format!("clearing away a measurement that was killed: {}", scratch.path.display()));
        let settings = Settings { data: scratch.path.clone(), database: None, ..settings.clone() };
        match App::open(settings, json).await {
            Ok(app) => remove_all(&app).await,
            Err(error) => output::note(format!("{} cannot be opened: {error:#}", scratch.path.display())),
        }
    }
}

async fn remove_all(app: &App) {
    for info in app.sandboxes.list().await.unwrap_or_default() {
        let _ = app.sandboxes.give_up_unsynced(info.id).await;
        let stopped = app.sandboxes.stop(info.id, Duration::ZERO).await;
        let removed = app.sandboxes.remove(info.id, Volumes::Delete).await;
        if let Err(error) = stopped.map(drop).and(removed) {
            output::note(format!("sandbox {} of the measurement is left behind: {}", info.id, error.chain()));
        }
    }
}
