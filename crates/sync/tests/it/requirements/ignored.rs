//! Rules of what is left out, and files that they meet.

use crate::requirements::kit::{
    dry_run, exists, name, newest, open_world, paths, read, remove, share, write,
};
use crate::world::World;
use seawall_sync::{diff::Note, engine::Direction, path::IGNORE_FILE};
use std::fs;

#[tokio::test]
async fn what_rules_leave_out_is_counted_shown_and_not_pushed() {
    let (world, memory) = open_world(1);
    write(&world, 0, IGNORE_FILE, "*.log\ncache/\n");
    for path in ["a.log", "cache/large", "cache/deep/larger", "kept.txt"] {
        write(&world, 0, path, path);
    }
    let dry = dry_run(&world, 0).await.unwrap();
    assert_eq!(dry.ignored, [name("a.log"), name("cache")]);
    assert_eq!(dry.ignored_count, 2);
    assert_eq!(dry.upload, [name(IGNORE_FILE), name("kept.txt")]);
    // It only looked.
    assert!(memory.keys().is_empty() && !exists(&world, 0, ".sandbox-state"));
    assert_eq!(world.sync(0).await.unwrap().stats.ignored, 2);
    assert_eq!(paths(&newest(&world).await), [IGNORE_FILE, "kept.txt"]);
    let idle = world.sync(0).await.unwrap();
    assert_eq!((idle.direction, idle.stats.ignored), (Direction::Nothing, 2));
}

#[tokio::test]
async fn a_dry_run_says_what_a_sync_then_does() {
    let world = World::new(2);
    share(&world, &[("a", "a"), ("b", "b"), ("c", "c"), ("d", "d")]).await;
    write(&world, 1, "a", "changed there");
    remove(&world, 1, "b");
    world.sync(1).await.unwrap();
    write(&world, 0, "c", "changed here");
    remove(&world, 0, "d");
    let before = (world.replicas[0].tree(), newest(&world).await);
    let dry = dry_run(&world, 0).await.unwrap();
    assert_eq!((world.replicas[0].tree(), newest(&world).await), before);
    assert_eq!((&dry.download[..], &dry.upload[..]), (&[name("a")][..], &[name("c")][..]));
    assert_eq!((&dry.delete_here[..], &dry.delete_there[..]), (&[name("b")][..], &[name("d")][..]));
    let stats = world.sync(0).await.unwrap().stats;
    assert_eq!((stats.files_downloaded, stats.files_uploaded), (1, 1));
    assert_eq!((stats.files_deleted, stats.files_deleted_remotely), (1, 1));
    assert!(dry_run(&world, 0).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_was_synced_before_the_rule_stays_synced() {
    let world = World::new(2);
    share(&world, &[("tracked.log", "before")]).await;
    write(&world, 0, IGNORE_FILE, "*.log\n");
    write(&world, 0, "tracked.log", "after");
    write(&world, 0, "new.log", "new");
    world.sync(0).await.unwrap();
    assert_eq!(paths(&newest(&world).await), [IGNORE_FILE, "tracked.log"]);
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "tracked.log"), "after");
    assert!(!exists(&world, 1, "new.log"));
    // And what is deleted is deleted.
    remove(&world, 1, "tracked.log");
    world.sync(1).await.unwrap();
    assert_eq!(paths(&newest(&world).await), [IGNORE_FILE]);
}

#[tokio::test]
async fn what_is_new_in_an_ignored_directory_stays_out_though_one_of_it_is_tracked() {
    let world = World::new(1);
    share(&world, &[("modules/tracked.js", "x")]).await;
    write(&world, 0, IGNORE_FILE, "modules/\n");
    write(&world, 0, "modules/new.js", "new");
    world.sync(0).await.unwrap();
    assert_eq!(paths(&newest(&world).await), [IGNORE_FILE, "modules", "modules/tracked.js"]);
}

#[tokio::test]
async fn a_file_of_rules_speaks_for_its_directory() {
    let world = World::new(1);
    write(&world, 0, IGNORE_FILE, "*.tmp\n");
    write(&world, 0, &format!("sub/{IGNORE_FILE}"), "*.bin\n!kept.tmp\n");
    for path in ["x.bin", "x.tmp", "sub/x.bin", "sub/x.tmp", "sub/kept.tmp", "sub/deep/x.bin"] {
        write(&world, 0, path, path);
    }
    let report = world.sync(0).await.unwrap();
    let expected = [".sandboxignore", "sub", "sub/.sandboxignore", "sub/deep", "sub/kept.tmp", "x.bin"];
    assert_eq!(paths(&newest(&world).await), expected);
    // x.tmp, sub/x.bin, sub/x.tmp, sub/deep/x.bin
    assert_eq!(report.stats.ignored, 4);
}

#[tokio::test]
async fn what_the_bucket_has_at_an_ignored_path_overwrites_nothing() {
    let world = World::new(2);
    write(&world, 1, "a.log", "theirs");
    world.sync(1).await.unwrap();
    write(&world, 0, IGNORE_FILE, "*.log\n");
    write(&world, 0, "a.log", "mine");
    let report = world.sync(0).await.unwrap();
    assert_eq!(read(&world, 0, "a.log"), "theirs");
    let [Note::Conflict { path, kept_as }] = &report.notes[..] else { panic!("{:?}", report.notes) };
    assert_eq!(*path, name("a.log"));
    assert_eq!(read(&world, 0, &kept_as.to_string()), "mine");
    assert_eq!(world.sync(0).await.unwrap().direction, Direction::Nothing);
}

#[tokio::test]
async fn a_directory_that_is_gone_there_keeps_what_is_ignored_here() {
    let world = World::new(2);
    share(&world, &[(IGNORE_FILE, "*.log\n"), ("d/x", "x")]).await;
    write(&world, 0, "d/build.log", "hours of work");
    fs::remove_dir_all(world.replicas[1].path("d")).unwrap();
    world.sync(1).await.unwrap();
    world.sync(0).await.unwrap();
    assert!(!exists(&world, 0, "d/x"));
    assert_eq!(read(&world, 0, "d/build.log"), "hours of work");
}
