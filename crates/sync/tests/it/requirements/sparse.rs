//! Files with holes: stored, restored and bounded by what they hold, not by what they seem to.

use crate::requirements::kit::{
    damage, keys, let_time_pass, name, newest, open_world, paths, size, workspace, write,
};
use crate::world::World;
use seawall_sync::{
    disk::ScanAsk,
    engine::{Budget, Engine, SyncReport},
    path,
};
use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
};

const MIB: u64 = 1 << 20;

/// A file of this size, with these bytes at these places and holes elsewhere.
fn sparse(world: &World, replica: usize, path: &str, size: u64, data: &[(u64, &[u8])]) {
    let file = fs::File::create(world.replicas[replica].path(path)).unwrap();
    file.set_len(size).unwrap();
    for (offset, bytes) in data {
        file.write_all_at(bytes, *offset).unwrap();
    }
}

fn bytes_on_disk(world: &World, replica: usize, path: &str) -> u64 {
    fs::metadata(world.replicas[replica].path(path)).unwrap().blocks() * 512
}

fn same(world: &World, path: &str) -> bool {
    let read = |replica: usize| fs::read(world.replicas[replica].path(path)).unwrap();
    read(0) == read(1)
}

/// A name, a length, and the parts that are no holes.
type File<'a> = (&'a str, u64, &'a [(u64, &'a [u8])]);

#[tokio::test]
async fn a_file_with_holes_is_stored_and_restored_with_them() {
    let (world, memory) = open_world(2);
    let random: Vec<u8> =
        (0..300_000u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    let files: [File<'_>; 6] = [
        ("image", 48 * MIB, &[(0, b"begin"), (20 * MIB + 7, &random), (48 * MIB - 3, b"end")]),
        ("beginning", 9 * MIB, &[(0, &random)]),
        ("nothing", 5 * MIB, &[]),
        ("small", 100_000, &[(50_000, b"middle")]),
        ("block", 1024, &[]),
        ("odd", 5001, &[(5000, b"x")]),
    ];
    for (path, size, data) in files {
        sparse(&world, 0, path, size, data);
    }
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.stats.files_uploaded, report.problems.len()), (6, 0), "{report:?}");
    let (stored, data) = (size(&memory, ".packs/").await, 2 * random.len() as u64);
    assert!(stored < data * 8 / 7, "{stored} bytes for {data}");
    assert_eq!(report.stats.bytes_transferred, stored);
    world.sync(1).await.unwrap();
    for (path, _, _) in files {
        assert!(same(&world, path), "{path}");
        let (was, is) = (bytes_on_disk(&world, 0, path), bytes_on_disk(&world, 1, path));
        assert!(is <= was, "{path} takes {is} bytes, and took {was}");
    }
    // Nothing is new, here and there.
    for replica in [0, 1] {
        let again = world.sync(replica).await.unwrap();
        assert_eq!(again.stats.files_uploaded + again.stats.files_downloaded, 0, "{again:?}");
    }
    assert!(world.versions(0).verify(|_| {}).await.unwrap().damage.is_empty());
}

/// One block of data in each 64: what a disk of one megabyte can pretend to be.
#[tokio::test]
async fn zeros_between_data_take_no_room_however_they_lie() {
    let (world, memory) = open_world(2);
    let blocks: Vec<(u64, &[u8])> = (0..256).map(|n| (n * 65_536 + 4096, &[7u8; 1024][..])).collect();
    sparse(&world, 0, "large", 256 * 65_536, &blocks);
    for number in 0..64u64 {
        let body = number.to_le_bytes();
        sparse(&world, 0, &format!("f{number}"), 65_536, &[(8192, &body)]);
    }
    world.sync(0).await.unwrap();
    let (stored, data) = (size(&memory, ".packs/").await, (256 + 64) * 1024);
    assert!(stored < data + 16_384, "{stored} bytes for {data}");
    world.sync(1).await.unwrap();
    assert!(same(&world, "large") && (0..64).all(|number| same(&world, &format!("f{number}"))));
}

#[tokio::test]
async fn damage_in_a_file_with_holes_is_found_and_healed() {
    for file_size in [100_000, 6 * MIB] {
        let (world, memory) = open_world(2);
        sparse(&world, 0, "f", file_size, &[(70_000, b"precious")]);
        write(&world, 0, "other", "other");
        world.sync(0).await.unwrap();
        let tree = newest(&world).await;
        let place = tree.get(&name("f")).unwrap().file().unwrap().place.clone().unwrap();
        let inside = (place.offset + place.stored(file_size) / 2) as usize;
        damage(&memory, &place.object, |body| body[inside] ^= 1).await;
        let pulled = world.sync(1).await.unwrap();
        assert_eq!(pulled.damaged.len(), 1, "{pulled:?}");
        assert!(!world.replicas[1].path("f").exists() && world.replicas[1].path("other").exists());
        let verified = world.versions(0).verify(|_| {}).await.unwrap();
        assert_eq!((verified.damage.len(), verified.quarantined), (1, 1), "{verified:?}");
        world.sync(0).await.unwrap();
        world.sync(1).await.unwrap();
        assert!(same(&world, "f"));
    }
}

#[tokio::test]
async fn one_body_is_stored_once_also_with_holes() {
    let (world, memory) = open_world(1);
    for path in ["a", "b"] {
        sparse(&world, 0, path, 5 * MIB, &[(MIB, b"same")]);
    }
    sparse(&world, 0, "c", 5000, &[]);
    world.sync(0).await.unwrap();
    let objects = keys(&memory, ".packs/").len();
    let_time_pass();
    fs::rename(world.replicas[0].path("a"), world.replicas[0].path("d")).unwrap();
    sparse(&world, 0, "e", 5000, &[]);
    world.sync(0).await.unwrap();
    assert_eq!(paths(&newest(&world).await), ["b", "c", "d", "e"]);
    assert_eq!((objects, keys(&memory, ".packs/").len()), (2, 2));
}

/// A terabyte of nothing costs no time: it is named, and everything else is pushed.
#[tokio::test]
async fn more_holes_than_are_taken_are_named() {
    let (world, _) = open_world(1);
    sparse(&world, 0, "huge", 1 << 40, &[]);
    write(&world, 0, "other", "other");
    let started = std::time::Instant::now();
    let report = world.sync(0).await.unwrap();
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    assert_eq!(paths(&newest(&world).await), ["other"]);
    let [(path, why)] = &report.problems[..] else { panic!("{report:?}") };
    assert!(*path == name("huge") && why.contains("17179869184") && why.contains(path::IGNORE_FILE), "{why}");
}

#[test]
fn holes_of_all_files_count_together_and_always_the_same_are_left_out() {
    let world = World::new(1);
    for path in ["a", "b", "c"] {
        sparse(&world, 0, path, 600_000, &[(1, path.as_bytes())]);
    }
    write(&world, 0, "d", "no holes");
    let disk = &world.replicas[0].disk;
    let scan = || {
        let ask = ScanAsk { max_hole_bytes: Some(1_300_000), ..ScanAsk::default() };
        let report = disk.scan(&ask);
        let seen: Vec<String> = report.delta.changed.iter().map(|(path, _)| path.to_string()).collect();
        let left: Vec<String> = report.problems.iter().map(|(path, _)| path.to_string()).collect();
        (seen.join(" "), left.join(" "))
    };
    assert_eq!(scan(), ("a b d".into(), "c".into()));
    let_time_pass();
    // Those that are known count too, and one that changed counts once.
    sparse(&world, 0, "b", 600_000, &[(1, b"new")]);
    assert_eq!(scan(), ("a b d".into(), "c".into()));
    fs::remove_file(world.replicas[0].path("a")).unwrap();
    assert_eq!(scan(), ("b c d".into(), String::new()));
}

async fn sync_within(world: &World, budget: Budget) -> SyncReport {
    let (versions, workspace) = (world.versions(0), workspace(world, 0));
    Engine::new(&versions, &workspace).with_budget(budget).sync().await.unwrap()
}

/// A workspace cannot make one sync store more than its disk could hold. What is left comes with the next.
#[tokio::test]
async fn a_sync_stores_no_more_than_it_may() {
    let bytes =
        |seed: u8, size: usize| -> Vec<u8> { (0..size).map(|n| seed ^ (n % 251) as u8 ^ 1).collect() };
    for file_size in [300_000, 5_000_000usize] {
        let (world, memory) = open_world(1);
        for number in 0..4u8 {
            fs::write(world.replicas[0].path(&format!("f{number}")), bytes(number * 2, file_size)).unwrap();
        }
        // The same body under another name.
        fs::write(world.replicas[0].path("twin"), bytes(6, file_size)).unwrap();
        write(&world, 0, "small", "small");
        let most = 2 * file_size as u64 + 200_000;
        for budget in
            [Budget { stored: most, ..Budget::default() }, Budget { taken: most, ..Budget::default() }]
        {
            let before = size(&memory, ".packs/").await;
            let report = sync_within(&world, budget).await;
            let stored = size(&memory, ".packs/").await - before;
            // Of bodies that go into one object all are stored, or none.
            let least = if budget.stored == most && file_size < 4_000_000 { 0 } else { file_size as u64 };
            assert!((least..=most).contains(&stored), "{stored} of {most}");
            assert!(!report.problems.is_empty(), "{report:?}");
            assert!(report.problems.iter().all(|(_, why)| why.contains("sync again")), "{report:?}");
            fs::write(world.replicas[0].path("f0"), bytes(100, file_size)).unwrap();
            fs::write(world.replicas[0].path("f1"), bytes(102, file_size)).unwrap();
        }
        assert!(world.sync(0).await.unwrap().is_complete());
        assert_eq!(paths(&newest(&world).await), ["f0", "f1", "f2", "f3", "small", "twin"]);
        assert!(world.versions(0).verify(|_| {}).await.unwrap().damage.is_empty());
    }
}

/// However they came together: each sync adds a few, and all of them count.
#[tokio::test]
async fn k5_a_workspace_grows_to_its_bounds_and_no_further() {
    for budget in [Budget { files: 10, ..Budget::default() }, Budget { name_bytes: 30, ..Budget::default() }]
    {
        let (world, _) = open_world(1);
        let mut synced = 0;
        for number in 0..20 {
            write(&world, 0, &format!("f{number:02}"), "x");
            let (versions, workspace) = (world.versions(0), workspace(&world, 0));
            match Engine::new(&versions, &workspace).with_budget(budget).sync().await {
                Ok(_) => synced += 1,
                Err(error) => {
                    assert_eq!(error.kind(), seawall_api::ErrorKind::TooLarge, "{error}");
                    assert!(error.to_string().contains(".sandboxignore"), "{error}");
                }
            }
        }
        assert_eq!((synced, newest(&world).await.len()), (10, 10));
        // Whoever deletes some can go on.
        fs::remove_file(world.replicas[0].path("f00")).unwrap();
        for number in 10..20 {
            fs::remove_file(world.replicas[0].path(&format!("f{number}"))).unwrap();
        }
        write(&world, 0, "new", "x");
        assert!(sync_within(&world, budget).await.is_complete());
    }
}
