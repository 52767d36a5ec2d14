//! Every command says the same over the local socket, over TCP with a key, and with a server of its own.

use crate::{
    http_turns::served::Served,
    world::{World, eventually, stderr, stdout},
};
use serde_json::Value;
use std::process::Output;

/// How a command reaches its server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Socket,
    Network,
    Hosted,
}

fn run(served: &Served, way: Way, args: &[&str]) -> Output {
    let mut command = served.world.command();
    match way {
        Way::Socket => {}
        Way::Network => {
            command.env("SEAWALL_URL", format!("http://{}", served.address));
            command.env("SEAWALL_KEY", &served.key);
        }
        Way::Hosted => {
            command.env("SEAWALL_BACKGROUND", "never");
        }
    }
    command.args(args).output().unwrap()
}

/// Without what differs from one moment to the next: ages, durations, memory.
fn settled(text: &str) -> String {
    let is_number = |word: &str| word.chars().all(|c| c.is_ascii_digit() || ".smhd".contains(c));
    let masked =
        |word: &str| if !word.is_empty() && is_number(word) { "N".to_owned() } else { word.to_owned() };
    let lines = text.lines().filter(|line| {
        ![
            "_bytes\"",
            "\"idle_s\"",
            "\"uptime_s\"",
            "\"cpu_seconds\"",
            "last_used_at",
            "duration_ms",
            "\"used\"",
        ]
        .iter()
        .any(|part| line.contains(part))
    });
    lines.map(|line| line.split_whitespace().map(masked).collect::<Vec<_>>().join(" ") + "\n").collect()
}

/// What is looked at. `ID` and `CONVERSATION` stand for those of the test.
const LOOKS: [&str; 24] = [
    "ls",
    "ls -q",
    "ls --label team=a --template shell --state running",
    "inspect box",
    "exec box -- cat note",
    "exec box -- sh -c exit\t7",
    "exec box -- no-such-program",
    "logs --processes nobody",
    "volumes",
    "versions box",
    "diff box 1 2",
    "verify box",
    "templates",
    "templates shell",
    "providers",
    "reconcile --dry-run",
    "conversations",
    "messages CONVERSATION",
    "hooks box",
    "keys ls",
    "accounts ls",
    "account",
    "db check",
    "exec nobody -- true",
];

#[test]
fn every_command_says_the_same_whichever_way_it_takes() {
    let mut served = Served::new();
    let world = &served.world;
    let conversation = seawall_api::ConversationId::generate().to_string();
    world.ok(["create", "--name", "box", "--label", "team=a"]);
    for text in ["one", "two"] {
        world.ok(["exec", "box", "--", "sh", "-c", &format!("echo {text} > note")]);
        world.ok(["sync", "box"]);
    }
    world.ok(["chat", "-c", &conversation, "echo said"]);
    let all = |served: &Served, way: Way| -> Vec<(String, Option<i32>, String, String)> {
        let both = LOOKS.iter().flat_map(|look| [(*look).to_owned(), format!("--json {look}")]);
        let looked = both.map(|look| {
            let filled = look.replace("CONVERSATION", &conversation);
            let args: Vec<String> = filled.split(' ').map(|word| word.replace('\t', " ")).collect();
            let output = run(served, way, &args.iter().map(String::as_str).collect::<Vec<_>>());
            let (errors, mut text) = (stderr(&output), stdout(&output));
            // The commands before are among the processes.
            if look.ends_with("inspect box") {
                let mut shown: Value = serde_json::from_str(&text).unwrap();
                shown.as_object_mut().unwrap().remove("metrics");
                text = serde_json::to_string_pretty(&shown).unwrap();
            }
            // Ids of requests differ.
            let errors: String = errors.split("request_id").next().unwrap_or_default().to_owned();
            (look, output.status.code(), settled(&text), errors)
        });
        looked.collect()
    };
    // The use of the key is noted once a minute, so it is noted before anything is compared.
    run(&served, Way::Network, &["ls"]);
    eventually("the use of the key is noted", || {
        let keys = served.world.json(["--json", "keys", "ls"]);
        keys["items"][0]["last_used_at"].is_string()
    })
    .unwrap();
    let socket = all(&served, Way::Socket);
    for (look, code, text, errors) in &socket {
        let fails = ["nobody", "exit", "no-such"].iter().any(|part| look.contains(part));
        assert!(fails || *code == Some(0), "{look}: {code:?} {errors}");
        if !fails && look.starts_with("--json") && !look.contains(" exec ") {
            assert!(text.starts_with('{'), "{look}: {text}");
        }
    }
    let differing = |one: &[(String, Option<i32>, String, String)],
                     other: &[(String, Option<i32>, String, String)]| {
        one.iter()
            .zip(other)
            .find(|(one, other)| one != other)
            .map(|(one, other)| format!("{one:?}\n{other:?}"))
    };
    assert_eq!(differing(&socket, &all(&served, Way::Network)), None);
    served.terminate();
    served.wait();
    assert_eq!(differing(&socket, &all(&served, Way::Hosted)), None);
}

#[test]
fn changes_are_made_whichever_way_is_taken() {
    let served = Served::new();
    for way in [Way::Socket, Way::Network] {
        let ok = |args: &[&str]| {
            let output = run(&served, way, args);
            assert!(output.status.success(), "{way:?} {args:?}: {}", stderr(&output));
            stdout(&output)
        };
        let id =
            ok(&["create", "--name", "made", "--template", "shell", "--idle", "10m", "--lifetime", "2h"]);
        let id = id.trim();
        ok(&["exec", "made", "--", "sh", "-c", "echo a > note"]);
        assert_eq!(ok(&["run", "--", "echo", "hi"]), "hi\n");
        ok(&["sync", &id[..20]]);
        ok(&["exec", "made", "--", "rm", "note"]);
        ok(&["restore", "made"]);
        assert_eq!(ok(&["exec", "made", "--", "cat", "note"]), "a\n");
        ok(&["prune", "made", "--keep", "1"]);
        ok(&["stop", "made"]);
        ok(&["start", "made"]);
        let shown: Value = serde_json::from_str(&ok(&["inspect", "made"])).unwrap();
        assert_eq!(shown["spec"]["timeouts"]["idle_seconds"], 600);
        let key = ok(&["--json", "keys", "create", "--name", "k"]);
        let key: Value = serde_json::from_str(&key).unwrap();
        ok(&["keys", "revoke", key["key"]["id"].as_str().unwrap()]);
        let copy = served.world.data().join(format!("{way:?}.db"));
        assert!(ok(&["db", "backup", &copy.display().to_string()]).contains("is whole"));
        assert!(copy.metadata().unwrap().len() > 4096);
        ok(&["rm", "-f", id]);
        assert!(ok(&["volumes", "ls", "-q"]).contains(id));
        ok(&["volumes", "rm", id]);
        assert_eq!(ok(&["ls", "-q"]), "");
    }
}

#[test]
fn k13_an_operator_and_accounts_with_equal_names_never_see_each_other() {
    let world = World::new();
    let accounts = ["a", "b"].map(|name| world.ok(["accounts", "create", name]).trim().to_owned());
    let mut ids = vec![world.ok(["create", "--name", "work"]).trim().to_owned()];
    for name in ["a", "b"] {
        ids.push(world.ok(["--account", name, "create", "--name", "work"]).trim().to_owned());
    }
    let of = |account: Option<&str>, args: &[&str]| {
        let named: Vec<&str> = account.map_or(vec![], |name| vec!["--account", name]);
        world.seawall(named.iter().chain(args).copied().collect::<Vec<_>>())
    };
    let who = [None, Some("a"), Some(accounts[1].as_str())];
    for (number, account) in who.into_iter().enumerate() {
        assert_eq!(stdout(&of(account, &["ls", "-q"])), format!("{}\n", ids[number]));
        let shown: Value = serde_json::from_slice(&of(account, &["inspect", "work"]).stdout).unwrap();
        assert_eq!(shown["id"], *ids[number]);
        for other in ids.iter().filter(|id| **id != ids[number]) {
            for args in [&["exec", other, "--", "true"][..], &["rm", "-f", other], &["inspect", other]] {
                assert!(!of(account, args).status.success(), "{account:?} {args:?}");
            }
        }
    }
    // The name is that of the caller's own sandbox.
    assert!(of(Some("a"), &["rm", "-f", "--volumes", "work"]).status.success());
    assert_eq!(stdout(&of(None, &["ls", "-q"])), format!("{}\n", ids[0]));
    assert_eq!(stdout(&of(Some("b"), &["ls", "-q"])), format!("{}\n", ids[2]));
    // Acting for an account does not make an operator of it.
    let refused = stderr(&of(Some("a"), &["accounts", "ls"]));
    assert!(refused.contains("admin keys of the account `local`"), "{refused}");
    let audit = std::fs::read_to_string(world.data().join("audit.log")).unwrap();
    let line = audit.lines().find(|line| line.contains(&accounts[0])).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["by_operator"], line["peer"]["pid"].is_u64()), (&true.into(), true), "{line}");
    // A key of an account acts for no other.
    let key = stdout(&of(Some("a"), &["keys", "create", "--name", "k", "--scope", "admin"]));
    let other =
        world.command().env("SEAWALL_KEY", key.trim()).args(["--account", "b", "ls"]).output().unwrap();
    assert!(stderr(&other).contains("only an operator"), "{}", stderr(&other));
    assert!(of(Some("b"), &["rm", "-f", "--volumes", "work"]).status.success());
}
