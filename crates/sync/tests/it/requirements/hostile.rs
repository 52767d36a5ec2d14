//! S11: manifests and bodies that somebody tampered with, and links that lead out.

use crate::requirements::kit::{
    damage, exists, keys, newest, open_world, read, share, sync_through, workspace, write,
};
use crate::world::{NOW, World, folder};
use bytes::Bytes;
use seawall_api::ErrorKind;
use seawall_sync::{
    Error,
    bucket::{Bucket, MemoryBucket},
    path::{STAGING, STATE},
    state::{Limits, StateFile},
    sums::Strong,
    versions::{Record, VersionRecord, What},
};
use std::{fs, os::unix::fs::symlink, path::Path};

const MD5: &str = "098f6bcd4621d373cade4e832627b4f6";
const RECORD: &str = ".commits/00000000000000000001";

fn file(path: &str) -> String {
    sized(path, "4")
}

fn sized(path: &str, size: &str) -> String {
    format!(r#"{{"path":"{path}","checksum":"{MD5}","size":{size},"modified_at":1}}"#)
}

fn manifest(files: &str, more: &str) -> String {
    format!(r#"{{"version":"1.0","last_synced_at":1,"files":[{files}]{more}}}"#)
}

/// A version made by hand. Its record is right, whatever the manifest says.
async fn commit(memory: &MemoryBucket, manifest: &str) {
    let (json, key) = (Bytes::from(manifest.to_owned()), format!("{NOW}/{STATE}"));
    let version = VersionRecord {
        seq: 1,
        id: "hostile".to_owned(),
        timestamp: NOW,
        manifest: key.clone(),
        manifest_hash: Strong::of(&json),
        manifest_size: json.len() as u64,
        tree: Strong([0; 32]),
        files: 1,
        bytes: 4,
        began: 0,
        legacy: false,
    };
    let record = Record::new(1, "hostile".to_owned(), "", What::Version(version));
    memory.put(&key, json).await.unwrap();
    memory.put(RECORD, Bytes::from(record.to_json())).await.unwrap();
}

/// A sync that must fail, and leave the workspace as it was.
async fn refused(world: &World) -> Error {
    write(world, 0, "mine.txt", "mine");
    let before = world.replicas[0].tree();
    let error = world.sync(0).await.unwrap_err();
    assert_eq!(world.replicas[0].tree(), before, "{error}");
    assert!(!exists(world, 0, STATE), "{error}");
    error
}

#[tokio::test]
async fn s11_a_hostile_manifest_gets_an_error_and_changes_nothing() {
    let (a, ab) = (file("a"), file("a/b"));
    let link = |target: &str| format!(r#","links":[{{"path":"l","target":"{target}","modified_at":1}}]"#);
    let packed = |pack: &str| {
        let entry =
            format!(r#"{{"path":"a","checksum":"{MD5}","size":4,"modified_at":1,"pack":0,"offset":0}}"#);
        manifest(&entry, &format!(r#","packs":["{pack}"]"#))
    };
    for (manifest, told) in [
        (manifest(&file("/etc/passwd"), ""), "\"/etc/passwd\": it is absolute"),
        (manifest(&file("../up"), ""), "\"../up\": it has a part `..`"),
        (manifest(&file("a/../../up"), ""), "\"a/../../up\""),
        (manifest(&file("a\\u0000b"), ""), "zero byte"),
        (manifest(&file(".sandbox-state.tmp"), ""), "\".sandbox-state.tmp\": that name belongs"),
        (manifest(&format!("{a},{a}"), ""), "\"a\": it is listed twice"),
        (manifest(&format!("{a},{ab}"), ""), "\"a/b\": it lies beneath"),
        (manifest(&file("l/x"), &link("/tmp")), "\"l/x\": it lies beneath"),
        (manifest("", &link("")), "\"l\": the target of a link"),
        (manifest(&sized("huge", "1125899906842624"), ""), "\"huge\": a file of 1125899906842624 bytes"),
        (packed("../other/.packs/x"), "\"../other/.packs/x\""),
        (packed("/etc/passwd"), "\"/etc/passwd\""),
        ("{\"version\":\"3.0\"}".to_owned(), "\"3.0\""),
        ("half of".to_owned(), "not a state file"),
    ] {
        let (world, memory) = open_world(1);
        commit(&memory, &manifest).await;
        let error = refused(&world).await;
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert!(text.contains(&format!("version {NOW} is damaged")) && text.contains(told), "{text}");
        assert_eq!(memory.keys().len(), 2, "nothing was pushed on top of it: {text}");
    }
}

#[tokio::test]
async fn s11_a_body_that_the_manifest_promises_must_be_there() {
    let (world, memory) = open_world(1);
    commit(&memory, &manifest(&file("a"), "")).await;
    let text = refused(&world).await.to_string();
    assert!(text.starts_with("a: ") && text.contains("body"), "{text}");
    assert_eq!(keys(&memory, ".commits/").len(), 1, "no version was made that lacks it too");
}

#[tokio::test(start_paused = true)]
async fn s11_a_manifest_must_be_the_one_that_was_committed() {
    let (world, memory) = open_world(1);
    commit(&memory, &manifest("", "")).await;
    memory.put(&format!("{NOW}/{STATE}"), Bytes::from(manifest("", " "))).await.unwrap();
    let text = refused(&world).await.to_string();
    assert!(text.contains("its hash is not that of its record"), "{text}");
}

#[tokio::test]
async fn s11_a_record_that_is_none_is_told() {
    let (world, memory) = open_world(1);
    for (record, told) in [
        (r#"{"version":"1.0"}"#, "not a commit record"),
        ("", "not a commit record"),
        (r#"{"version":"9","seq":1,"id":"x","kind":"version"}"#, "not a commit record"),
    ] {
        memory.put(RECORD, Bytes::from(record)).await.unwrap();
        let text = refused(&world).await.to_string();
        assert!(text.contains(told) && text.contains(RECORD), "{record}: {text}");
    }
    // One that says it is another.
    let what = What::Condemned { newest: None, versions: vec![], objects: vec![], timestamp: NOW };
    let other = Record::new(2, "x".to_owned(), "", what);
    memory.put(RECORD, Bytes::from(other.to_json())).await.unwrap();
    let text = refused(&world).await.to_string();
    assert!(text.contains("it says that it is number 2"), "{text}");
}

/// How many bodies wait to be whole.
fn waiting(world: &World, replica: usize) -> usize {
    let folders = fs::read_dir(world.replicas[replica].path(STAGING)).into_iter().flatten().flatten();
    folders.map(|folder| fs::read_dir(folder.path()).unwrap().count()).sum()
}

#[tokio::test]
async fn s11_what_a_sync_that_died_left_is_cleared() {
    let world = World::new(2);
    let left = world.replicas[1].path(STAGING).join("of-another");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("7"), "half").unwrap();
    fs::write(world.replicas[1].path(STAGING).join("older"), "half").unwrap();
    write(&world, 0, "a", "whole");
    world.sync(0).await.unwrap();
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "a"), "whole");
    // Once more, so that its own folder goes too.
    world.sync(1).await.unwrap();
    assert!(!left.exists() && waiting(&world, 1) == 0);
}

#[tokio::test]
async fn s11_a_damaged_body_is_named_and_nothing_of_it_stays() {
    // A small one comes whole, a large one piece by piece.
    for body in ["precious".to_owned(), "x".repeat(5 << 20)] {
        let (world, memory) = open_world(2);
        write(&world, 0, "a.txt", &body);
        world.sync(0).await.unwrap();
        let last = body.len() - 1;
        damage(&memory, &keys(&memory, ".packs/")[0], |pack| pack[last] ^= 1).await;
        write(&world, 0, "b.txt", "whole");
        world.sync(0).await.unwrap();
        let report = world.sync(1).await.unwrap();
        let (path, text) = &report.damaged[0];
        assert!(path.lossy() == "a.txt" && report.damaged.len() == 1, "{:?}", report.damaged);
        assert!(text.starts_with("downloading a.txt: ") && text.contains("not what was stored"), "{text}");
        // The rest came, nothing of it did, and it is told again.
        assert_eq!(Vec::from_iter(world.replicas[1].bodies()), ["whole"]);
        assert_eq!(waiting(&world, 1), 0);
        assert_eq!(world.sync(1).await.unwrap().damaged.len(), 1);
        // Whoever lacks it does not delete it from where it may still be.
        assert!(newest(&world).await.get(path).is_some());
    }
}

#[tokio::test]
async fn s11_a_damaged_body_leaves_the_users_own_file_alone() {
    let (world, memory) = open_world(2);
    share(&world, &[("a.txt", "before")]).await;
    write(&world, 0, "a.txt", "after");
    world.sync(0).await.unwrap();
    let packs = keys(&memory, ".packs/");
    damage(&memory, &packs[packs.len() - 1], |pack| pack[0] ^= 1).await;
    let report = world.sync(1).await.unwrap();
    assert!(report.damaged[0].1.starts_with("downloading a.txt: "), "{:?}", report.damaged);
    assert_eq!(read(&world, 1, "a.txt"), "before");
}

#[tokio::test]
async fn s11_a_file_beyond_the_limit_is_told_and_the_rest_is_pushed() {
    let world = World::new(2);
    write(&world, 0, "large", &"x".repeat(51));
    write(&world, 0, "small", &"x".repeat(50));
    let limits = Limits { max_file_size: 50, ..Limits::default() };
    let versions = world.versions(0).with_limits(limits);
    let report = sync_through(&versions, &workspace(&world, 0)).await.unwrap();
    assert!(!report.is_complete());
    let [(path, why)] = &report.problems[..] else { panic!("{:?}", report.problems) };
    assert_eq!((path.to_string().as_str(), why.contains("larger than 50 bytes")), ("large", true), "{why}");
    world.sync(1).await.unwrap();
    assert!(exists(&world, 1, "small") && !exists(&world, 1, "large") && exists(&world, 0, "large"));
}

fn names_in(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[tokio::test]
async fn s11_a_link_that_becomes_a_directory_leads_nobody_out() {
    let (world, outside) = (World::new(2), folder());
    symlink(outside.path(), world.replicas[0].path("d")).unwrap();
    world.sync(0).await.unwrap();
    world.sync(1).await.unwrap();
    fs::remove_file(world.replicas[0].path("d")).unwrap();
    write(&world, 0, "d/x", "inside");
    world.sync(0).await.unwrap();
    world.sync(1).await.unwrap();
    assert!(fs::symlink_metadata(world.replicas[1].path("d")).unwrap().is_dir());
    assert_eq!(read(&world, 1, "d/x"), "inside");
    assert_eq!(names_in(outside.path()), 0);
}

#[tokio::test]
async fn s11_a_link_in_the_workspace_is_not_followed_when_a_file_comes() {
    let (world, outside) = (World::new(2), folder());
    fs::write(outside.path().join("x"), "theirs").unwrap();
    share(&world, &[("d/x", "one"), ("d/y", "y")]).await;
    write(&world, 0, "d/x", "two");
    fs::remove_file(world.replicas[0].path("d/y")).unwrap();
    world.sync(0).await.unwrap();
    // Whoever is root in the box can do this at any time.
    fs::remove_dir_all(world.replicas[1].path("d")).unwrap();
    symlink(outside.path(), world.replicas[1].path("d")).unwrap();
    world.sync(1).await.unwrap();
    assert_eq!(fs::read_to_string(outside.path().join("x")).unwrap(), "theirs");
    assert_eq!(names_in(outside.path()), 1);
    assert_eq!(read(&world, 1, "d/x"), "two");
    assert!(fs::symlink_metadata(world.replicas[1].path("d")).unwrap().is_dir());
}

/// Deeper than any path can say.
fn dig(root: &Path) {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let name = "d".repeat(200);
    let mut dir = rustix::fs::open(root, flags, Mode::empty()).unwrap();
    for _ in 0..40 {
        mkdirat(&dir, name.as_str(), Mode::RWXU).unwrap();
        dir = openat(&dir, name.as_str(), flags, Mode::empty()).unwrap();
    }
    let file = openat(&dir, "bottom", OFlags::WRONLY | OFlags::CREATE, Mode::RWXU).unwrap();
    rustix::io::write(&file, b"x").unwrap();
}

#[tokio::test]
async fn s11_what_lies_too_deep_is_told_and_the_rest_is_pushed() {
    let world = World::new(2);
    write(&world, 0, "plain", "x");
    dig(world.replicas[0].folder.path());
    let report = world.sync(0).await.unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert!(report.problems[0].1.contains("4095"), "{:?}", report.problems);
    assert!(!report.is_complete());
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "plain"), "x");
    // It is still there, and still told.
    assert_eq!(world.sync(0).await.unwrap().problems.len(), 1);
}

#[test]
fn s11_a_manifest_with_a_million_entries_too_many_is_told() {
    let entries: Vec<String> = (0..=1_000_000).map(|number| format!("{{\"path\":\"d{number}\"}}")).collect();
    let json = format!(
        "{{\"version\":\"1.0\",\"last_synced_at\":1,\"files\":[],\"directories\":[{}]}}",
        entries.join(",")
    );
    let limits = Limits { max_entries: 1_000_000, ..Limits::default() };
    let told = StateFile::parse(json.as_bytes(), &limits).unwrap_err();
    assert_eq!(told.to_string(), "it lists 1000001 entries, the limit is 1000000");
    let limits = Limits { max_entries: 2_000_000, ..limits };
    assert_eq!(StateFile::parse(json.as_bytes(), &limits).unwrap().tree.len(), 1_000_001);
}
