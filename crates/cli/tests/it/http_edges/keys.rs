//! Who is let in: every operation of the document, with keys that are not good enough, and with another's things.

use crate::http_edges::{
    client::Answer,
    document::{Operation, Things, operations},
    server::{Server, text},
};
use crate::world::eventually;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::time::Duration;

/// Keys are believed for about a second.
const BELIEVED: Duration = Duration::from_millis(2500);

fn describe(operation: &Operation, how: &str, answer: &Answer) -> String {
    format!("{} {} {how}: {} {}", operation.method, operation.path, answer.status, answer.text())
}

/// Adds what is wrong with an answer. All are looked at, so that one run tells of all.
fn note(wrong: &mut Vec<String>, operation: &Operation, how: &str, answer: &Answer, status: u16, code: &str) {
    if operation.method == "HEAD" && answer.text().is_empty() {
        // The answer to a HEAD has no body to tell with.
        if answer.status != status {
            wrong.push(describe(operation, how, answer));
        }
        return;
    }
    let is_problem = answer.header("content-type") == Some("application/problem+json");
    let told: Value = if is_problem { answer.json() } else { Value::Null };
    let has_id = answer.header("x-request-id").is_some_and(|id| told["request_id"] == id);
    if answer.status != status || !has_id || (!code.is_empty() && told["code"] != code) {
        wrong.push(describe(operation, how, answer));
    }
}

#[track_caller]
fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A key that was good for a moment.
fn expired(server: &Server) -> String {
    let until = Timestamp::now() + SignedDuration::from_secs(1);
    let ask = json!({ "name": "short", "scopes": ["admin"], "expires_at": until.to_string() });
    let made = server.post("/keys", &ask).is(201).json();
    text(&made["secret"])
}

fn revoked(server: &Server) -> String {
    let ask = json!({ "name": "taken back", "scopes": ["admin"] });
    let made = server.post("/keys", &ask).is(201).json();
    let secret = text(&made["secret"]);
    server.anonymous("GET", "/account").key(&secret).send().is(200);
    server.delete(&format!("/keys/{}", text(&made["key"]["id"]))).is(204);
    secret
}

#[test]
fn k1_without_a_good_key_nothing_is_open() {
    let server = Server::start();
    let things = Things::make(&server);
    let unknown = format!("sw_{}", "0".repeat(64));
    let (expired, revoked) = (expired(&server), revoked(&server));
    std::thread::sleep(BELIEVED);
    let keys = [(&unknown, "key_unknown"), (&expired, "key_expired"), (&revoked, "key_revoked")];
    let (mut wrong, mut count) = (Vec::new(), 0);
    for operation in operations(&server).iter().filter(|operation| operation.scope.is_some()) {
        count += 1;
        let ask = operation.call(&server, &things);
        let answer = ask.send();
        note(&mut wrong, operation, "without a key", &answer, 401, "key_missing");
        if answer.header("www-authenticate") != Some("Bearer") {
            wrong.push(describe(operation, "does not say what is missing", &answer));
        }
        for (secret, code) in keys {
            note(&mut wrong, operation, code, &ask.clone().key(secret).send(), 401, code);
        }
        let basic = ask.clone().header("authorization", "Basic dXNlcjpwYXNz").send();
        note(&mut wrong, operation, "with a password", &basic, 401, "key_missing");
    }
    none(&wrong);
    assert!(count > 50, "only {count} operations were found");
    untouched(&server, &things);
}

#[test]
fn k2_a_key_is_good_for_its_scope_alone() {
    let server = Server::start();
    let things = Things::make(&server);
    let (reader, runner) = (server.new_key("read"), server.new_key("run"));
    let mut wrong = Vec::new();
    let mut count = [0, 0];
    for operation in &operations(&server) {
        let (which, key) = match operation.scope.as_deref() {
            Some("run") => (0, &reader),
            Some("admin") => (1, &runner),
            Some("read") | None => continue,
            Some(other) => panic!("{} needs {other}, which is no scope", operation.id),
        };
        count[which] += 1;
        let answer = operation.call(&server, &things).key(key).send();
        note(&mut wrong, operation, "with too small a key", &answer, 403, "scope_missing");
    }
    none(&wrong);
    assert!(count[0] > 20 && count[1] > 5, "{count:?}");
    // And it is good for that.
    server.anonymous("GET", "/sandboxes").key(&reader).send().is(200);
    server.anonymous("GET", "/sandboxes").key(&runner).send().is(200);
    server.anonymous("POST", "/conversations").key(&runner).json(&json!({})).send().is(201);
    untouched(&server, &things);
}

#[test]
fn c7_another_accounts_things_are_not_there() {
    let server = Server::start();
    let things = Things::make(&server);
    let (_, other) = server.new_account("others");
    let (mut wrong, mut count) = (Vec::new(), 0);
    for operation in operations(&server).iter().filter(|operation| operation.is_about_something()) {
        count += 1;
        let answer = operation.call(&server, &things).key(&other).send();
        // Accounts are the operator's to see, whichever they are.
        let (status, code) = match operation.path.starts_with("/accounts/") {
            true => (403, "operator_only"),
            false => (404, "not_found"),
        };
        note(&mut wrong, operation, "by another account", &answer, status, code);
    }
    none(&wrong);
    assert!(count > 40, "only {count} operations were found");
    // Also where only one of two is another's.
    let prompt = json!({ "prompt": "touch touched", "template": "shell" });
    for (conversation, sandbox) in [(things.conversation.as_str(), "auto"), ("new", things.sandbox.as_str())]
    {
        let path = format!("/conversations/{conversation}/sandbox/{sandbox}");
        server.anonymous("POST", &path).key(&other).json(&prompt).send().problem(404);
    }
    // An id that is taken is not told whose it is.
    let taken =
        server.anonymous("POST", "/sandboxes").key(&other).json(&json!({ "id": things.sandbox })).send();
    taken.refused(404, "not_found");
    let listed = server.anonymous("GET", "/sandboxes").key(&other).send().is(200).json();
    assert_eq!(listed["items"], json!([]));
    untouched(&server, &things);
}

/// All of it is as it was made.
#[track_caller]
fn untouched(server: &Server, things: &Things) {
    assert_eq!(server.state(&things.sandbox), "running");
    assert_eq!(server.run(&things.sandbox, "ls /work; cat /work/kept"), "kept\nkept\n");
    let sandbox = server.get(&format!("/sandboxes/{}", things.sandbox)).is(200).json();
    assert!(sandbox["metadata"].get("touched").is_none(), "{sandbox}");
    // Answers are carried to their store.
    let path = format!("/conversations/{}/messages", things.conversation);
    let said = || server.get(&path).is(200).json()["items"].as_array().map(Vec::len);
    eventually("both messages are there", || said() == Some(2)).unwrap();
    let processes = server.get(&format!("/sandboxes/{}/processes", things.sandbox)).is(200).json();
    let is_terminal = |each: &&Value| each["process"] == *things.process;
    let terminal = processes["items"].as_array().unwrap().iter().find(is_terminal).unwrap();
    assert_eq!(terminal["exit"], Value::Null, "{terminal}");
}

#[test]
fn k4_a_key_is_rotated_with_an_overlap() {
    let server = Server::start();
    let old = json!({ "name": "old", "scopes": ["run"] });
    let old = server.post("/keys", &old).is(201).json();
    let (id, old_secret) = (text(&old["key"]["id"]), text(&old["secret"]));
    let new = server.post(&format!("/keys/{id}/rotate"), &json!({ "overlap_s": 3 })).is(200);
    assert_eq!(new.header("cache-control"), Some("no-store"));
    let new = new.json();
    assert_eq!((&new["replaces"], &new["key"]["scopes"]), (&json!(id), &json!(["run"])));
    let asks = |secret: &str| server.anonymous("GET", "/account").key(secret).send();
    asks(&old_secret).is(200);
    asks(&text(&new["secret"])).is(200);
    std::thread::sleep(Duration::from_secs(3) + BELIEVED);
    asks(&old_secret).refused(401, "key_revoked");
    asks(&text(&new["secret"])).is(200);
    // No list has a secret.
    let listed = server.get("/keys").is(200).text();
    assert!(listed.contains(&id) && !listed.contains(&old_secret[12..]), "{listed}");
}

#[test]
fn k4_what_was_done_is_written_down_for_its_account() {
    let server = Server::start();
    let (_, other) = server.new_account("others");
    server.post("/conversations", &json!({})).is(201);
    let own = server.get("/audit").is(200).text();
    assert!(own.contains("/conversations") && own.contains("/accounts"), "{own}");
    let others = server.anonymous("GET", "/audit").key(&other).send().is(200).json();
    assert_eq!(others["items"], json!([]));
    for secret in [&server.key, &other] {
        assert!(!own.contains(secret.as_str()), "a secret was written down");
    }
}
