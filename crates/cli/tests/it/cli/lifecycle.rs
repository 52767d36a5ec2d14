//! Sandboxes that stay: made by one process, used by others, removed when asked.

use crate::world::{World, stderr, stdout};
use serde_json::Value;

#[test]
fn a_second_process_uses_it() {
    let world = World::new();
    let id = world.ok(["create", "--name", "demo", "-e", "MODE=test", "--label", "team=a"]);
    let id = id.trim();
    assert_eq!(id.len(), 36);
    assert_eq!(world.ok(["exec", "demo", "--", "sh", "-c", "echo $MODE"]), "test\n");
    assert_eq!(world.ok(["exec", id, "echo", "-n", "--json"]), "--json");
    world.ok(["exec", id, "--", "sh", "-c", "echo kept > file"]);
    assert_eq!(world.ok(["exec", &id[..20], "--", "cat", "file"]), "kept\n");
    let failed = world.seawall(["exec", id, "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(7));
}

#[test]
fn stop_and_start_keep_the_files() {
    let world = World::new();
    let id = world.create();
    world.ok(["exec", &id, "--", "sh", "-c", "echo kept > file"]);
    world.ok(["stop", "--grace", "1s", &id]);
    world.ok(["start", &id]);
    assert_eq!(world.ok(["exec", &id, "--", "cat", "file"]), "kept\n");
    // A use starts it too.
    world.ok(["stop", "--grace", "1s", &id]);
    assert_eq!(world.ok(["exec", &id, "--", "cat", "file"]), "kept\n");
}

#[test]
fn created_without_a_start_does_not_run() {
    let world = World::new();
    let id = world.ok(["create", "--no-start"]);
    assert_eq!(world.json(["ls", "--json"])["items"][0]["state"], "created");
    world.ok(["start", id.trim()]);
    assert_eq!(world.json(["ls", "--json"])["items"][0]["state"], "running");
}

#[test]
fn a_running_one_is_not_removed_by_mistake() {
    let world = World::new();
    let id = world.create();
    let refused = world.seawall(["rm", &id]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("running") && stderr(&refused).contains("-f"), "{}", stderr(&refused));
    world.ok(["rm", "-f", "--volumes", &id]);
    assert!(world.is_empty());
}

#[test]
fn removing_several_tells_of_each() {
    let world = World::new();
    let (first, second) = (world.create(), world.create());
    let output = world.seawall(["rm", "-f", "--volumes", &first, "nobody", &second]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), format!("{first}\n{second}\n"));
    assert!(stderr(&output).contains("nobody"));
    assert!(world.is_empty());
}

#[test]
fn an_unknown_id_says_what_to_do() {
    let world = World::new();
    for args in [&["exec", "nobody", "--", "true"][..], &["rm", "nobody"], &["inspect", "nobody"]] {
        let output = world.seawall(args);
        assert!(!output.status.success());
        let message = stderr(&output);
        assert!(message.contains("nobody") && message.contains("seawall ls"), "{message}");
    }
}

#[test]
fn a_name_is_taken_once() {
    let world = World::new();
    world.ok(["create", "--name", "demo"]);
    let refused = world.seawall(["create", "--name", "demo"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("demo"), "{}", stderr(&refused));
    assert_eq!(world.ok(["ls", "-q"]).lines().count(), 1);
}

#[test]
fn what_cannot_be_enforced_is_refused() {
    let world = World::new();
    let refused = world.seawall(["--json", "create", "--provider", "local", "--memory-mb", "64"]);
    assert_eq!(refused.status.code(), Some(1));
    let error = stderr(&refused);
    let line = error.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let error: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&error["code"], &error["status"]), (&"invalid_config".into(), &422.into()), "{error}");
    assert!(world.is_empty());
}

#[test]
fn json_is_json() {
    let world = World::new();
    let created = world.json(["create", "--json", "--name", "demo"]);
    let id = created["id"].as_str().unwrap();
    assert_eq!(created["state"], "running");
    let listed = world.json(["ls", "--json"])["items"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["id"], id);
    let shown = world.json(["inspect", id]);
    assert_eq!((&shown["id"], shown["metadata"].is_object()), (&serde_json::json!(id), true), "{shown}");
    let started = world.json(["exec", "-d", "--json", id, "--", "true"]);
    let processes = world.json(["logs", "--processes", "--json", id]);
    let ids: Vec<&Value> = processes.as_array().unwrap().iter().map(|each| &each["process"]).collect();
    assert!(ids.contains(&&started["process"]));
    let stopped = world.json(["stop", "--json", id]);
    assert_eq!(stopped["state"], "stopped");
    world.json(["rm", "--json", "--volumes", id]);
}

#[test]
fn tables_are_for_people() {
    let world = World::new();
    let id = world.ok(["create", "--name", "demo"]);
    let table = world.ok(["ls"]);
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["ID", "NAME", "PROVIDER", "STATE", "AGE"]);
    let row: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(row[..4], [id.trim(), "demo", "native", "running"]);
}

#[test]
fn an_unknown_key_is_refused_with_a_suggestion() {
    let world = World::new();
    std::fs::write(world.data().join("seawall.toml"), "provdier = \"local\"\n").unwrap();
    let refused = world.seawall(["ls"]);
    assert_eq!(refused.status.code(), Some(1));
    let message = stderr(&refused);
    assert!(message.contains("provdier") && message.contains("did you mean `provider`"), "{message}");
    std::fs::remove_file(world.data().join("seawall.toml")).unwrap();
    let missing = world.seawall(["--config", "nowhere.toml", "ls"]);
    assert!(stderr(&missing).contains("nowhere.toml"));
}

#[test]
fn the_doctor_is_content_here() {
    let world = World::new();
    let text = world.ok(["doctor"]);
    assert!(text.contains("✓ data folder") && text.contains("✓ guest"), "{text}");
    assert_eq!(world.json(["doctor", "--json"])["ok"], true);
}

#[test]
fn completions_are_printed() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(world.ok(["completions", shell]).contains("seawall"), "{shell}");
    }
}

#[test]
fn what_is_damaged_is_removed_by_force() {
    let world = World::new();
    let id = world.create();
    let folder = |id: &str| world.data().join(format!("native/boxes/{id}"));
    let process = |id: &str| {
        let run = std::fs::read_to_string(folder(id).join("run")).unwrap();
        std::path::PathBuf::from(format!("/proc/{}", run.split_whitespace().next().unwrap()))
    };
    let guest = process(&id);
    // Whoever reaps it may take its time.
    let lives = |guest: &std::path::Path| {
        std::fs::read_to_string(guest.join("stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(lives(&guest));
    std::fs::write(folder(&id).join("box.json"), "xx").unwrap();
    let refused = world.seawall(["rm", &id]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("rm -f"), "{}", stderr(&refused));
    world.ok(["rm", "-f", "--volumes", &id]);
    assert!(!lives(&guest), "its guest lives on");
    assert!(!folder(&id).exists());
    assert!(world.is_empty());
}

#[test]
fn several_answers_are_a_line_each() {
    let world = World::new();
    let (first, second) = (world.create(), world.create());
    for command in [&["stop"][..], &["start"], &["rm", "-f", "--volumes"]] {
        let args = command.iter().copied().chain(["--json", &first, &second]);
        let text = world.ok(args);
        let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(answers.len(), 2, "{text}");
        assert_eq!(answers[1]["id"], second.as_str());
    }
}

#[test]
fn a_long_command_line_can_be_listed() {
    let world = World::new();
    let id = world.create();
    world.ok(["exec", &id, "--", "true", &"a".repeat(100_000)]);
    let table = world.ok(["logs", "--processes", &id]);
    assert!(table.lines().all(|line| line.chars().count() < 600));
}

#[test]
fn the_database_is_looked_after() {
    let world = World::new();
    let made = world.ok(["db", "migrate"]);
    assert!(made.starts_with("sqlite: version 0 became "), "{made}");
    let told = world.ok(["db", "migrate"]);
    assert!(told.starts_with("sqlite is at version ") && told.ends_with(", the newest\n"), "{told}");
    assert_eq!(world.server(), None, "no server is needed for that");
    let checked = world.json(["--json", "db", "check"]);
    assert_eq!((&checked["ok"], &checked["turns"]), (&true.into(), &0.into()));
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.db").display().to_string();
    world.ok(["db", "backup", &copy]);
    let again = world.seawall(["db", "backup", &copy]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("name another file"), "{}", stderr(&again));
    // A restore needs the folder for itself.
    let refused = stderr(&world.seawall(["db", "restore", &copy]));
    assert!(refused.contains("seawall server stop"), "{refused}");
    world.ok(["server", "stop"]);
    world.ok(["db", "restore", &copy]);
    let no_database = world.seawall(["db", "restore", "/etc/passwd"]);
    assert_eq!(no_database.status.code(), Some(1));
    assert!(stderr(&no_database).contains("no database of seawall"), "{}", stderr(&no_database));
    world.ok(["db", "check"]);
    let wrong =
        world.command().env("SEAWALL_DATABASE_URL", "mysql://x:secret@y").args(["db", "check"]).output();
    let wrong = stderr(&wrong.unwrap());
    assert!(wrong.contains("PostgreSQL") && !wrong.contains("secret"), "{wrong}");
}
