//! Watching directories.

use super::{
    files::dir,
    kit::{Sandbox, error_of, to},
    suite::{Cx, cases},
};
use anyhow::{Context, Result, bail, ensure};
use seawall_api::{
    ErrorKind,
    files::{ChangeKind, FileChange, FileRef, MoveFile, WatchDir, WriteFile},
};
use seawall_wire::FileWatch;
use std::time::Duration;
use tokio::time::timeout;

cases!("watch";
    changes_are_told [FileWatch];
    a_process_is_watched_too [FileWatch, Programs];
    without_recursion_only_the_directory [FileWatch];
    recursion_follows_new_directories [FileWatch];
    what_is_missing_cannot_be_watched [FileWatch];
);

async fn watching(sandbox: &Sandbox, recursive: bool) -> Result<FileWatch> {
    let watch = WatchDir { dir: FileRef::new("/work"), recursive };
    Ok(sandbox.guest.watch(watch).await?)
}

/// Waits for a change of this path of one of these kinds; others may come between. An atomic write
/// may be seen as a create or as a rename into its place.
async fn change(watch: &mut FileWatch, path: &str, kinds: &[ChangeKind]) -> Result<FileChange> {
    let mut seen = Vec::new();
    let search = async {
        while let Some(change) = watch.next().await? {
            if change.path.as_bytes() == path.as_bytes() && kinds.contains(&change.kind) {
                return Ok(change);
            }
            seen.push(change);
        }
        bail!("the watch ended")
    };
    let found = timeout(Duration::from_secs(30), search).await;
    found.with_context(|| format!("no {kinds:?} of {path}, but {seen:?}"))?
}

const APPEARED: [ChangeKind; 3] = [ChangeKind::Create, ChangeKind::Write, ChangeKind::Rename];

async fn changes_are_told(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mut watch = watching(&sandbox, false).await?;
    sandbox.put("one", b"1").await?;
    change(&mut watch, "one", &APPEARED).await?;
    sandbox.put("one", b"2").await?;
    change(&mut watch, "one", &APPEARED).await?;
    let moved = MoveFile { from: FileRef::new("one"), to: "two".into(), overwrite: false };
    sandbox.guest.move_file(moved).await?;
    change(&mut watch, "two", &[ChangeKind::Create, ChangeKind::Rename]).await?;
    sandbox.guest.remove(FileRef::new("two"), false).await?;
    change(&mut watch, "two", &[ChangeKind::Remove]).await?;
    sandbox.guest.make_dir(dir("three")).await?;
    change(&mut watch, "three", &[ChangeKind::Create]).await?;
    Ok(())
}

async fn a_process_is_watched_too(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mut watch = watching(&sandbox, false).await?;
    sandbox.sh_ok("echo a > file").await?;
    change(&mut watch, "file", &[ChangeKind::Create]).await?;
    sandbox.sh_ok("echo b >> file").await?;
    change(&mut watch, "file", &[ChangeKind::Write]).await?;
    sandbox.sh_ok("chmod 600 file").await?;
    change(&mut watch, "file", &[ChangeKind::Chmod]).await?;
    sandbox.sh_ok("mv file moved").await?;
    change(&mut watch, "file", &[ChangeKind::Rename, ChangeKind::Remove]).await?;
    sandbox.sh_ok("rm moved").await?;
    change(&mut watch, "moved", &[ChangeKind::Remove]).await?;
    Ok(())
}

async fn without_recursion_only_the_directory(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.guest.make_dir(dir("sub")).await?;
    let mut watch = watching(&sandbox, false).await?;
    sandbox.put("sub/deep", b"").await?;
    sandbox.put("end", b"").await?;
    loop {
        let next = timeout(Duration::from_secs(30), watch.next()).await.context("no change")??;
        let next = next.context("the watch ended")?;
        ensure!(!next.path.as_bytes().starts_with(b"sub/"), "{next:?}");
        if next.path.as_bytes() == b"end" {
            return Ok(());
        }
    }
}

async fn recursion_follows_new_directories(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.guest.make_dir(dir("old")).await?;
    let mut watch = watching(&sandbox, true).await?;
    sandbox.put("old/file", b"").await?;
    change(&mut watch, "old/file", &APPEARED).await?;
    // The file may be there before the new directory is watched; it must be told all the same.
    sandbox.guest.write_all(WriteFile { parents: true, ..to("new/er/file") }, b"").await?;
    change(&mut watch, "new/er/file", &APPEARED).await?;
    sandbox.put("new/er/later", b"").await?;
    change(&mut watch, "new/er/later", &APPEARED).await?;
    Ok(())
}

async fn what_is_missing_cannot_be_watched(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let missing = WatchDir { dir: FileRef::new("nothing"), recursive: true };
    let error = error_of(sandbox.guest.watch(missing).await)?;
    ensure!(error.kind() == ErrorKind::NotFound, "{error}");
    sandbox.put("file", b"").await?;
    error_of(sandbox.guest.watch(WatchDir { dir: FileRef::new("file"), recursive: false }).await)?;
    Ok(())
}
