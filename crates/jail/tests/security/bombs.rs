//! Bombs: whatever a box does, the host stays well and gets rid of the box.

use super::{
    kit::{Cell, REMOVAL, Said, Yard, eventually, host_is_well, kilobytes},
    probe::{Facts, Outcome},
    runner::cases,
    tally::skip,
};
use anyhow::{Result, bail, ensure};
use seawall_api::sandbox::{Limits, SandboxSpec};
use seawall_core::ports::{BoxState, LimitKinds, Volumes};
use std::{
    process::Command,
    time::{Duration, Instant},
};
use tokio::time::sleep;

cases!("bombs", true;
    fork_bomb;
    thread_bomb;
    zombies;
    stopped_processes;
    deaf_processes;
    memory_bomb;
    memory_in_files;
    descriptor_bomb;
    pipe_bomb;
    endless_output;
    many_files;
    deep_folders_and_few_descriptors;
    deep_folders_and_many_descriptors;
    disk_bomb;
    inode_bomb;
);

const MIB: u64 = 1 << 20;

fn limited(limits: Limits) -> SandboxSpec {
    SandboxSpec { limits, ..SandboxSpec::default() }
}

fn processes(count: u64) -> SandboxSpec {
    limited(Limits { max_processes: Some(count), ..Limits::default() })
}

fn memory(mb: u64) -> SandboxSpec {
    limited(Limits { memory_mb: Some(mb), ..Limits::default() })
}

fn need(yard: &Yard, has: fn(&LimitKinds) -> bool, name: &str) -> Result<()> {
    match has(&yard.provider.capabilities().limits) {
        true => Ok(()),
        false => skip(format!("capability: limits.{name}")),
    }
}

/// What holds after every one of them.
async fn ensure_over(cell: &Cell) -> Result<()> {
    host_is_well()?;
    cell.remove_in_time().await?;
    host_is_well()
}

async fn fork_bomb(yard: Yard, facts: Facts) -> Result<()> {
    need(&yard, |can| can.processes, "processes")?;
    let cell = yard.cell(&processes(64)).await?;
    let _bomb = cell.start_until_ready(cell.bomb("fork_bomb", &facts)).await?;
    ensure!(eventually(|| cell.processes().len() > 40).await, "it did not go off");
    sleep(Duration::from_secs(2)).await;
    let count = cell.processes().len();
    ensure!(count <= 64, "{count} processes, where 64 were allowed");
    ensure_over(&cell).await
}

async fn thread_bomb(yard: Yard, facts: Facts) -> Result<()> {
    need(&yard, |can| can.processes, "processes")?;
    let cell = yard.cell(&processes(128)).await?;
    let (_bomb, said) = cell.start_until_ready(cell.bomb("thread_bomb", &facts)).await?;
    ensure!(said.contains(&format!("threads, {}", libc::EAGAIN)), "{said}");
    ensure_over(&cell).await
}

async fn zombies(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let _bomb = cell.start_until_ready(cell.bomb("zombies", &facts.with("count", 1000))).await?;
    ensure!(cell.processes().len() > 900, "there are no zombies");
    ensure_over(&cell).await
}

async fn stopped_processes(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let _bomb = cell.start_until_ready(cell.bomb("stopped_processes", &facts)).await?;
    ensure_stops(&yard, &cell).await?;
    ensure_over(&cell).await
}

/// Asked politely first, and for a second only.
async fn ensure_stops(yard: &Yard, cell: &Cell) -> Result<()> {
    let began = Instant::now();
    yard.provider.stop(cell.id, Duration::from_secs(1)).await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(10), "stopping took {took:?}");
    cell.ensure_reaped().await?;
    ensure!(yard.provider.get(cell.id).await?.state == BoxState::Stopped, "it says that it runs");
    Ok(())
}

async fn deaf_processes(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let _bomb = cell.start_until_ready(cell.bomb("deaf_processes", &facts)).await?;
    ensure_stops(&yard, &cell).await?;
    ensure_over(&cell).await
}

/// It is killed; should the box go with it, then only the box.
async fn ensure_killed(cell: &Cell, name: &str, facts: &Facts) -> Result<()> {
    let before = kilobytes("/proc/meminfo", "MemAvailable");
    match cell.try_to(name, "user", facts).await {
        Ok(said) if said.status.signal == Some(libc::SIGKILL) => {}
        Ok(said) => match said.outcome()? {
            // What is in memory as a file has limits of its own.
            Outcome::Refused(libc::ENOSPC | libc::ENOMEM, _) => {}
            other => bail!("{other:?}"),
        },
        Err(_) => {
            let gone = eventually(|| cell.processes().is_empty()).await;
            ensure!(gone, "the box neither answers nor has it ended");
        }
    }
    let lost = before.saturating_sub(kilobytes("/proc/meminfo", "MemAvailable"));
    ensure!(lost < 512 << 10, "the host has {lost} KiB less");
    Ok(())
}

async fn memory_bomb(yard: Yard, facts: Facts) -> Result<()> {
    need(&yard, |can| can.memory, "memory")?;
    let cell = yard.cell(&memory(128)).await?;
    ensure_killed(&cell, "memory_bomb", &facts).await?;
    ensure_over(&cell).await
}

async fn memory_in_files(yard: Yard, facts: Facts) -> Result<()> {
    need(&yard, |can| can.memory, "memory")?;
    let cell = yard.cell(&memory(96)).await?;
    ensure_killed(&cell, "memory_in_files", &facts).await?;
    ensure_over(&cell).await
}

async fn descriptor_bomb(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    match cell.try_to("descriptor_bomb", "user", &facts).await?.outcome()? {
        Outcome::Refused(libc::EMFILE, _) => ensure_over(&cell).await,
        other => bail!("{other:?}"),
    }
}

async fn pipe_bomb(yard: Yard, facts: Facts) -> Result<()> {
    need(&yard, |can| can.memory, "memory")?;
    let cell = yard.cell(&memory(256)).await?;
    let before = kilobytes("/proc/meminfo", "MemAvailable");
    // It holds what it got, or dies of its limit; either is fine.
    let _bomb = cell.start_until_ready(cell.bomb("pipe_bomb", &facts)).await;
    let lost = before.saturating_sub(kilobytes("/proc/meminfo", "MemAvailable"));
    ensure!(lost < 768 << 10, "the host has {lost} KiB less");
    ensure_over(&cell).await
}

async fn endless_output(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let peaks =
        || [cell.pid, std::process::id()].map(|pid| kilobytes(&format!("/proc/{pid}/status"), "VmHWM"));
    let before = peaks();
    cell.start_detached(cell.bomb("endless_output", &facts)).await?;
    // Somebody begins to read, and stops.
    let mut reader = cell.start(cell.bomb("endless_output", &facts)).await?;
    reader.next().await?;
    sleep(Duration::from_secs(4)).await;
    for (before, after) in before.into_iter().zip(peaks()) {
        let grew = after.saturating_sub(before);
        ensure!(grew < 64 << 10, "grew by {grew} KiB: the guest, or this process");
    }
    ensure!(cell.sh("user", "echo alive").await?.trim() == "alive", "the box does not answer");
    ensure_over(&cell).await
}

async fn many_files(yard: Yard, facts: Facts) -> Result<()> {
    let slow = std::env::var("SEAWALL_TEST_SLOW").is_ok_and(|value| value == "1");
    let (count, patience) = if slow { (1_000_000, 120) } else { (20_000, 10) };
    let cell = yard.cell(&SandboxSpec::default()).await?;
    run_out(&cell, "many_files", &facts.with("count", count)).await?;
    host_is_well()?;
    cell.remove_within(Duration::from_secs(patience)).await?;
    host_is_well()
}

/// Runs something that is to succeed.
async fn run_out(cell: &Cell, name: &str, facts: &Facts) -> Result<()> {
    let process = cell.start(cell.bomb(name, facts)).await?;
    match Said::all(process).await?.outcome()? {
        Outcome::Won(_) => Ok(()),
        other => bail!("{name}: {other:?}"),
    }
}

async fn deep_folders_and_few_descriptors(yard: Yard, facts: Facts) -> Result<()> {
    deep_folders(yard, facts, 1024).await
}

async fn deep_folders_and_many_descriptors(yard: Yard, facts: Facts) -> Result<()> {
    deep_folders(yard, facts, 1 << 16).await
}

/// Removed by a process of its own: should it die of that, this one lives.
async fn deep_folders(yard: Yard, facts: Facts, descriptors: u32) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    for place in ["/work", "/tmp"] {
        run_out(&cell, "deep_folders", &facts.clone().with("place", place).with("depth", 18_000)).await?;
    }
    let (data, id) = (yard.path().to_owned(), cell.id.to_string());
    let began = Instant::now();
    let output = Command::new(std::env::current_exe()?)
        .arg("--remove")
        .arg(&data)
        .args([&id, &descriptors.to_string()])
        .output()?;
    let took = began.elapsed();
    let left = sweep(&yard, &cell)?;
    yard.provider.remove(cell.id, Volumes::Delete).await?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the removal of folders 18000 deep: {}, {said}", output.status);
    ensure!(left.is_empty(), "the removal left {left}, {said}");
    ensure!(took < REMOVAL, "the removal took {took:?}");
    host_is_well()
}

/// What is left of boxes, which goes now: the library's way of removing must not meet it in this process.
fn sweep(yard: &Yard, cell: &Cell) -> Result<String> {
    for pid in cell.processes() {
        Command::new("kill").args(["-KILL", &pid.to_string()]).output()?;
    }
    let places = ["boxes", "volumes"].map(|name| yard.path().join("native").join(name));
    let find = |what: &[&str]| {
        Command::new("find").args(&places).args(["-mindepth", "1", "-maxdepth", "1"]).args(what).output()
    };
    let left = find(&["-print"])?;
    find(&["-exec", "rm", "-rf", "{}", "+"])?;
    Ok(String::from_utf8_lossy(&left.stdout).into_owned())
}

/// A box with a disk of its own. It may fill that.
async fn full(yard: Yard, facts: Facts, name: &str, most: u64) -> Result<()> {
    need(&yard, |can| can.disk, "disk")?;
    let cell = yard.cell(&limited(Limits { disk_mb: Some(256), ..Limits::default() })).await?;
    for place in ["/work", "/tmp", "/home/user"] {
        let facts = facts.clone().with("place", place).with("most", most);
        match Said::all(cell.start(cell.bomb(name, &facts)).await?).await?.outcome()? {
            Outcome::Refused(libc::ENOSPC | libc::EDQUOT, _) => {}
            other => bail!("{place}: {other:?}"),
        }
    }
    ensure_over(&cell).await
}

async fn disk_bomb(yard: Yard, facts: Facts) -> Result<()> {
    full(yard, facts, "disk_bomb", 2048 * MIB).await
}

async fn inode_bomb(yard: Yard, facts: Facts) -> Result<()> {
    full(yard, facts, "inode_bomb", 2_000_000).await
}
