//! S13: what did not change is not read again. And what is no file at all.

use crate::requirements::kit::{let_time_pass, newest, paths, read, set_mtime, share, write};
use crate::world::World;
use rustix::fs::{CWD, Mode};
use seawall_sync::{
    disk::ScanAsk,
    engine::{Direction, Options},
};
use std::{
    fs,
    os::unix::net::UnixListener,
    time::{Duration, SystemTime},
};

/// Long ago, so that it is no matter whether it was a moment ago.
const SECS: u64 = 1_600_000_000;

fn hashed(world: &World) -> u64 {
    world.replicas[0].disk.scan(&ScanAsk::default()).hashed
}

#[test]
fn s13_what_did_not_change_is_not_read_again() {
    let world = World::new(1);
    for path in ["a", "d/b", "d/e/c"] {
        write(&world, 0, path, path);
    }
    let_time_pass();
    assert_eq!(hashed(&world), 3);
    assert_eq!(hashed(&world), 0);
    write(&world, 0, "d/b", "changed");
    assert_eq!(hashed(&world), 1);
}

#[test]
fn s13_what_may_have_changed_unseen_is_read_again() {
    let world = World::new(1);
    write(&world, 0, "late", "x");
    // A clock that was set back: the next write could have an older time than this.
    let ahead = SystemTime::now() + Duration::from_secs(3600);
    fs::File::open(world.replicas[0].path("late")).unwrap().set_modified(ahead).unwrap();
    let_time_pass();
    assert_eq!((hashed(&world), hashed(&world)), (1, 1));
}

#[test]
fn s13_a_change_that_hides_behind_size_and_time_is_found() {
    let world = World::new(1);
    let path = world.replicas[0].path("a");
    write(&world, 0, "a", "one");
    set_mtime(&path, SECS, 5);
    let_time_pass();
    assert_eq!(hashed(&world), 1);
    write(&world, 0, "a", "two");
    set_mtime(&path, SECS, 5);
    assert_eq!(hashed(&world), 1);
}

#[test]
fn s13_a_guest_that_restarted_reads_everything_once() {
    let mut world = World::new(1);
    write(&world, 0, "a", "a");
    let_time_pass();
    assert_eq!((hashed(&world), hashed(&world)), (1, 0));
    world.replicas[0].restart();
    assert_eq!((hashed(&world), hashed(&world)), (1, 0));
}

#[tokio::test]
async fn s13_what_was_just_downloaded_is_not_read_again() {
    let world = World::new(2);
    for path in ["a", "d/b"] {
        write(&world, 0, path, path);
        set_mtime(&world.replicas[0].path(path), SECS, 5);
    }
    world.sync(0).await.unwrap();
    assert_eq!(world.sync(1).await.unwrap().stats.files_downloaded, 2);
    let stats = world.sync(1).await.unwrap().stats;
    assert_eq!((stats.scanned, stats.hashed), (2, 0));
}

#[tokio::test]
async fn s13_everything_is_read_again_on_demand() {
    let world = World::new(1);
    write(&world, 0, "a", "a");
    write(&world, 0, "b", "b");
    let_time_pass();
    world.sync(0).await.unwrap();
    assert_eq!(world.sync(0).await.unwrap().stats.hashed, 0);
    let options = Options { rehash: true, ..Options::default() };
    assert_eq!(world.sync_with(0, options).await.unwrap().stats.hashed, 2);
}

#[tokio::test]
async fn pipes_and_sockets_are_counted_and_left_alone() {
    let world = World::new(2);
    share(&world, &[("a", "a")]).await;
    let pipe = world.replicas[0].path("pipe");
    rustix::fs::mkfifoat(CWD, pipe.as_path(), Mode::from_raw_mode(0o644)).unwrap();
    let socket = UnixListener::bind(world.replicas[0].path("socket")).unwrap();
    // Opening a pipe would wait for somebody who writes to it.
    let idle = world.sync(0).await.unwrap();
    assert_eq!((idle.direction, idle.stats.special), (Direction::Nothing, 2));
    write(&world, 0, "a", "changed");
    assert_eq!(world.sync(0).await.unwrap().stats.special, 2);
    assert_eq!(paths(&newest(&world).await), ["a"]);
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "a"), "changed");
    drop(socket);
}

#[tokio::test]
async fn a_file_that_became_a_pipe_is_gone_for_the_others() {
    let world = World::new(2);
    share(&world, &[("a", "a"), ("b", "b")]).await;
    let path = world.replicas[0].path("a");
    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(CWD, path.as_path(), Mode::from_raw_mode(0o644)).unwrap();
    world.sync(0).await.unwrap();
    world.sync(1).await.unwrap();
    assert_eq!(paths(&world.replicas[1].tree()), ["b"]);
    assert!(fs::symlink_metadata(&path).is_ok(), "the pipe stays");
}
