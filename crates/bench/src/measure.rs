//! The measurements themselves.

use super::{
    figures::{Bound, Report, percentile},
    peers,
};
use anyhow::{Context, Result, bail, ensure};
use seawall_api::{
    SandboxId,
    exec::{OutputStream, StartProcess},
    files::{FileRef, ReadFile, WriteFile, WriteMode},
};
use seawall_cli::app::App;
use seawall_core::NewSandbox;
use seawall_wire::{Guest, ProcessOutput};
use std::time::Instant;

const WARM_UP: usize = 50;
const ROUND_TRIPS: usize = 500;
pub const CHUNK: usize = 1 << 20;
pub const CHUNKS: usize = 1024;
const IDLE: usize = 50;
const MIB: f64 = (1 << 20) as f64;
const FILE: &str = "/work/bench.bin";

pub async fn all(app: &App, runs: u32) -> Result<Report> {
    let id = sandbox(app).await?;
    let guest = app.sandboxes.guest(id).await?;
    let mut report = Report::default();

    let trips = round_trips(&guest).await?;
    let plain = peers::spawn()?;
    let p50 = percentile(&trips, 0.50);
    report.reference("exec_p50_ms", "exec `true`, p50", "ms", p50, Bound::AtMost(1.2));
    report.told("exec_p95_ms", "exec `true`, p95", "ms", percentile(&trips, 0.95));
    report.told("exec_p99_ms", "exec `true`, p99", "ms", percentile(&trips, 0.99));
    report.told("spawn_p50_ms", "  a plain spawn of `true`, p50", "ms", plain);
    report.promise("exec_ratio", "  exec / plain spawn", "x", p50 / plain, Bound::AtMost(2.5));

    let (mut stdout, mut pipe) = (0.0, 0.0);
    for _ in 0..runs {
        stdout = f64::max(stdout, stdout_speed(&guest).await?);
        pipe = f64::max(pipe, peers::pipe()?);
    }
    report.reference("stdout_mb_s", "stdout, 1 GiB", "MB/s", stdout, Bound::AtLeast(500.0));
    report.told("pipe_mb_s", "  a plain pipe", "MB/s", pipe);
    report.promise("stdout_ratio", "  stdout / plain pipe", "x", stdout / pipe, Bound::AtLeast(0.25));
    files(app, &guest, runs, &mut report).await?;

    let size = seawall_providers::guest_binary().len() as f64 / MIB;
    report.promise("guest_mib", "guest on disk", "MiB", size, Bound::AtMost(3.0));
    let pss = idle_pss(app).await?;
    report.promise("guest_pss_mib", "guest PSS, idle, 50 alive", "MiB", pss, Bound::AtMost(0.5));
    Ok(report)
}

async fn files(app: &App, guest: &Guest, runs: u32, report: &mut Report) -> Result<()> {
    let (mut written, mut read, mut plain_written, mut plain_read) = (0.0, 0.0, 0.0, 0.0);
    for _ in 0..runs {
        written = f64::max(written, write_speed(guest).await?);
        read = f64::max(read, read_speed(guest).await?);
        guest.remove(FileRef::new(FILE), false).await?;
        let (w, r) = peers::file(&app.settings.data)?;
        plain_written = f64::max(plain_written, w);
        plain_read = f64::max(plain_read, r);
    }
    report.reference("read_mb_s", "file read, 1 GiB", "MB/s", read, Bound::AtLeast(1000.0));
    report.told("socket_read_mb_s", "  a plain read through a socket", "MB/s", plain_read);
    report.promise(
        "read_ratio",
        "  file read / through a socket",
        "x",
        read / plain_read,
        Bound::AtLeast(0.3),
    );
    report.reference("write_mb_s", "file write, 1 GiB", "MB/s", written, Bound::AtLeast(800.0));
    report.told("plain_write_mb_s", "  a plain write", "MB/s", plain_written);
    report.promise(
        "write_ratio",
        "  file write / plain write",
        "x",
        written / plain_written,
        Bound::AtLeast(0.3),
    );
    Ok(())
}

pub async fn sandbox(app: &App) -> Result<SandboxId> {
    Ok(app.sandboxes.launch(NewSandbox::default()).await?.0.id)
}

/// Milliseconds, sorted.
pub async fn round_trips(guest: &Guest) -> Result<Vec<f64>> {
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    for round in 0..WARM_UP + ROUND_TRIPS {
        let begun = Instant::now();
        let count = run(guest, ["true"]).await?;
        if round >= WARM_UP {
            trips.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
        ensure!(count == 0, "`true` printed something");
    }
    trips.sort_by(f64::total_cmp);
    Ok(trips)
}

/// Runs to the end, and counts the bytes of stdout.
pub async fn run<const N: usize>(guest: &Guest, args: [&str; N]) -> Result<u64> {
    let mut process = guest.start(StartProcess::new(args)).await?;
    let mut count = 0;
    loop {
        match process.next().await? {
            ProcessOutput::Data { stream: OutputStream::Stdout, bytes, .. } => count += bytes.len() as u64,
            ProcessOutput::Gap { from, to } => bail!("bytes {from} to {to} were lost"),
            ProcessOutput::End(status) => {
                ensure!(status.success(), "{} {status}", args[0]);
                return Ok(count);
            }
            _ => {}
        }
    }
}

/// Megabytes (10^6 bytes) in a second.
pub fn speed(bytes: usize, begun: Instant) -> f64 {
    bytes as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

async fn stdout_speed(guest: &Guest) -> Result<f64> {
    let begun = Instant::now();
    let count = run(guest, ["dd", "if=/dev/zero", "bs=1M", "count=1024"]).await?;
    let result = speed(CHUNK * CHUNKS, begun);
    ensure!(count == (CHUNK * CHUNKS) as u64, "1 GiB was printed, and {count} bytes came");
    Ok(result)
}

async fn write_speed(guest: &Guest) -> Result<f64> {
    let chunk = vec![0x5a; CHUNK];
    let begun = Instant::now();
    let write = WriteFile {
        file: FileRef::new(FILE),
        mode: WriteMode::Replace,
        permissions: None,
        mtime: None,
        parents: false,
        max_size: None,
    };
    let mut writer = guest.write_bulk(write).await?;
    for _ in 0..CHUNKS {
        writer.write(&chunk).await?;
    }
    let entry = writer.finish().await?;
    let result = speed(CHUNK * CHUNKS, begun);
    ensure!(entry.size == (CHUNK * CHUNKS) as u64, "1 GiB was written, and {} bytes are there", entry.size);
    Ok(result)
}

async fn read_speed(guest: &Guest) -> Result<f64> {
    let begun = Instant::now();
    let read = ReadFile { file: FileRef::new(FILE), offset: 0, length: None };
    let mut reader = guest.read_bulk(read).await?;
    let mut count = 0;
    while let Some(bytes) = reader.next().await? {
        count += bytes.len();
    }
    let result = speed(count, begun);
    ensure!(count == CHUNK * CHUNKS, "1 GiB is there, and {count} bytes came");
    Ok(result)
}

/// The average PSS of idle guests, in MiB.
async fn idle_pss(app: &App) -> Result<f64> {
    let mut boxes = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        boxes.push(sandbox(app).await?);
    }
    let provider = app.sandboxes.providers().get(app.settings.provider_name())?;
    let mut total = 0;
    for id in &boxes {
        // The provider has the pid. A request to the guest would wake it.
        let pid = provider.get(*id).await?.pid.context("the provider names no process of the guest")?;
        total += pss_kib(pid)?;
    }
    Ok(total as f64 / 1024.0 / boxes.len() as f64)
}

pub fn pss_kib(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_pss(&text).with_context(|| format!("{path} has no line `Pss:`"))
}

/// A size that the kernel reports for a process, such as `VmHWM` or `RssAnon`, in bytes.
pub fn process_status(pid: u32, field: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_size(&text, field).with_context(|| format!("{path} has no size `{field}`"))
}

/// The size in a line such as `VmHWM:  123 kB`, in bytes.
pub fn parse_size(text: &str, field: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

fn parse_pss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pss_is_found_among_its_kin() {
        let text = "Rss:       900 kB\nPss:                 412 kB\nPss_Anon:     3 kB\n";
        assert_eq!(parse_pss(text), Some(412));
        assert_eq!(parse_pss("Rss: 1 kB"), None);
    }

    #[test]
    fn sizes_are_found_by_their_whole_names() {
        let text = "VmPeak:\t  9 kB\nVmHWM:\t     2 kB\nThreads:\t3\n";
        assert_eq!(parse_size(text, "VmHWM"), Some(2048.0));
        assert_eq!(parse_size(text, "Vm"), None);
        assert_eq!(parse_size(text, "Threads"), None);
    }
}
