//! V over HTTP: sandboxes made, found, revived, ended; what runs in them; what is wrong, by its name.

use crate::http_edges::{
    client::{escaped, find},
    server::{Server, text},
};
use crate::world::{World, eventually};
use serde_json::{Value, json};
use std::{
    io::Read,
    time::{Duration, Instant},
};

#[track_caller]
fn items(value: &Value) -> Vec<Value> {
    value["items"].as_array().unwrap_or_else(|| panic!("{value} is no list")).clone()
}

#[track_caller]
fn ids(server: &Server, query: &str) -> Vec<String> {
    let listed = server.get(&format!("/sandboxes{query}")).is(200).json();
    items(&listed).iter().map(|each| text(&each["id"])).collect()
}

#[test]
fn v1_a_sandbox_is_made_once_and_found_again() {
    let server = Server::start();
    let id = seawall_api::SandboxId::generate().to_string();
    let ask = json!({ "id": id, "name": "mine", "env": { "WORD": "hello" }, "labels": { "team": "a" } });
    let made = server.post("/sandboxes", &ask).is(201).json();
    assert_eq!((&made["id"], &made["state"], &made["name"]), (&json!(id), &json!("running"), &json!("mine")));
    assert_eq!((&made["template"], &made["spec"]["labels"]["team"]), (&json!("shell"), &json!("a")));
    assert_eq!(server.run(&id, "echo $WORD"), "hello\n");
    // Asked for again it is the same.
    let again = server.post("/sandboxes", &ask).is(201).json();
    assert_eq!((&again["id"], &again["created_at"]), (&made["id"], &made["created_at"]));
    server.post("/sandboxes", &json!({ "id": id, "name": "other" })).refused(409, "conflict");
    assert_eq!(server.get(&format!("/sandboxes/{id}")).is(200).json()["name"], "mine");
    assert_eq!(ids(&server, "?name=mine"), std::slice::from_ref(&id));
    assert_eq!(ids(&server, "?name=other"), Vec::<String>::new());
}

#[test]
fn v1_one_that_is_there_is_loaded_quickly() {
    let server = Server::start();
    let id = server.sandbox();
    let measure = |ask: &dyn Fn()| {
        let times = (0..10).map(|_| {
            let begun = Instant::now();
            ask();
            begun.elapsed()
        });
        times.min().unwrap()
    };
    let get = measure(&|| drop(server.get(&format!("/sandboxes/{id}")).is(200)));
    let ensure = measure(&|| drop(server.post("/sandboxes", &json!({ "id": id })).is(201)));
    assert!(get < Duration::from_millis(100) && ensure < Duration::from_millis(100), "{get:?} {ensure:?}");
}

#[test]
fn v1_one_may_be_made_and_started_later() {
    let server = Server::start();
    let made = server.post("/sandboxes", &json!({ "start": false })).is(201).json();
    assert_eq!(made["state"], "created");
    let id = text(&made["id"]);
    server.get(&format!("/sandboxes/{id}/processes")).problem(503);
    let started = server.post(&format!("/sandboxes/{id}/start"), &json!({})).is(200).json();
    assert_eq!(started["state"], "running");
    // Started twice it runs once.
    server.post(&format!("/sandboxes/{id}/start"), &json!({})).is(200);
    assert_eq!(server.run(&id, "echo here"), "here\n");
    // Without a body there is one as the server makes it.
    let plain = server.ask("POST", "/sandboxes").send().is(201).json();
    assert_eq!(plain["state"], "running");
}

#[test]
fn v1_lists_come_in_pages() {
    let server = Server::start();
    let made: Vec<String> = (0..5)
        .map(|_| text(&server.post("/sandboxes", &json!({ "start": false })).is(201).json()["id"]))
        .collect();
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/sandboxes?limit=2{after}")).is(200).json();
        assert!(items(&page).len() <= 2);
        seen.extend(items(&page).iter().map(|each| text(&each["id"])));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", escaped(next)),
            None => break,
        }
    }
    seen.reverse();
    assert_eq!(seen, made, "the newest come first");
}

#[test]
fn v2_what_stopped_is_revived_by_use() {
    let server = Server::start();
    let id = server.sandbox();
    server.run(&id, "echo kept > /work/file");
    let stopped = server.post(&format!("/sandboxes/{id}/stop"), &json!({ "grace_ms": 100 })).is(200).json();
    assert_eq!((&stopped["state"], &stopped["reason"]), (&json!("stopped"), &json!("stopped")));
    assert_eq!(ids(&server, "?state=stopped"), std::slice::from_ref(&id));
    // Looking at it starts nothing.
    server.get(&format!("/sandboxes/{id}/metrics")).refused(503, "not_running");
    server.get(&format!("/sandboxes/{id}/processes")).refused(503, "not_running");
    assert_eq!(server.state(&id), "stopped");
    assert_eq!(server.run(&id, "cat /work/file"), "kept\n");
    assert_eq!(server.state(&id), "running");
    // Each of the operations that need it.
    for path in ["files", "tree", "content?path=file"] {
        server.post(&format!("/sandboxes/{id}/stop"), &json!({ "grace_ms": 100 })).is(200);
        server.get(&format!("/sandboxes/{id}/{path}")).is(200);
        assert_eq!(server.state(&id), "running", "{path}");
    }
    server.post(&format!("/sandboxes/{id}/stop"), &json!({ "grace_ms": 100 })).is(200);
    server.post(&format!("/sandboxes/{id}/sync"), &json!({})).is(200);
    assert_eq!(server.state(&id), "running");
}

#[test]
fn v2_what_is_lost_is_made_again() {
    let server = Server::start();
    let id = server.sandbox();
    server.run(&id, "echo kept > /work/file");
    let guest = server.world.guest(&id);
    let killed = std::process::Command::new("kill").args(["-9", &guest]).status().unwrap();
    assert!(killed.success());
    // What was under way when it died is told as such; the next call finds it again.
    let path = format!("/sandboxes/{id}/exec");
    let ask = json!({ "command": "cat /work/file" });
    eventually("it is back with its files", || {
        let answer = server.post(&path, &ask);
        answer.status == 200 && answer.json()["stdout"] == "kept\n"
    })
    .unwrap();
}

#[test]
fn v2_what_was_ended_is_gone_and_can_be_looked_at() {
    let server = Server::start();
    let id = server.sandbox();
    server.run(&id, "echo kept > /work/file");
    let ended = server.delete(&format!("/sandboxes/{id}")).is(200).json();
    assert_eq!((&ended["state"], &ended["reason"]), (&json!("terminated"), &json!("terminated")));
    assert_eq!(server.state(&id), "terminated");
    assert_eq!(ids(&server, ""), Vec::<String>::new());
    assert_eq!(ids(&server, "?state=terminated"), std::slice::from_ref(&id));
    // It was saved first.
    let versions = server.get(&format!("/sandboxes/{id}/versions")).is(200).json();
    assert_eq!(items(&versions).len(), 1, "{versions}");
    let gone = [
        ("POST", "exec", Some(json!({ "command": "true" }))),
        ("POST", "start", None),
        ("POST", "stop", None),
        ("POST", "sync", None),
        ("GET", "files", None),
        ("GET", "content?path=file", None),
        ("GET", "metrics", None),
        ("POST", "terminals", None),
        ("POST", "restore", Some(json!({}))),
    ];
    for (method, rest, body) in gone {
        let ask = server.ask(method, &format!("/sandboxes/{id}/{rest}"));
        body.map_or(ask.clone(), |body| ask.json(&body)).send().refused(410, "gone");
    }
    server
        .ask("PATCH", &format!("/sandboxes/{id}"))
        .json(&json!({ "metadata": {} }))
        .send()
        .refused(410, "gone");
    // Ended twice is ended once.
    server.delete(&format!("/sandboxes/{id}")).is(200);
    server.post("/sandboxes", &json!({ "id": id })).refused(410, "gone");
    // Its files are for others of the account.
    let other = server.sandbox();
    server.post(&format!("/sandboxes/{other}/restore"), &json!({ "from": id })).is(200);
    assert_eq!(server.run(&other, "cat /work/file"), "kept\n");
}

#[test]
fn v2_a_turn_makes_an_ended_one_again_with_its_files() {
    let server = Server::start();
    let first = server.turn("echo kept > file")[0].clone();
    let (conversation, sandbox) = (text(&first["conversation_id"]), text(&first["sandbox_id"]));
    server.delete(&format!("/sandboxes/{sandbox}?volumes=delete")).is(200);
    let path = format!("/conversations/{conversation}/sandbox/auto");
    let told = server.post(&path, &json!({ "prompt": "cat file" })).is(200).events();
    let said: String = told
        .iter()
        .filter(|(_, event)| event["type"] == "text")
        .map(|(_, event)| text(&event["text"]))
        .collect();
    assert_eq!(said, "kept\n", "{told:?}");
    assert_eq!(server.state(&sandbox), "running");
}

/// The way to the bucket is a file.
fn break_bucket(world: &World) {
    let bucket = world.data().join("bucket");
    if bucket.exists() {
        std::fs::rename(&bucket, world.data().join("away")).unwrap();
    }
    std::fs::write(bucket, "").unwrap();
}

#[test]
fn v2_what_cannot_be_saved_is_not_ended_unless_forced() {
    let server = Server::start();
    let id = server.sandbox();
    server.run(&id, "echo work > /work/file");
    let other = server.sandbox();
    break_bucket(&server.world);
    let refused = server.delete(&format!("/sandboxes/{id}"));
    assert!(matches!(refused.status, 409 | 503 | 504), "{} {}", refused.status, refused.text());
    assert_eq!(refused.problem(refused.status)["code"], "sync_failed");
    assert_eq!(server.state(&id), "running");
    assert_eq!(server.run(&id, "cat /work/file"), "work\n");
    server.delete(&format!("/sandboxes/{id}?force=true")).is(200);
    assert_eq!(server.state(&id), "terminated");
    // Or without saving, where that is asked for.
    server.delete(&format!("/sandboxes/{other}?sync=false")).is(200);
    assert_eq!(server.state(&other), "terminated");
}

#[test]
fn v3_states_are_the_same_after_a_fall() {
    let mut server = Server::start();
    let (running, stopped, ended) = (server.sandbox(), server.sandbox(), server.sandbox());
    let created = text(&server.post("/sandboxes", &json!({ "start": false })).is(201).json()["id"]);
    server.post(&format!("/sandboxes/{stopped}/stop"), &json!({ "grace_ms": 100 })).is(200);
    server.delete(&format!("/sandboxes/{ended}")).is(200);
    let states = |server: &Server| [&running, &stopped, &ended, &created].map(|id| server.state(id));
    let wanted = ["running", "stopped", "terminated", "created"];
    assert_eq!(states(&server), wanted);
    server.run(&running, "echo kept > /work/file");
    server.crash();
    assert_eq!(states(&server), wanted);
    assert_eq!(server.run(&running, "cat /work/file"), "kept\n");
    assert_eq!(server.run(&stopped, "echo here"), "here\n");
}

#[test]
fn v3_what_many_do_at_once_ends_in_one_state() {
    let server = Server::start();
    let id = server.sandbox();
    let ask = |rest: &str| server.post(&format!("/sandboxes/{id}/{rest}"), &json!({})).status;
    std::thread::scope(|scope| {
        for number in 0..6 {
            let ask = &ask;
            scope.spawn(move || {
                for round in 0..5 {
                    let status = ask(if (number + round) % 2 == 0 { "start" } else { "stop" });
                    // Some are told that somebody else is at it.
                    assert!(matches!(status, 200 | 409 | 503), "{status}");
                }
            });
        }
    });
    assert_eq!(ask("start"), 200);
    assert_eq!(server.state(&id), "running");
    assert_eq!(server.run(&id, "echo here"), "here\n");
    assert_eq!(ask("stop"), 200);
    assert_eq!(server.state(&id), "stopped");
}

#[test]
fn v5_what_is_wrong_has_a_name() {
    let world = World::new();
    std::fs::create_dir(world.data().join("templates")).unwrap();
    let template = "[[hooks.cold_start]]\nrun = \"exit 7\"\n";
    std::fs::write(world.data().join("templates/broken.toml"), template).unwrap();
    let server = Server::within(world, "", &[]);
    server.post("/sandboxes", &json!({ "provider": "nope" })).refused(400, "invalid_config");
    let unknown = server.post("/sandboxes", &json!({ "template": "nope" })).problem(400);
    assert!(text(&unknown["detail"]).contains("shell"), "{unknown}");
    server.get("/sandboxes/nope").refused(400, "invalid_id");
    let failed = server.post("/sandboxes", &json!({ "template": "broken" }));
    assert!(failed.status >= 400, "{}", failed.text());
    assert_eq!(failed.problem(failed.status)["code"], "hook_failed");
    // Nothing is left of it.
    assert_eq!(ids(&server, ""), Vec::<String>::new());
    assert!(server.world.is_empty());
    let id = server.sandbox();
    break_bucket(&server.world);
    let synced = server.post(&format!("/sandboxes/{id}/sync"), &json!({}));
    assert_eq!(synced.problem(synced.status)["code"], "sync_failed");
}

#[test]
fn v6_metadata_is_the_users_and_the_services() {
    let server = Server::start();
    let told = server.turn("true");
    let id = text(&told[0]["sandbox_id"]);
    let patch = |changes: Value| {
        server.ask("PATCH", &format!("/sandboxes/{id}")).json(&json!({ "metadata": changes })).send()
    };
    let changed = patch(json!({ "color": "blue", "deep": { "a": [1, 2] } })).is(200).json();
    assert_eq!(changed["metadata"]["deep"], json!({ "a": [1, 2] }));
    let changed = patch(json!({ "color": null, "size": 3 })).is(200).json();
    assert_eq!((changed["metadata"].get("color"), &changed["metadata"]["size"]), (None, &json!(3)));
    for own in ["last_synced_at", "total_input_tokens", "ready"] {
        patch(json!({ own: 1 })).refused(400, "invalid");
    }
    let metadata = server.get(&format!("/sandboxes/{id}")).is(200).json()["metadata"].clone();
    for total in ["total_input_tokens", "total_output_tokens", "total_cache_tokens"] {
        assert!(metadata[total].is_u64(), "{total} in {metadata}");
    }
    let before = metadata["last_synced_at"].as_i64().unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    server.post(&format!("/sandboxes/{id}/sync"), &json!({})).is(200);
    let after = server.get(&format!("/sandboxes/{id}")).is(200).json()["metadata"]["last_synced_at"].as_i64();
    assert!(after > Some(before), "{before} {after:?}");
}

#[test]
fn p5_a_command_has_its_words_its_input_and_its_end() {
    let server = Server::start();
    let id = server.sandbox();
    let exec = |ask: Value| server.post(&format!("/sandboxes/{id}/exec"), &ask).is(200).json();
    let done = exec(json!({ "args": ["sh", "-c", "echo out; echo err >&2; exit 3"] }));
    assert_eq!(
        (&done["exit_code"], &done["stdout"], &done["stderr"]),
        (&json!(3), &json!("out\n"), &json!("err\n"))
    );
    let done =
        exec(json!({ "command": "cat; echo $A; pwd", "stdin": "in ", "env": { "A": "b c" }, "cwd": "/tmp" }));
    assert_eq!(done["stdout"], "in b c\n/tmp\n");
    let done = exec(json!({ "command": "sleep 60", "timeout_ms": 300 }));
    assert_eq!((&done["exit_code"], &done["status"]["reason"]), (&json!(124), &json!("timeout")));
    let done = exec(json!({ "command": "cat", "stdin": "AP8=", "encoding": "base64" }));
    assert_eq!((&done["stdout"], &done["encoding"]), (&json!("AP8="), &json!("base64")));
    let done = exec(json!({ "command": "head -c 100000 /dev/zero | tr '\\0' x", "max_output": 10 }));
    assert_eq!(text(&done["stdout"]).len(), 10);
    assert_eq!(done["stdout_truncated"], 99_990);
    let done = exec(json!({ "command": "kill -9 $$" }));
    assert_eq!((&done["exit_code"], &done["status"]["signal"]), (&json!(137), &json!(9)));
}

#[test]
fn p5_a_streamed_command_goes_on_without_its_reader() {
    let server = Server::start();
    let id = server.sandbox();
    let ask =
        json!({ "command": "for i in 1 2 3 4 5; do echo line $i; sleep 0.2; done; exit 4", "tag": "mine" });
    let told = server.post(&format!("/sandboxes/{id}/exec/stream"), &ask).is(200).events();
    let (first, last) = (&told[0].1, &told.last().unwrap().1);
    assert_eq!(
        (&first["type"], &last["type"], &last["exit_code"]),
        (&json!("started"), &json!("exit"), &json!(4))
    );
    let output = |told: &[(u64, Value)]| -> String {
        told.iter()
            .filter(|(_, event)| event["type"] == "stdout")
            .map(|(_, event)| text(&event["data"]))
            .collect()
    };
    let whole: String = (1..=5).map(|number| format!("line {number}\n")).collect();
    assert_eq!(output(&told), whole);
    // From the middle, by the number of an event.
    let process = text(&first["process"]);
    let path = format!("/sandboxes/{id}/processes/{process}/output");
    let middle = told.iter().find(|(_, event)| event["data"] == "line 2\n").map_or(14, |(number, _)| *number);
    let rest = server.ask("GET", &path).header("last-event-id", &middle.to_string()).send().is(200).events();
    assert_eq!(output(&rest), whole[usize::try_from(middle).unwrap()..]);
    // Whoever hangs up ends nothing.
    let slow = server.ask("POST", &format!("/sandboxes/{id}/exec/stream"));
    let mut stream = slow.json(&json!({ "command": "sleep 1; echo done > /work/done" })).begin();
    let (mut said, mut buffer) = (Vec::new(), [0; 1024]);
    while find(&said, "started").is_none() {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&buffer[..count]);
    }
    drop(stream);
    let is_done = || server.run(&id, "cat /work/done 2>&1 || true") == "done\n";
    eventually("it goes on", is_done).unwrap();
}

#[test]
fn p5_processes_are_listed_fed_and_ended() {
    let server = Server::start();
    let id = server.sandbox();
    let opened =
        server.post(&format!("/sandboxes/{id}/terminals"), &json!({ "args": ["cat"] })).is(201).json();
    let process = text(&opened["process"]);
    let path = format!("/sandboxes/{id}/processes/{process}");
    let found = || {
        let listed = server.get(&format!("/sandboxes/{id}/processes")).is(200).json();
        items(&listed).into_iter().find(|each| each["process"] == *process).unwrap()
    };
    assert_eq!((&found()["args"], &found()["exit"]), (&json!(["cat"]), &Value::Null));
    let fed = server.ask("POST", &format!("{path}/input")).body("application/octet-stream", "fed\r");
    fed.send().is(204);
    let shown = || server.get(&format!("{path}/output?follow=false")).is(200).text().matches("fed").count();
    eventually("it says what it was fed", || shown() >= 2).unwrap();
    let used = server.get(&format!("/sandboxes/{id}/metrics")).is(200).json();
    assert!(used["processes_running"].as_u64() >= Some(1), "{used}");
    assert!(used["uptime_s"].is_u64() && used["processes"].is_array(), "{used}");
    server.post(&format!("{path}/signal"), &json!({ "signal": 9 })).is(204);
    eventually("it is gone", || !found()["exit"].is_null()).unwrap();
    assert_eq!(found()["exit"]["signal"], 9);
    // And all that came of it.
    let opened = server
        .post(&format!("/sandboxes/{id}/terminals"), &json!({ "args": ["sleep", "600"] }))
        .is(201)
        .json();
    let other = format!("/sandboxes/{id}/processes/{}", text(&opened["process"]));
    server.delete(&other).is(204);
    assert_eq!(server.run(&id, "pgrep -x sleep || echo none"), "none\n");
}
