//! Versions that their owner deletes: one, or all of them.

use crate::requirements::kit::{keys, newest, open_world, paths, push, read, remove, restore, size, write};
use crate::world::World;
use bytes::Bytes;
use seawall_api::ErrorKind;
use seawall_sync::{
    bucket::Bucket,
    versions::{Head, Record, What},
};

async fn times(world: &World) -> Vec<i64> {
    world.versions(0).log().await.unwrap().iter().map(|version| version.timestamp).collect()
}

#[tokio::test]
async fn s6_one_version_goes_with_what_it_alone_has() {
    let (world, memory) = open_world(1);
    let mut made = Vec::new();
    for number in 0..4 {
        write(&world, 0, "a", &format!("body {number}"));
        write(&world, 0, &format!("kept{number}"), "stays");
        made.push(push(&world, 0).await);
    }
    let before = size(&memory, "").await;
    let gone = world.versions(0).delete(made[1]).await.unwrap();
    assert_eq!((gone.kept, &gone.dropped[..]), (3, &made[1..2]));
    assert_eq!(gone.objects_deleted, 2, "its manifest and its pack: {gone:?}");
    assert!(size(&memory, "").await < before);
    assert_eq!(times(&world).await, [made[0], made[2], made[3]]);
    // By its number.
    assert_eq!(world.versions(0).delete(1).await.unwrap().dropped, [made[0]]);
    for missing in [made[1], 1, 77] {
        assert_eq!(world.versions(0).delete(missing).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    restore(&world, 0, made[2]).await.unwrap();
    assert_eq!(read(&world, 0, "a"), "body 2");
    assert!(world.versions(0).verify(|_| {}).await.unwrap().damage.is_empty());
}

/// Without it the next sync of a workspace that has it would take its files back.
#[tokio::test]
async fn s6_the_newest_version_is_not_deleted_alone() {
    let (world, _) = open_world(1);
    write(&world, 0, "a", "one");
    push(&world, 0).await;
    write(&world, 0, "a", "two");
    let newest = push(&world, 0).await;
    let error = world.versions(0).delete(newest).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("the newest version stays"), "{error}");
    assert_eq!(times(&world).await.len(), 2);
}

#[tokio::test]
async fn s6_all_versions_go_and_one_small_record_stays() {
    let (world, memory) = open_world(2);
    for number in 0..3 {
        write(&world, 0, "a", &format!("body {number}"));
        push(&world, 0).await;
    }
    world.sync(1).await.unwrap();
    let gone = world.versions(0).delete_all().await.unwrap();
    assert_eq!((gone.kept, gone.dropped.len()), (0, 3));
    assert_eq!(keys(&memory, ""), [".commits/00000000000000000005"]);
    assert!(size(&memory, "").await < 300);
    assert!(times(&world).await.is_empty());
    let verified = world.versions(0).verify(|_| {}).await.unwrap();
    assert!(verified.damage.is_empty(), "{verified:?}");
    // Once more there is nothing to do.
    assert_eq!(world.versions(0).delete_all().await.unwrap().objects_deleted, 0);
    assert_eq!(keys(&memory, "").len(), 1);
    // Workspaces that are still there keep what they have, and begin anew.
    write(&world, 1, "b", "new");
    for replica in [1, 0, 1] {
        world.sync(replica).await.unwrap();
    }
    assert_eq!(paths(&newest(&world).await), ["a", "b"]);
    assert_eq!((read(&world, 0, "a"), read(&world, 0, "b")), ("body 2".into(), "new".into()));
    assert_eq!(times(&world).await.len(), 1);
    assert!(world.versions(0).verify(|_| {}).await.unwrap().damage.is_empty());
}

#[tokio::test]
async fn s6_deleting_all_of_nothing_writes_nothing() {
    let (world, memory) = open_world(1);
    assert_eq!(world.versions(0).delete_all().await.unwrap().kept, 0);
    assert!(keys(&memory, "").is_empty());
}

/// S14: also what the older layout has, and what nobody knows.
#[tokio::test]
async fn s14_all_versions_of_the_older_layout_go_too() {
    let (world, memory) = open_world(1);
    for (key, body) in [
        ("1600000000000/.sandbox-state", "{\"version\":\"1.0\",\"last_synced_at\":1,\"files\":[]}"),
        ("1600000000000/a", "older"),
        ("1600000000001/stray", "stray"),
    ] {
        memory.put(key, Bytes::from_static(body.as_bytes())).await.unwrap();
    }
    world.versions(0).delete_all().await.unwrap();
    assert_eq!(keys(&memory, "").len(), 1);
    assert!(times(&world).await.is_empty());
}

/// A push that read the chain before everything was deleted, and slept, loses: its number was taken by a record that
/// stays, and an older number makes no version.
#[tokio::test]
async fn s9_a_push_that_slept_makes_no_version_of_what_was_deleted() {
    let (world, memory) = open_world(1);
    for body in ["one", "two"] {
        write(&world, 0, "a", body);
        push(&world, 0).await;
    }
    let versions = world.versions(0);
    let (head, old) = (versions.head().await.unwrap(), newest(&world).await);
    let first = versions.records_after(0).await.unwrap().remove(0);
    versions.delete_all().await.unwrap();
    // The chain ends at 4 now: 3 condemned everything, and went with the rest.
    let late = versions.commit_version(&head, "late", (&old, old.digest())).await.unwrap();
    assert!(matches!(late, seawall_sync::versions::Committed::Done(_)), "its number is free again");
    let still_later = Head { seq: 0, ..Head::default() };
    versions.commit_version(&still_later, "later", (&old, old.digest())).await.unwrap();
    assert!(times(&world).await.is_empty(), "neither is a version");
    assert_eq!(versions.head().await.unwrap().version, None);
    assert_eq!(keys(&memory, ".commits/").len(), 3);
    // And the next deletion takes them along.
    versions.delete_all().await.unwrap();
    assert_eq!(keys(&memory, "").len(), 1, "{:?}", keys(&memory, ""));
    let Record { what: What::Version(_), .. } = first else { panic!("{first:?}") };
    remove(&world, 0, "a");
    world.sync(0).await.unwrap();
}
