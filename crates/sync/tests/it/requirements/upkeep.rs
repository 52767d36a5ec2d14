//! Pruning, verifying, and stores that are not what they should be.

use crate::requirements::kit::{
    Objects, Watched, damage, exists, keys, newest, object, open_world, paths, push, read, share, size, write,
};
use crate::world::World;
use bytes::Bytes;
use seawall_api::ErrorKind;
use seawall_sync::{
    bucket::{Bucket, MemoryBucket},
    engine::Direction,
    path::STATE,
    testing::MemoryTurnstile,
    versions::{Damage, Keep, Verified},
};
use std::sync::Arc;

const HOUR: i64 = 3_600_000;

/// Versions of one file, an hour apart.
async fn hourly(world: &World, count: usize) -> Vec<i64> {
    let mut times = Vec::new();
    for number in 0..count {
        world.replicas[0].clock.advance(HOUR);
        write(world, 0, "a", &format!("body {number}"));
        times.push(push(world, 0).await);
    }
    times
}

async fn log(world: &World) -> Vec<i64> {
    world.versions(0).log().await.unwrap().iter().map(|version| version.timestamp).collect()
}

/// All but the records, which are never deleted.
async fn stored(memory: &MemoryBucket) -> u64 {
    size(memory, "").await - size(memory, ".commits/").await
}

#[tokio::test]
async fn pruning_keeps_the_newest_versions() {
    let (world, memory) = open_world(2);
    let times = hourly(&world, 4).await;
    let before = stored(&memory).await;
    let pruned = world.prune(0, 2).await.unwrap();
    assert_eq!((pruned.kept, pruned.objects_deleted), (2, 4), "a pack and a manifest each");
    assert_eq!(pruned.dropped, times[..2]);
    assert_eq!(pruned.bytes_deleted, before - stored(&memory).await);
    assert_eq!(log(&world).await, times[2..]);
    assert_eq!(keys(&memory, ".packs/").len(), 2);
    let gone = world.versions(0).find(times[0]).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    // The newest is as it was, here and for who comes new.
    assert_eq!(world.sync(0).await.unwrap().direction, Direction::Nothing);
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "a"), "body 3");
    // A second time there is nothing to do, and nothing is written.
    let records = keys(&memory, ".commits/");
    assert!(world.prune(0, 2).await.unwrap().dropped.is_empty());
    assert_eq!(keys(&memory, ".commits/"), records);
}

#[tokio::test]
async fn pruning_keeps_what_is_young_and_the_newest_always() {
    let (world, _memory) = open_world(1);
    let times = hourly(&world, 4).await;
    let versions = world.versions(0);
    let keep = |newest, hours: i64| Keep { newest, younger_than: Some(hours * HOUR) };
    assert_eq!(versions.prune(keep(1, 2)).await.unwrap().dropped, times[..1]);
    // Whichever rule keeps more.
    assert!(versions.prune(keep(3, 1)).await.unwrap().dropped.is_empty());
    world.replicas[0].clock.advance(1000 * HOUR);
    assert_eq!(versions.prune(keep(0, 1)).await.unwrap().dropped, times[1..3]);
    assert_eq!(log(&world).await, times[3..]);
}

#[tokio::test]
async fn pruning_keeps_bodies_that_a_kept_version_shares() {
    let (world, memory) = open_world(2);
    write(&world, 0, "shared", "in every version");
    push(&world, 0).await;
    hourly(&world, 3).await;
    world.prune(0, 1).await.unwrap();
    assert_eq!(keys(&memory, ".packs/").len(), 2);
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "shared"), "in every version");
    assert_eq!(read(&world, 1, "a"), "body 2");
}

#[tokio::test]
async fn a_workspace_whose_version_was_pruned_goes_on() {
    let (world, _memory) = open_world(2);
    share(&world, &[("a", "start"), ("b", "b")]).await;
    hourly(&world, 3).await;
    world.prune(0, 1).await.unwrap();
    write(&world, 1, "mine", "mine");
    let report = world.sync(1).await.unwrap();
    assert_eq!((report.direction, report.state_problem), (Direction::Both, None));
    assert_eq!(paths(&newest(&world).await), ["a", "b", "mine"]);
    assert_eq!(read(&world, 1, "a"), "body 2");
}

async fn verify(world: &World) -> Verified {
    world.versions(0).verify(|_| {}).await.unwrap()
}

/// What is damaged, by path.
fn told(found: &Verified) -> Vec<(String, &[i64], &str)> {
    let shown = |damage: &Damage| damage.path.as_ref().map_or("-".to_owned(), ToString::to_string);
    let mut told: Vec<_> = found
        .damage
        .iter()
        .map(|damage| (shown(damage), &damage.versions[..], damage.why.as_str()))
        .collect();
    told.sort();
    told
}

/// Three files, each pushed alone; then each pack is damaged in another way.
async fn damaged(replicas: usize) -> (World, Arc<MemoryBucket>, Vec<i64>) {
    let (world, memory) = open_world(replicas);
    let mut times = Vec::new();
    for path in ["cut", "flipped", "gone"] {
        write(&world, 0, path, &format!("the body of {path}"));
        times.push(push(&world, 0).await);
    }
    let packs = keys(&memory, ".packs/");
    damage(&memory, &packs[0], |pack| pack.truncate(2)).await;
    damage(&memory, &packs[1], |pack| pack[3] ^= 0x10).await;
    memory.delete(&packs[2]).await.unwrap();
    (world, memory, times)
}

#[tokio::test]
async fn verifying_finds_what_is_right() {
    let (world, _memory) = open_world(1);
    hourly(&world, 3).await;
    let found = verify(&world).await;
    assert_eq!((found.versions, found.bodies, found.bytes), (3, 3, 3 * 6));
    assert_eq!((found.damage, found.quarantined), (vec![], 0));
}

#[tokio::test]
async fn verifying_finds_bodies_that_are_cut_flipped_or_gone() {
    let (world, memory, times) = damaged(1).await;
    let found = verify(&world).await;
    assert_eq!((found.versions, found.bodies, found.quarantined), (3, 3, 3));
    let expected = [
        ("cut".to_owned(), &times[..], "it has 2 bytes instead of 15"),
        ("flipped".to_owned(), &times[1..], "its bytes are not those that were stored"),
        ("gone".to_owned(), &times[2..], "it is gone"),
    ];
    assert_eq!(told(&found), expected);
    // It is still damaged the next time, and nothing has to be said twice.
    let records = keys(&memory, ".commits/").len();
    let again = verify(&world).await;
    assert_eq!((told(&again), again.quarantined), (told(&found), 0));
    assert_eq!(keys(&memory, ".commits/").len(), records);
}

#[tokio::test(start_paused = true)]
async fn verifying_finds_a_manifest_that_is_damaged() {
    let (world, memory) = open_world(1);
    let times = hourly(&world, 2).await;
    damage(&memory, &format!("{}/{STATE}", times[0]), |json| json.truncate(9)).await;
    let found = verify(&world).await;
    assert_eq!(told(&found).len(), 1, "{found:?}");
    assert_eq!((told(&found)[0].0.as_str(), told(&found)[0].1), ("-", &times[..1]));
    assert_eq!(found.bodies, 1, "the other version was looked at");
}

#[tokio::test]
async fn the_next_push_heals_what_the_workspace_still_has() {
    let (world, _memory, _times) = damaged(2).await;
    assert_eq!(verify(&world).await.quarantined, 3);
    write(&world, 0, "new", "new");
    let healed = push(&world, 0).await;
    let found = verify(&world).await;
    assert_eq!(found.quarantined, 0);
    assert!(found.damage.iter().all(|damage| !damage.versions.contains(&healed)), "{found:?}");
    world.sync(1).await.unwrap();
    for path in ["cut", "flipped", "gone"] {
        assert_eq!(read(&world, 1, path), format!("the body of {path}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_damaged_and_nowhere_else_holds_up_no_push() {
    let (world, memory) = open_world(2);
    share(&world, &[("a", "a")]).await;
    write(&world, 0, "lost", "only in the bucket");
    push(&world, 0).await;
    let packs = keys(&memory, ".packs/");
    damage(&memory, &packs[packs.len() - 1], |pack| pack[0] ^= 1).await;
    assert_eq!(verify(&world).await.quarantined, 1);
    // This workspace never had it.
    write(&world, 1, "mine", "mine");
    let _ = world.sync(1).await;
    assert!(exists(&world, 1, "mine"));
    assert!(paths(&newest(&world).await).contains(&"mine".to_owned()));
}

/// What a push of the second workspace would add to the bucket.
async fn push_elsewhere(world: &mut World, memory: &MemoryBucket) -> (i64, Objects) {
    let copy = Arc::new(MemoryBucket::default());
    for key in memory.keys() {
        copy.put(&key, Bytes::from(object(memory, &key).await)).await.unwrap();
    }
    world.bucket = copy.clone();
    let time = push(world, 1).await;
    let mut added = Objects::new();
    for key in copy.keys().into_iter().filter(|key| !memory.keys().contains(key)) {
        let body = Bytes::from(object(&copy, &key).await);
        added.push((key, body));
    }
    (time, added)
}

#[tokio::test]
async fn a_verify_that_comes_second_does_not_hide_who_came_first() {
    let (mut world, memory) = open_world(2);
    share(&world, &[("a", "a")]).await;
    damage(&memory, &keys(&memory, ".packs/")[0], |pack| pack[0] ^= 1).await;
    write(&world, 1, "new", "new");
    let (time, added) = push_elsewhere(&mut world, &memory).await;
    let watched = Watched::new(memory.clone());
    watched.meanwhile("create .commits/", added);
    world.bucket = watched;
    assert_eq!(verify(&world).await.quarantined, 1);
    world.bucket = memory;
    assert_eq!(world.versions(0).head().await.unwrap().version.unwrap().timestamp, time);
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "new"), "new");
}

#[tokio::test]
async fn a_prune_that_comes_second_looks_again() {
    let (mut world, memory) = open_world(2);
    share(&world, &[("a", "a")]).await;
    write(&world, 0, "a", "changed");
    push(&world, 0).await;
    world.sync(1).await.unwrap();
    write(&world, 1, "new", "new");
    let (time, added) = push_elsewhere(&mut world, &memory).await;
    let watched = Watched::new(memory.clone());
    watched.meanwhile("create .commits/", added);
    world.bucket = watched;
    let pruned = world.prune(0, 1).await.unwrap();
    assert_eq!((pruned.kept, pruned.dropped.len()), (1, 2));
    world.bucket = memory;
    assert_eq!(log(&world).await, [time]);
    world.sync(0).await.unwrap();
    assert_eq!((read(&world, 0, "a"), read(&world, 0, "new")), ("changed".to_owned(), "new".to_owned()));
}

#[tokio::test]
async fn a_store_that_overwrites_is_refused_with_the_reason() {
    let memory = Arc::new(MemoryBucket::careless());
    let mut world = World::on(memory.clone(), 1);
    write(&world, 0, "a", "a");
    let error = world.sync(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("memory:") && text.contains("If-None-Match"), "{text}");
    assert!(keys(&memory, ".commits/").is_empty() && keys(&memory, ".probe/").is_empty());
    // With a lease that decides it will do.
    world.turnstile = Some(Arc::new(MemoryTurnstile::default()));
    world.sync(0).await.unwrap();
    assert_eq!(keys(&memory, ".commits/").len(), 1);
    assert_eq!(paths(&newest(&world).await), ["a"]);
}

#[tokio::test]
async fn a_restore_that_meets_damage_decides_nothing() {
    let (world, memory) = open_world(1);
    write(&world, 0, "old", "precious");
    world.sync(0).await.unwrap();
    std::fs::remove_file(world.replicas[0].path("old")).unwrap();
    write(&world, 0, "new", "later");
    world.sync(0).await.unwrap();
    damage(&memory, &keys(&memory, ".packs/")[0], |pack| pack[0] ^= 1).await;
    let error = crate::requirements::kit::restore(&world, 0, 1).await.unwrap_err();
    assert!(error.to_string().contains("not what was stored"), "{error}");
    assert_eq!(keys(&memory, ".commits/").len(), 2, "no version was made of it");
    assert_eq!(read(&world, 0, "new"), "later");
    assert_eq!(world.sync(0).await.unwrap().damaged, []);
}

#[tokio::test(start_paused = true)]
async fn a_newest_manifest_that_is_gone_is_made_anew_from_the_workspace() {
    let (world, memory) = open_world(2);
    write(&world, 0, "a", "a");
    let version = world.sync(0).await.unwrap().version.unwrap();
    memory.delete(&format!("{}/{STATE}", version.timestamp)).await.unwrap();
    write(&world, 0, "b", "b");
    world.sync(0).await.unwrap();
    world.sync(1).await.unwrap();
    assert_eq!((read(&world, 1, "a"), read(&world, 1, "b")), ("a".to_owned(), "b".to_owned()));
    let verified = world.versions(0).verify(|_| {}).await.unwrap();
    assert_eq!(verified.damage.len(), 1, "the lost one is told: {:?}", verified.damage);
}

#[tokio::test]
async fn a_verify_tells_of_records_that_are_missing_or_none() {
    let (world, memory) = open_world(1);
    for body in ["1", "2", "3"] {
        write(&world, 0, "a", body);
        world.sync(0).await.unwrap();
    }
    memory.delete(".commits/00000000000000000002").await.unwrap();
    memory.put(".commits/00000000000000000001", Bytes::from_static(b"garbage")).await.unwrap();
    let verified = world.versions(0).verify(|_| {}).await.unwrap();
    let told: Vec<&str> = verified.damage.iter().map(|damage| damage.object.as_str()).collect();
    assert!(told.contains(&".commits/00000000000000000001"), "{told:?}");
    assert!(told.contains(&".commits/00000000000000000002"), "{told:?}");
}
