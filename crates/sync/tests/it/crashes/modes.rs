//! Directories that their owner cannot write to keep their modes, whatever goes wrong while they are filled.

use super::*;
use seawall_sync::disk::Disk;
use std::os::unix::fs::PermissionsExt;

/// Read-only, without search permission, without any permission for others.
const MODES: [u32; 3] = [0o555, 0o644, 0o500];
const SCENARIO: Scenario =
    Scenario { replicas: 2, before: "0 write d/x, 0 write d/e/y", last: "1 sync", after: ANYTHING };

/// The permission bits of a path in octal; empty where it is missing.
fn mode(replica: &Replica, path: &str) -> String {
    let found = fs::metadata(replica.path(path));
    found.map(|found| format!("{:o}", found.permissions().mode() & 0o7777)).unwrap_or_default()
}

/// The first replica has pushed `d` and `d/e` with this mode. The second has a `d` of its own, or nothing.
async fn restricted(wanted: u32, has_own: bool) -> World {
    let mut world = world_before(&SCENARIO).await;
    world.chmod(0, "d/e", wanted);
    world.chmod(0, "d", wanted);
    world.sync(0).await.unwrap();
    if has_own {
        world.write(1, "d/own");
    }
    world
}

async fn calls(wanted: u32, has_own: bool) -> u64 {
    let world = restricted(wanted, has_own).await;
    let faults: Arc<Faults> = Arc::default();
    world.sync_with_faults(1, &faults).await.unwrap().unwrap();
    faults.calls()
}

fn is_everywhere(world: &World, wanted: u32) -> Result<(), String> {
    for (number, replica) in world.replicas.iter().enumerate() {
        for path in ["d", "d/e"] {
            let (found, wanted) = (mode(replica, path), format!("{wanted:o}"));
            if found != wanted {
                return Err(format!("{path} of replica {number} has {found} instead of {wanted}"));
            }
        }
    }
    Ok(())
}

#[test]
fn s8_restricted_directories_keep_their_modes_under_every_fault() {
    in_runtime(async {
        let mut wrong = Vec::new();
        for (wanted, has_own) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            let calls = calls(wanted, has_own).await;
            assert!(calls > 5, "there were only {calls} calls");
            for mishap in mishaps(calls) {
                let mut world = restricted(wanted, has_own).await;
                let done = suffer(&mut world, SCENARIO.last, mishap).await;
                let done = done.and(world.converges().await).and_then(|()| is_everywhere(&world, wanted));
                if let Err(why) = done {
                    wrong.push(format!("{wanted:o}, own: {has_own}, {mishap:?}: {why}"));
                }
            }
        }
        none(&wrong);
    });
}

/// The case that the histories found: the second replica's own directory, and two syncs that fail.
#[test]
fn s8_two_faults_in_a_row_leave_modes_as_they_are() {
    in_runtime(async {
        let mut wrong = Vec::new();
        let faults = |calls: std::ops::Range<u64>| calls.flat_map(|at| Fault::ALL.map(|fault| (at, fault)));
        for (first, second) in faults(4..14).flat_map(|one| faults(8..24).map(move |two| (one, two))) {
            let mut world = World::new(3);
            world.write(1, "d/e/y");
            world.link(2, "d/x");
            world.chmod(1, "d", 0o644);
            drop(world.sync_with_faults(1, &Faults::at(first.0, first.1)).await);
            drop(world.sync_with_faults(2, &Faults::at(second.0, second.1)).await);
            let done = world.converges().await;
            let modes: Vec<_> = world.replicas.iter().map(|replica| mode(replica, "d")).collect();
            if done.is_err() || modes.iter().any(|mode| *mode != modes[0]) {
                wrong.push(format!("{first:?}, then {second:?}: {done:?}, {modes:?}"));
            }
            // A mode with more than both users gave the directory comes from the sync.
            if modes.iter().any(|mode| !matches!(mode.as_str(), "644" | "755")) {
                wrong.push(format!("{first:?}, then {second:?}: {modes:?}"));
            }
        }
        none(&wrong);
    });
}

/// Once the sync has failed, the directory has its mode, without another sync.
#[test]
fn s8_a_failed_sync_ends_temporary_modes_itself() {
    in_runtime(async {
        for call in 0..calls(0o555, false).await {
            let world = restricted(0o555, false).await;
            drop(world.sync_with_faults(1, &Faults::at(call, Fault::Fails)).await.unwrap());
            assert!(["", "555"].contains(&&*mode(&world.replicas[1], "d")), "at call {call}");
            assert!(!world.replicas[1].path(".sandbox-state.modes").exists(), "at call {call}");
        }
    });
}

/// A guest that starts again ends them before a user can see them.
#[test]
fn s8_a_guest_that_starts_again_ends_temporary_modes() {
    in_runtime(async {
        let mut temporary = 0;
        for call in 0..calls(0o555, false).await {
            let world = restricted(0o555, false).await;
            drop(world.sync_with_faults(1, &Faults::at(call, Fault::CrashAfter)).await);
            temporary += u32::from(mode(&world.replicas[1], "d") == "755");
            let disk = Arc::new(Disk::open(world.replicas[1].folder.path(), None).unwrap());
            disk.ensure_state(0).unwrap();
            assert!(["", "555"].contains(&&*mode(&world.replicas[1], "d")), "at call {call}");
        }
        assert!(temporary > 0, "no guest died while the directory was open");
    });
}

/// What a user set since is no temporary mode.
#[test]
fn s8_a_mode_that_the_user_sets_after_a_death_stays() {
    in_runtime(async {
        for call in 0..calls(0o555, false).await {
            let mut world = restricted(0o555, false).await;
            drop(world.sync_with_faults(1, &Faults::at(call, Fault::CrashAfter)).await);
            if mode(&world.replicas[1], "d").is_empty() {
                continue;
            }
            world.chmod(1, "d", 0o750);
            world.replicas[1].restart();
            world.replicas[1].disk.ensure_state(0).unwrap();
            assert_eq!(mode(&world.replicas[1], "d"), "750", "at call {call}");
            world.converges().await.unwrap();
        }
    });
}

/// The file of records is on a disk that the user can write: only what this process wrote counts.
#[test]
fn s11_records_that_the_user_wrote_are_ignored() {
    if !rustix::process::geteuid().is_root() {
        println!(
            "skipped: s11_records_that_the_user_wrote_are_ignored: it needs root to act as another user"
        );
        return;
    }
    let world = World::new(1);
    let replica = &world.replicas[0];
    fs::create_dir(replica.path("d")).unwrap();
    let records = replica.path(".sandbox-state.modes");
    fs::write(&records, "{\"path\":\"d\",\"temporary\":493,\"wanted\":511}\n").unwrap();
    std::os::unix::fs::chown(&records, Some(12_345), None).unwrap();
    drop(replica.disk.try_lock().unwrap());
    assert_eq!(mode(replica, "d"), "755");
}

/// A sync puts a file into a directory that was read-only before, and leaves it so. As an ordinary user this needs a
/// temporary mode, so the test is the one that matters where it does not run as root.
#[test]
fn s8_a_file_reaches_a_read_only_directory() {
    in_runtime(async {
        let mut world = restricted(0o555, false).await;
        world.sync(1).await.unwrap();
        world.chmod(0, "d", 0o755);
        world.write(0, "d/new");
        world.chmod(0, "d", 0o555);
        world.sync(0).await.unwrap();
        world.sync(1).await.unwrap();
        assert!(world.replicas[1].path("d/new").exists());
        is_everywhere(&world, 0o555).unwrap();
    });
}
