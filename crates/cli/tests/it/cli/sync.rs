//! Workspaces kept in a bucket of files: what a user does with `sync`, `versions`, `restore`, `prune` and `verify`.

use crate::world::{World, stderr, stdout};
use std::path::PathBuf;

impl World {
    fn sh(&self, id: &str, script: &str) -> String {
        self.ok(["exec", id, "--", "sh", "-c", script])
    }

    fn sync(&self, id: &str) -> serde_json::Value {
        self.json(["--json", "sync", id])["sync"].clone()
    }

    fn versions(&self, id: &str) -> Vec<serde_json::Value> {
        self.json(["--json", "versions", id])["items"].as_array().unwrap().clone()
    }

    /// The objects of a sandbox's workspace in the default bucket.
    fn objects(&self, id: &str, folder: &str) -> Vec<PathBuf> {
        let folder = self.data().join("bucket/docs/local").join(id).join(folder);
        // A folder goes with its last object.
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    }
}

#[test]
fn s6_files_outlive_their_sandbox() {
    let world = World::new();
    let id = world.create();
    world.sh(
        &id,
        "mkdir -p src/deep empty && echo one > src/deep/a && ln -s /usr/bin/python3 py && chmod 700 src",
    );
    world.sh(
        &id,
        "printf odd > \"$(printf 'x\\377y')\" && touch -d @1000000001.5 src/deep/a && chmod 4750 src/deep/a",
    );
    let pushed = world.sync(&id);
    assert_eq!(pushed["direction"], "pushed");
    assert_eq!(pushed["files_uploaded"], 3);
    let timestamp = pushed["version"]["timestamp"].as_i64().unwrap();
    assert_eq!(timestamp.to_string().len(), 13);
    assert!(world.data().join(format!("bucket/docs/local/{id}/{timestamp}/.sandbox-state")).is_file());
    world.ok(["rm", "-f", "--volumes", &id]);

    let new = world.create();
    world.ok(["restore", &new, "--from", &id]);
    let found = world.sh(
        &new,
        "cat src/deep/a; readlink py; stat -c '%a %Y %U' src/deep/a src; ls -d empty; cat x*y; find src -newermt @1000000001.4 ! -newermt @1000000001.6 -name a; whoami",
    );
    let user = found.lines().last().unwrap();
    let expected = format!(
        "one\n/usr/bin/python3\n4750 1000000001 {user}\n700 {} {user}\nempty\noddsrc/deep/a\n{user}\n",
        found.lines().nth(3).unwrap().split(' ').nth(1).unwrap()
    );
    assert_eq!(found, expected);
}

#[test]
fn s7_a_sync_decides_by_itself() {
    let world = World::new();
    let id = world.create();
    world.sh(&id, "echo one > a");
    assert_eq!(world.sync(&id)["direction"], "pushed");
    assert_eq!(world.sync(&id)["direction"], "nothing");
    world.sh(&id, "echo two > a; echo new > b");
    let plan = world.ok(["sync", "--dry-run", &id]);
    assert!(plan.contains("upload    a\n") && plan.contains("upload    b\n"), "{plan}");
    assert_eq!(world.sync(&id)["files_uploaded"], 2);
    let versions = world.versions(&id);
    assert_eq!(versions.len(), 2);
    let first = versions[0]["version"].to_string();
    assert_eq!(world.ok(["diff", &id, &first]), "~ a\n+ b\n");
    // Back to the first one; the second stays in the history.
    world.ok(["restore", &id, "--version", &first]);
    assert_eq!(world.sh(&id, "cat a; ls"), "one\na\n");
    assert_eq!(world.versions(&id).len(), 3);
    // One file of the second.
    world.ok(["restore", &id, "--version", "2", "b"]);
    assert_eq!(world.sh(&id, "cat a b"), "one\nnew\n");
}

#[test]
fn s2_files_of_the_sync_are_neither_listed_nor_synced() {
    let world = World::new();
    let id = world.create();
    // S1: there from the beginning.
    let state = world.sh(&id, "cat .sandbox-state");
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert_eq!((&state["version"], &state["files"]), (&"1.0".into(), &serde_json::json!([])));
    world.sh(&id, "echo a > a");
    world.sync(&id);
    let state: serde_json::Value = serde_json::from_str(&world.sh(&id, "cat .sandbox-state")).unwrap();
    let files = state["files"].as_array().unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!(
        (&files[0]["path"], &files[0]["checksum"]),
        (&"a".into(), &"60b725f10c9c85c70d97880dfe8191b3".into())
    );
    assert!(state["last_synced_at"].as_i64().unwrap() > 1_700_000_000);
    let out = world.data().join("out");
    world.ok(["cp", &format!("{id}:/work/."), out.to_str().unwrap()]);
    let copied: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(copied, ["a"]);
}

#[test]
fn s3_a_broken_state_file_is_written_anew() {
    let world = World::new();
    let id = world.create();
    world.sh(&id, "echo a > a; echo b > b");
    world.sync(&id);
    for broken in [
        "echo nonsense > .sandbox-state",
        "echo '{\"version\":\"2.0\"}' > .sandbox-state",
        "rm .sandbox-state",
    ] {
        world.sh(&id, broken);
        let synced = world.seawall(["sync", &id]);
        assert!(synced.status.success(), "{}", stderr(&synced));
        assert_eq!(world.sh(&id, "cat a b; ls"), "a\nb\na\nb\n", "{broken}");
        assert_eq!(world.sync(&id)["direction"], "nothing");
    }
    let again = world.seawall(["sync", "--regenerate", &id]);
    assert!(stdout(&again).contains("2 files"), "{}", stdout(&again));
}

#[test]
fn rules_leave_out_what_they_name_and_say_so() {
    let world = World::new();
    let id = world.create();
    world.sh(&id, "mkdir -p build sub && touch build/x sub/a.o keep sub/b.o; mkfifo pipe; printf 'build/\\n*.o\\n!b.o\\n' > .sandboxignore");
    let plan = world.json(["--json", "sync", "--dry-run", &id]);
    assert_eq!(plan["plan"]["ignored"], serde_json::json!(["build", "sub/a.o"]));
    assert_eq!(plan["plan"]["special"], 1);
    let synced = world.sync(&id);
    assert_eq!(
        (&synced["ignored"], &synced["special"], &synced["files_uploaded"]),
        (&2.into(), &1.into(), &3.into())
    );
}

#[test]
fn s9_one_sync_at_a_time() {
    let world = World::new();
    let id = world.create();
    world.sh(&id, "for i in $(seq 200); do echo $i > f$i; done");
    let all: Vec<_> = (0..4)
        .map(|_| {
            let mut command = world.command();
            command
                .args(["sync", &id])
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for child in all {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(world.versions(&id).len(), 1, "the others had nothing to do");
}

#[test]
fn verify_finds_damage_and_the_next_sync_heals_it() {
    let world = World::new();
    let id = world.create();
    world.sh(&id, "echo precious > a; echo other > b");
    world.sync(&id);
    assert!(world.ok(["verify", &id]).starts_with("all is whole: 1 versions, 2 bodies"));
    let pack = world.objects(&id, ".packs").remove(0);
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let found = world.seawall(["verify", &id]);
    assert_eq!(found.status.code(), Some(1));
    assert!(stdout(&found).contains("a: its bytes are not those that were stored"), "{}", stdout(&found));
    // The workspace still has it.
    world.sh(&id, "echo more > c");
    world.sync(&id);
    world.ok(["rm", "-f", "--volumes", &id]);
    let new = world.create();
    world.ok(["restore", &new, "--from", &id]);
    assert_eq!(world.sh(&new, "cat a b c"), "precious\nother\nmore\n");
}

#[test]
fn prune_keeps_what_is_needed() {
    let world = World::new();
    let id = world.create();
    for number in 0..5 {
        world.sh(&id, &format!("echo {number} > changing; echo {number} > f{number}"));
        world.sync(&id);
    }
    assert!(world.seawall(["prune", &id]).status.code() == Some(2), "what stays must be said");
    let told = world.ok(["prune", &id, "--keep", "2"]);
    assert!(told.starts_with("2 versions stay, 3 went"), "{told}");
    assert_eq!(world.versions(&id).len(), 2);
    assert!(world.ok(["verify", &id]).starts_with("all is whole: 2 versions"));
    let new = world.create();
    world.ok(["restore", &new, "--from", &id, "--version", "4"]);
    assert_eq!(world.sh(&new, "cat changing f0 f3; ls"), "3\n0\n3\nchanging\nf0\nf1\nf2\nf3\n");
}

#[test]
fn s6_versions_are_deleted_one_by_one_and_with_their_sandbox() {
    let world = World::new();
    let id = world.create();
    for number in 0..4 {
        world.sh(&id, &format!("echo {number} > changing"));
        world.sync(&id);
    }
    let told = world.ok(["versions", "rm", &id, "1", "2"]);
    assert!(told.starts_with("2 versions stay, 2 went; 4 objects deleted"), "{told}");
    assert_eq!(world.versions(&id).len(), 2);
    let newest = world.seawall(["versions", "rm", &id, "4"]);
    assert_eq!(newest.status.code(), Some(1));
    assert!(stderr(&newest).contains("the newest version stays"), "{}", stderr(&newest));
    assert_eq!(world.seawall(["versions", "rm", &id]).status.code(), Some(2), "which ones must be said");
    assert_eq!(world.sh(&id, "cat changing"), "3\n");
    world.ok(["rm", "-f", "--volumes", "--versions", &id]);
    assert!(world.versions(&id).is_empty());
    assert_eq!(world.objects(&id, ".commits").len(), 1);
    assert!(world.objects(&id, ".packs").is_empty());
    // Of one that was removed before, by its whole id.
    let other = world.create();
    world.sh(&other, "echo kept > a");
    world.sync(&other);
    world.ok(["rm", "-f", "--volumes", &other]);
    assert_eq!(world.versions(&other).len(), 1);
    world.ok(["rm", "--versions", &other]);
    assert!(world.versions(&other).is_empty());
}

#[test]
fn h8_a_sandbox_with_unsaved_work_is_not_stopped_without_force() {
    let world = World::new();
    let id = world.create();
    world.sh(&id, "echo work > a");
    // A bucket that cannot be: the way to it is a file.
    let bucket = world.data().join("bucket");
    let _ = std::fs::remove_dir_all(&bucket);
    std::fs::write(&bucket, "").unwrap();
    let failed = world.seawall(["sync", &id]);
    assert!(!failed.status.success());
    let refused = world.seawall(["stop", &id]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("not in its bucket"),
        "{}",
        stderr(&refused)
    );
    std::fs::remove_file(world.data().join("bucket")).unwrap();
    world.sync(&id);
    world.ok(["stop", &id]);
    world.ok(["start", &id]);
    std::fs::rename(world.data().join("bucket"), world.data().join("elsewhere")).unwrap();
    std::fs::write(world.data().join("bucket"), "").unwrap();
    assert!(!world.seawall(["sync", &id]).status.success());
    world.ok(["stop", "--force", &id]);
}

#[test]
fn s10_an_error_says_what_to_do() {
    let world = World::new();
    let id = world.create();
    world.sh(&id, "echo a > a");
    let sync = |bucket: &str| {
        let command = |args: &[&str]| {
            let mut command = world.command();
            for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"] {
                command.env_remove(name);
            }
            command
                .env("AWS_EC2_METADATA_DISABLED", "true")
                .env("HOME", world.data())
                .env("SEAWALL_SYNC_BUCKET", bucket)
                .args(args);
            command.output().unwrap()
        };
        // A server keeps the bucket that it was started with.
        assert!(command(&["server", "restart"]).status.success());
        let output = command(&["sync", &id]);
        assert!(!output.status.success(), "{bucket}");
        stderr(&output)
    };
    let told = sync("s3://no-such-bucket");
    assert!(told.contains("AWS_ACCESS_KEY_ID"), "{told}");
    let told = sync("ftp://somewhere");
    assert!(told.contains("ftp") && told.contains("s3://"), "{told}");
    world.ok(["server", "restart"]);
    let told = stderr(&world.seawall(["restore", &id, "--version", "99"]));
    assert!(told.contains("seawall versions"), "{told}");
}
