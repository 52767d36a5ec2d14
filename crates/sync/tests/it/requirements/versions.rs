//! S6: versions. How they lie in the bucket, and how they come back.

use crate::requirements::kit::{
    exists, keys, newest, object, open_world, paths, push, read, remove, restore, restore_path, size, state,
    write,
};
use crate::world::{NOW, World};
use seawall_api::ErrorKind;
use seawall_sync::{
    bucket::{MemoryBucket, Scoped},
    engine::Direction,
    state::{Limits, StateFile},
};
use std::{fs, sync::Arc};

/// What a pack has beside one body: where it is, and how many there are.
const LIST: u64 = 48 + 20;

#[tokio::test]
async fn s6_a_push_makes_a_folder_named_by_its_time() {
    let memory = Arc::new(MemoryBucket::default());
    let scoped = Scoped::new(memory.clone(), "docs/account/sandbox").unwrap();
    let world = World::on(Arc::new(scoped), 1);
    write(&world, 0, "src/a", "a");
    assert_eq!(push(&world, 0).await, NOW);
    let keys = memory.keys();
    assert_eq!(keys.len(), 3, "{keys:?}");
    assert_eq!(keys[0], "docs/account/sandbox/.commits/00000000000000000001");
    assert!(keys[1].starts_with("docs/account/sandbox/.packs/00000000000000000001-"), "{}", keys[1]);
    assert_eq!(keys[2], "docs/account/sandbox/1700000000000/.sandbox-state");
    // Both sides say the same.
    let manifest = StateFile::parse(&object(&memory, &keys[2]).await, &Limits::default()).unwrap();
    let here = state(&world, 0);
    assert_eq!(manifest.tree.clone().without_places(), here.tree);
    assert_eq!(here.commit.unwrap().tree, manifest.tree.digest());
}

#[tokio::test]
async fn s6_two_prefixes_of_a_bucket_know_nothing_of_each_other() {
    let memory = Arc::new(MemoryBucket::default());
    let scoped = |prefix: &str| Arc::new(Scoped::new(memory.clone(), prefix).unwrap());
    let (one, other) = (World::on(scoped("docs/a/box"), 1), World::on(scoped("docs/a/box2"), 1));
    write(&one, 0, "one", "one");
    write(&other, 0, "other", "other");
    push(&one, 0).await;
    push(&other, 0).await;
    push(&one, 0).await;
    assert_eq!(paths(&newest(&one).await), ["one"]);
    assert_eq!(paths(&newest(&other).await), ["other"]);
    assert!(Scoped::new(memory.clone(), "docs/../secret").is_err());
}

#[tokio::test]
async fn s6_a_version_is_later_than_the_one_before_whatever_the_clock_says() {
    let (world, memory) = open_world(1);
    let clock = &world.replicas[0].clock;
    let mut times = Vec::new();
    for (body, set_back) in [("one", 0), ("two", 0), ("three", 5_000), ("four", -60_000)] {
        clock.advance(set_back);
        write(&world, 0, "a", body);
        times.push(push(&world, 0).await);
    }
    assert_eq!(times, [NOW, NOW + 1, NOW + 5_000, NOW + 5_001]);
    for time in times {
        assert_eq!(keys(&memory, &time.to_string()).len(), 1, "{time}");
    }
}

#[tokio::test]
async fn s6_a_body_is_stored_once_however_many_versions_have_it() {
    let (world, memory) = open_world(2);
    let large = "x".repeat(10_000);
    write(&world, 0, "large", &large);
    push(&world, 0).await;
    assert_eq!(size(&memory, ".packs/").await, 10_000 + LIST);
    write(&world, 0, "small", "s");
    push(&world, 0).await;
    assert_eq!(size(&memory, ".packs/").await, 10_000 + LIST + 1 + LIST);
    // Copied and renamed it is still the same body.
    let at = |path: &str| world.replicas[0].path(path);
    fs::copy(at("large"), at("copy")).unwrap();
    fs::rename(at("small"), at("moved")).unwrap();
    push(&world, 0).await;
    assert_eq!(size(&memory, ".packs/").await, 10_000 + LIST + 1 + LIST);
    assert_eq!(world.versions(0).log().await.unwrap().len(), 3);
    world.sync(1).await.unwrap();
    assert_eq!(paths(&world.replicas[1].tree()), ["copy", "large", "moved"]);
    assert_eq!((read(&world, 1, "copy"), read(&world, 1, "large")), (large.clone(), large));
}

/// Two versions: `a` and `d/x`, then another `a`, `b`, and no `d`.
async fn two_versions(world: &World) -> (i64, i64) {
    write(world, 0, "a", "one");
    write(world, 0, "d/x", "deep");
    let first = push(world, 0).await;
    write(world, 0, "a", "two");
    write(world, 0, "b", "b");
    fs::remove_dir_all(world.replicas[0].path("d")).unwrap();
    (first, push(world, 0).await)
}

#[tokio::test]
async fn s6_a_cold_start_brings_the_newest() {
    let world = World::new(2);
    two_versions(&world).await;
    world.sync(1).await.unwrap();
    assert_eq!(paths(&world.replicas[1].tree()), ["a", "b"]);
    assert_eq!(read(&world, 1, "a"), "two");
}

#[tokio::test]
async fn s6_a_cold_start_brings_the_version_that_is_named() {
    let world = World::new(3);
    let (first, _) = two_versions(&world).await;
    // By its time, or by its number.
    for (replica, version) in [(1, first), (2, 1)] {
        let restored = restore(&world, replica, version).await.unwrap();
        assert_eq!(restored.from, first);
        assert_eq!(paths(&world.replicas[replica].tree()), ["a", "d", "d/x"]);
        assert_eq!(read(&world, replica, "a"), "one");
        assert_eq!(restored.report.version, state(&world, replica).commit);
        assert_eq!(world.sync(replica).await.unwrap().direction, Direction::Nothing);
    }
    // What was newer stays in the log.
    let log = world.versions(0).log().await.unwrap();
    assert!(log.len() >= 3, "{log:?}");
}

#[tokio::test]
async fn s6_going_back_saves_what_is_there_first() {
    let world = World::new(1);
    let (first, _) = two_versions(&world).await;
    write(&world, 0, "a", "not pushed yet");
    let restored = restore(&world, 0, first).await.unwrap();
    assert_eq!(restored.saved.direction, Direction::Pushed);
    assert_eq!((read(&world, 0, "a"), exists(&world, 0, "b")), ("one".to_owned(), false));
    let saved = restored.saved.version.unwrap().timestamp;
    restore(&world, 0, saved).await.unwrap();
    assert_eq!(read(&world, 0, "a"), "not pushed yet");
    assert_eq!(read(&world, 0, "b"), "b");
    assert!(!exists(&world, 0, "d"));
}

#[tokio::test]
async fn s6_one_file_of_an_old_version_comes_alone() {
    let world = World::new(2);
    let (first, _) = two_versions(&world).await;
    let restored = restore_path(&world, 0, first, "a").await.unwrap();
    assert_eq!(restored.report.direction, Direction::Pushed);
    assert_eq!((read(&world, 0, "a"), read(&world, 0, "b")), ("one".to_owned(), "b".to_owned()));
    assert!(!exists(&world, 0, "d"));
    // Where its directory is gone it comes with it; and so does a whole directory.
    restore_path(&world, 0, first, "d/x").await.unwrap();
    assert_eq!(read(&world, 0, "d/x"), "deep");
    remove(&world, 0, "d/x");
    restore_path(&world, 0, first, "d").await.unwrap();
    assert_eq!(read(&world, 0, "d/x"), "deep");
    world.sync(1).await.unwrap();
    assert_eq!(paths(&world.replicas[1].tree()), ["a", "b", "d", "d/x"]);
}

#[tokio::test]
async fn s6_what_is_not_there_is_told_and_changes_nothing() {
    let world = World::new(1);
    let (first, second) = two_versions(&world).await;
    let before = world.replicas[0].tree();
    let error = restore(&world, 0, 7_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("there is no version 7000"), "{error}");
    let error = restore_path(&world, 0, second, "d/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("d/x") && error.to_string().contains(&second.to_string()), "{error}");
    let error = restore_path(&world, 0, first, "../a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(world.replicas[0].tree(), before);
    assert_eq!(world.versions(0).log().await.unwrap().len(), 2);
}

#[tokio::test]
async fn s6_the_log_tells_when_and_how_much() {
    let world = World::new(1);
    let (first, second) = two_versions(&world).await;
    let log = world.versions(0).log().await.unwrap();
    let told: Vec<_> = log.iter().map(|one| (one.seq, one.timestamp, one.files, one.bytes)).collect();
    assert_eq!(told, [(1, first, 2, 7), (2, second, 2, 4)]);
}
