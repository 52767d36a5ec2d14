//! Measures the making and removing of sandboxes: latencies, memory, and many alive at once.

use super::{
    figures::{Bound, Report, percentile},
    measure::{pss_kib, round_trips, run, sandbox},
};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use seawall_api::{AccountId, SandboxId, account::Account, sandbox::SandboxSpec};
use seawall_cli::{app::App, output};
use seawall_core::{
    NewSandbox,
    ports::{AccountTotals, Volumes},
};
use serde_json::Map;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const WARM_UP: usize = 10;
const BACK_TO_BACK: usize = 100;
const APART: usize = 20;
const PAUSE: Duration = Duration::from_millis(250);
const AT_ONCE: usize = 50;
const WEIGHED: usize = 200;
const ALIVE: usize = 500;
/// The disk that sandboxes of accounts have by default.
const DISK_MB: u64 = 2048;

/// The best of several runs, each by its own measure.
struct Best {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Best {
    fn new() -> Best {
        Best { p50: f64::INFINITY, p95: f64::INFINITY, p99: f64::INFINITY }
    }

    fn take(&mut self, mut times: Vec<f64>) {
        times.sort_by(f64::total_cmp);
        for (best, part) in [(&mut self.p50, 0.50), (&mut self.p95, 0.95), (&mut self.p99, 0.99)] {
            *best = best.min(percentile(&times, part));
        }
    }

    /// Adds the figures. A figure with a bound is a promise for the reference machine.
    fn report(
        &self,
        report: &mut Report,
        keys: [&'static str; 3],
        name: &'static str,
        p50: Option<f64>,
        p99: Option<f64>,
    ) {
        let values = [(name, self.p50, p50), ("  p95", self.p95, None), ("  p99", self.p99, p99)];
        for (key, (name, value, bound)) in keys.into_iter().zip(values) {
            match bound {
                Some(bound) => report.reference(key, name, "ms", value, Bound::AtMost(bound)),
                None => report.told(key, name, "ms", value),
            }
        }
    }
}

/// Medians of creating a sandbox, for the comparison with peers.
#[derive(Debug, Clone, Copy)]
pub struct Created {
    pub plain: f64,
    /// The median for an account with totals and a disk of a fixed size. `None` where the provider has no such disks.
    pub with_disk: Option<f64>,
}

/// A sandbox to make. Without an account it belongs to the operator.
#[derive(Debug, Clone, Default)]
struct Wanted {
    account: Option<AccountId>,
    spec: SandboxSpec,
}

/// Everything about boxes.
pub async fn all(app: &App, runs: u32, report: &mut Report) -> Result<Created> {
    let plain = Wanted::default();
    lives(app, WARM_UP, Duration::ZERO, &plain).await?;
    let (mut near, mut apart, mut remove) = (Best::new(), Best::new(), Best::new());
    let (mut exec, mut at_once) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..runs {
        let (made, removed) = lives(app, BACK_TO_BACK, Duration::ZERO, &plain).await?;
        near.take(made);
        remove.take(removed);
        apart.take(lives(app, APART, PAUSE, &plain).await?.0);
        let id = sandbox(app).await?;
        exec = exec.min(percentile(&round_trips(&app.sandboxes.guest(id).await?).await?, 0.50));
        app.sandboxes.remove(id, Volumes::Delete).await?;
        at_once = at_once.min(together(app).await?);
    }
    let (p50, p99) = (Some(5.0), Some(15.0));
    near.report(
        report,
        ["create_p50_ms", "create_p95_ms", "create_p99_ms"],
        "create to first command, back to back, p50",
        p50,
        p99,
    );
    apart.report(
        report,
        ["create_apart_p50_ms", "create_apart_p95_ms", "create_apart_p99_ms"],
        "create to first command, 250 ms apart, p50",
        p50,
        p99,
    );
    report.reference("box_exec_p50_ms", "exec `true`, p50", "ms", exec, Bound::AtMost(1.2));
    report.reference("at_once_ms", "50 at once, all done", "ms", at_once, Bound::AtMost(150.0));
    remove.report(
        report,
        ["remove_p50_ms", "remove_p95_ms", "remove_p99_ms"],
        "remove, p50",
        Some(3.0),
        None,
    );
    let create_disk = of_an_account(app, runs, report).await?;
    weight(app, report).await?;
    Ok(Created { plain: near.p50, with_disk: create_disk })
}

/// Milliseconds from nothing to the first command's end, and those of removing.
async fn lives(app: &App, count: usize, pause: Duration, wanted: &Wanted) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut made, mut removed) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let begun = Instant::now();
        let id = first_command(app, wanted).await?;
        made.push(begun.elapsed().as_secs_f64() * 1000.0);
        let begun = Instant::now();
        app.sandboxes.remove(id, Volumes::Delete).await?;
        removed.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    Ok((made, removed))
}

async fn first_command(app: &App, wanted: &Wanted) -> Result<SandboxId> {
    let (account, spec) = (wanted.account, wanted.spec.clone());
    let new = NewSandbox { account, spec, ..NewSandbox::default() };
    let (info, guest) = app.sandboxes.launch(new).await?;
    run(&guest, ["true"]).await?;
    Ok(info.id)
}

async fn together(app: &App) -> Result<f64> {
    let begun = Instant::now();
    let wanted = Wanted::default();
    let ids = try_join_all((0..AT_ONCE).map(|_| first_command(app, &wanted))).await?;
    let taken = begun.elapsed().as_secs_f64() * 1000.0;
    for id in ids {
        app.sandboxes.remove(id, Volumes::Delete).await?;
    }
    Ok(taken)
}

/// The median of creating a sandbox as another account's request does: with totals of the account, and with a disk of
/// a fixed size. None where disk cannot be limited here.
async fn of_an_account(app: &App, runs: u32, report: &mut Report) -> Result<Option<f64>> {
    let provider = app.sandboxes.providers().get(app.settings.provider_name())?;
    if !provider.capabilities().limits.disk {
        return Ok(None);
    }
    let id = AccountId::generate();
    let account = Account::new(id, "bench".to_owned(), Map::new(), Timestamp::now());
    app.stores.accounts.create(&account).await?;
    let (cpus, memory_mb, max_processes) = (Some(2.0), Some(8192), Some(8192));
    let totals = AccountTotals { cpus, memory_mb, max_processes, ..AccountTotals::default() };
    provider.set_account_totals(id, &totals).await?;
    let mut spec = SandboxSpec::default();
    spec.limits.disk_mb = Some(DISK_MB);
    let wanted = Wanted { account: Some(id), spec };
    lives(app, WARM_UP, PAUSE, &wanted).await?;
    let (mut near, mut apart, mut remove) = (Best::new(), Best::new(), Best::new());
    for _ in 0..runs {
        let (made, removed) = lives(app, BACK_TO_BACK, Duration::ZERO, &wanted).await?;
        near.take(made);
        remove.take(removed);
        apart.take(lives(app, APART, PAUSE, &wanted).await?.0);
    }
    let name = "create of an account with totals and a disk, back to back, p50";
    let keys = ["create_disk_p50_ms", "create_disk_p95_ms", "create_disk_p99_ms"];
    near.report(report, keys, name, None, None);
    let keys = ["create_disk_apart_p50_ms", "create_disk_apart_p95_ms", "create_disk_apart_p99_ms"];
    apart.report(report, keys, "the same, 250 ms apart, p50", None, None);
    let keys = ["remove_disk_p50_ms", "remove_disk_p95_ms", "remove_disk_p99_ms"];
    remove.report(report, keys, "remove of one with a disk, p50", None, None);
    Ok(Some(near.p50))
}

/// Measures the memory of an idle sandbox with its share of this process and the launcher, and keeps many alive at once.
async fn weight(app: &App, report: &mut Report) -> Result<()> {
    let provider = app.sandboxes.providers().get(app.settings.provider_name())?;
    let own = std::process::id();
    let before = pss_of([own]);
    let mut ids = Vec::with_capacity(ALIVE);
    for _ in 0..WEIGHED {
        ids.push(sandbox(app).await?);
    }
    // Memory that only the start needed is freed.
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Boxes, and those that wait for the next orders, are descendants of this process mostly.
    let mut roots = vec![own];
    for id in &ids {
        roots.push(provider.get(*id).await?.pid.context("the provider names no process of the box")?);
    }
    match before.zip(pss_of(roots)) {
        Some((before, after)) => {
            let each = (after as f64 - before as f64) / 1024.0 / WEIGHED as f64;
            report.promise("box_mib", "memory of an idle sandbox, of 200", "MiB", each, Bound::AtMost(1.0));
        }
        None => output::note("memory is left out: this user may not look at the memory of sandboxes"),
    }
    while ids.len() < ALIVE {
        ids.push(sandbox(app).await?);
    }
    let mut alive = 0;
    for id in &ids {
        let guest = app.sandboxes.guest(*id).await?;
        ensure!(run(&guest, ["true"]).await? == 0, "`true` printed something");
        alive += 1;
    }
    report.promise(
        "alive",
        "alive and answering at the same time",
        "",
        f64::from(alive),
        Bound::AtLeast(ALIVE as f64),
    );
    for id in ids {
        app.sandboxes.remove(id, Volumes::Delete).await?;
    }
    Ok(())
}

/// The PSS of these processes and their descendants in KiB, each counted once. `None` where one of them cannot be read.
fn pss_of(roots: impl IntoIterator<Item = u32>) -> Option<u64> {
    let (mut next, mut seen): (Vec<u32>, BTreeSet<u32>) = (roots.into_iter().collect(), BTreeSet::new());
    let mut total = 0;
    while let Some(pid) = next.pop() {
        if !seen.insert(pid) {
            continue;
        }
        next.extend(children(pid));
        match pss_kib(pid) {
            Ok(kib) => total += kib,
            // A process that has ended uses no memory.
            Err(_) if !std::path::Path::new(&format!("/proc/{pid}")).exists() => {}
            Err(_) => return None,
        }
    }
    Some(total)
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids = |list: String| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>();
    lists.flat_map(pids).collect()
}
