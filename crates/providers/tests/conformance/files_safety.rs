//! Files: no path leads out of its root, whatever is raced, and no reader sees half a file.

use super::{
    files::dir,
    kit::{Sandbox, ensure_kind, error_of, pattern, to},
    suite::{Cx, cases},
};
use anyhow::{Result, ensure};
use seawall_api::{
    ErrorKind,
    exec::StartProcess,
    files::{EntryKind, FileRef, Root, WriteFile},
};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use tempfile::TempDir;

cases!("files_safety";
    dots_lead_nowhere;
    a_link_out_of_the_workspace_is_an_error [FileMeta];
    a_link_within_the_workspace_works [FileMeta];
    nothing_is_written_through_a_link_that_leads_out [FileMeta];
    a_reader_sees_the_old_body_or_the_new;
    a_directory_swapped_for_a_link_leads_nowhere [FileMeta, Programs];
    removing_never_leaves_the_tree [FileMeta];
);

fn work(path: &str) -> FileRef {
    FileRef::new(path).beneath(Root::Work)
}

async fn dots_lead_nowhere(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let up = "../".repeat(20);
    for file in [
        FileRef::new(format!("{up}etc/passwd")),
        FileRef::new("/../../etc/passwd"),
        work(&format!("{up}etc/passwd")),
        work("sub/../../../etc/passwd"),
    ] {
        // An isolated box has a file of that name; it must be the box's own.
        if let Ok(found) = sandbox.guest.read_all(file, 1 << 20).await {
            let host = fs::read("/etc/passwd").unwrap_or_default();
            ensure!(found != host, "the host's own file was read");
        }
    }
    let out = WriteFile { file: work(&format!("{up}tmp/seawall-leak")), ..to("") };
    let _ = sandbox.guest.write_all(out, b"leak").await;
    ensure!(!Path::new("/tmp/seawall-leak").exists(), "it wrote into the host's /tmp");
    Ok(())
}

/// A place outside every box, with a file in it that nobody may touch.
struct Outside {
    dir: TempDir,
}

impl Outside {
    fn new() -> Result<Self> {
        let dir = TempDir::new()?;
        fs::write(dir.path().join("canary"), "alive")?;
        Ok(Outside { dir })
    }

    fn path(&self) -> String {
        self.dir.path().display().to_string()
    }

    fn ensure_whole(&self) -> Result<()> {
        let names: Vec<_> = fs::read_dir(self.dir.path())?.flatten().map(|e| e.file_name()).collect();
        ensure!(names == ["canary"], "the outside has changed: {names:?}");
        ensure!(fs::read(self.dir.path().join("canary"))? == b"alive");
        Ok(())
    }
}

const REFUSED: [ErrorKind; 4] =
    [ErrorKind::Denied, ErrorKind::Invalid, ErrorKind::NotFound, ErrorKind::Conflict];

async fn a_link_out_of_the_workspace_is_an_error(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let targets = ["/etc/passwd", "../../../../../etc/passwd", "/", "..", "/proc/self/root/etc"];
    for (number, target) in targets.into_iter().enumerate() {
        let link = format!("link{number}");
        sandbox.guest.symlink(FileRef::new(link.as_str()), target.into()).await?;
        ensure_kind(sandbox.guest.stat(work(&link), true).await, &REFUSED)?;
        ensure_kind(sandbox.guest.read_all(work(&link), 1 << 20).await, &REFUSED)?;
        ensure_kind(sandbox.guest.stat(work(&format!("{link}/passwd")), true).await, &REFUSED)?;
        let itself = sandbox.guest.stat(work(&link), false).await?;
        ensure!(itself.kind == EntryKind::Symlink, "the link itself may be looked at: {itself:?}");
    }
    Ok(())
}

async fn a_link_within_the_workspace_works(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.guest.make_dir(dir("sub")).await?;
    sandbox.put("sub/file", b"inside").await?;
    sandbox.guest.symlink(FileRef::new("short"), "sub".into()).await?;
    ensure!(sandbox.guest.read_all(work("short/file"), 100).await? == b"inside");
    Ok(())
}

async fn nothing_is_written_through_a_link_that_leads_out(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let outside = Outside::new()?;
    sandbox.guest.symlink(FileRef::new("out"), outside.path().into()).await?;
    for root in [Root::Work, Root::Box] {
        let inside = |name: &str| FileRef::new(format!("out/{name}")).beneath(root);
        let write = WriteFile { file: inside("new"), ..to("") };
        error_of(sandbox.guest.write_all(write, b"x").await)?;
        let write = WriteFile { file: inside("canary"), ..to("") };
        error_of(sandbox.guest.write_all(write, b"x").await)?;
        error_of(sandbox.guest.remove(inside("canary"), true).await)?;
        outside.ensure_whole()?;
    }
    Ok(())
}

async fn a_reader_sees_the_old_body_or_the_new(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let bodies: Vec<Vec<u8>> = (1..=2_u8).map(|byte| vec![byte; 700_000]).collect();
    sandbox.put("file", &bodies[0]).await?;
    let writer = {
        let (sandbox, bodies) = (sandbox.clone(), bodies.clone());
        tokio::spawn(async move {
            for round in 0..30 {
                sandbox.put("file", &bodies[round % 2]).await?;
            }
            anyhow::Ok(())
        })
    };
    while !writer.is_finished() {
        let seen = sandbox.take("file").await?;
        ensure!(bodies.contains(&seen), "a mixed body of {} bytes", seen.len());
    }
    writer.await?
}

/// Swaps `d` between a directory and a link to the outside as fast as a shell can.
fn swapping(outside: &Outside) -> StartProcess {
    let script = format!(
        "mkdir d; ln -s {} link; while :; do mv -T d keep2; mv -T link d; mv -T d link; mv -T keep2 d; done",
        outside.path()
    );
    StartProcess::new(["sh", "-c", script.as_str()])
}

async fn race(sandbox: &Sandbox, round: usize, body: &[u8]) {
    let root = if round.is_multiple_of(2) { Root::Work } else { Root::Box };
    let file = |name: &str| FileRef::new(format!("d/{name}")).beneath(root);
    // Each may fail, as the directory comes and goes; none may lead out.
    let write = WriteFile { file: file("new"), ..to("") };
    let _ = sandbox.guest.write_all(write, body).await;
    let _ = sandbox.guest.write_all(WriteFile { file: file("canary"), ..to("") }, body).await;
    let _ = sandbox.guest.remove(file("canary"), true).await;
}

async fn a_directory_swapped_for_a_link_leads_nowhere(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let outside = Outside::new()?;
    let swapper = swapping(&outside);
    let id = swapper.process;
    sandbox.guest.start_detached(swapper).await?;
    let body = pattern(2000);
    let until = Instant::now() + Duration::from_secs(2);
    let mut rounds = 0;
    while Instant::now() < until {
        race(&sandbox, rounds, &body).await;
        rounds += 1;
    }
    sandbox.guest.kill(id).await?;
    ensure!(rounds > 20, "only {rounds} rounds: this shows nothing");
    outside.ensure_whole()
}

async fn removing_never_leaves_the_tree(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let outside = Outside::new()?;
    sandbox.guest.make_dir(dir("tree")).await?;
    sandbox.put("tree/file", b"").await?;
    sandbox.guest.symlink(FileRef::new("tree/out"), outside.path().into()).await?;
    sandbox.guest.remove(FileRef::new("tree"), true).await?;
    outside.ensure_whole()
}
