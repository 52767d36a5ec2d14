//! S8: what survives a round trip, beside bodies.

use crate::requirements::kit::{exists, newest, paths, read, set_mtime, share, skip, write};
use crate::world::{Replica, World};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use seawall_api::files::FileName;
use seawall_sync::{
    disk::Disk,
    engine::Direction,
    tree::{Mtime, Node},
};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

const SECS: u64 = 1_600_000_000;

/// A path whose name is not text.
fn raw(replica: &Replica, path: &[u8]) -> PathBuf {
    replica.folder.path().join(OsStr::from_bytes(path))
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A link's own time, not that of what it leads to.
fn set_link_time(path: &Path, secs: i64, nanos: u32) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn time_of(path: &Path) -> (i64, i64) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.mtime(), found.mtime_nsec())
}

/// Brings what the first workspace has to the second, and both must be the same to the last nanosecond.
async fn round_trip(world: &World) {
    world.sync(0).await.unwrap();
    world.sync(1).await.unwrap();
    assert_eq!(world.replicas[1].tree(), world.replicas[0].tree());
    assert_eq!(world.sync(1).await.unwrap().direction, Direction::Nothing);
}

#[tokio::test]
async fn s8_times_of_files_links_and_directories() {
    let world = World::new(2);
    let at = |replica: usize, path: &str| world.replicas[replica].path(path);
    write(&world, 0, "d/file", "x");
    symlink("file", at(0, "d/link")).unwrap();
    set_mtime(&at(0, "d/file"), SECS, 123_456_789);
    set_link_time(&at(0, "d/link"), 1_500_000_000, 987_654_321);
    // The last: whatever is made in a directory changes its time.
    set_mtime(&at(0, "d"), SECS - 7, 7);
    round_trip(&world).await;
    assert_eq!(time_of(&at(1, "d/file")), (1_600_000_000, 123_456_789));
    assert_eq!(time_of(&at(1, "d/link")), (1_500_000_000, 987_654_321));
    assert_eq!(time_of(&at(1, "d")), (1_599_999_993, 7));
}

#[tokio::test]
async fn s8_times_before_1970_and_far_ahead() {
    let world = World::new(2);
    for (path, time) in [
        ("before", UNIX_EPOCH - Duration::new(0, 999_999_995)),
        ("zero", UNIX_EPOCH),
        ("ahead", UNIX_EPOCH + Duration::new(4_000_000_000, 1)),
    ] {
        write(&world, 0, path, path);
        fs::File::open(world.replicas[0].path(path)).unwrap().set_modified(time).unwrap();
    }
    round_trip(&world).await;
    assert_eq!(time_of(&world.replicas[1].path("before")), (-1, 5));
    assert_eq!(time_of(&world.replicas[1].path("zero")), (0, 0));
    assert_eq!(time_of(&world.replicas[1].path("ahead")), (4_000_000_000, 1));
}

#[tokio::test]
async fn s8_permission_bits() {
    let world = World::new(2);
    let files = [("plain", 0o644), ("secret", 0o600), ("program", 0o755), ("fixed", 0o444), ("set", 0o4711)];
    for (path, mode) in files {
        write(&world, 0, path, path);
        chmod(&world.replicas[0].path(path), mode);
    }
    fs::create_dir(world.replicas[0].path("private")).unwrap();
    chmod(&world.replicas[0].path("private"), 0o2700);
    round_trip(&world).await;
    for (path, mode) in files {
        assert_eq!(mode_of(&world.replicas[1].path(path)), mode, "{path}");
    }
    assert_eq!(mode_of(&world.replicas[1].path("private")), 0o2700);
}

#[tokio::test]
async fn s8_a_directory_that_cannot_be_written_comes_with_what_is_in_it() {
    let world = World::new(2);
    write(&world, 0, "sealed/deep/file", "x");
    let dirs = ["sealed/deep", "sealed"];
    for dir in dirs {
        chmod(&world.replicas[0].path(dir), 0o555);
    }
    round_trip(&world).await;
    assert_eq!(read(&world, 1, "sealed/deep/file"), "x");
    for dir in dirs {
        assert_eq!(mode_of(&world.replicas[1].path(dir)), 0o555, "{dir}");
    }
    // So that the folders can be removed when the test is over.
    for replica in &world.replicas {
        dirs.iter().rev().for_each(|dir| chmod(&replica.path(dir), 0o755));
    }
}

#[tokio::test]
async fn s8_links_are_data_wherever_they_lead() {
    let world = World::new(2);
    fs::create_dir(world.replicas[0].path("d")).unwrap();
    let links = [
        ("inside", "d"),
        ("dangling", "nowhere/at all"),
        ("python", "/usr/bin/python3"),
        ("up", "../../../../etc/passwd"),
        ("itself", "itself"),
        ("d/back", ".."),
    ];
    for (path, target) in links {
        symlink(target, world.replicas[0].path(path)).unwrap();
    }
    round_trip(&world).await;
    for (path, target) in links {
        assert_eq!(fs::read_link(world.replicas[1].path(path)).unwrap(), Path::new(target), "{path}");
    }
    // Nothing beyond them was looked at.
    assert_eq!(newest(&world).await.len(), links.len() + 1);
}

#[tokio::test]
async fn s8_empty_directories_come_and_go() {
    let world = World::new(2);
    fs::create_dir_all(world.replicas[0].path("a/b/c")).unwrap();
    fs::create_dir(world.replicas[0].path("empty")).unwrap();
    round_trip(&world).await;
    assert!(fs::metadata(world.replicas[1].path("a/b/c")).unwrap().is_dir());
    assert!(fs::metadata(world.replicas[1].path("empty")).unwrap().is_dir());
    fs::remove_dir(world.replicas[0].path("empty")).unwrap();
    fs::remove_dir(world.replicas[0].path("a/b/c")).unwrap();
    world.sync(0).await.unwrap();
    world.sync(1).await.unwrap();
    assert_eq!(paths(&world.replicas[1].tree()), ["a", "a/b"]);
}

#[tokio::test]
async fn s8_names_and_targets_that_are_not_text() {
    let world = World::new(2);
    let replica = &world.replicas[0];
    fs::create_dir(raw(replica, b"d\xff")).unwrap();
    fs::write(raw(replica, b"d\xff/caf\xe9.txt"), "latin").unwrap();
    symlink(OsStr::from_bytes(b"t\xfe"), raw(replica, b"link")).unwrap();
    fs::write(raw(replica, b"back\\slash \"quoted\"\nline"), "odd").unwrap();
    round_trip(&world).await;
    let there = &world.replicas[1];
    assert_eq!(fs::read_to_string(raw(there, b"d\xff/caf\xe9.txt")).unwrap(), "latin");
    assert_eq!(fs::read_link(raw(there, b"link")).unwrap(), Path::new(OsStr::from_bytes(b"t\xfe")));
    assert_eq!(fs::read_to_string(raw(there, b"back\\slash \"quoted\"\nline")).unwrap(), "odd");
    // And what changes in them is found again.
    fs::write(raw(there, b"d\xff/caf\xe9.txt"), "changed").unwrap();
    world.sync(1).await.unwrap();
    world.sync(0).await.unwrap();
    assert_eq!(fs::read_to_string(raw(replica, b"d\xff/caf\xe9.txt")).unwrap(), "changed");
}

#[tokio::test]
async fn s8_empty_files_and_the_longest_name() {
    let world = World::new(2);
    let (long, deep) = ("n".repeat(255), format!("{}/{}", "d".repeat(255), "\u{e4}".repeat(127)));
    write(&world, 0, "empty", "");
    write(&world, 0, &long, "long");
    write(&world, 0, &deep, "");
    round_trip(&world).await;
    assert_eq!(read(&world, 1, "empty"), "");
    assert_eq!((read(&world, 1, &long), read(&world, 1, &deep)), ("long".to_owned(), String::new()));
    // A conflict makes a name for the copy, which is not longer.
    for (replica, body) in [(0, "theirs"), (1, "mine")] {
        write(&world, replica, &long, body);
        world.sync(replica).await.unwrap();
    }
    assert_eq!(read(&world, 1, &long), "theirs");
    assert!(world.replicas[1].bodies().contains("mine"));
}

#[tokio::test]
async fn s8_a_mode_or_a_time_travels_without_the_body() {
    let world = World::new(2);
    share(&world, &[("a", "a"), ("b", "b")]).await;
    chmod(&world.replicas[0].path("a"), 0o750);
    set_mtime(&world.replicas[0].path("b"), SECS, 5);
    let pushed = world.sync(0).await.unwrap();
    assert_eq!((pushed.direction, pushed.stats.bytes_transferred), (Direction::Pushed, 0));
    let pulled = world.sync(1).await.unwrap();
    assert_eq!((pulled.direction, pulled.stats.bytes_transferred), (Direction::Pulled, 0));
    assert_eq!(mode_of(&world.replicas[1].path("a")), 0o750);
    assert_eq!(time_of(&world.replicas[1].path("b")), (1_600_000_000, 5));
    assert_eq!(read(&world, 1, "a"), "a");
    assert_eq!(world.sync(1).await.unwrap().direction, Direction::Nothing);
}

#[tokio::test]
async fn s8_a_directorys_time_alone_is_no_change() {
    let world = World::new(1);
    share(&world, &[("d/a", "a")]).await;
    set_mtime(&world.replicas[0].path("d"), SECS, 5);
    assert_eq!(world.sync(0).await.unwrap().direction, Direction::Nothing);
}

#[tokio::test]
async fn s8_the_manifest_says_what_the_disk_says() {
    let world = World::new(1);
    write(&world, 0, "a", "four");
    chmod(&world.replicas[0].path("a"), 0o640);
    set_mtime(&world.replicas[0].path("a"), SECS, 42);
    world.sync(0).await.unwrap();
    let tree = newest(&world).await;
    let Some(Node::File(file)) = tree.get(&FileName::from("a")) else { panic!("{tree:?}") };
    assert_eq!((file.size, file.mode), (4, Some(0o640)));
    assert_eq!(file.mtime, Mtime { secs: 1_600_000_000, nanos: 42 });
}

#[tokio::test]
async fn s8_restored_files_belong_to_the_sandboxs_user() {
    if !rustix::process::geteuid().is_root() {
        skip("s8_restored_files_belong_to_the_sandboxs_user", "only root can give files away");
        return;
    }
    let mut world = World::new(2);
    write(&world, 0, "d/a", "a");
    symlink("a", world.replicas[0].path("d/link")).unwrap();
    world.sync(0).await.unwrap();
    let disk = Disk::open(world.replicas[1].folder.path(), Some((12_345, 12_346))).unwrap();
    world.replicas[1].disk = Arc::new(disk);
    world.sync(1).await.unwrap();
    for path in ["d", "d/a", "d/link", ".sandbox-state"] {
        let found = fs::symlink_metadata(world.replicas[1].path(path)).unwrap();
        assert_eq!((found.uid(), found.gid()), (12_345, 12_346), "{path}");
    }
    assert!(exists(&world, 1, "d/a"));
}
