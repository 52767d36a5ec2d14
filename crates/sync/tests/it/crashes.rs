//! Whatever goes wrong, at whatever call: an operation is run again and again, and each time another of its calls
//! fails, loses its reply, or is the last that its process makes.
//!
//! Nothing may be lost by it, all workspaces become the newest version, and whoever asks again gets what was wanted.

use crate::world::{Replica, World};
use async_trait::async_trait;
use bytes::Bytes;
use seawall_api::files::FileName;
use seawall_sync::{
    Error, Result,
    bucket::{Bodies, Bucket, Object, SharedBucket},
    disk::LocalWorkspace,
    engine::{Engine, SyncReport},
    state::StateFile,
    sums::Sums,
    testing::{Fault, Faults, FaultyBucket, FaultyWorkspace},
    tree::{File, Mtime, Node},
    versions::What,
};
use std::{
    fs,
    ops::Range,
    sync::{Arc, Mutex},
};

struct Scenario {
    replicas: usize,
    /// What happens before: replicas by their numbers, and what is done on them. The nth body is `body n`.
    before: &'static str,
    /// The operation at whose calls something goes wrong.
    last: &'static str,
    /// What all workspaces have in the end: `file=body`, `link@target`, `directory/`.
    after: &'static str,
}

/// What they have in the end depends on what went wrong.
const ANYTHING: &str = "";

/// A fault at a call, and whether the guest dies with the process. Else it remembers what it saw.
type Mishap = (u64, Fault, bool);

fn mishaps(calls: u64) -> impl Iterator<Item = Mishap> {
    let all = (0..calls).flat_map(|call| Fault::ALL.map(|fault| (call, fault)));
    all.flat_map(|(call, fault)| {
        let guest_dies: &'static [bool] = if is_crash(fault) { &[false, true] } else { &[false] };
        guest_dies.iter().map(move |dies| (call, fault, *dies))
    })
}

fn is_crash(fault: Fault) -> bool {
    matches!(fault, Fault::CrashBefore | Fault::CrashAfter)
}

fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(work)
}

/// Every fault at every call of the last operation.
fn survives(replicas: usize, before: &'static str, last: &'static str, after: &'static str) {
    let scenario = &Scenario { replicas, before, last, after };
    in_runtime(async {
        let calls = calls_of(scenario).await;
        assert!(calls > 5, "there were only {calls} calls");
        let mut wrong = Vec::new();
        for mishap in mishaps(calls) {
            if let Err(why) = check(scenario, &[mishap]).await {
                wrong.push(format!("{mishap:?} of {calls} calls: {why}"));
            }
        }
        none(&wrong);
    });
}

#[track_caller]
fn none(wrong: &[String]) {
    let some = &wrong[..wrong.len().min(5)];
    assert!(wrong.is_empty(), "{} times it went wrong:\n{}", wrong.len(), some.join("\n"));
}

/// How many calls the last operation makes when nothing goes wrong.
async fn calls_of(scenario: &Scenario) -> u64 {
    let world = world_before(scenario).await;
    let faults: Arc<Faults> = Arc::default();
    let done = operate(&world, scenario.last, &faults).await;
    assert!(matches!(done, Some(Ok(()))), "it ended with {done:?}, and nothing went wrong");
    let calls = faults.calls();
    world.converges().await.unwrap();
    arrives(scenario, &world).await.unwrap();
    calls
}

/// What is after one mishap, or after several, one in each try.
async fn check(scenario: &Scenario, mishaps: &[Mishap]) -> Result<(), String> {
    let mut world = world_before(scenario).await;
    for mishap in mishaps {
        suffer(&mut world, scenario.last, *mishap).await?;
    }
    world.converges().await?;
    arrives(scenario, &world).await
}

async fn suffer(world: &mut World, last: &str, (call, fault, guest_dies): Mishap) -> Result<(), String> {
    let outcome = operate(world, last, &Faults::at(call, fault)).await;
    match &outcome {
        None if is_crash(fault) => {}
        Some(Ok(())) if !is_crash(fault) => {}
        // S10: whoever hears of it knows what to do.
        Some(Err(error)) if !is_crash(fault) && error.to_string().contains("trying again is safe") => {}
        other => return Err(format!("it ended with {other:?}")),
    }
    if guest_dies {
        world.replicas.iter_mut().for_each(Replica::restart);
    }
    world.nothing_is_lost().await
}

async fn world_before(scenario: &Scenario) -> World {
    let mut world = World::new(scenario.replicas);
    for step in scenario.before.split(", ") {
        let (replica, verb, what) = parse(step);
        match verb {
            "write" => drop(world.write(replica, what)),
            "hole" => {
                world.holes = true;
                world.write(replica, what);
                world.holes = false;
            }
            "link" => world.link(replica, what),
            "dir" => world.dir(replica, what),
            "delete" => world.delete(replica, what),
            "older" => store_older(&mut world, what).await,
            _ => operate(&world, step, &Arc::default()).await.unwrap().unwrap(),
        }
    }
    world
}

/// `1 write d/x`: the replica, what is done, and to what.
fn parse(step: &str) -> (usize, &str, &str) {
    let mut words = step.split(' ');
    let replica = words.next().unwrap().parse().unwrap();
    (replica, words.next().unwrap(), words.next().unwrap_or_default())
}

/// A version of the older layout with one file: its body lies beside the state file, and no record tells of them.
async fn store_older(world: &mut World, key: &str) {
    let (timestamp, path) = key.split_once('/').unwrap();
    let body = format!("older {timestamp}");
    let (size, sums) = (body.len() as u64, Sums::of(body.as_bytes()));
    let file = File { size, sums, mode: Some(0o644), mtime: Mtime { secs: 7, nanos: 0 }, place: None };
    let tree = [(FileName::from(path), Node::File(file))].into_iter().collect();
    let state = StateFile { last_synced_at: 7, tree, ..StateFile::default() };
    let manifest = format!("{timestamp}/.sandbox-state");
    world.bucket.put(&manifest, Bytes::from(state.to_json())).await.unwrap();
    world.bucket.put(key, Bytes::from(body.clone())).await.unwrap();
    world.written.insert(body);
}

/// One operation. None where its process died.
async fn operate(world: &World, step: &str, faults: &Arc<Faults>) -> Option<Result<()>> {
    let (replica, verb, what) = parse(step);
    match verb {
        "sync" => world.sync_with_faults(replica, faults).await.map(|done| done.map(drop)),
        "prune" => {
            let keep = what.parse().unwrap();
            world.prune_with_faults(replica, keep, faults).await.map(|done| done.map(drop))
        }
        "delete_all" => world.delete_all_with_faults(replica, faults).await.map(|done| done.map(drop)),
        "restore" => restore(world, replica, what.parse().unwrap(), faults).await,
        _ => panic!("{step:?} is no operation"),
    }
}

async fn restore(world: &World, replica: usize, version: i64, faults: &Arc<Faults>) -> Option<Result<()>> {
    let disk = world.replicas[replica].disk.clone();
    let lock = disk.try_lock().unwrap();
    assert!(lock.is_some(), "the lock of a dead process is free");
    let workspace = FaultyWorkspace::new(LocalWorkspace(disk), faults.clone());
    let bucket = Arc::new(FaultyBucket::new(world.bucket.clone(), faults.clone()));
    let versions = world.versions_on(bucket, replica);
    let engine = Engine::new(&versions, &workspace);
    tokio::select! {
        done = engine.restore(version) => Some(done.map(drop)),
        () = faults.crash() => None,
    }
}

/// Whoever asked asks again, and then all is as it was wanted.
async fn arrives(scenario: &Scenario, world: &World) -> Result<(), String> {
    let (replica, verb, what) = parse(scenario.last);
    if verb != "sync" {
        match operate(world, scenario.last, &Arc::default()).await {
            Some(Ok(())) => world.converges().await?,
            other => return Err(format!("asked again it ended with {other:?}")),
        }
    }
    if verb == "prune" {
        let left = world.prune(replica, what.parse().unwrap()).await.map_err(|error| error.to_string())?;
        if left.objects_deleted > 0 {
            return Err(format!("a prune left something for the next: {left:?}"));
        }
    }
    if scenario.after == ANYTHING {
        return Ok(());
    }
    let mut wanted: Vec<String> = scenario.after.split(", ").map(str::to_owned).collect();
    wanted.sort();
    match world.replicas.iter().map(look).find(|found| *found != wanted) {
        Some(found) => Err(format!("there is {found:?} instead of {wanted:?}")),
        None => Ok(()),
    }
}

/// What a user sees.
fn look(replica: &Replica) -> Vec<String> {
    let shown = |(path, node): (&FileName, &Node)| {
        let (path, name) = (replica.path(&path.lossy()), plain(&path.lossy()));
        match node {
            Node::Dir { .. } => format!("{name}/"),
            Node::Link { target, .. } => format!("{name}@{target}"),
            Node::File(_) => format!("{name}={}", fs::read_to_string(path).unwrap().replace('\0', "")),
        }
    };
    let mut found: Vec<String> = replica.tree().iter().map(shown).collect();
    found.sort();
    found
}

/// Without the eight digits in the name of a copy, which come from what it holds.
fn plain(path: &str) -> String {
    const MARK: &str = ".conflict-";
    match path.find(MARK) {
        Some(at) => format!("{}.conflict{}", &path[..at], &path[at + MARK.len() + 8..]),
        None => path.to_owned(),
    }
}

#[test]
fn s10_a_first_push_survives_every_fault() {
    let before = "0 write a, 0 write d/x, 0 write d/e/y, 0 link l, 0 dir empty";
    survives(1, before, "0 sync", "a=body 1, d/, d/e/, d/e/y=body 3, d/x=body 2, empty/, l@body 4");
}

#[test]
fn s10_a_push_of_changes_survives_every_fault() {
    let before = "0 write a, 0 write b, 0 write c, 0 sync, 0 write a, 0 delete b, 0 write d/n";
    survives(1, before, "0 sync", "a=body 4, c=body 3, d/, d/n=body 5");
}

#[test]
fn s10_a_pull_into_an_empty_workspace_survives_every_fault() {
    let before = "0 write a, 0 write d/e/y, 0 link l, 0 dir empty, 0 sync";
    survives(2, before, "1 sync", "a=body 1, d/, d/e/, d/e/y=body 2, empty/, l@body 3");
}

/// Changed on both sides; new on each; deleted here and changed there; changed here and deleted there. A copy that is
/// kept already is not kept once more.
#[test]
fn s4_a_merge_with_conflicts_survives_every_fault() {
    let before = "0 write both.txt, 0 write gone, 0 write kept, 0 sync, 1 sync, \
                 0 write both.txt, 1 write both.txt, 0 write new0, 1 write new1, \
                 0 write gone, 1 delete gone, 0 delete kept, 1 write kept, 0 sync";
    let after =
        "both.conflict.txt=body 5, both.txt=body 4, gone=body 8, kept=body 9, new0=body 6, new1=body 7";
    survives(2, before, "1 sync", after);
}

#[test]
fn s4_a_push_of_a_file_that_became_a_directory_and_back_survives_every_fault() {
    let before = "0 write p, 0 write q/x, 0 write r, 0 sync, 0 write p/y, 0 write q";
    survives(1, before, "0 sync", "p/, p/y=body 4, q=body 5, r=body 3");
}

#[test]
fn s4_a_pull_of_a_file_that_became_a_directory_and_back_survives_every_fault() {
    let before = "0 write p, 0 write q/x, 0 write r, 0 sync, 1 sync, 0 write p/y, 0 write q, 0 sync";
    survives(2, before, "1 sync", "p/, p/y=body 4, q=body 5, r=body 3");
}

#[test]
fn s4_a_repository_that_both_sides_changed_survives_every_fault() {
    let before = "0 write .git/HEAD, 0 write .git/index, 0 sync, 1 sync, \
                 0 write .git/HEAD, 1 write .git/HEAD, 1 write .git/index, 0 sync";
    survives(2, before, "1 sync", ANYTHING);
}

/// Half of a repository that the sync itself brought is nobody's work, so no copy of it is kept.
#[test]
fn s4_a_pull_of_a_repository_that_died_is_no_conflict() {
    let before = "0 write .git/HEAD, 0 write .git/index, 0 sync";
    survives(2, before, "1 sync", ".git/, .git/HEAD=body 1, .git/index=body 2");
}

/// The last file is in no version before.
#[test]
fn s6_a_restore_survives_every_fault() {
    let before = "0 write a, 0 write d/x, 0 sync, 0 write a, 0 delete d/x, 0 write b, 0 sync, 0 write c";
    survives(1, before, "0 restore 1", "a=body 1, d/, d/x=body 2");
}

#[test]
fn s6_a_prune_survives_every_fault() {
    let before = "0 write a, 0 sync, 0 write a, 0 sync, 0 write b, 0 sync";
    survives(1, before, "0 prune 1", "a=body 2, b=body 3");
}

/// The workspace keeps its files, and begins another history with them.
#[test]
fn s6_deleting_all_versions_survives_every_fault() {
    let before = "0 write a, 0 sync, 0 write a, 0 sync, 0 hole b, 0 sync, 1 sync";
    survives(2, before, "0 delete_all", "a=body 2, b=body 3");
}

#[test]
fn s10_a_push_of_files_with_holes_survives_every_fault() {
    let before = "0 hole a, 0 write b, 0 sync, 0 hole a, 0 hole c, 0 write b";
    survives(1, before, "0 sync", "a=body 3, b=body 5, c=body 4");
}

#[test]
fn s10_a_pull_of_files_with_holes_survives_every_fault() {
    let before = "0 hole a, 0 write b, 0 hole d/c, 0 sync";
    survives(2, before, "1 sync", "a=body 1, b=body 2, d/, d/c=body 3");
}

/// All three versions are to stay. One that cannot be read at the moment is none that may go.
#[test]
fn s14_a_prune_that_cannot_read_an_older_version_leaves_it() {
    let before = "0 older 1600000000000/a, 0 older 1600000000001/a, 0 sync, 0 write b, 0 sync";
    survives(1, before, "0 prune 9", "a=older 1600000000001, b=body 1");
}

#[test]
fn s10_a_push_that_fails_twice_loses_nothing() {
    let scenario = Scenario { replicas: 1, before: "0 write a", last: "0 sync", after: "a=body 1" };
    let guest_lives = |(_, _, guest_dies): &Mishap| !guest_dies;
    in_runtime(async {
        let (mut pairs, mut wrong) = (0, Vec::new());
        for first in mishaps(calls_of(&scenario).await).filter(guest_lives) {
            for second in mishaps(calls_after(&scenario, first).await).filter(guest_lives) {
                pairs += 1;
                if let Err(why) = check(&scenario, &[first, second]).await {
                    wrong.push(format!("{first:?}, then {second:?}: {why}"));
                }
            }
        }
        assert!(pairs > 500, "there were only {pairs} pairs");
        none(&wrong);
    });
}

/// How many calls the next try makes.
async fn calls_after(scenario: &Scenario, mishap: Mishap) -> u64 {
    let mut world = world_before(scenario).await;
    suffer(&mut world, scenario.last, mishap).await.unwrap();
    let faults: Arc<Faults> = Arc::default();
    operate(&world, scenario.last, &faults).await.unwrap().unwrap();
    faults.calls()
}

/// A store may serve a delete late, or twice when its reply was lost. So what was condemned once is never needed again,
/// whenever the push died beside which it was condemned.
#[test]
fn s4_a_late_delete_takes_nothing_that_a_version_needs() {
    // The clock of the second replica is ahead, so the first one's next version is a millisecond behind the newest.
    let scenario = Scenario {
        replicas: 2,
        before: "1 write a, 1 sync, 0 sync, 0 write b",
        last: "0 sync",
        after: ANYTHING,
    };
    in_runtime(async {
        let mut wrong = Vec::new();
        for call in 0..calls_of(&scenario).await {
            if let Err(why) = delete_late(&scenario, call).await {
                wrong.push(format!("the push died at call {call}: {why}"));
            }
        }
        none(&wrong);
    });
}

async fn delete_late(scenario: &Scenario, call: u64) -> Result<(), String> {
    let told = |error: Error| error.to_string();
    let mut world = world_before(scenario).await;
    suffer(&mut world, scenario.last, (call, Fault::CrashBefore, false)).await?;
    world.prune(1, 1).await.map_err(told)?;
    world.sync(0).await.map_err(told)?;
    for record in world.versions(1).records_after(0).await.map_err(told)? {
        let What::Condemned { objects, .. } = &record.what else { continue };
        for object in objects {
            world.bucket.delete(object).await.map_err(told)?;
        }
    }
    world.nothing_is_lost().await?;
    world.converges().await
}

mod modes;
mod rest;
