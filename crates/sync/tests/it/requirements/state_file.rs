//! S1 to S3: the state file, from an empty volume to one that somebody broke.

use crate::requirements::kit::{
    exists, newest, paths, read, remove, set_mtime, share, state, watched_world, write,
};
use crate::world::{NOW, World, folder};
use seawall_api::files::FileName;
use seawall_sync::{
    bucket::MemoryBucket,
    disk::{Disk, LocalWorkspace, ScanAsk},
    engine::{Direction, Engine, Options},
    path::STATE,
    state::{Limits, StateFile},
    sums::Sums,
    testing::{Fault, Faults, FaultyBucket, FaultyWorkspace},
    tree::{File, Mtime, Node, Tree},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, os::unix::fs::symlink, sync::Arc, thread};

#[test]
fn s1_a_new_volume_has_a_state_file_bucket_or_not() {
    let world = World::new(1);
    let replica = &world.replicas[0];
    replica.disk.ensure_state(1_704_067_200).unwrap();
    let text = read(&world, 0, STATE);
    assert_eq!(text, r#"{"version":"1.0","last_synced_at":1704067200,"files":[]}"#);
    // It is there already, so it stays.
    replica.disk.ensure_state(1_704_067_999).unwrap();
    assert_eq!(read(&world, 0, STATE), text);
    assert!(!exists(&world, 0, ".sandbox-state.tmp"));
}

#[tokio::test]
async fn s1_the_state_of_a_new_volume_deletes_nothing() {
    let world = World::new(2);
    write(&world, 1, "theirs", "theirs");
    world.sync(1).await.unwrap();
    world.replicas[0].disk.ensure_state(NOW / 1000).unwrap();
    write(&world, 0, "mine", "mine");
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.direction, report.state_problem), (Direction::Both, None));
    assert_eq!(paths(&newest(&world).await), ["mine", "theirs"]);
    assert_eq!(read(&world, 0, "mine"), "mine");
    assert_eq!(read(&world, 0, "theirs"), "theirs");
}

#[tokio::test]
async fn s1_it_lists_path_checksum_size_and_time_of_each_file() {
    let world = World::new(1);
    write(&world, 0, "src/main.py", "test");
    set_mtime(&world.replicas[0].path("src/main.py"), 1_704_067_100, 7);
    world.sync(0).await.unwrap();
    let json: Value = serde_json::from_str(&read(&world, 0, STATE)).unwrap();
    assert_eq!(json["version"], "1.0");
    assert_eq!(json["last_synced_at"], NOW / 1000);
    let file = &json["files"][0];
    assert_eq!(file["path"], "src/main.py");
    assert_eq!(file["checksum"], "098f6bcd4621d373cade4e832627b4f6");
    assert_eq!((&file["size"], &file["modified_at"]), (&json!(4), &json!(1_704_067_100)));
}

#[tokio::test]
async fn s2_what_the_sync_keeps_for_itself_is_never_listed() {
    let world = World::new(1);
    write(&world, 0, ".sandbox-state.tmp", "half of one");
    write(&world, 0, ".sandbox-state.next", "half of what was to come");
    write(&world, 0, ".sandbox-state.lock", "");
    write(&world, 0, ".sandbox-state.new/7", "half of a body");
    write(&world, 0, "sub/.sandbox-state", "a user's");
    write(&world, 0, "a", "a");
    let own = world.sync(0).await.unwrap();
    assert_eq!(own.stats.scanned, 2);
    let users = ["a", "sub", "sub/.sandbox-state"];
    assert_eq!(paths(&newest(&world).await), users);
    assert_eq!(paths(&state(&world, 0).tree), users);
    // And what a dead sync left is gone.
    for left in [".sandbox-state.tmp", ".sandbox-state.next", ".sandbox-state.new"] {
        assert!(!exists(&world, 0, left), "{left}");
    }
}

/// So many files that writing them takes more than one page.
fn many_files() -> Tree {
    let file = |number: u32| {
        let (sums, mtime) = (Sums::of(&number.to_le_bytes()), Mtime::default());
        let node = Node::File(File { size: 4, sums, mode: Some(0o644), mtime, place: None });
        (FileName::from(format!("file {number}")), node)
    };
    (0..200).map(file).collect()
}

#[test]
fn s2_a_reader_never_sees_half_of_it() {
    let world = World::new(1);
    let disk = world.replicas[0].disk.clone();
    disk.ensure_state(0).unwrap();
    let path = world.replicas[0].path(STATE);
    let reader = thread::spawn(move || {
        let mut seen = BTreeSet::new();
        while seen.len() < 50 {
            let json = fs::read(&path).unwrap();
            seen.insert(StateFile::parse(&json, &Limits::default()).unwrap().last_synced_at);
        }
    });
    let (tree, mut now) = (many_files(), 0);
    while !reader.is_finished() {
        now += 1;
        let tree = tree.clone();
        disk.write_state(StateFile { last_synced_at: now, commit: None, packed: false, tree }).unwrap();
    }
    reader.join().unwrap();
}

#[tokio::test]
async fn s2_a_link_at_the_temporary_name_leads_nowhere() {
    let (world, outside) = (World::new(1), folder());
    let victim = outside.path().join("victim");
    fs::write(&victim, "theirs").unwrap();
    symlink(&victim, world.replicas[0].path(".sandbox-state.tmp")).unwrap();
    write(&world, 0, "a", "a");
    world.sync(0).await.unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "theirs");
    assert!(fs::symlink_metadata(world.replicas[0].path(STATE)).unwrap().is_file());
}

#[tokio::test]
async fn s2_in_the_bucket_it_is_one_request() {
    let (world, watched) = watched_world(1);
    write(&world, 0, "a", "a");
    world.sync(0).await.unwrap();
    let calls = watched.calls();
    let manifests: Vec<&String> = calls.iter().filter(|call| call.ends_with(STATE)).collect();
    assert_eq!(manifests, [&format!("create {NOW}/{STATE}")]);
}

/// A workspace and its bucket have two files; then one of them is deleted in the workspace.
async fn one_of_two_deleted() -> World {
    let world = World::new(1);
    share(&world, &[("a", "a"), ("b", "b")]).await;
    remove(&world, 0, "b");
    world
}

#[tokio::test]
async fn s3_a_missing_state_file_means_empty() {
    let mut world = one_of_two_deleted().await;
    remove(&world, 0, STATE);
    // Nobody had it open.
    world.replicas[0].restart();
    let report = world.sync(0).await.unwrap();
    assert_eq!((report.direction, report.state_problem), (Direction::Pulled, None));
    assert_eq!(report.stats.files_deleted_remotely, 0);
    assert_eq!(read(&world, 0, "b"), "b");
    assert_eq!(paths(&state(&world, 0).tree), ["a", "b"]);
}

/// `git clean -fdx` does so, and an agent may run it in any turn.
#[tokio::test]
async fn s3_a_state_file_that_is_deleted_under_our_eyes_takes_no_work_back() {
    for restarts in [false, true] {
        let mut world = World::new(1);
        for path in ["changed", "kept", "gone", "dir/in it", ".git/HEAD", ".git/loose"] {
            write(&world, 0, path, "old");
        }
        world.sync(0).await.unwrap();
        if restarts {
            // The box was stopped and started.
            world.replicas[0].restart();
            world.replicas[0].disk.ensure_state(0).unwrap();
        }
        write(&world, 0, "changed", "new");
        write(&world, 0, "added", "new");
        write(&world, 0, ".git/HEAD", "new");
        for path in ["gone", "dir/in it", ".git/loose", STATE] {
            remove(&world, 0, path);
        }
        fs::remove_dir(world.replicas[0].path("dir")).unwrap();
        write(&world, 0, "dir", "a file now");
        let report = world.sync(0).await.unwrap();
        assert_eq!((report.direction, &report.notes[..]), (Direction::Both, &[][..]));
        assert!(report.state_problem.is_some_and(|told| told.contains("deleted")));
        for (path, body) in
            [("changed", "new"), ("added", "new"), (".git/HEAD", "new"), ("dir", "a file now")]
        {
            assert_eq!(read(&world, 0, path), body);
        }
        // Missing means empty, but for what cannot be there and for parts of repositories.
        assert_eq!(read(&world, 0, "gone"), "old");
        let all = [".git", ".git/HEAD", "added", "changed", "dir", "gone", "kept"];
        assert_eq!(paths(&newest(&world).await), all);
        assert_eq!(paths(&state(&world, 0).tree), all);
        let again = world.sync(0).await.unwrap();
        assert_eq!((again.direction, again.state_problem), (Direction::Nothing, None));
    }
}

/// What others did meanwhile is pulled, and what both did is told, as with any base.
#[tokio::test]
async fn s3_a_deleted_state_file_is_known_also_where_others_went_on() {
    let world = World::new(2);
    share(&world, &[("a", "old"), ("b", "old"), ("c", "old")]).await;
    write(&world, 1, "b", "theirs");
    write(&world, 1, "c", "theirs");
    world.sync(1).await.unwrap();
    write(&world, 0, "a", "mine");
    write(&world, 0, "c", "mine");
    remove(&world, 0, STATE);
    let report = world.sync(0).await.unwrap();
    assert_eq!(report.notes.len(), 1, "{report:?}");
    let now = ["a", "b", "c"].map(|path| read(&world, 0, path));
    assert_eq!(now, ["mine", "theirs", "theirs"]);
    assert!(world.replicas[0].bodies().contains("mine"));
}

/// What `git clean -fdx` deletes.
fn clean(world: &World, replica: usize) {
    for own in [STATE, ".sandbox-state.next", ".sandbox-state.fresh", ".sandbox-state.lock"] {
        let _ = fs::remove_file(world.replicas[replica].path(own));
    }
}

/// The held file is one commit behind what this very workspace pushed.
#[tokio::test]
async fn s3_what_was_held_before_a_commit_is_no_base_after_it() {
    // Wherever the sync dies.
    for at in 0..40 {
        let world = World::new(1);
        share(&world, &[("f", "zero"), ("z", "kept")]).await;
        write(&world, 0, "f", "one");
        remove(&world, 0, "z");
        world.sync_with_faults(0, &Faults::at(at, Fault::CrashAfter)).await;
        // As a checkout brings them back.
        write(&world, 0, "f", "zero");
        write(&world, 0, "z", "kept");
        clean(&world, 0);
        world.sync(0).await.unwrap();
        let bodies = world.replicas[0].bodies();
        assert!(bodies.contains("zero") && bodies.contains("kept"), "{at}: {bodies:?}");
    }
}

/// Two guests are at one volume: what one has open may be older than what the other wrote.
#[tokio::test]
async fn s3_in_a_shared_volume_nothing_is_held() {
    let world = World::new(1);
    share(&world, &[("a", "a")]).await;
    clean(&world, 0);
    let disk = &world.replicas[0].disk;
    let base = |shared| disk.scan(&ScanAsk { shared, ..ScanAsk::default() }).base;
    assert!(base(true).is_none() && base(false).is_none(), "what was let go does not come back");
}

/// A restore commits in the middle, and dies.
#[tokio::test]
async fn s3_what_was_held_before_a_restore_is_no_base_after_it() {
    for at in 0..40 {
        let world = World::new(1);
        share(&world, &[("f", "old")]).await;
        let old = world.versions(0).head().await.unwrap().version.unwrap().timestamp;
        write(&world, 0, "f", "new");
        write(&world, 0, "z", "kept");
        world.sync(0).await.unwrap();
        let faults = Faults::at(at, Fault::CrashAfter);
        let workspace = FaultyWorkspace::new(LocalWorkspace(world.replicas[0].disk.clone()), faults.clone());
        let versions =
            world.versions_on(Arc::new(FaultyBucket::new(world.bucket.clone(), faults.clone())), 0);
        let engine = Engine::new(&versions, &workspace);
        tokio::select! {
            done = engine.restore(old) => drop(done),
            () = faults.crash() => {}
        }
        write(&world, 0, "f", "new");
        write(&world, 0, "z", "kept");
        clean(&world, 0);
        world.sync(0).await.unwrap();
        let bodies = world.replicas[0].bodies();
        assert!(bodies.contains("new") && bodies.contains("kept"), "{at}: {bodies:?}");
    }
}

/// Also where nothing else is to be done.
#[tokio::test]
async fn s1_a_deleted_state_file_is_written_anew_by_every_sync() {
    let world = World::new(1);
    share(&world, &[("a", "a")]).await;
    clean(&world, 0);
    assert_eq!(world.sync(0).await.unwrap().direction, Direction::Nothing);
    assert_eq!(paths(&state(&world, 0).tree), ["a"]);
}

#[tokio::test]
async fn s3_looking_writes_nothing() {
    let world = World::new(1);
    share(&world, &[("a", "old")]).await;
    write(&world, 0, "a", "new");
    clean(&world, 0);
    for _ in 0..2 {
        let plan = crate::requirements::kit::dry_run(&world, 0).await.unwrap();
        assert!(plan.state_problem.is_some_and(|told| told.contains("deleted")));
        assert_eq!((plan.upload.len(), plan.notes.len()), (1, 0));
        assert!(!exists(&world, 0, STATE));
    }
    assert_eq!(world.sync(0).await.unwrap().direction, Direction::Pushed);
}

/// Another folder knows nothing of what was agreed on in the first.
#[tokio::test]
async fn s3_a_new_volume_deletes_and_replaces_nothing() {
    let mut world = World::new(2);
    share(&world, &[(".git/HEAD", "commits"), (".git/object", "commits"), ("a", "work")]).await;
    let new = folder();
    world.replicas[0].disk = Arc::new(Disk::open(new.path(), None).unwrap());
    world.replicas[0].folder = new;
    world.replicas[0].disk.ensure_state(0).unwrap();
    write(&world, 0, ".git/HEAD", "a clone");
    write(&world, 0, "a", "a seed");
    remove(&world, 0, STATE);
    world.sync(0).await.unwrap();
    assert_eq!(read(&world, 0, ".git/object"), "commits");
    assert_eq!(read(&world, 0, "a"), "work");
    assert!(world.replicas[0].bodies().is_superset(&["a clone", "a seed"].map(str::to_owned).into()));
}

/// It was not believed while it was there, so it is not when it is gone.
#[tokio::test]
async fn s3_what_was_not_believed_is_not_held() {
    let mut world = World::new(2);
    share(&world, &[("a", "whole")]).await;
    let mark = world.replicas[1].path(".sandbox-state.fresh");
    fs::write(&mark, "another boot\nx\n").unwrap();
    fs::write(world.replicas[1].path("a"), "").unwrap();
    world.replicas[1].restart();
    world.replicas[1].disk.ensure_state(0).unwrap();
    fs::remove_file(&mark).unwrap();
    remove(&world, 1, STATE);
    world.sync(1).await.unwrap();
    assert_eq!(read(&world, 1, "a"), "whole", "what was cut short is no user's change");
}

/// As with a state file: what cannot be read is not deleted.
#[tokio::test]
async fn s3_what_cannot_be_looked_at_was_not_deleted() {
    if rustix::process::geteuid().is_root() {
        return crate::requirements::kit::skip(
            "s3_what_cannot_be_looked_at_was_not_deleted",
            "capability: root may read everything",
        );
    }
    let world = World::new(1);
    share(&world, &[(".git/HEAD", "old"), (".git/pack", "commits"), ("a", "work")]).await;
    write(&world, 0, ".git/HEAD", "new");
    fs::set_permissions(
        world.replicas[0].path(".git/pack"),
        std::os::unix::fs::PermissionsExt::from_mode(0o000),
    )
    .unwrap();
    remove(&world, 0, STATE);
    world.sync(0).await.unwrap();
    assert_eq!(paths(&newest(&world).await), [".git", ".git/HEAD", ".git/pack", "a"]);
}

#[tokio::test]
async fn s3_what_cannot_be_read_is_told_and_written_anew() {
    for (broken, told) in [
        ("", "not a state file"),
        ("null", "not a state file"),
        (r#"{"version":"1.0","last_synced_at":1"#, "not a state file"),
        (r#"{"version":"1.0","last_synced_at":1,"files":[{"path":"../a"}]}"#, "not a state file"),
        (r#"{"version":"2.0","last_synced_at":1,"files":[]}"#, "\"2.0\""),
    ] {
        let world = one_of_two_deleted().await;
        fs::write(world.replicas[0].path(STATE), broken).unwrap();
        let report = world.sync(0).await.unwrap();
        let problem = report.state_problem.unwrap_or_default();
        assert!(problem.contains(told), "{broken}: {problem}");
        // A full sync: what it had said of `b` is not known, so nothing was deleted.
        assert_eq!(read(&world, 0, "b"), "b", "{broken}");
        assert_eq!(paths(&state(&world, 0).tree), ["a", "b"], "{broken}");
        let again = world.sync(0).await.unwrap();
        assert_eq!((again.direction, again.state_problem), (Direction::Nothing, None), "{broken}");
    }
}

#[tokio::test]
async fn s3_entries_that_somebody_else_wrote_are_not_believed() {
    let world = World::new(1);
    share(&world, &[("a", "a")]).await;
    write(&world, 0, "mine", "never pushed");
    let mut json: Value = serde_json::from_str(&read(&world, 0, STATE)).unwrap();
    let checksum = Sums::of(b"never pushed").md5.to_string();
    // Believed, it would say that the bucket had `mine`, and deleted it.
    let forged = json!({"path": "mine", "checksum": checksum, "size": 12, "modified_at": 1});
    json["files"].as_array_mut().unwrap().push(forged);
    fs::write(world.replicas[0].path(STATE), json.to_string()).unwrap();
    let report = world.sync(0).await.unwrap();
    assert!(report.state_problem.unwrap_or_default().contains("changed by somebody else"));
    assert_eq!(read(&world, 0, "mine"), "never pushed");
    assert_eq!(paths(&newest(&world).await), ["a", "mine"]);
}

#[tokio::test]
async fn s3_regenerating_deletes_nothing() {
    let world = one_of_two_deleted().await;
    let options = Options { regenerate: true, ..Options::default() };
    let report = world.sync_with(0, options).await.unwrap();
    assert!(report.state_problem.unwrap_or_default().contains("regenerated"));
    assert_eq!(read(&world, 0, "b"), "b");
    assert_eq!(report.stats.hashed, 1, "every file is read");
    assert_eq!(paths(&state(&world, 0).tree), ["a", "b"]);
}

#[tokio::test]
async fn s3_another_bucket_deletes_nothing() {
    let mut world = World::new(1);
    share(&world, &[("a", "a"), ("b", "b")]).await;
    world.bucket = Arc::new(MemoryBucket::default());
    let report = world.sync(0).await.unwrap();
    assert_eq!(report.direction, Direction::Pushed);
    assert!(report.state_problem.unwrap_or_default().contains("does not have the version"));
    assert_eq!(paths(&newest(&world).await), ["a", "b"]);
    assert_eq!(read(&world, 0, "a"), "a");
    assert_eq!(read(&world, 0, "b"), "b");
}

#[tokio::test]
async fn s3_another_bucket_with_versions_of_its_own_deletes_nothing() {
    let mut world = World::new(2);
    write(&world, 0, "a", "a");
    world.sync(0).await.unwrap();
    world.bucket = Arc::new(MemoryBucket::default());
    // So that there is a version with the number that the state file tells of.
    for body in ["one", "two"] {
        write(&world, 1, "theirs", body);
        world.sync(1).await.unwrap();
    }
    let report = world.sync(0).await.unwrap();
    assert_eq!(report.direction, Direction::Both);
    assert!(report.state_problem.unwrap_or_default().contains("does not have the version"));
    assert_eq!(paths(&newest(&world).await), ["a", "theirs"]);
    assert_eq!(read(&world, 0, "a"), "a");
}

#[tokio::test]
async fn s3_a_state_file_is_not_believed_after_the_machine_went_down() {
    let world = World::new(2);
    share(&world, &[("a", "whole"), ("b", "b")]).await;
    let mark = world.replicas[1].path(".sandbox-state.fresh");
    // The power went before the bodies were on the disk.
    fs::write(&mark, "another boot\nx\n").unwrap();
    fs::write(world.replicas[1].path("a"), "").unwrap();
    let replica = &world.replicas[1];
    let fresh = Disk::open(replica.folder.path(), None).unwrap();
    assert!(fresh.base().problem.as_deref().is_some_and(|why| why.contains("went down")));
    let mut world = world;
    world.replicas[1].restart();
    let report = world.sync(1).await.unwrap();
    assert!(report.state_problem.is_some(), "{report:?}");
    assert_eq!(read(&world, 1, "a"), "whole", "what was cut short is no user's change");
    // From then on it is believed again.
    assert_eq!(world.sync(1).await.unwrap().state_problem, None);
}
