//! The host's own calls for files, against a box that lays traps for them.

use super::{
    kit::{Cell, Yard},
    probe::{Facts, MARKER, contains},
    runner::cases,
};
use anyhow::{Result, anyhow, ensure};
use seawall_api::{
    ErrorKind, ProcessId,
    exec::StartProcess,
    files::{FileRef, Root, WriteFile, WriteMode},
    sandbox::SandboxSpec,
};
use std::{
    fs,
    time::{Duration, Instant},
};
use tokio::time::timeout;

cases!("file_api", false;
    links_show_the_boxes_own_files;
    magic_links_lead_nowhere;
    nothing_is_written_through_magic_links;
    dots_lead_nowhere;
    a_swapped_directory_never_shows_the_host;
    a_swapped_file_never_shows_roots;
    a_swapped_file_is_never_written_for_root;
    a_hard_link_to_anothers_file_stays_closed;
    what_is_no_file_does_not_hold_the_host;
);

const MOST: u64 = 1 << 20;
const RACE: Duration = Duration::from_secs(2);

/// What the host gets to read: as the box's default user, and as root of it.
async fn reads(cell: &Cell, path: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for root in [Root::Box, Root::Work] {
        let file = FileRef::new(path).beneath(root);
        for file in [file.clone(), file.as_user("root")] {
            // That it fails is fine, and that it takes for ever is not.
            if let Ok(Ok(body)) = timeout(Duration::from_secs(20), cell.read_all(file, MOST)).await {
                found.push(body);
            }
        }
    }
    found
}

async fn ensure_not_the_hosts(cell: &Cell, path: &str, facts: &Facts) -> Result<()> {
    let own = [fs::read("/etc/passwd").unwrap_or_default(), fs::read("/etc/shadow").unwrap_or_default()];
    for body in reads(cell, path).await {
        ensure!(!contains(&body, facts.get("secret").as_bytes()), "{path}: the host's secret");
        ensure!(!contains(&body, MARKER.as_bytes()), "{path}: the host's environment");
        ensure!(body.is_empty() || !own.contains(&body), "{path}: the host's own file");
    }
    Ok(())
}

fn canary(facts: &Facts) -> String {
    format!("{}/canary", facts.get("data"))
}

async fn links_show_the_boxes_own_files(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let up = "../".repeat(20);
    let targets = [
        "/etc/passwd".to_owned(),
        "/etc/shadow".to_owned(),
        format!("{up}etc/passwd"),
        canary(&facts),
        format!("{up}{}", canary(&facts)),
        facts.get("neighbour_work").to_owned() + "/secret",
    ];
    for (number, target) in targets.into_iter().enumerate() {
        let link = format!("link{number}");
        cell.symlink(FileRef::new(link.as_str()), target.into()).await?;
        ensure_not_the_hosts(&cell, &link, &facts).await?;
    }
    let shown = cell.read_all(FileRef::new("link0"), MOST).await?;
    ensure!(contains(&shown, b"user:x:1000:"), "a link to /etc/passwd means the box's own");
    Ok(())
}

/// Links of /proc that lead to where the process that follows them is: here, the guest.
fn magic(facts: &Facts) -> Vec<String> {
    let canary = canary(facts);
    let mut paths = Vec::new();
    for who in ["self", "thread-self", "1", "self/task/1"] {
        paths.push(format!("/proc/{who}/root{canary}"));
        paths.push(format!("/proc/{who}/cwd/{}{canary}", "../".repeat(20)));
        paths.push(format!("/proc/{who}/environ"));
        paths.push(format!("/proc/{who}/exe"));
        paths.extend((0..12).map(|number| format!("/proc/{who}/fd/{number}")));
        paths.extend((0..12).map(|number| format!("/proc/{who}/fd/{number}{canary}")));
    }
    paths
}

async fn magic_links_lead_nowhere(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    for (number, path) in magic(&facts).into_iter().enumerate() {
        ensure_not_the_hosts(&cell, &path, &facts).await?;
        let link = format!("link{number}");
        cell.symlink(FileRef::new(link.as_str()), path.as_str().into()).await?;
        ensure_not_the_hosts(&cell, &link, &facts).await?;
    }
    Ok(())
}

fn write(file: FileRef, mode: WriteMode) -> WriteFile {
    WriteFile { file, mode, permissions: None, mtime: None, parents: false, max_size: None }
}

async fn nothing_is_written_through_magic_links(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let (program, secret) = (facts.get("guest"), canary(&facts));
    let before = (fs::read(program)?, fs::read(&secret)?);
    cell.symlink(FileRef::new("link"), "/proc/self/exe".into()).await?;
    for path in magic(&facts).into_iter().chain(["link".to_owned()]) {
        for mode in [WriteMode::Replace, WriteMode::Append, WriteMode::At(0)] {
            let file = FileRef::new(path.as_str()).as_user("root");
            let _ = timeout(Duration::from_secs(20), cell.write_all(write(file, mode), b"changed")).await;
        }
    }
    ensure!((fs::read(program)?, fs::read(&secret)?) == before, "a file of the host has changed");
    Ok(())
}

async fn dots_lead_nowhere(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let up = "../".repeat(30);
    for path in [
        format!("{up}{}", canary(&facts)),
        format!("/{up}{}", canary(&facts)),
        format!("/work/{up}etc/shadow"),
        format!("/proc/{up}{}", canary(&facts)),
        format!("probe/{up}etc/passwd"),
    ] {
        ensure_not_the_hosts(&cell, &path, &facts).await?;
    }
    Ok(())
}

/// Starts a script that swaps things as fast as a shell can, for as long as the race takes.
async fn swap(cell: &Cell, user: &str, script: &str) -> Result<ProcessId> {
    let start = StartProcess { user: Some(user.to_owned()), ..StartProcess::new(["sh", "-c", script]) };
    let id = start.process;
    cell.start_detached(start).await?;
    Ok(id)
}

async fn a_swapped_directory_never_shows_the_host(yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let script = format!(
        "mkdir d; echo own > d/canary; ln -s {} link; \
         while :; do mv -T d k; mv -T link d; mv -T d link; mv -T k d; done",
        facts.get("data")
    );
    let swapper = swap(&cell, "user", &script).await?;
    let (until, mut rounds) = (Instant::now() + RACE, 0);
    while Instant::now() < until {
        ensure_not_the_hosts(&cell, "d/canary", &facts).await?;
        let file = FileRef::new("d/canary").as_user("root");
        let _ = cell.write_all(write(file, WriteMode::Replace), b"changed").await;
        rounds += 1;
    }
    cell.kill(swapper).await?;
    ensure!(rounds > 20, "only {rounds} rounds: this shows nothing");
    ensure!(fs::read(canary(&facts))? == facts.get("secret").as_bytes(), "the host's file was written");
    Ok(())
}

/// A file of the user that is, every other moment, a link to one of root's.
async fn racing(cell: &Cell) -> Result<ProcessId> {
    cell.sh("root", "echo roots > /root/secret; chmod 600 /root/secret; chmod 755 /root").await?;
    let script = "echo own > f; ln -s /root/secret l; \
        while :; do mv -T f k; mv -T l f; mv -T f l; mv -T k f; done";
    swap(cell, "user", script).await
}

async fn a_swapped_file_never_shows_roots(yard: Yard, _facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let swapper = racing(&cell).await?;
    let (until, mut own) = (Instant::now() + RACE, 0);
    while Instant::now() < until {
        if let Ok(body) = cell.read_all(FileRef::new("f").as_user("user"), MOST).await {
            ensure!(!contains(&body, b"roots"), "a user read what is root's");
            own += 1;
        }
    }
    cell.kill(swapper).await?;
    ensure!(own > 0, "the file was never read: this shows nothing");
    Ok(())
}

async fn a_swapped_file_is_never_written_for_root(yard: Yard, _facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let swapper = racing(&cell).await?;
    let until = Instant::now() + RACE;
    while Instant::now() < until {
        for mode in [WriteMode::At(0), WriteMode::Append] {
            let file = FileRef::new("f").as_user("user");
            let _ = cell.write_all(write(file, mode), b"own").await;
        }
    }
    cell.kill(swapper).await?;
    let secret = cell.sh("root", "cat /root/secret").await?;
    ensure!(secret == "roots\n", "a user wrote what is root's: {secret:?}");
    Ok(())
}

async fn a_hard_link_to_anothers_file_stays_closed(yard: Yard, _facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    cell.sh("root", "echo roots > /tmp/secret; chmod 600 /tmp/secret; ln /tmp/secret /tmp/by_root").await?;
    // The kernel may refuse that already.
    cell.sh("user", "ln /tmp/secret /tmp/by_user || true").await?;
    for path in ["/tmp/by_user", "/tmp/by_root", "/tmp/secret"] {
        for file in [FileRef::new(path), FileRef::new(path).as_user("user")] {
            let error = match cell.read_all(file.clone(), MOST).await {
                // Our own: the kernel refused the link, and the last round wrote a file in its place.
                Ok(body) if body == b"own" => continue,
                Ok(body) => return Err(anyhow!("{file:?}: {}", String::from_utf8_lossy(&body))),
                Err(error) => error.kind(),
            };
            ensure!(matches!(error, ErrorKind::Denied | ErrorKind::NotFound), "{file:?}: {error}");
            let _ = cell.write_all(write(file, WriteMode::Append), b"own").await;
        }
    }
    let secret = cell.sh("root", "cat /tmp/secret").await?;
    ensure!(secret == "roots\n", "a user wrote what is root's: {secret:?}");
    Ok(())
}

async fn what_is_no_file_does_not_hold_the_host(yard: Yard, _facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    cell.sh(
        "user",
        "mkfifo fifo; ln -s fifo to_fifo; ln -s /dev/zero zero; ln -s /dev/tty tty; ln -s . loop",
    )
    .await?;
    let up = "loop/".repeat(39) + "fifo";
    for path in ["fifo", "to_fifo", "zero", "tty", "/dev/ptmx", "/proc/kmsg", up.as_str()] {
        let read = timeout(Duration::from_secs(20), cell.read_all(FileRef::new(path), MOST)).await;
        let read = read.map_err(|_| anyhow!("{path}: the host waits"))?;
        ensure!(read.map_or(0, |body| body.len() as u64) <= MOST, "{path}: more than was asked for");
        let file = FileRef::new(path);
        let written =
            timeout(Duration::from_secs(20), cell.write_all(write(file, WriteMode::Append), b"x")).await;
        ensure!(written.is_ok(), "{path}: the host waits while it writes");
    }
    Ok(())
}
