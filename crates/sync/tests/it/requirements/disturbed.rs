//! Files that change, vanish or cannot be read while a sync looks at them; and files that it holds back.

use crate::requirements::kit::{
    exists, name, newest, paths, read, remove, share, skip, sync_through, workspace, write,
};
use crate::world::World;
use async_trait::async_trait;
use seawall_api::files::FileName;
use seawall_sync::{
    Result,
    diff::Step,
    disk::{LocalWorkspace, Refused, ScanAsk, ScanReport},
    engine::{Direction, SyncReport},
    state::{CommitRef, Limits, StateFile},
    workspace::{Agree, Pieces, Put, Workspace},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};
use tokio::sync::mpsc;

type Happens = Box<dyn Fn() + Send + Sync>;

/// A workspace in which something happens between each scan and the reading of bodies.
struct Restless {
    inner: LocalWorkspace,
    happens: Happens,
}

#[async_trait]
impl Workspace for Restless {
    async fn scan(&self, ask: ScanAsk) -> Result<ScanReport> {
        self.inner.scan(ask).await
    }

    async fn base(&self) -> Result<Option<StateFile>> {
        self.inner.base().await
    }

    async fn collect(&self, files: Vec<FileName>) -> Result<Pieces> {
        (self.happens)();
        self.inner.collect(files).await
    }

    async fn apply(&self, steps: Vec<Step>) -> Result<Vec<Refused>> {
        self.inner.apply(steps).await
    }

    async fn put(&self, files: mpsc::Receiver<Put>) -> Result<Vec<Refused>> {
        self.inner.put(files).await
    }

    async fn prepare(&self, agree: Agree) -> Result<()> {
        self.inner.prepare(agree).await
    }

    async fn settle(&self, commit: Option<CommitRef>, now: i64) -> Result<()> {
        self.inner.settle(commit, now).await
    }

    async fn agree(&self, agree: Agree) -> Result<()> {
        self.inner.agree(agree).await
    }
}

/// A sync of the first workspace while `happens` does.
async fn sync_while(world: &World, happens: Happens) -> Result<SyncReport> {
    let restless = Restless { inner: workspace(world, 0), happens };
    sync_through(&world.versions(0), &restless).await
}

/// Somebody writes to a file the first `times` times that a sync wants to read: longer and longer bodies.
fn writes(world: &World, path: &str, times: usize) -> Happens {
    let (path, turns) = (world.replicas[0].path(path), AtomicUsize::new(0));
    Box::new(move || {
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        if turn < times {
            fs::write(&path, body(turn)).unwrap();
        }
    })
}

fn body(turn: usize) -> String {
    format!("written during a sync{}", "!".repeat(turn))
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_looked_at_again() {
    let world = World::new(2);
    write(&world, 0, "log", "start");
    write(&world, 0, "other", "other");
    let report = sync_while(&world, writes(&world, "log", 1)).await.unwrap();
    assert!(report.is_complete(), "{:?}", report.problems);
    world.sync(1).await.unwrap();
    assert_eq!((read(&world, 1, "log"), read(&world, 1, "other")), (body(0), "other".to_owned()));
}

#[tokio::test]
async fn a_file_that_changes_all_the_time_is_told_and_the_rest_is_pushed() {
    let world = World::new(1);
    write(&world, 0, "log", "start");
    write(&world, 0, "other", "other");
    let report = sync_while(&world, writes(&world, "log", usize::MAX)).await.unwrap();
    assert!(!report.is_complete());
    let [(path, why)] = &report.problems[..] else { panic!("{:?}", report.problems) };
    assert!(*path == name("log") && why.contains("changes while it is read"), "{path}: {why}");
    assert_eq!(paths(&newest(&world).await), ["other"]);
    assert!(exists(&world, 0, "log"));
    // When whoever wrote it is done, it is a file like any other.
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.direction, report.is_complete()), (Direction::Pushed, true));
    assert_eq!(paths(&newest(&world).await), ["log", "other"]);
}

#[tokio::test]
async fn one_that_was_synced_before_stays_as_it_was_there() {
    let world = World::new(2);
    share(&world, &[("log", "start"), ("other", "other")]).await;
    write(&world, 0, "log", "more");
    write(&world, 0, "other", "changed");
    let report = sync_while(&world, writes(&world, "log", usize::MAX)).await.unwrap();
    assert_eq!((report.problems.len(), report.stats.files_deleted_remotely), (1, 0));
    world.sync(1).await.unwrap();
    assert_eq!(
        (read(&world, 1, "log"), read(&world, 1, "other")),
        ("start".to_owned(), "changed".to_owned())
    );
    let here = read(&world, 0, "log");
    world.sync(0).await.unwrap();
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "log"), here);
}

#[tokio::test]
async fn a_file_that_vanishes_before_it_is_read_is_none() {
    let world = World::new(1);
    write(&world, 0, "gone", "gone");
    write(&world, 0, "other", "other");
    let gone = world.replicas[0].path("gone");
    let report = sync_while(&world, Box::new(move || drop(fs::remove_file(&gone)))).await.unwrap();
    assert!(report.is_complete(), "{:?}", report.problems);
    assert_eq!(paths(&newest(&world).await), ["other"]);
}

#[tokio::test]
async fn a_file_that_became_a_link_is_not_followed() {
    let world = World::new(1);
    write(&world, 0, "a", "mine");
    let path = world.replicas[0].path("a");
    let happens = move || {
        drop(fs::remove_file(&path));
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    };
    sync_while(&world, Box::new(happens)).await.unwrap();
    let tree = newest(&world).await;
    assert_eq!((tree.len(), tree.files().count()), (1, 0), "{tree:?}");
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn what_cannot_be_read_is_told_with_the_fix_and_the_rest_is_pushed() {
    if rustix::process::geteuid().is_root() {
        skip("what_cannot_be_read_is_told_with_the_fix_and_the_rest_is_pushed", "root reads everything");
        return;
    }
    let world = World::new(1);
    share(&world, &[("tracked", "tracked"), ("d/inside", "inside")]).await;
    write(&world, 0, "secret", "secret");
    write(&world, 0, "other", "other");
    let closed = ["secret", "tracked", "d"].map(|path| world.replicas[0].path(path));
    closed.iter().for_each(|path| chmod(path, 0));
    let report = world.sync(0).await.unwrap();
    closed.iter().for_each(|path| chmod(path, 0o755));
    let told: Vec<String> = report.problems.iter().map(|(path, _)| path.to_string()).collect();
    assert_eq!(told, ["d", "secret", "tracked"]);
    assert!(report.problems.iter().all(|(_, why)| why.contains("chmod")), "{:?}", report.problems);
    // What was there stays there: not being able to look is no deletion.
    assert_eq!(paths(&newest(&world).await), ["d", "d/inside", "other", "tracked"]);
    world.sync(0).await.unwrap();
    assert_eq!(paths(&newest(&world).await), ["d", "d/inside", "other", "secret", "tracked"]);
}

/// A sync of the first workspace that takes no file of more than 50 bytes.
async fn sync_small(world: &World) -> Result<SyncReport> {
    let limits = Limits { max_file_size: 50, ..Limits::default() };
    sync_through(&world.versions(0).with_limits(limits), &workspace(world, 0)).await
}

#[tokio::test]
async fn what_is_held_back_is_not_replaced_by_the_buckets() {
    let world = World::new(2);
    write(&world, 1, "data", "theirs");
    world.sync(1).await.unwrap();
    let mine = "m".repeat(51);
    write(&world, 0, "data", &mine);
    // Whatever comes of it: these bytes are nowhere else.
    let _ = sync_small(&world).await;
    assert!(world.replicas[0].bodies().contains(&mine));
}

#[tokio::test]
async fn what_is_held_back_is_not_replaced_by_a_newer_one() {
    let world = World::new(2);
    share(&world, &[("data", "base")]).await;
    write(&world, 1, "data", "theirs");
    world.sync(1).await.unwrap();
    let mine = "m".repeat(51);
    write(&world, 0, "data", &mine);
    let _ = sync_small(&world).await;
    assert!(world.replicas[0].bodies().contains(&mine));
}

#[tokio::test]
async fn what_is_held_back_is_not_deleted() {
    let world = World::new(2);
    share(&world, &[("data", "base"), ("other", "other")]).await;
    remove(&world, 1, "data");
    world.sync(1).await.unwrap();
    let mine = "m".repeat(51);
    write(&world, 0, "data", &mine);
    let _ = sync_small(&world).await;
    assert!(world.replicas[0].bodies().contains(&mine));
}

#[tokio::test]
async fn what_changed_too_often_is_not_replaced_by_the_buckets() {
    let world = World::new(2);
    write(&world, 1, "log", "theirs");
    world.sync(1).await.unwrap();
    write(&world, 0, "log", "mine");
    // Twice is when it is given up; then whoever writes it pauses.
    let _ = sync_while(&world, writes(&world, "log", 2)).await;
    assert!(world.replicas[0].bodies().contains(&body(1)), "{:?}", world.replicas[0].bodies());
}
