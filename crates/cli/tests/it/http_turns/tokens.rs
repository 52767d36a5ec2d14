//! Token budgets of a tenant whose agents are in parallel, tell nothing, are killed, and outlive the server.

use crate::http_turns::{
    client::{ANY, Client, Followed},
    served::Served,
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;

/// Every answer of the model uses 30 tokens of input and 40 of output.
const USED: u64 = 70;
const ANSWER: &str = r#"{"type":"message","content":[],"usage":{"input_tokens":30,"output_tokens":40}}"#;

/// An agent that asks its model, and says that it used nothing. `$1` is what it does.
const AGENT: &str = r#"#!/bin/bash
prompt=$(cat)
port=${ANTHROPIC_BASE_URL##*:}; port=${port%%/*}
body='{"model":"m","max_tokens":40,"messages":[{"role":"user","content":"hello there"}]}'
ask() (
    exec 3<> "/dev/tcp/127.0.0.1/$port"
    printf 'POST /anthropic/v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s' \
        "${#body}" "$body" >&3
    cat <&3
)
say() { printf '%s\n' "$1"; }
eval "$prompt"
say '{"type":"result","subtype":"success","is_error":false,"usage":{"input_tokens":0,"output_tokens":0},"result":"","session_id":"s"}'
"#;

/// Plays the models' API. Every answer takes a while, so that requests are in flight together.
struct Models {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl Models {
    fn start() -> Models {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let count = count.clone();
                // The box may be gone.
                std::thread::spawn(move || drop(answer(connection, &count)));
            }
        });
        Models { port, asked }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed) as u64
    }
}

fn answer(connection: TcpStream, count: &AtomicUsize) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    count.fetch_add(1, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(500));
    let (mut connection, length) = (connection, ANSWER.len());
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    connection.write_all(format!("{head}content-length: {length}\r\n\r\n{ANSWER}").as_bytes())
}

/// A server with a tenant that may use so many tokens a day.
struct World {
    served: Served,
    models: Models,
    tenant: Client,
    _program: TempDir,
}

impl World {
    fn new(tokens_per_day: u64) -> World {
        let (models, program) = (Models::start(), tempfile::tempdir().unwrap());
        put(&program.path().join("claude"), AGENT);
        let settings = format!(
            "[models.anthropic]\nbase_url = \"http://127.0.0.1:{}\"\nkey = \"k\"\n[programs]\nclaude-code = \"{}\"\n",
            models.port,
            program.path().display()
        );
        let served = Served::with(&settings, &[]);
        let account = served.done("POST", "/accounts", &json!({"name": "tenant"}));
        let account = account["id"].as_str().unwrap();
        let limit = format!("tokens_per_day={tokens_per_day}");
        served.world.ok(["accounts", "settings", account, "--set", limit.as_str()]);
        let path = format!("/accounts/{account}/keys");
        let made = served.done("POST", &path, &json!({"name": "theirs", "scopes": ["run"]}));
        let key = made["secret"].as_str().unwrap().to_owned();
        let tenant = Client { address: served.address.clone(), key };
        World { served, models, tenant, _program: program }
    }

    /// The same tenant, at a server that was started again.
    fn restart(&mut self) {
        self.served.start();
        self.tenant.address = self.served.address.clone();
    }

    fn turn(&self, script: &str) -> Followed {
        self.tenant.turn_with(ANY, &json!({"prompt": script, "template": "claude-code"}))
    }
}

fn put(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    for path in [path, path.parent().unwrap()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// All tokens of a turn that has ended.
fn used(view: &Followed) -> u64 {
    let usage = &view.ended()["usage"];
    ["input_tokens", "output_tokens", "cache_tokens"].iter().map(|kind| usage[*kind].as_u64().unwrap()).sum()
}

fn run(world: &World, script: &str) -> Followed {
    let mut view = world.turn(script);
    view.follow_to_the_end();
    view
}

/// 20 turns with 3 requests each, all at once, of agents that print zero.
#[test]
fn k8_http_parallel_turns_of_agents_that_print_zero_keep_within_the_day() {
    const LIMIT: u64 = 800;
    let world = World::new(LIMIT);
    let views: Vec<Followed> = std::thread::scope(|scope| {
        let script = "ask > /dev/null & ask > /dev/null & ask > /dev/null & wait";
        let turns: Vec<_> = (0..20).map(|_| scope.spawn(|| run(&world, script))).collect();
        turns.into_iter().map(|turn| turn.join().unwrap()).collect()
    });
    let (asked, total) = (world.models.asked(), views.iter().map(used).sum::<u64>());
    assert_eq!(total, asked * USED, "every answer is counted, and once");
    assert!(total <= LIMIT && asked >= 5, "{asked} of 60 requests went out");
    // What is used stays used: also without its conversations, and with another server.
    for view in &views {
        let path = format!("/conversations/{}?terminate=true", view.id("conversation_id"));
        assert_eq!(world.tenant.call("DELETE", &path, &Value::Null).0, 204);
    }
    let mut world = world;
    world.served.kill();
    world.restart();
    let limit = LIMIT - total;
    let refused = run(
        &world,
        r#"for i in 1 2 3 4 5 6 7 8 9 10; do ask > /dev/null; done; say "{\"type\":\"assistant\",\"message\":{\"id\":\"m\",\"content\":[{\"type\":\"text\",\"text\":\"$(ask | grep -o 'tokens_per_day. is [0-9]*')\"}]}}""#,
    );
    assert!(used(&refused) <= limit, "{} of {limit}", used(&refused));
    assert!(refused.text().contains(&format!("tokens_per_day` is {LIMIT}")), "{:?}", refused.seen);
    assert_eq!(total + used(&refused), world.models.asked() * USED);
}

/// The server dies between two requests of one turn, whose agent prints nothing.
#[test]
fn m3_http_a_server_that_is_killed_forgets_nothing_that_passed_it() {
    let mut world = World::new(200);
    let mut view = world.turn(
        "ask > /dev/null; until [ -e go1 ]; do sleep 0.02; done; \
         until ask > /dev/null 2>&1; do sleep 0.1; done",
    );
    view.until_seen("gateway_usage");
    world.served.kill();
    assert!(!view.rest(), "{:?}", view.seen);
    world.restart();
    // A tenant's workspace is in an image: the gate is opened from within.
    let exec = format!("/sandboxes/{}/exec", view.id("sandbox_id"));
    assert_eq!(world.tenant.call("POST", &exec, &json!({"command": "touch go1"})).0, 200);
    view.come_back(&world.tenant);
    assert_eq!(view.follow_to_the_end(), "completed", "{:?}", view.seen);
    assert_eq!((used(&view), world.models.asked()), (2 * USED, 2), "{:?}", view.seen);
    // 140 of 200 are used, and a request needs 81.
    assert_eq!((used(&run(&world, "ask > /dev/null")), world.models.asked()), (0, 2));
}

/// A turn that is cancelled while a request is in flight counts what passed before, and the budget what may have.
#[test]
fn k8_http_a_cancelled_turn_counts_too() {
    let world = World::new(250);
    let mut view = world.turn("ask > /dev/null; ask > /dev/null; sleep 600");
    view.until_seen("gateway_usage");
    while world.models.asked() < 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let cancelled = world.tenant.call("POST", &format!("{}/cancel", view.place()), &Value::Null);
    assert_eq!(cancelled.0, 200, "{cancelled:?}");
    assert_eq!(view.follow_to_the_end(), "cancelled");
    assert!([USED, 2 * USED].contains(&used(&view)), "{:?}", view.seen);
    // 70 are used and 70 or 81 of the request that was cut off: another fits, and a third does not.
    assert_eq!(used(&run(&world, "ask > /dev/null; ask > /dev/null")), USED);
    assert_eq!(world.models.asked(), 3);
}
