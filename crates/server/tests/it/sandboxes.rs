//! Sandboxes and commands over HTTP: the real router on the real core, with boxes of the mock provider.

use crate::world::{ME, World, ask, text, within};
use axum::{body::Body, http::StatusCode};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use seawall_api::{SandboxId, account::KeyScope, exec::StartProcess};
use seawall_providers::mock::{Script, Step};
use serde_json::{Value, json};
use std::time::Duration;

/// A sandbox of A that runs.
async fn made(world: &World) -> String {
    let (status, sandbox) = world.json("POST", "/sandboxes", &world.mine, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{sandbox}");
    sandbox["id"].as_str().unwrap().to_owned()
}

async fn refused(world: &World, method: &str, path: &str, key: &str, body: Option<Value>) -> (u16, String) {
    let (status, problem) = world.json(method, path, key, body).await;
    (status.as_u16(), problem["code"].as_str().unwrap_or_default().to_owned())
}

async fn exec(world: &World, id: &str, ask: Value) -> Value {
    let (status, done) = world.json("POST", &format!("/sandboxes/{id}/exec"), &world.mine, Some(ask)).await;
    assert_eq!(status, StatusCode::OK, "{done}");
    done
}

/// The events of a stream of a command, with their ids.
fn events(text: &str) -> Vec<(u64, Value)> {
    let mut events = Vec::new();
    for event in text.split("\n\n").filter(|event| event.starts_with("id: ")) {
        let (id, data) = event.split_once('\n').unwrap();
        let id = id.strip_prefix("id: ").unwrap().parse().unwrap();
        events.push((id, serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap()));
    }
    events
}

/// Without the first, which says that it started.
fn output(events: &[(u64, Value)]) -> Vec<(u64, String, String)> {
    let word = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    events[1..].iter().map(|(id, event)| (*id, word(event, "type"), word(event, "data"))).collect()
}

fn is(id: u64, kind: &str, data: &str) -> (u64, String, String) {
    (id, kind.to_owned(), data.to_owned())
}

#[tokio::test(start_paused = true)]
async fn v1_a_sandbox_is_made_looked_at_and_ended() {
    let world = World::new().await;
    let id = made(&world).await;
    let path = format!("/sandboxes/{id}");
    let seen = world.get(&path).await;
    assert_eq!((seen["state"].as_str(), seen["template"].as_str()), (Some("running"), Some("shell")));
    let listed = world.get("/sandboxes").await;
    assert_eq!((listed["items"].as_array().unwrap().len(), &listed["items"][0]["id"]), (1, &json!(id)));
    let (status, ended) = world.json("DELETE", &path, &world.mine, None).await;
    assert_eq!((status, ended["state"].as_str()), (StatusCode::OK, Some("terminated")));
    // It is not forgotten, and not there for anybody else's use.
    assert_eq!(world.get(&path).await["state"], "terminated");
    assert_eq!(world.json("DELETE", &path, &world.mine, None).await.0, StatusCode::OK);
    assert_eq!(world.get("/sandboxes").await["items"], json!([]));
    assert_eq!(world.get("/sandboxes?state=terminated").await["items"][0]["id"], json!(id));
    let words = Some(json!({"args": ["true"]}));
    let gone = refused(&world, "POST", &format!("{path}/exec"), &world.mine, words).await;
    assert_eq!(gone, (410, "gone".to_owned()));
    assert_eq!(refused(&world, "POST", &format!("{path}/start"), &world.mine, None).await.0, 410);
}

#[tokio::test(start_paused = true)]
async fn v1_the_same_id_makes_one() {
    let world = World::new().await;
    let id = SandboxId::generate();
    for _ in 0..2 {
        let (status, made) = world.json("POST", "/sandboxes", &world.mine, Some(json!({"id": id}))).await;
        assert_eq!((status, &made["id"]), (StatusCode::CREATED, &json!(id)));
    }
    assert_eq!(world.get("/sandboxes").await["items"].as_array().unwrap().len(), 1);
    // The same words of somebody else are not the same wish.
    let theirs = refused(&world, "POST", "/sandboxes", &world.theirs, Some(json!({"id": id}))).await;
    assert_eq!(theirs, (404, "not_found".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn v1_no_body_is_a_sandbox_that_runs() {
    let world = World::new().await;
    let (status, made) = world.json("POST", "/sandboxes", &world.mine, None).await;
    assert_eq!((status, made["state"].as_str()), (StatusCode::CREATED, Some("running")));
    let idle = Some(json!({"start": false}));
    let (status, made) = world.json("POST", "/sandboxes", &world.mine, idle).await;
    assert_eq!((status, made["state"].as_str()), (StatusCode::CREATED, Some("created")));
    let odd = refused(&world, "POST", "/sandboxes", &world.mine, Some(json!({"imgae": "x"}))).await;
    assert_eq!(odd, (400, "invalid_body".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn v5_what_is_no_id_is_told_apart_from_what_is_not_there() {
    let world = World::new().await;
    for id in ["nope", "00000000-0000-0000-0000-000000000000"] {
        let told = refused(&world, "GET", &format!("/sandboxes/{id}"), &world.mine, None).await;
        assert_eq!(told, (400, "invalid_id".to_owned()), "{id}");
    }
    let unknown = format!("/sandboxes/{}", SandboxId::generate());
    assert_eq!(refused(&world, "GET", &unknown, &world.mine, None).await.0, 404);
    let odd = refused(&world, "GET", "/sandboxes?limt=5", &world.mine, None).await;
    assert_eq!(odd, (400, "invalid_query".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn v1_what_is_another_accounts_is_not_there() {
    let world = World::new().await;
    let one = format!("/sandboxes/{}", made(&world).await);
    let words = || Some(json!({"args": ["true"]}));
    let calls = [
        ("GET", one.clone(), None),
        ("PATCH", one.clone(), Some(json!({"metadata": {"a": 1}}))),
        ("DELETE", one.clone(), None),
        ("POST", format!("{one}/start"), None),
        ("POST", format!("{one}/stop"), None),
        ("GET", format!("{one}/metrics"), None),
        ("GET", format!("{one}/hooks"), None),
        ("POST", format!("{one}/exec"), words()),
        ("POST", format!("{one}/exec/stream"), words()),
        ("GET", format!("{one}/processes"), None),
        ("POST", format!("{one}/terminals"), None),
        ("GET", format!("{one}/files"), None),
        ("GET", format!("{one}/tree"), None),
        ("GET", format!("{one}/content?path=x"), None),
        ("PUT", format!("{one}/content?path=x"), None),
        ("DELETE", format!("{one}/files?path=x"), None),
        ("POST", format!("{one}/directories"), Some(json!({"path": "x"}))),
        ("POST", format!("{one}/move"), Some(json!({"from": "x", "to": "y"}))),
        ("POST", format!("{one}/sync"), None),
        ("GET", format!("{one}/versions"), None),
        ("GET", format!("{one}/versions/diff?from=1"), None),
        ("DELETE", format!("{one}/versions/1"), None),
        ("POST", format!("{one}/versions/prune"), Some(json!({"keep": 1}))),
        ("DELETE", format!("{one}?versions=delete"), None),
        ("POST", format!("{one}/restore"), Some(json!({}))),
        ("POST", format!("{one}/ports/80/token"), None),
        ("GET", format!("{one}/ports/80/"), None),
    ];
    for (method, path, body) in calls {
        assert_eq!(
            refused(&world, method, &path, &world.theirs, body.clone()).await.0,
            404,
            "{method} {path}"
        );
        assert_eq!(refused(&world, method, &path, "", body).await.0, 401, "{method} {path}");
    }
    assert_eq!(world.get(&one).await["state"], "running");
    assert_eq!(world.get(&one).await["metadata"].get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn v1_who_may_only_look_changes_nothing() {
    let world = World::new().await;
    let one = format!("/sandboxes/{}", made(&world).await);
    let reader = world.key(&[KeyScope::Read]).await;
    let calls = [
        ("POST", "/sandboxes".to_owned(), Some(json!({}))),
        ("DELETE", one.clone(), None),
        ("DELETE", format!("{one}/versions/1"), None),
        ("POST", format!("{one}/versions/prune"), Some(json!({"keep": 1}))),
        ("POST", format!("{one}/stop"), None),
        ("POST", format!("{one}/exec"), Some(json!({"args": ["true"]}))),
        ("PUT", format!("{one}/content?path=x"), None),
        ("POST", format!("{one}/ports/80/token"), None),
        ("GET", format!("{one}/ports/80/"), None),
        ("GET", format!("{one}/wire"), None),
    ];
    for (method, path, body) in calls {
        let told = refused(&world, method, &path, &reader, body).await;
        assert_eq!(told, (403, "scope_missing".to_owned()), "{method} {path}");
    }
    for path in [one.clone(), format!("{one}/files"), format!("{one}/processes"), format!("{one}/metrics")] {
        assert_eq!(world.json("GET", &path, &reader, None).await.0, StatusCode::OK, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn v2_a_stopped_sandbox_runs_again_when_it_is_used() {
    let world = World::new().await;
    let id = made(&world).await;
    let path = format!("/sandboxes/{id}");
    let (status, stopped) = world.json("POST", &format!("{path}/stop"), &world.mine, None).await;
    assert_eq!((status, stopped["state"].as_str()), (StatusCode::OK, Some("stopped")));
    // Who looks at its processes does not start it.
    let looked = refused(&world, "GET", &format!("{path}/processes"), &world.mine, None).await;
    assert_eq!(looked, (503, "not_running".to_owned()));
    assert_eq!(world.get(&path).await["state"], "stopped");
    assert_eq!(exec(&world, &id, json!({"args": ["echo", "again"]})).await["stdout"], "again\n");
    assert_eq!(world.get(&path).await["state"], "running");
    world.json("POST", &format!("{path}/stop"), &world.mine, Some(json!({"grace_ms": 0}))).await;
    let (status, started) = world.json("POST", &format!("{path}/start"), &world.mine, None).await;
    assert_eq!((status, started["state"].as_str()), (StatusCode::OK, Some("running")));
}

#[tokio::test(start_paused = true)]
async fn v6_metadata_is_set_and_taken_away() {
    let world = World::new().await;
    let path = format!("/sandboxes/{}", made(&world).await);
    let set = |metadata: Value| world.json("PATCH", &path, &world.mine, Some(json!({"metadata": metadata})));
    let (_, both) = set(json!({"a": 1, "b": {"c": true}})).await;
    assert_eq!((&both["metadata"]["a"], &both["metadata"]["b"]), (&json!(1), &json!({"c": true})));
    let (_, one) = set(json!({"a": null})).await;
    assert_eq!((one["metadata"].get("a"), &one["metadata"]["b"]), (None, &json!({"c": true})));
    assert_eq!(set(json!({"last_synced_at": 5})).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn p5_commands_answer_with_what_they_did() {
    let world = World::new().await;
    let id = made(&world).await;
    let done = exec(&world, &id, json!({"args": ["echo", "hi", "there"]})).await;
    assert_eq!(
        (&done["exit_code"], &done["stdout"], &done["stderr"]),
        (&json!(0), &json!("hi there\n"), &json!(""))
    );
    assert_eq!(exec(&world, &id, json!({"args": ["false"]})).await["exit_code"], 1);
    let fed = exec(&world, &id, json!({"args": ["cat"], "stdin": "a€"})).await;
    assert_eq!((&fed["stdout"], &fed["encoding"]), (&json!("a€"), &json!("text")));
    let raw = STANDARD.encode([0xff, 0, 1]);
    let fed = exec(&world, &id, json!({"args": ["cat"], "stdin": raw, "encoding": "base64"})).await;
    assert_eq!((&fed["stdout"], &fed["encoding"]), (&json!(raw), &json!("base64")));
    let cut = exec(&world, &id, json!({"args": ["echo", "123456"], "max_output": 3})).await;
    assert_eq!((&cut["stdout"], &cut["stdout_truncated"]), (&json!("123"), &json!(4)));
    let late = exec(&world, &id, json!({"args": ["sleep", "100"], "timeout_ms": 1000})).await;
    assert_eq!((&late["exit_code"], &late["status"]["reason"]), (&json!(124), &json!("timeout")));
}

#[tokio::test(start_paused = true)]
async fn p5_a_command_line_is_a_shells() {
    let world = World::new().await;
    let id = made(&world).await;
    let heard = |call: &seawall_providers::mock::MockCall| Script::stdout(call.args.join("|"));
    world.mock.on_command("/bin/sh", heard);
    assert_eq!(exec(&world, &id, json!({"command": "ls -l"})).await["stdout"], "/bin/sh|-c|--|ls -l");
}

#[tokio::test(start_paused = true)]
async fn p9_commands_that_cannot_be_run_say_why() {
    let world = World::new().await;
    let path = format!("/sandboxes/{}/exec", made(&world).await);
    for (ask, status, code) in [
        (json!({"args": ["nowhere"]}), 422, "exec_failed"),
        (json!({"args": ["true"], "cwd": "/nowhere"}), 422, "exec_failed"),
        (json!({}), 400, "invalid_command"),
        (json!({"command": "ls", "args": ["ls"]}), 400, "invalid_command"),
        (json!({"args": ["cat"], "stdin": "%", "encoding": "base64"}), 400, "invalid_base64"),
        (json!({"args": ["true"], "max_output": 1_u64 << 40}), 400, "invalid_max_output"),
        (json!({"argz": ["true"]}), 400, "invalid_body"),
    ] {
        let told = refused(&world, "POST", &path, &world.mine, Some(ask.clone())).await;
        assert_eq!(told, (status, code.to_owned()), "{ask}");
    }
}

#[tokio::test(start_paused = true)]
async fn p5_a_stream_tells_as_it_happens() {
    let world = World::new().await;
    let path = format!("/sandboxes/{}/exec/stream", made(&world).await);
    let steps = [Step::Stdout("one".into()), Step::Stderr("two".into()), Step::Exit(3)];
    world.mock.on_command("talk", move |_| Script::new(steps.clone()));
    let response = world.request("POST", &path, &world.mine, Some(json!({"args": ["talk"]}))).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let told = events(&text(response).await);
    assert_eq!((told[0].0, &told[0].1["type"]), (0, &json!("started")));
    assert_eq!(output(&told), [is(3, "stdout", "one"), is(6, "stderr", "two"), is(6, "exit", "")]);
    assert_eq!(told.last().unwrap().1["exit_code"], 3);
}

#[tokio::test(start_paused = true)]
async fn p5_no_event_ends_within_a_character() {
    let world = World::new().await;
    let path = format!("/sandboxes/{}/exec/stream", made(&world).await);
    let pause = || Step::Sleep(Duration::from_secs(1));
    let part = |bytes: &'static [u8]| Step::Stdout(Bytes::from_static(bytes));
    let steps = [part(b"a\xe2"), pause(), part(b"\x82"), pause(), part(b"\xacb"), pause(), part(b"\xff\xe2")];
    world.mock.on_command("euro", move |_| Script::new(steps.clone()));
    let asked = |encoding: &str| Some(json!({"args": ["euro"], "encoding": encoding}));
    let told = text(world.request("POST", &path, &world.mine, asked("text")).await).await;
    let expected = [
        is(1, "stdout", "a"),
        is(5, "stdout", "€b"),
        is(6, "stdout", "\u{fffd}"),
        is(7, "stdout", "\u{fffd}"),
        is(7, "exit", ""),
    ];
    assert_eq!(output(&events(&told)), expected);
    let told = text(world.request("POST", &path, &world.mine, asked("base64")).await).await;
    let first = (2, "stdout".to_owned(), STANDARD.encode(b"a\xe2"));
    assert_eq!(output(&events(&told))[0], first);
}

#[tokio::test(start_paused = true)]
async fn p5_a_hang_up_ends_nothing_and_the_output_goes_on() {
    let world = World::new().await;
    let id = made(&world).await;
    let steps =
        [Step::Stdout("one".into()), Step::Sleep(Duration::from_secs(60)), Step::Stdout("two".into())];
    world.mock.on_command("slow", move |_| Script::new(steps.clone()));
    let path = format!("/sandboxes/{id}/exec/stream");
    let response = world.request("POST", &path, &world.mine, Some(json!({"args": ["slow"]}))).await;
    let mut body = response.into_body();
    let begun = read_until(&mut body, "\"one\"").await;
    drop(body);
    let process = events(&begun)[0].1["process"].as_str().unwrap().to_owned();
    assert_eq!(world.mock.running(id.parse().unwrap()), 1);
    let output_path = format!("/sandboxes/{id}/processes/{process}/output");
    // What is there, and no more.
    let there =
        text(world.request("GET", &format!("{output_path}?follow=false"), &world.mine, None).await).await;
    assert_eq!(output(&events(&there)), [is(3, "stdout", "one")]);
    let rest = [is(6, "stdout", "two"), is(6, "exit", "")];
    let from = text(world.request("GET", &format!("{output_path}?from=3"), &world.mine, None).await).await;
    assert_eq!(output(&events(&from)), rest);
    let again = ask("GET", &format!("{output_path}?from=0"), &world.mine).header("last-event-id", "3");
    assert_eq!(output(&events(&text(world.send(again, None).await).await)), rest);
    let odd = ask("GET", &output_path, &world.mine).header("last-event-id", "x");
    assert_eq!(world.send(odd, None).await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(refused(&world, "GET", &format!("{output_path}?from=99"), &world.mine, None).await.0, 400);
}

/// A stream up to a text.
async fn read_until(body: &mut Body, wanted: &str) -> String {
    use http_body_util::BodyExt;
    let mut told = String::new();
    while !told.contains(wanted) {
        let frame = within(body.frame()).await.expect("it ended").unwrap();
        told.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
    told
}

#[tokio::test(start_paused = true)]
async fn p5_processes_are_fed_signalled_and_ended() {
    let world = World::new().await;
    let id = made(&world).await;
    let guest = world.services().sandboxes.guest(ME, id.parse().unwrap()).await.unwrap();
    let cat = StartProcess { stdin: true, tag: Some("cat".into()), ..StartProcess::new(["cat"]) };
    let cat = guest.start_detached(cat).await.unwrap().process;
    let of = |process, rest: &str| format!("/sandboxes/{id}/processes/{process}{rest}");
    let give = |rest: &str, body: &'static str| {
        let request = ask("POST", &of(cat, rest), &world.mine).body(Body::from(body)).unwrap();
        world.call(request)
    };
    assert_eq!(give("/input", "ab").await.status(), StatusCode::NO_CONTENT);
    assert_eq!(give("/input?close=true", "c").await.status(), StatusCode::NO_CONTENT);
    let told = text(world.request("GET", &of(cat, "/output"), &world.mine, None).await).await;
    let said: String = output(&events(&told)).into_iter().map(|(_, _, data)| data).collect();
    assert_eq!(said, "abc");
    let listed = world.get(&format!("/sandboxes/{id}/processes")).await;
    assert_eq!((&listed["items"][0]["tag"], &listed["items"][0]["exit"]["code"]), (&json!("cat"), &json!(0)));

    let start = |seconds: &str| guest.start_detached(StartProcess::new(["sleep", seconds]));
    let (signalled, killed) = (start("1000").await.unwrap().process, start("1000").await.unwrap().process);
    let (status, _) =
        world.json("POST", &of(signalled, "/signal"), &world.mine, Some(json!({"signal": 15}))).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(world.json("DELETE", &of(killed, ""), &world.mine, None).await.0, StatusCode::NO_CONTENT);
    let told = text(world.request("GET", &of(signalled, "/output"), &world.mine, None).await).await;
    assert_eq!(events(&told).last().unwrap().1["exit_code"], 128 + 15);
    assert_eq!(world.mock.running(id.parse().unwrap()), 0);
    let unknown = seawall_api::ProcessId::generate();
    assert_eq!(refused(&world, "DELETE", &of(unknown, ""), &world.mine, None).await.0, 404);
    assert_eq!(refused(&world, "GET", &of(unknown, "/output"), &world.mine, None).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn p5_a_repeated_stream_starts_nothing_new() {
    let world = World::new().await;
    let id = made(&world).await;
    let path = format!("/sandboxes/{id}/exec/stream");
    let mut processes = Vec::new();
    for _ in 0..2 {
        let request = ask("POST", &path, &world.mine).header("idempotency-key", "one");
        let told = text(world.send(request, Some(json!({"args": ["echo", "once"]}))).await).await;
        let told = events(&told);
        assert_eq!(output(&told), [is(5, "stdout", "once\n"), is(5, "exit", "")]);
        processes.push(told[0].1["process"].clone());
    }
    assert_eq!(processes[0], processes[1]);
    let listed = world.get(&format!("/sandboxes/{id}/processes")).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn v4_metrics_are_those_of_the_guest() {
    let world = World::new().await;
    let id = made(&world).await;
    let seen = world.get(&format!("/sandboxes/{id}/metrics")).await;
    assert_eq!((&seen["processes_running"], &seen["processes"]), (&json!(0), &json!([])));
}
