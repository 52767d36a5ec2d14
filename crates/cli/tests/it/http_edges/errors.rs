//! Refusals: every one is a problem with a code, and has the id of its request.

use crate::http_edges::{
    client::{Answer, Ask, read_answer},
    server::{Server, text},
};
use crate::world::eventually;
use serde_json::{Value, json};
use std::{io::Write, net::TcpStream, time::Duration};

/// As many bytes as no call may have, unless it says otherwise.
const LIMIT: usize = 1 << 20;

#[test]
fn p9_every_refusal_is_a_problem() {
    let server = Server::start();
    let get = |path: &str| server.ask("GET", path);
    let post = |path: &str, body: &str| server.ask("POST", path).body("application/json", body);
    let nobody = "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e";
    let zero = "00000000-0000-0000-0000-000000000000";
    let cases: Vec<(Ask, u16, &str)> = vec![
        (get("/nowhere"), 404, "no_such_route"),
        (server.anonymous("GET", "/nowhere"), 404, "no_such_route"),
        (server.ask("DELETE", "/health"), 405, "method_not_allowed"),
        (server.ask("BREW", "/sandboxes"), 405, "method_not_allowed"),
        (server.anonymous("GET", "/account"), 401, "key_missing"),
        (get("/sandboxes/nope"), 400, "invalid_id"),
        (get(&format!("/sandboxes/{zero}")), 400, "invalid_id"),
        (get(&format!("/sandboxes/{nobody}")), 404, "not_found"),
        (get(&format!("/conversations/{nobody}")), 404, "not_found"),
        (get("/templates/nope"), 404, "not_found"),
        (get("/sandboxes?limit=many"), 400, "invalid_query"),
        (get("/sandboxes?limits=1"), 400, "invalid_query"),
        (get("/sandboxes?limit=0"), 400, "invalid"),
        (get("/sandboxes?limit=1001"), 400, "invalid"),
        (post("/conversations", "{"), 400, "invalid_body"),
        (post("/conversations", ""), 400, "invalid_body"),
        (post("/conversations", "[]"), 400, "invalid_body"),
        (post("/sandboxes", r#"{"imgae": "x"}"#), 400, "invalid_body"),
        (post("/sandboxes", &format!(r#"{{"id": "{zero}"}}"#)), 400, "invalid_body"),
        (post("/conversations", r#"{"template": "nope"}"#), 400, "invalid"),
        (post("/conversations", &format!("{{}}{}", " ".repeat(LIMIT))), 413, "body_too_large"),
        (server.ask("POST", "/conversations").body("text/plain", "{}"), 415, "unsupported_media_type"),
        (post("/conversations", "{}").header("idempotency-key", "a b"), 400, "invalid_idempotency_key"),
        (get("/audit?limit=0"), 400, "invalid_query"),
    ];
    for (ask, status, code) in cases {
        ask.send().refused(status, code);
    }
    // What is no text at all.
    assert_eq!(get("/sandboxes/%ff").send().problem(400)["status"], 400);
    let allowed = server.ask("DELETE", "/health").send();
    assert!(allowed.header("allow").is_some_and(|all| all.contains("GET")), "{allowed:?}");
}

#[test]
fn p9_every_refusal_of_a_sandbox_is_a_problem() {
    let server = Server::start();
    let id = server.sandbox();
    server.run(&id, "echo 0123456789 > /work/digits");
    let get = |rest: &str| server.ask("GET", &format!("/sandboxes/{id}/{rest}"));
    let post = |rest: &str, body: Value| server.ask("POST", &format!("/sandboxes/{id}/{rest}")).json(&body);
    let cases: Vec<(Ask, u16, &str)> = vec![
        (get("content?path=missing"), 404, "not_found"),
        (get("content"), 400, "invalid_query"),
        (get("content?path=digits&max_size=3"), 413, "too_large"),
        (get("content?path=digits").header("range", "bytes=100-"), 416, "invalid_range"),
        (get("files?depth=0"), 400, "invalid"),
        (get("files?limit=1001"), 400, "invalid"),
        (get("wire"), 426, "websocket_expected"),
        (get("processes/nope/output"), 400, "invalid_id"),
        (get("ports/0/"), 400, "invalid_port"),
        (post("exec", json!({})), 400, "invalid_command"),
        (post("exec", json!({ "args": ["true"], "command": "true" })), 400, "invalid_command"),
        (post("exec", json!({ "args": ["/no/such/program"] })), 422, "exec_failed"),
        (
            post("exec", json!({ "command": "cat", "stdin": "%", "encoding": "base64" })),
            400,
            "invalid_base64",
        ),
        (post("terminals", json!({ "size": { "rows": 0, "cols": 80 } })), 400, "invalid_size"),
        (post("ports/8000/token", json!({ "expires_in_s": 0 })), 400, "invalid_lifetime"),
        (post("move", json!({ "from": "missing", "to": "there" })), 404, "not_found"),
    ];
    for (ask, status, code) in cases {
        ask.send().refused(status, code);
    }
    // Of a file that is a directory, of a port that is none, of a mode that is none.
    get("content?path=/work").send().problem(400);
    get("ports/70000/").send().problem(400);
    server.put(&format!("/sandboxes/{id}/content?path=x&mode=999"), "x").refused(400, "invalid_mode");
}

#[test]
fn p9_a_request_has_the_callers_id_or_a_new_one() {
    let server = Server::start();
    let with = |id: &str| server.anonymous("GET", "/health").header("x-request-id", id).send().is(200);
    assert_eq!(with("mine-1:2/3=4").header("x-request-id"), Some("mine-1:2/3=4"));
    let long = "x".repeat(200);
    let fresh = ["", "a b", long.as_str()].map(|id| with(id).header("x-request-id").unwrap().to_owned());
    assert!(fresh.iter().all(|id| id.len() == 36), "{fresh:?}");
    assert!(fresh[0] != fresh[1] && fresh[1] != fresh[2], "{fresh:?}");
    let refused = server.anonymous("GET", "/account").header("x-request-id", "mine").send();
    assert_eq!(refused.refused(401, "key_missing")["request_id"], "mine");
}

/// Sends bytes as they are, and reads what comes.
fn raw(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // It may be refused before it is all there.
    let _ = stream.write_all(bytes);
    read_answer(&mut stream, Vec::new(), false)
}

#[test]
fn k5_heads_that_are_too_large_are_refused() {
    let server = Server::start();
    let long = format!("GET /health HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "x".repeat(256 << 10));
    let many: String = (0..500).map(|number| format!("x-{number}: y\r\n")).collect();
    let many = format!("GET /health HTTP/1.1\r\nhost: x\r\n{many}\r\n");
    let address = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(128 << 10));
    let garbage = "\0\x01\x02 not HTTP\r\n\r\n".to_owned();
    for bytes in [long, many, address, garbage] {
        let said = raw(&server, bytes.as_bytes());
        let status = Answer::parse(&said, false).status;
        assert!(matches!(status, 400 | 414 | 431), "{status} for {:.40}", bytes.escape_debug().to_string());
    }
    server.anonymous("GET", "/health").send().is(200);
}

#[test]
fn k5_bodies_that_are_too_large_are_refused() {
    let server = Server::start();
    let large = server.ask("POST", "/conversations").body("application/json", vec![b' '; 8 * LIMIT]).send();
    large.refused(413, "body_too_large");
    // Also where their length is not told.
    let head = server
        .ask("POST", "/conversations")
        .header("content-type", "application/json")
        .header("transfer-encoding", "chunked")
        .head();
    let chunk = format!("{LIMIT:x}\r\n{}\r\n", " ".repeat(LIMIT));
    let said = raw(&server, format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes());
    Answer::parse(&said, false).refused(413, "body_too_large");
    // The limit is the operator's.
    let small = Server::with("body_limit_bytes = 2048\n");
    let padded = |length: usize| format!("{{}}{}", " ".repeat(length - 2));
    let ask = |length| small.ask("POST", "/conversations").body("application/json", padded(length)).send();
    ask(2048).is(201);
    ask(2049).refused(413, "body_too_large");
}

#[test]
fn k6_the_same_key_is_the_same_call() {
    let server = Server::start();
    let ask = |key: &str, path: &str, body: Value| {
        server.ask("POST", path).header("idempotency-key", key).json(&body).send()
    };
    let first = ask("one", "/conversations", json!({})).is(201);
    assert_eq!(first.header("idempotent-replayed"), None);
    let again = ask("one", "/conversations", json!({})).is(201);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.json(), first.json());
    assert_ne!(again.header("x-request-id"), first.header("x-request-id"));
    assert_ne!(ask("two", "/conversations", json!({})).is(201).json()["id"], first.json()["id"]);
    // Another body, another route, another query.
    ask("one", "/conversations", json!({ "agent_id": "a" })).refused(409, "idempotency_conflict");
    ask("one", "/sandboxes", json!({})).refused(409, "idempotency_conflict");
    ask("one", "/conversations?x=1", json!({})).refused(409, "idempotency_conflict");
    // What was refused was not done, and what is wrong stays wrong.
    let refused = ask("three", "/conversations", json!({ "template": "nope" })).problem(400);
    assert_eq!(ask("three", "/conversations", json!({ "template": "nope" })).is(400).json(), refused);
    let too_long = "x".repeat(256);
    ask(&too_long, "/conversations", json!({})).refused(400, "invalid_idempotency_key");
    let listed = server.get("/conversations").is(200).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 2, "{listed}");
    // Another account's key is another.
    let (_, other) = server.new_account("others");
    let theirs = server.anonymous("POST", "/conversations").key(&other).header("idempotency-key", "one");
    assert_ne!(theirs.json(&json!({})).send().is(201).json()["id"], first.json()["id"]);
}

#[test]
fn k6_secrets_are_not_kept_for_repeats() {
    let server = Server::start();
    let body = json!({ "name": "once", "scopes": ["read"] });
    let ask = || server.ask("POST", "/keys").header("idempotency-key", "k").json(&body).send();
    let secret = text(&ask().is(201).json()["secret"]);
    ask().refused(409, "idempotency_not_replayable");
    let listed = server.get("/keys").is(200).json();
    let made = listed["items"].as_array().unwrap().iter().filter(|key| key["name"] == "once").count();
    assert_eq!(made, 1, "{listed}");
    server.anonymous("GET", "/account").key(&secret).send().is(200);
}

#[test]
fn k6_a_call_that_runs_is_not_begun_again() {
    let server = Server::start();
    let id = server.sandbox();
    let ask = server
        .ask("POST", &format!("/sandboxes/{id}/exec"))
        .header("idempotency-key", "slow")
        .json(&json!({ "command": "echo ran >> /work/runs; until [ -e /work/go ]; do sleep 0.05; done; echo done" }));
    let first = {
        let ask = ask.clone();
        std::thread::spawn(move || ask.send())
    };
    let has_run = || server.run(&id, "cat /work/runs 2>&1 || true") == "ran\n";
    eventually("the first is at it", has_run).unwrap();
    let second = ask.send();
    second.refused(409, "idempotency_running");
    assert_eq!(second.header("retry-after"), Some("1"));
    server.run(&id, "touch /work/go");
    let first = first.join().unwrap().is(200);
    let third = ask.send().is(200);
    assert_eq!(third.header("idempotent-replayed"), Some("true"));
    assert_eq!(third.json(), first.json());
    assert_eq!(server.run(&id, "cat /work/runs"), "ran\n");
}
