//! The server in the background: one per data folder, started by need, replaced, killed and idle, and no command fails by it.

use crate::{
    http_turns::served::Served,
    world::{World, eventually, is_alive, stderr, stdout},
};
use serde_json::Value;
use std::{
    io::Write,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

mod alone;

impl World {
    fn spawn(&self, args: &[&str]) -> Child {
        self.command().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.data().join("server.log")).unwrap_or_default()
    }
}

fn done(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

/// Prints numbers, slowly enough that something can happen meanwhile.
const COUNT: &str = "i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo $i; sleep 0.1; done";

fn counted() -> String {
    (1..=30).map(|number| format!("{number}\n")).collect()
}

/// Waits until a command in a sandbox has printed something.
fn has_begun(world: &World, id: &str) {
    eventually("the command runs", || {
        let all = world.json(["logs", "--processes", "--json", id]);
        all.as_array().unwrap().iter().any(|process| process["output_end"].as_u64().unwrap_or(0) > 0)
    })
    .unwrap();
}

#[test]
fn fifty_commands_at_once_start_one_server() {
    let world = World::new();
    let children: Vec<Child> = (0..50).map(|_| world.spawn(&["run", "--", "true"])).collect();
    for child in children {
        let output = done(child);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(
        world.log().matches(": serving").count() + world.log().matches(" serving addresses").count(),
        1
    );
    assert!(world.is_empty());
}

#[test]
fn a_command_outlives_its_server() {
    let world = World::new();
    let id = world.create();
    let exec = world.spawn(&["exec", &id, "--", "sh", "-c", COUNT]);
    has_begun(&world, &id);
    world.kill_server();
    let output = done(exec);
    assert_eq!(stdout(&output), counted(), "{}", stderr(&output));
    assert!(output.status.success());
    assert!(world.server().is_some(), "the command started another server");
}

#[test]
fn a_copy_whose_server_is_killed_can_be_made_again() {
    let world = World::new();
    let id = world.create();
    let file = world.data().join("large");
    let body: Vec<u8> = (0..64_000_000_u32).map(|number| (number >> 7) as u8).collect();
    std::fs::write(&file, &body).unwrap();
    let (from, to) = (file.display().to_string(), format!("{id}:/work/large"));
    let copy = world.spawn(&["cp", &from, &to]);
    eventually("the copy has begun", || {
        let volume = world.data().join("native/volumes").join(&id).join("work");
        std::fs::read_dir(volume).is_ok_and(|entries| entries.flatten().count() > 0)
    })
    .unwrap();
    world.kill_server();
    done(copy);
    world.ok(["cp", &from, &to]);
    let back = world.data().join("back");
    world.ok(["cp", &to, &back.display().to_string()]);
    assert!(std::fs::read(back).unwrap() == body);
    // Nothing of the half copy is left.
    let left = world.ok(["exec", &id, "--", "ls", "-A"]);
    assert_eq!(left.replace(".sandbox-state\n", ""), "large\n");
}

#[test]
fn a_server_holds_nothing_of_its_starter() {
    let world = World::new();
    let seawall = env!("CARGO_BIN_EXE_seawall");
    // The output is read to its end, which a server that held it would put off until it is idle.
    let script = format!("exec 9>&1; x=$({seawall} ls -q); echo \"got $x\"; {seawall} ls | cat");
    let output = world.command_of("sh").args(["-c", &script]).output().unwrap();
    assert!(stdout(&output).starts_with("got \n"), "{}", stderr(&output));
    let server = world.server().expect("a server runs on");
    let fds = std::fs::read_dir(format!("/proc/{server}/fd")).unwrap().flatten();
    let targets: Vec<PathBuf> = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let inherited = std::fs::read_link(format!("/proc/{server}/fd/1")).unwrap();
    assert_eq!(inherited, Path::new("/dev/null"));
    assert!(!targets.iter().any(|target| target.ends_with("server.json")), "{targets:?}");
    assert_eq!(std::fs::read_link(format!("/proc/{server}/cwd")).unwrap(), Path::new("/"));
}

#[test]
fn an_interrupt_of_the_callers_group_leaves_the_server_alone() {
    let world = World::new();
    let script = format!("{} ls -q; kill -INT 0; kill -HUP 0; sleep 60", env!("CARGO_BIN_EXE_seawall"));
    let mut command = world.command_of("sh");
    command.args(["-c", &script]).process_group(0).stderr(Stdio::null());
    command.status().unwrap();
    let server = world.server().expect("the server was ended too");
    assert!(is_alive(&server.to_string()));
    world.ok(["ls"]);
    assert_eq!(world.server(), Some(server));
}

#[test]
fn a_stale_socket_and_a_stale_file_do_no_harm() {
    let world = World::new();
    world.ok(["ls"]);
    world.kill_server();
    assert!(world.data().join("seawall.sock").exists() && world.data().join("server.json").exists());
    world.ok(["ls"]);
    world.ok(["server", "stop"]);
    assert_eq!(world.ok(["server", "status"]).lines().count(), 1);
    world.ok(["ls"]);
    std::fs::write(world.data().join("server.json"), "nonsense").unwrap();
    world.ok(["ls"]);
    // A socket that was deleted is bound again, and no second server is started beside it.
    let server = world.server();
    std::fs::remove_file(world.data().join("seawall.sock")).unwrap();
    world.ok(["ls"]);
    assert_eq!(world.server(), server);
}

#[test]
fn another_user_needs_a_key() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped background::another_user_needs_a_key: capability: other users need root"
        );
        return;
    }
    let world = World::new();
    std::fs::set_permissions(world.data(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let key = world.ok(["keys", "create", "--name", "other", "--scope", "read"]);
    let socket = world.data().join("seawall.sock");
    let ask = |authorization: &str| {
        let script = "import os, socket, sys\n\
            os.setgid(4321); os.setuid(4321)\n\
            s = socket.socket(socket.AF_UNIX)\n\
            s.connect(sys.argv[1])\n\
            s.sendall(('GET /sandboxes HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n' + sys.argv[2] + '\\r\\n').encode())\n\
            print(s.makefile().readline().strip())\n";
        let path = socket.display().to_string();
        let output = Command::new("python3").args(["-c", script, &path, authorization]).output().unwrap();
        stdout(&output) + &stderr(&output)
    };
    let refused = ask("");
    assert!(refused.contains("Permission denied"), "the mode keeps others out: {refused}");
    // A peer that gets past the mode is nobody without a key.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(ask(""), "HTTP/1.1 401 Unauthorized\n");
    assert_eq!(ask(&format!("authorization: Bearer {}\r\n", key.trim())), "HTTP/1.1 200 OK\n");
}

#[test]
fn k12_a_key_that_is_sent_decides_also_at_the_socket() {
    let world = World::new();
    let key = world.ok(["keys", "create", "--name", "reader", "--scope", "read"]);
    let with =
        |key: &str, args: &[&str]| world.command().env("SEAWALL_KEY", key).args(args).output().unwrap();
    assert!(with(key.trim(), &["ls"]).status.success());
    let refused = with(key.trim(), &["create"]);
    assert!(stderr(&refused).contains("scope"), "{}", stderr(&refused));
    let wrong = with("sw_wrong", &["ls"]);
    assert!(!wrong.status.success(), "a wrong key is not the operator");
}

#[test]
fn a_data_folder_may_have_a_long_path() {
    let world = World::new();
    let data = world.data().join("d".repeat(100)).join("e".repeat(100));
    let seawall = |args: &[&str]| world.command().env("SEAWALL_DATA", &data).args(args).output().unwrap();
    let output = seawall(&["run", "--", "echo", "deep"]);
    assert_eq!(stdout(&output), "deep\n", "{}", stderr(&output));
    assert!(seawall(&["server", "stop"]).status.success());
}

#[test]
fn a_server_that_cannot_start_says_why_and_is_not_tried_for_ever() {
    let world = World::new();
    std::fs::create_dir(world.data().join("templates")).unwrap();
    let template = world.data().join("templates/mine.toml");
    std::fs::write(&template, "nonsense = 1\n").unwrap();
    for _ in 0..3 {
        let failed = stderr(&world.seawall(["ls"]));
        assert!(failed.contains("mine.toml") && failed.contains("nonsense"), "{failed}");
    }
    let refused = stderr(&world.seawall(["ls"]));
    assert!(refused.contains("seawall server restart") && refused.contains("mine.toml"), "{refused}");
    std::fs::remove_file(&template).unwrap();
    world.ok(["server", "restart"]);
    world.ok(["ls"]);
}

#[test]
fn status_stop_and_logs_start_nothing() {
    let world = World::new();
    assert!(world.ok(["server", "status"]).starts_with("no server runs"));
    assert_eq!(world.ok(["server", "stop"]), "no server runs\n");
    world.ok(["server", "logs"]);
    assert!(!world.data().join("server.json").exists());
    world.ok(["ls"]);
    let status = world.json(["server", "status", "--json"]);
    assert_eq!(
        (&status["kind"], &status["version"]),
        (&"background".into(), &env!("CARGO_PKG_VERSION").into())
    );
    assert!(world.ok(["server", "logs"]).contains("serving"));
    assert_eq!(world.ok(["server", "stop"]), "stopped\n");
    assert_eq!(world.server(), None);
}

#[test]
fn other_settings_are_told_with_both_values() {
    let world = World::new();
    world.command().env("AWS_REGION", "eu").args(["ls"]).output().unwrap();
    let told =
        |name: &str, value: &str| stderr(&world.command().env(name, value).args(["ls"]).output().unwrap());
    assert_eq!(told("AWS_REGION", "eu"), "");
    let differs = told("AWS_REGION", "us");
    assert!(
        differs.contains("`us`") && differs.contains("`eu`") && differs.contains("server restart"),
        "{differs}"
    );
    let secret = told("AWS_SECRET_ACCESS_KEY", "hunter2");
    assert!(secret.contains("AWS_SECRET_ACCESS_KEY") && !secret.contains("hunter2"), "{secret}");
    // A configuration file that comes later counts too.
    std::fs::write(world.data().join("seawall.toml"), "provider = \"native\"\n").unwrap();
    assert!(told("AWS_REGION", "eu").contains("seawall.toml"));
}

#[test]
fn a_newer_command_replaces_an_older_server_and_not_the_reverse() {
    let world = World::new();
    let version = |version: &str, args: &[&str]| -> Output {
        world.command().env("SEAWALL_TEST_VERSION", version).args(args).output().unwrap()
    };
    let id = stdout(&version("0.0.8", &["create"])).trim().to_owned();
    let old = world.server_pid();
    let exec = world.spawn(&["exec", &id, "--", "sh", "-c", COUNT]);
    let exec_said = eventually("it was replaced", || world.server_pid() != old);
    let output = done(exec);
    exec_said.unwrap();
    assert_eq!(stdout(&output), counted(), "{}", stderr(&output));
    assert!(stderr(&output).contains("takes its place"), "{}", stderr(&output));
    let new = world.server_pid();
    assert!(version("0.0.8", &["ls"]).status.success());
    assert_eq!(world.server_pid(), new, "an older command uses the newer server");
}

#[test]
fn a_foreground_server_takes_over_and_gives_back() {
    let world = World::new();
    let id = world.create();
    let conversation = seawall_api::ConversationId::generate().to_string();
    let first = world.spawn(&["exec", &id, "--", "sh", "-c", COUNT]);
    let turn = world.spawn(&["chat", "-c", &conversation, COUNT]);
    has_begun(&world, &id);
    eventually("the turn runs", || world.json(["server", "status", "--json"])["running_turns"] == 1).unwrap();
    let mut served = Served::on(world);
    assert_eq!(stdout(&done(first)), counted());
    let output = done(turn);
    assert_eq!(stdout(&output), counted(), "{}", stderr(&output));
    // A second one is refused, with what the first is.
    let refused = served.world.seawall(["serve", "--listen", "127.0.0.1:0"]);
    let pid = served.world.server_pid().unwrap().to_string();
    assert!(stderr(&refused).contains(&pid) && stderr(&refused).contains("http://"), "{}", stderr(&refused));
    let stopped = served.world.seawall(["server", "stop"]);
    assert!(stderr(&stopped).contains("in the foreground"), "{}", stderr(&stopped));
    // And the reverse: a command goes on when the server goes down.
    let second = served.world.spawn(&["exec", &id, "--", "sh", "-c", COUNT]);
    has_begun(&served.world, &id);
    served.terminate();
    assert!(served.wait().success());
    let output = done(second);
    assert_eq!(stdout(&output), counted(), "{}", stderr(&output));
    assert_eq!(served.world.json(["server", "status", "--json"])["kind"], "background");
}

#[test]
fn without_a_background_each_command_is_the_server() {
    let world = World::new();
    let never = |args: &[&str]| {
        let mut command = world.command();
        command.env("SEAWALL_BACKGROUND", "never").args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let id = stdout(&done(never(&["create"]))).trim().to_owned();
    assert_eq!(world.server(), None, "nothing stays");
    // The second uses the server of the first, and becomes one when the first has ended.
    let script = "i=0; while [ $i -lt 15 ]; do i=$((i+1)); echo $i; sleep 0.1; done";
    let first = never(&["exec", &id, "--", "sh", "-c", script]);
    let second = never(&["exec", &id, "--", "sh", "-c", COUNT]);
    let (first, second) = (done(first), done(second));
    assert!(first.status.success() && second.status.success(), "{} {}", stderr(&first), stderr(&second));
    assert_eq!(stdout(&second), counted());
    assert_eq!(world.server(), None);
    let listed: Value = serde_json::from_slice(&done(never(&["ls", "--json"])).stdout).unwrap();
    assert_eq!(listed["items"][0]["id"], *id);
    assert!(done(never(&["rm", "-f", "--volumes", &id])).status.success());
}
