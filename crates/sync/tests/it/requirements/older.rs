//! S14: version folders of the older layout, with bodies under their own paths beside the state file.

use crate::requirements::kit::{
    Watched, exists, keys, newest, object, open_world, paths, push, read, restore, restore_path, state, write,
};
use crate::world::{NOW, World};
use bytes::Bytes;
use seawall_api::ErrorKind;
use seawall_sync::{
    bucket::{Bucket, MemoryBucket},
    engine::Direction,
    path::STATE,
    sums::Sums,
    versions::Keep,
};
use serde_json::json;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    sync::Arc,
};

/// Before every version of ours.
const FIRST: i64 = 1_600_000_000_000;
const SECOND: i64 = 1_600_000_100_000;
const MODIFIED: i64 = 1_599_999_000;

/// A version as the older system stored it.
async fn put_older(memory: &MemoryBucket, timestamp: i64, files: &[(&str, &str)]) {
    let mut entries = Vec::new();
    for (path, body) in files {
        let checksum = Sums::of(body.as_bytes()).md5.to_string();
        entries
            .push(json!({"path": path, "checksum": checksum, "size": body.len(), "modified_at": MODIFIED}));
        let body = Bytes::from(body.as_bytes().to_vec());
        memory.put(&format!("{timestamp}/{path}"), body).await.unwrap();
    }
    let state = json!({"version": "1.0", "last_synced_at": timestamp / 1000, "files": entries});
    memory.put(&format!("{timestamp}/{STATE}"), Bytes::from(state.to_string())).await.unwrap();
}

/// Two versions of the older layout.
async fn older_world(replicas: usize) -> (World, Arc<MemoryBucket>) {
    let (world, memory) = open_world(replicas);
    put_older(&memory, FIRST, &[("README.md", "first"), ("gone.txt", "gone")]).await;
    put_older(&memory, SECOND, &[("README.md", "second"), ("src/main.py", "print()"), ("zero", "")]).await;
    (world, memory)
}

#[tokio::test]
async fn s14_a_cold_start_brings_the_newest_of_the_older_layout() {
    let (world, memory) = older_world(1).await;
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.direction, report.stats.files_downloaded), (Direction::Pulled, 3));
    assert_eq!(report.version.unwrap().timestamp, SECOND);
    assert_eq!(paths(&world.replicas[0].tree()), ["README.md", "src", "src/main.py", "zero"]);
    assert_eq!((read(&world, 0, "README.md"), read(&world, 0, "zero")), ("second".to_owned(), String::new()));
    let found = fs::metadata(world.replicas[0].path("src/main.py")).unwrap();
    assert_eq!((found.mtime(), found.mtime_nsec()), (MODIFIED, 0));
    assert_eq!(found.permissions().mode() & 0o7777, 0o644, "it does not say, so what is usual");
    // Reading it made no version, and neither does looking again.
    assert_eq!(world.sync(0).await.unwrap().direction, Direction::Nothing);
    assert!(keys(&memory, ".commits/").is_empty());
}

#[tokio::test]
async fn s14_one_that_is_named_comes_too() {
    let (world, _memory) = older_world(1).await;
    let log = world.versions(0).log().await.unwrap();
    assert_eq!(log.iter().map(|version| version.timestamp).collect::<Vec<_>>(), [FIRST, SECOND]);
    restore(&world, 0, FIRST).await.unwrap();
    assert_eq!(paths(&world.replicas[0].tree()), ["README.md", "gone.txt"]);
    assert_eq!(read(&world, 0, "README.md"), "first");
}

#[tokio::test]
async fn s14_going_back_works_on_top_of_it() {
    let (world, _memory) = older_world(1).await;
    world.sync(0).await.unwrap();
    restore_path(&world, 0, FIRST, "gone.txt").await.unwrap();
    assert_eq!(
        (read(&world, 0, "gone.txt"), read(&world, 0, "README.md")),
        ("gone".to_owned(), "second".to_owned())
    );
}

#[tokio::test]
async fn s14_all_of_it_can_go_back() {
    let (world, _memory) = older_world(1).await;
    world.sync(0).await.unwrap();
    restore(&world, 0, FIRST).await.unwrap();
    assert_eq!(read(&world, 0, "README.md"), "first");
    assert!(!exists(&world, 0, "src"));
    // And forth again.
    restore(&world, 0, SECOND).await.unwrap();
    assert_eq!(read(&world, 0, "README.md"), "second");
}

/// The older version, and one of ours on top of it.
async fn pushed_on_top(replicas: usize) -> (World, Arc<MemoryBucket>) {
    let (world, memory) = older_world(replicas).await;
    world.sync(0).await.unwrap();
    write(&world, 0, "src/main.py", "print('more')");
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.direction, report.stats.files_uploaded), (Direction::Pushed, 1));
    (world, memory)
}

#[tokio::test]
async fn s14_pushes_go_on_top_of_it() {
    let (world, memory) = pushed_on_top(2).await;
    assert_eq!(state(&world, 0).commit.unwrap().seq, 1);
    // What did not change stays where it is.
    let tree = newest(&world).await;
    let place = |path: &str| tree.get(&path.into()).unwrap().file().unwrap().place.clone().unwrap().object;
    assert_eq!(&*place("README.md"), format!("{SECOND}/README.md"));
    assert!(place("src/main.py").starts_with(".packs/"));
    assert_eq!(keys(&memory, ".packs/").len(), 1);
    assert_eq!(world.sync(1).await.unwrap().stats.files_downloaded, 3);
    assert_eq!(read(&world, 1, "README.md"), "second");
    assert_eq!(read(&world, 1, "src/main.py"), "print('more')");
    assert_eq!(world.versions(0).log().await.unwrap().len(), 3);
}

#[tokio::test]
async fn s14_pruning_keeps_what_a_newer_version_refers_to() {
    let (world, memory) = pushed_on_top(2).await;
    let pruned = world.prune(0, 1).await.unwrap();
    assert_eq!((pruned.kept, pruned.dropped), (1, vec![FIRST, SECOND]));
    let left: Vec<String> = keys(&memory, "16");
    assert_eq!(left, [format!("{SECOND}/README.md"), format!("{SECOND}/zero")]);
    world.sync(1).await.unwrap();
    assert_eq!(paths(&world.replicas[1].tree()), ["README.md", "src", "src/main.py", "zero"]);
    assert_eq!(read(&world, 1, "README.md"), "second");
}

#[tokio::test(start_paused = true)]
async fn s14_pruning_deletes_nothing_of_a_version_that_could_not_be_read() {
    let (mut world, memory) = pushed_on_top(1).await;
    let before = keys(&memory, "16");
    let watched = Watched::new(memory.clone());
    watched.refuse(&format!("get {FIRST}/{STATE}"), ErrorKind::Unavailable);
    world.bucket = watched;
    // All versions are to stay; that it fails is right too.
    let _ = world.versions(0).prune(Keep { newest: 100, younger_than: None }).await;
    assert_eq!(keys(&memory, "16"), before);
}

#[tokio::test]
async fn s14_an_empty_bucket_does_not_empty_the_workspace() {
    let (mut world, _memory) = older_world(1).await;
    world.sync(0).await.unwrap();
    let before = paths(&world.replicas[0].tree());
    // Another bucket was configured: it knows nothing of what this one agreed on.
    world.bucket = Arc::new(MemoryBucket::default());
    world.sync(0).await.unwrap();
    assert_eq!(paths(&world.replicas[0].tree()), before);
    assert_eq!(paths(&newest(&world).await), before);
}

#[tokio::test]
async fn s14_a_newest_one_that_is_damaged_takes_nothing_away() {
    let (world, memory) = older_world(1).await;
    world.sync(0).await.unwrap();
    let before = world.replicas[0].tree();
    memory.put(&format!("{SECOND}/{STATE}"), Bytes::from_static(b"{")).await.unwrap();
    // Whether it fails or pushes what is here: it does not go back to the one before.
    let _ = world.sync(0).await;
    for (path, node) in before.iter() {
        assert!(world.replicas[0].tree().get(path).is_some_and(|now| now.same(node)), "{path}");
    }
}

#[tokio::test]
async fn s14_a_state_file_of_the_older_system_in_the_workspace_deletes_nothing() {
    let (world, memory) = older_world(1).await;
    // What the older system left in a volume: it names a file that the bucket no longer has.
    write(&world, 0, "gone.txt", "gone");
    let left = object(&memory, &format!("{FIRST}/{STATE}")).await;
    fs::write(world.replicas[0].path(STATE), left).unwrap();
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.direction, report.state_problem), (Direction::Both, None));
    assert_eq!(read(&world, 0, "gone.txt"), "gone");
    assert_eq!(push(&world, 0).await, NOW, "and no version more was made of it");
}
