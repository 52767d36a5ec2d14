//! S9 and S10: two at once, and a bucket that fails.

use crate::requirements::kit::{
    exists, keys, newest, object, open_world, paths, push, read, remove, share, watched_world, write,
};
use crate::world::World;
use seawall_api::ErrorKind;
use seawall_sync::{bucket::Bucket, disk::Disk, engine::Direction, path::STATE};
use std::sync::Arc;

#[test]
fn s9_one_sync_of_a_workspace_at_a_time() {
    let world = World::new(1);
    let replica = &world.replicas[0];
    let held = replica.disk.try_lock().unwrap();
    assert!(held.is_some());
    assert!(replica.disk.try_lock().unwrap().is_none());
    // Nor may another process, which opens the folder for itself.
    let other = Arc::new(Disk::open(replica.folder.path(), None).unwrap());
    assert!(other.try_lock().unwrap().is_none());
    drop(held);
    assert!(other.try_lock().unwrap().is_some());
}

#[test]
fn s9_what_a_dead_sync_left_is_cleared_only_by_who_has_the_lock() {
    let world = World::new(1);
    let replica = &world.replicas[0];
    let held = replica.disk.try_lock().unwrap();
    write(&world, 0, ".sandbox-state.new/1-1", "a body that is coming in");
    let other = Arc::new(Disk::open(replica.folder.path(), None).unwrap());
    assert!(other.try_lock().unwrap().is_none());
    assert!(exists(&world, 0, ".sandbox-state.new/1-1"));
    drop(held);
    assert!(replica.disk.try_lock().unwrap().is_some());
    assert!(!exists(&world, 0, ".sandbox-state.new"));
}

#[tokio::test(start_paused = true)]
async fn s9_of_two_who_push_at_once_the_second_merges() {
    let (world, watched) = watched_world(2);
    write(&world, 0, "a", "a");
    write(&world, 1, "b", "b");
    let (one, other) = tokio::join!(world.sync(0), world.sync(1));
    one.unwrap();
    other.unwrap();
    // Both wanted to be the first version, and one of them looked again.
    assert_eq!(watched.count("create .commits/00000000000000000001"), 2);
    assert_eq!(world.versions(0).log().await.unwrap().len(), 2);
    assert_eq!(paths(&newest(&world).await), ["a", "b"]);
    world.converges().await.unwrap();
    assert_eq!((read(&world, 0, "b"), read(&world, 1, "a")), ("b".to_owned(), "a".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn s10_an_upload_that_fails_names_step_and_file() {
    let (world, watched) = watched_world(1);
    write(&world, 0, "src/main.rs", "fn main() {}");
    watched.refuse("put .packs/", ErrorKind::Unavailable);
    let error = world.sync(0).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("uploading src/main.rs: a test refused it"), "{text}");
    assert!(error.is_retryable() && text.ends_with("trying again is safe"), "{text}");
    assert!(watched.count("put .packs/") > 1, "it was not tried again");
    assert_eq!(watched.count("create .commits/"), 0);
    assert!(!exists(&world, 0, STATE), "nothing was agreed on");
    watched.mend();
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.direction, report.stats.files_uploaded), (Direction::Pushed, 1));
}

#[tokio::test(start_paused = true)]
async fn s10_a_large_file_that_fails_is_named_too() {
    let (world, watched) = watched_world(1);
    write(&world, 0, "large.bin", &"x".repeat(5 << 20));
    watched.refuse("upload .packs/", ErrorKind::Timeout);
    let text = world.sync(0).await.unwrap_err().to_string();
    assert!(text.starts_with("uploading large.bin: "), "{text}");
    assert!(text.ends_with("trying again is safe"), "{text}");
    watched.mend();
    world.sync(0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn s10_what_was_uploaded_is_not_uploaded_again() {
    let (world, watched) = watched_world(2);
    write(&world, 0, "a", "small");
    write(&world, 0, "large.bin", &"x".repeat(5 << 20));
    watched.refuse("create .commits/", ErrorKind::Unavailable);
    let text = world.sync(0).await.unwrap_err().to_string();
    assert!(text.starts_with("committing the version: "), "{text}");
    assert!(text.ends_with("trying again is safe"), "{text}");
    watched.mend();
    watched.forget();
    world.sync(0).await.unwrap();
    assert_eq!((watched.count("put .packs/"), watched.count("upload .packs/")), (0, 0));
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "a"), "small");
    assert_eq!(read(&world, 1, "large.bin").len(), 5 << 20);
}

#[tokio::test(start_paused = true)]
async fn s10_what_was_downloaded_is_kept() {
    let (world, watched) = watched_world(2);
    write(&world, 0, "first", "in the first pack");
    push(&world, 0).await;
    write(&world, 0, "second", "in the second pack");
    push(&world, 0).await;
    watched.refuse("get .packs/00000000000000000002", ErrorKind::Unavailable);
    let text = world.sync(1).await.unwrap_err().to_string();
    assert!(text.starts_with("downloading second: "), "{text}");
    assert!(text.ends_with("trying again is safe"), "{text}");
    assert_eq!(read(&world, 1, "first"), "in the first pack");
    assert!(!exists(&world, 1, "second") && !exists(&world, 1, STATE));
    watched.mend();
    let stats = world.sync(1).await.unwrap().stats;
    assert_eq!((stats.files_downloaded, stats.files_skipped), (1, 1));
    assert_eq!(read(&world, 1, "second"), "in the second pack");
}

#[tokio::test(start_paused = true)]
async fn s10_a_push_that_is_followed_by_a_failure_was_one() {
    let (world, watched) = watched_world(2);
    write(&world, 1, "theirs", "theirs");
    push(&world, 1).await;
    write(&world, 0, "mine", "mine");
    watched.refuse("get .packs/", ErrorKind::Unavailable);
    let text = world.sync(0).await.unwrap_err().to_string();
    assert!(text.starts_with("downloading theirs: "), "{text}");
    // It was committed before anything was fetched.
    assert_eq!(paths(&newest(&world).await), ["mine", "theirs"]);
    watched.mend();
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.direction, report.stats.files_uploaded), (Direction::Pulled, 0));
    assert_eq!(read(&world, 0, "theirs"), "theirs");
}

#[tokio::test]
async fn s10_bad_credentials_fail_at_once_and_before_any_transfer() {
    let (world, watched) = watched_world(1);
    share(&world, &[("a", "a")]).await;
    write(&world, 0, "b", "b");
    let (before, state) = (world.replicas[0].tree(), read(&world, 0, STATE));
    watched.forget();
    watched.refuse("", ErrorKind::Denied);
    let error = world.sync(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!error.to_string().contains("trying again"), "{error}");
    assert_eq!(watched.calls().len(), 1, "{:?}", watched.calls());
    assert_eq!((world.replicas[0].tree(), read(&world, 0, STATE)), (before, state));
}

#[tokio::test]
async fn s10_what_a_dead_push_left_is_neither_a_version_nor_overwritten() {
    let (world, memory) = open_world(2);
    write(&world, 0, "a", "a");
    let left = format!("{}/{STATE}", push(&world, 0).await);
    // As if the record had never been written: what is left is a manifest that names packs.
    memory.delete(&keys(&memory, ".commits/")[0]).await.unwrap();
    remove(&world, 0, STATE);
    assert!(world.versions(0).log().await.unwrap().is_empty());
    assert!(world.versions(0).head().await.unwrap().version.is_none());
    let before = object(&memory, &left).await;
    write(&world, 0, "b", "b");
    assert_ne!(format!("{}/{STATE}", push(&world, 0).await), left);
    assert_eq!(object(&memory, &left).await, before);
    world.sync(1).await.unwrap();
    assert_eq!(paths(&world.replicas[1].tree()), ["a", "b"]);
}
