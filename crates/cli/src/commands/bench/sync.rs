//! How fast workspaces are pushed and restored, as a user sees it: `seawall sync`, start to exit.

use super::{
    BenchSyncArgs,
    figures::{Bound, Report},
};
use crate::{app::App, output, workspaces};
use anyhow::{Context, Result, ensure};
use seawall_api::SandboxId;
use seawall_core::{ExecRequest, NewSandbox, ports::Volumes};
use seawall_sync::engine::Options;
use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

mod rivals;
mod tree;

const MIB: f64 = (1 << 20) as f64;
const LARGE: u64 = 2 << 30;
const MANY: usize = 100_000;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What is measured of everybody, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub push: f64,
    pub restore: f64,
    pub one_changed: f64,
    pub unchanged: f64,
}

impl Times {
    fn never() -> Times {
        Times {
            push: f64::INFINITY,
            restore: f64::INFINITY,
            one_changed: f64::INFINITY,
            unchanged: f64::INFINITY,
        }
    }

    /// The best of each.
    fn best(self, other: Times) -> Times {
        Times {
            push: self.push.min(other.push),
            restore: self.restore.min(other.restore),
            one_changed: self.one_changed.min(other.one_changed),
            unchanged: self.unchanged.min(other.unchanged),
        }
    }
}

pub async fn all(app: &App, args: &BenchSyncArgs) -> Result<Report> {
    let mut report = Report::default();
    let source = app.settings.data.join("tree");
    tree::make(&source, args.files)?;
    let mut ours = Times::never();
    let mut peers = rivals::Rivals::new(app, args.compare);
    // In turns, so that all have the same weather.
    for _ in 0..args.runs {
        ours = ours.best(own(app, &source).await?);
        peers.run(&source)?;
    }
    report.told("push_s", "first push", "s", ours.push);
    report.told("restore_s", "restore into an empty sandbox", "s", ours.restore);
    report.told("push_one_changed_s", "push after one file changed", "s", ours.one_changed);
    report.told("push_unchanged_s", "nothing changed", "s", ours.unchanged);
    peers.report(&mut report, ours);
    if !args.quick {
        many(app, &mut report).await?;
        large(app, &mut report).await?;
    }
    Ok(report)
}

/// A sandbox with nothing in it.
async fn fresh(app: &App, id: SandboxId) -> Result<()> {
    app.sandboxes.launch(NewSandbox { id: Some(id), ..NewSandbox::default() }).await?;
    Ok(())
}

async fn gone(app: &App, id: SandboxId) -> Result<()> {
    app.sandboxes.give_up_unsynced(id).await?;
    app.sandboxes.remove(id, Volumes::Delete).await?;
    Ok(())
}

/// The sandbox and its files are gone, but the files are not deleted: an ext4 without a journal is slow for a minute
/// where many were.
pub(super) async fn lose(app: &App, id: SandboxId) -> Result<()> {
    app.sandboxes.give_up_unsynced(id).await?;
    app.sandboxes.remove(id, Volumes::Keep).await?;
    let volume = app.settings.data.join(app.settings.provider_name()).join("volumes").join(id.to_string());
    let aside = app.settings.data.join(format!("aside-{}", SandboxId::generate()));
    std::fs::rename(&volume, &aside).with_context(|| format!("cannot move {}", volume.display()))?;
    settle();
    Ok(())
}

/// This very program, as a user would call it. Seconds, start to exit.
async fn seawall(app: &App, args: &[&str]) -> Result<f64> {
    let mut program = own_program(app, args)?;
    // Nothing of ours may be half written while another process writes.
    app.sandboxes.flush().await;
    settle();
    let begun = Instant::now();
    let ran = tokio::task::spawn_blocking(move || program.output()).await??;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(
        ran.status.success(),
        "seawall {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&ran.stderr).trim()
    );
    Ok(seconds)
}

/// What a step wrote goes to the disk before the next is measured, ours or anybody's: else each pays for the one
/// before, and the copy that the tree is made by takes a core from all that follows.
fn settle() {
    rustix::fs::sync();
}

fn own_program(app: &App, args: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--data").arg(&app.settings.data).args(args).stdin(Stdio::null());
    command.env("SEAWALL_SYNC_BUCKET", app.settings.sync.bucket(&app.settings.data));
    command.env("SEAWALL_PROVIDER", app.settings.provider_name());
    // What is measured is here, whatever server is named.
    command.env_remove("SEAWALL_URL");
    Ok(command)
}

async fn own(app: &App, source: &Path) -> Result<Times> {
    let id = SandboxId::generate();
    let name = id.to_string();
    fresh(app, id).await?;
    seawall(app, &["cp", &format!("{}/.", source.display()), &format!("{name}:/work/")]).await?;
    let push = seawall(app, &["sync", &name]).await?;
    let unchanged = seawall(app, &["sync", &name]).await?;
    let changed = ExecRequest::new(["sh", "-c", "echo changed > /work/d0/f0"]);
    ensure!(app.sandboxes.exec(id, changed).await?.status.code == Some(0), "a file could not be changed");
    let one_changed = seawall(app, &["sync", &name]).await?;
    lose(app, id).await?;
    fresh(app, id).await?;
    let restore = seawall(app, &["sync", &name]).await?;
    gone(app, id).await?;
    Ok(Times { push, restore, one_changed, unchanged })
}

/// Nothing to do among very many files: a scan, and a look at the bucket.
async fn many(app: &App, report: &mut Report) -> Result<()> {
    let id = SandboxId::generate();
    let source = app.settings.data.join("many");
    tree::make_small(&source, MANY)?;
    fresh(app, id).await?;
    seawall(app, &["cp", &format!("{}/.", source.display()), &format!("{id}:/work/")]).await?;
    let workspaces = workspaces::open(app).await?;
    workspaces.sync_files(id, Options::default()).await?;
    // The first look after a push reads again what changed within the clock's resolution.
    workspaces.sync_files(id, Options::default()).await?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begun = Instant::now();
        let synced = workspaces.sync_files(id, Options::default()).await?;
        best = best.min(begun.elapsed().as_secs_f64() * 1000.0);
        ensure!(synced.stats.hashed == 0, "{} files were read again", synced.stats.hashed);
    }
    report.reference("scan_100k_ms", "nothing changed, 100,000 files", "ms", best, Bound::AtMost(400.0));
    gone(app, id).await
}

/// The memory that a large file takes on its way, in this process and in the guest.
async fn large(app: &App, report: &mut Report) -> Result<()> {
    let id = SandboxId::generate();
    fresh(app, id).await?;
    let make = format!("head -c {LARGE} /dev/urandom > /work/large");
    let made = app.sandboxes.exec(id, ExecRequest::new(["sh", "-c", &make])).await?;
    ensure!(made.status.code == Some(0), "a large file could not be made");
    let (out, guest_out) = peak(app, id).await?;
    gone(app, id).await?;
    fresh(app, id).await?;
    let (back, guest_back) = peak(app, id).await?;
    gone(app, id).await?;
    let (host, guest) = (out.max(back), guest_out.max(guest_back));
    report.promise(
        "large_host_mib",
        "2 GiB file out and in: memory of the server",
        "MiB",
        host,
        Bound::AtMost(64.0),
    );
    report.promise("large_guest_mib", "  of the guest", "MiB", guest, Bound::AtMost(64.0));
    Ok(())
}

/// The most memory that `seawall sync` has at any time, and the guest, in MiB.
async fn peak(app: &App, id: SandboxId) -> Result<(f64, f64)> {
    let mut child = own_program(app, &["sync", &id.to_string()])?.stdout(Stdio::null()).spawn()?;
    let mut host = 0.0_f64;
    let ended = loop {
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        // It may end in between; then the last look counts.
        host = host.max(status(&child.id().to_string(), "VmHWM").unwrap_or(0.0));
        tokio::time::sleep(LOOK_EVERY).await;
    };
    ensure!(ended.success(), "a sync of a large file failed");
    let pid = app.sandboxes.inspect(id).await?.pid.context("the guest has no process here")?;
    Ok((host / MIB, status(&pid.to_string(), "VmHWM")? / MIB))
}

/// A size that the kernel tells of a process, in bytes.
pub(super) fn status(process: &str, field: &str) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib: f64 = line.context("the kernel does not say")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024.0)
}

/// One line for whoever wonders.
pub fn left_out(name: &str, why: &anyhow::Error) {
    output::note(format!("{name} is left out: {why:#}"));
}
