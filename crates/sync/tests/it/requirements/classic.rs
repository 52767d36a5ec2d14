//! S4, S5 and S7: what becomes of a file, how it is counted, and which way a sync goes.

use crate::requirements::kit::{
    exists, name, newest, open_world, paths, read, remove, share, size, state, sync_through, watched_world,
    workspace, write,
};
use crate::world::{NOW, World};
use seawall_sync::{
    bucket::Scoped,
    diff::Note,
    engine::{Direction, SyncStats},
    path::STATE,
    versions::{Memory, Versions},
};
use std::{os::unix::fs::symlink, sync::Arc};

#[tokio::test]
async fn s4_in_the_bucket_and_not_here_is_downloaded() {
    let world = World::new(2);
    write(&world, 0, "a", "new there");
    world.sync(0).await.unwrap();
    let stats = world.sync(1).await.unwrap().stats;
    assert_eq!((stats.files_downloaded, stats.files_uploaded), (1, 0));
    assert_eq!(read(&world, 1, "a"), "new there");
}

#[tokio::test]
async fn s4_equal_on_both_sides_is_skipped() {
    let world = World::new(2);
    share(&world, &[("a", "a"), ("b", "b")]).await;
    // Without it each file is compared with the bucket's.
    remove(&world, 1, STATE);
    let report = world.sync(1).await.unwrap();
    assert_eq!(report.direction, Direction::Nothing);
    let stats = report.stats;
    assert_eq!((stats.files_skipped, stats.files_downloaded, stats.bytes_transferred), (2, 0, 0));
}

#[tokio::test]
async fn s4_different_there_is_downloaded() {
    let world = World::new(2);
    share(&world, &[("a", "before"), ("b", "b")]).await;
    write(&world, 0, "a", "after");
    world.sync(0).await.unwrap();
    let stats = world.sync(1).await.unwrap().stats;
    assert_eq!((stats.files_downloaded, stats.files_skipped), (1, 1));
    assert_eq!(read(&world, 1, "a"), "after");
}

#[tokio::test]
async fn s4_gone_there_is_deleted_here() {
    let world = World::new(2);
    share(&world, &[("a", "a"), ("d/b", "b")]).await;
    remove(&world, 0, "a");
    std::fs::remove_dir_all(world.replicas[0].path("d")).unwrap();
    let stats = world.sync(0).await.unwrap().stats;
    assert_eq!((stats.files_deleted, stats.files_deleted_remotely), (0, 2));
    let stats = world.sync(1).await.unwrap().stats;
    assert_eq!((stats.files_deleted, stats.files_deleted_remotely), (2, 0));
    assert!(!exists(&world, 1, "a") && !exists(&world, 1, "d"));
}

#[tokio::test]
async fn s4_what_no_state_names_is_a_users_work_and_is_pushed() {
    let world = World::new(2);
    share(&world, &[("a", "a")]).await;
    write(&world, 1, "mine", "mine");
    write(&world, 0, "a", "changed");
    world.sync(0).await.unwrap();
    let stats = world.sync(1).await.unwrap().stats;
    assert_eq!((stats.files_uploaded, stats.files_deleted), (1, 0));
    assert_eq!(read(&world, 1, "mine"), "mine");
    assert_eq!(paths(&newest(&world).await), ["a", "mine"]);
}

#[tokio::test]
async fn s4_changed_here_and_gone_there_is_kept_and_told() {
    let world = World::new(2);
    share(&world, &[("a", "a"), ("b", "b")]).await;
    remove(&world, 0, "a");
    world.sync(0).await.unwrap();
    write(&world, 1, "a", "changed");
    let report = world.sync(1).await.unwrap();
    assert_eq!(report.notes, [Note::KeptChanged { path: name("a") }]);
    world.sync(0).await.unwrap();
    assert_eq!(read(&world, 0, "a"), "changed");
}

#[tokio::test]
async fn s4_gone_here_and_changed_there_comes_back_and_is_told() {
    let world = World::new(2);
    share(&world, &[("a", "a"), ("b", "b")]).await;
    write(&world, 0, "a", "changed");
    world.sync(0).await.unwrap();
    remove(&world, 1, "a");
    let report = world.sync(1).await.unwrap();
    assert_eq!(report.notes, [Note::Restored { path: name("a") }]);
    assert_eq!(read(&world, 1, "a"), "changed");
}

#[tokio::test]
async fn s4_changed_on_both_sides_both_are_kept_and_told() {
    let world = World::new(2);
    share(&world, &[("notes.txt", "base")]).await;
    write(&world, 0, "notes.txt", "theirs");
    world.sync(0).await.unwrap();
    write(&world, 1, "notes.txt", "mine");
    let report = world.sync(1).await.unwrap();
    let [Note::Conflict { path, kept_as }] = &report.notes[..] else { panic!("{:?}", report.notes) };
    let kept = kept_as.to_string();
    assert_eq!(*path, name("notes.txt"));
    assert!(kept.starts_with("notes.conflict-") && kept.ends_with(".txt"), "{kept}");
    world.sync(0).await.unwrap();
    for replica in 0..2 {
        assert_eq!(read(&world, replica, "notes.txt"), "theirs");
        assert_eq!(read(&world, replica, &kept), "mine");
    }
}

#[tokio::test]
async fn s5_each_file_of_a_sync_is_counted_once() {
    let (world, memory) = open_world(2);
    symlink("a", world.replicas[0].path("link")).unwrap();
    share(&world, &[("a", "a"), ("b", "b"), ("c", "c"), ("d", "d"), ("e", "e"), ("f.txt", "f")]).await;
    write(&world, 1, "c", "c there!");
    remove(&world, 1, "e");
    write(&world, 1, "f.txt", "f there");
    write(&world, 1, "new there", "new there");
    assert_eq!(world.sync(1).await.unwrap().direction, Direction::Pushed);
    write(&world, 0, "b", "b here!!");
    remove(&world, 0, "d");
    write(&world, 0, "f.txt", "f here");
    write(&world, 0, "new here", "new here");
    let before = size(&memory, ".packs/").await;
    let report = world.sync(0).await.unwrap();
    let uploaded = size(&memory, ".packs/").await - before;
    assert_eq!(report.direction, Direction::Both);
    assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
    let expected = SyncStats {
        // c, f.txt, new there
        files_downloaded: 3,
        // b, f.conflict-….txt, new here
        files_uploaded: 3,
        // e
        files_deleted: 1,
        // d
        files_deleted_remotely: 1,
        // a, link
        files_skipped: 2,
        // A pack's list of what is in it is sent too.
        bytes_transferred: 8 + 7 + 9 + uploaded,
        // a, b, c, e, f.txt, link, new here
        scanned: 7,
        ignored: 0,
        special: 0,
        ..report.stats.clone()
    };
    assert_eq!(report.stats, expected);
    assert!(uploaded >= 8 + 6 + 8, "{uploaded}");
}

#[tokio::test]
async fn s5_the_counts_have_the_names_that_were_asked_for() {
    let world = World::new(1);
    write(&world, 0, "a", "a");
    let json = serde_json::to_value(world.sync(0).await.unwrap()).unwrap();
    for (field, value) in
        [("files_downloaded", 0), ("files_uploaded", 1), ("files_deleted", 0), ("files_skipped", 0)]
    {
        assert_eq!(json[field], value, "{field}");
    }
    assert!(json["bytes_transferred"].as_u64().is_some_and(|bytes| bytes > 0));
    assert!(json["duration"].is_u64() && json["notes"].is_array());
    assert_eq!(json["direction"], "pushed");
}

#[tokio::test]
async fn s5_what_is_skipped_are_files_and_links_whether_or_not_anything_was_done() {
    let world = World::new(1);
    share(&world, &[("d/e/a", "a"), ("b", "b")]).await;
    let idle = world.sync(0).await.unwrap();
    assert_eq!((idle.direction, idle.stats.files_skipped), (Direction::Nothing, 2));
    write(&world, 0, "new", "new");
    assert_eq!(world.sync(0).await.unwrap().stats.files_skipped, 2);
}

#[tokio::test]
async fn s7_a_sync_goes_the_way_that_is_needed() {
    let world = World::new(2);
    write(&world, 0, "a", "a");
    let way = async |replica: usize| world.sync(replica).await.unwrap().direction;
    assert_eq!(way(0).await, Direction::Pushed);
    assert_eq!(way(0).await, Direction::Nothing);
    assert_eq!(way(1).await, Direction::Pulled);
    assert_eq!(way(1).await, Direction::Nothing);
    write(&world, 0, "b", "b");
    write(&world, 1, "c", "c");
    assert_eq!(way(1).await, Direction::Pushed);
    assert_eq!(way(0).await, Direction::Both);
    assert_eq!(way(1).await, Direction::Pulled);
    for replica in 0..2 {
        assert_eq!(paths(&world.replicas[replica].tree()), ["a", "b", "c"]);
    }
}

#[tokio::test]
async fn s7_nothing_changed_costs_one_list() {
    let (world, watched) = watched_world(2);
    for body in ["one", "two", "three"] {
        write(&world, 0, "d/a", body);
        world.sync(0).await.unwrap();
    }
    world.sync(1).await.unwrap();
    for replica in 0..2 {
        watched.forget();
        assert_eq!(world.sync(replica).await.unwrap().direction, Direction::Nothing);
        assert_eq!(watched.calls(), ["list .commits/"], "replica {replica}");
    }
}

/// What an installation remembers: the records that it wrote, by their places.
#[derive(Default)]
struct Records(std::sync::Mutex<std::collections::BTreeMap<(String, String), bytes::Bytes>>);

#[async_trait::async_trait]
impl Memory for Records {
    async fn record(&self, place: &str, name: &str) -> Option<bytes::Bytes> {
        self.0.lock().unwrap().get(&(place.to_owned(), name.to_owned())).cloned()
    }

    async fn keep_record(&self, place: &str, name: &str, json: bytes::Bytes) {
        self.0.lock().unwrap().insert((place.to_owned(), name.to_owned()), json);
    }
}

/// A workspace that goes to one place and then to another: numbers that are the same are not the same versions.
#[tokio::test]
async fn s7_what_another_place_has_is_not_taken_for_synced() {
    let (world, bucket) = open_world(1);
    let memory = Arc::new(Records::default());
    let at = |prefix: &str| {
        let place = Arc::new(Scoped::new(bucket.clone(), prefix).unwrap());
        Versions::new(place, world.replicas[0].clock.clone()).with_memory(memory.clone())
    };
    let (here, there) = (at("here"), at("there"));
    let workspace = workspace(&world, 0);
    let sync = async |place: &Versions, body: &str| {
        world.replicas[0].clock.advance(1000);
        write(&world, 0, "f", body);
        sync_through(place, &workspace).await.unwrap()
    };
    sync(&here, "1").await;
    sync(&here, "22").await;
    sync(&there, "22").await;
    sync(&there, "333").await;
    // Both have two versions now, and nothing changed since the last sync. What was agreed on here is not known any
    // more, so both bodies stay.
    sync_through(&here, &workspace).await.unwrap();
    let newest = here.head().await.unwrap().version.unwrap();
    let stored = paths(&here.tree(&newest).await.unwrap());
    assert_eq!(stored, paths(&world.replicas[0].tree()));
    let mut bodies: Vec<String> = stored.iter().map(|path| read(&world, 0, path)).collect();
    bodies.sort();
    assert_eq!(bodies, ["22", "333"], "{stored:?}");
}

#[tokio::test]
async fn s7_an_old_agreement_is_written_anew_and_a_fresh_one_is_not() {
    let (world, watched) = watched_world(1);
    share(&world, &[("a", "a")]).await;
    let commit = state(&world, 0).commit;
    world.replicas[0].clock.advance(59_000);
    world.sync(0).await.unwrap();
    assert_eq!(state(&world, 0).last_synced_at, NOW / 1000);
    // An hour later it would count as stale, though nothing changed.
    world.replicas[0].clock.advance(3_600_000);
    watched.forget();
    world.sync(0).await.unwrap();
    assert_eq!(state(&world, 0).last_synced_at, (NOW + 3_659_000) / 1000);
    assert_eq!(state(&world, 0).commit, commit);
    assert_eq!(watched.calls(), ["list .commits/"]);
}
