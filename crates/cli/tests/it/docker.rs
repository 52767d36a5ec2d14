//! The provider `docker` from end to end on the real binary: what a user does first.

use crate::{
    http_turns::served::Served,
    world::{World, stderr, stdout},
};
use std::{fs, io::Write};

const IMAGE: &str = "seawall-test/debian";

/// A data folder whose sandboxes are containers. None where there is no daemon; the test is skipped, and says so.
pub fn world(test: &str) -> Option<World> {
    let Ok(host) = std::env::var("SEAWALL_TEST_DOCKER") else {
        let required = std::env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all");
        assert!(!required, "SEAWALL_TEST_DOCKER names no daemon: see scripts/docker");
        // Not captured, so that it is counted.
        let _ = writeln!(std::io::stderr(), "skipped docker::{test}: SEAWALL_TEST_DOCKER names no daemon");
        return None;
    };
    let world = World::new();
    let settings = format!("provider = \"docker\"\n[docker]\nhost = \"{host}\"\nimage = \"{IMAGE}\"\n");
    fs::write(world.data().join("seawall.toml"), settings).unwrap();
    Some(world)
}

#[test]
fn p2_a_container_is_made_used_and_removed() {
    let Some(world) = world("p2_a_container_is_made_used_and_removed") else { return };
    let id = world.ok(["create", "--name", "box", "--label", "team=red"]).trim().to_owned();
    assert_eq!(world.ok(["exec", "box", "--", "cat", "/etc/hostname"]), "sandbox\n");
    let body = "line\n".repeat(100_000);
    fs::write(world.data().join("in"), &body).unwrap();
    world.ok(["cp", "in", "box:out"]);
    assert_eq!(world.ok(["exec", "box", "--", "wc", "-l", "/work/out"]), "100000 /work/out\n");
    world.ok(["cp", "box:out", "back"]);
    assert_eq!(fs::read_to_string(world.data().join("back")).unwrap(), body);
    let shown = world.json(["inspect", "box"]);
    assert_eq!((&shown["provider"], &shown["state"]), (&"docker".into(), &"running".into()));
    let volumes = world.json(["volumes", "--json"]);
    let place = format!("seawall-data-{id}");
    assert!(volumes["items"].as_array().unwrap().iter().any(|each| each["place"] == *place), "{volumes}");
    world.ok(["stop", "box"]);
    assert!(world.ok(["ls"]).contains("stopped"));
    world.ok(["start", "box"]);
    assert_eq!(world.ok(["exec", "box", "--", "ls"]), "out\n");
    world.ok(["rm", "-f", "--volumes", "box"]);
    assert!(world.is_empty());
}

#[test]
fn p2_a_turn_runs_in_a_container_and_its_files_outlive_it() {
    let Some(world) = world("p2_a_turn_runs_in_a_container") else { return };
    let conversation = seawall_api::ConversationId::generate().to_string();
    let say = |prompt: &str| {
        let output = world.seawall(["chat", "-c", &conversation, prompt]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    assert_eq!(say("echo hello > greeting; pwd"), "/work\n");
    let sandbox = world.ok(["ls", "-q"]).trim().to_owned();
    world.ok(["rm", "-f", "--volumes", &sandbox]);
    assert_eq!(say("cat greeting"), "hello\n");
}

#[test]
fn a_daemon_that_is_not_there_is_named_with_what_to_do() {
    let world = World::new();
    let settings = "provider = \"docker\"\n[docker]\nhost = \"unix:///no/such.sock\"\nimage = \"debian\"\n";
    fs::write(world.data().join("seawall.toml"), settings).unwrap();
    let output = world.seawall(["create"]);
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("unix:///no/such.sock") && said.contains("is it running"), "{said}");
}

#[test]
fn an_installation_without_containers_needs_no_daemon() {
    let world = World::new();
    let output = world.command().env("DOCKER_HOST", "unix:///no/such.sock").args(["ls"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

/// A command through a server.
pub fn through(served: &Served, args: &[&str]) -> String {
    let output = served
        .world
        .command()
        .env("SEAWALL_URL", format!("http://{}", served.address))
        .env("SEAWALL_KEY", &served.key)
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn p8_a_killed_server_finds_its_containers_again_and_leaves_none() {
    let Some(world) = world("p8_a_killed_server_finds_its_containers_again") else { return };
    let mut served = Served::on(world);
    let id = through(&served, &["create", "--project", "shop"]).trim().to_owned();
    through(
        &served,
        &["exec", &id, "--", "sh", "-c", "echo work > note; sleep 600 > /dev/null 2>&1 & echo $!"],
    );
    served.kill();
    served.start();
    let shown = through(&served, &["ls"]);
    assert!(shown.contains("running"), "{shown}");
    assert_eq!(
        through(&served, &["exec", &id, "--", "sh", "-c", "cat note; pgrep -x sleep | wc -l"]),
        "work\n1\n"
    );
    assert_eq!(through(&served, &["reconcile", "--dry-run"]), "nothing to do\n");
    through(&served, &["rm", "-f", "--volumes", &id]);
    assert_eq!(through(&served, &["reconcile"]), "nothing to do\n");
    assert!(served.world.is_empty());
}

#[test]
fn p7_providers_are_listed_with_the_reason_why_one_cannot_be_used() {
    let world = World::new();
    fs::write(world.data().join("seawall.toml"), "[docker]\nhost = \"unix:///no/such.sock\"\n").unwrap();
    let served = Served::on(world);
    let shown = through(&served, &["providers"]);
    let line = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("docker").contains("unix:///no/such.sock"), "{shown}");
    assert!(line("docker").split_whitespace().nth(2) == Some("no"), "{shown}");
    // `local` isolates nothing, so it is never chosen.
    assert!(line("local").split_whitespace().nth(1) == Some("no"), "{shown}");
    let default = shown.lines().find(|line| line.split_whitespace().nth(1) == Some("yes")).unwrap();
    assert!(default.starts_with("native"), "{shown}");
    assert!(served.world.ok(["providers"]).contains("native"), "over the socket too");
}
