//! C7: nobody sees another account's, and nobody without a key sees anything.

use crate::http_turns::{
    client::{ANY, Client},
    http::ask,
    served::Served,
};
use serde_json::{Value, json};

/// A key of another account, made by whoever runs the server.
fn stranger(served: &Served) -> Client {
    let account = served.done("POST", "/accounts", &json!({"name": "other"}));
    let path = format!("/accounts/{}/keys", account["id"].as_str().unwrap());
    let made = served.done("POST", &path, &json!({"name": "theirs", "scopes": ["admin"]}));
    Client { address: served.address.clone(), key: made["secret"].as_str().unwrap().to_owned() }
}

/// Everything that a turn's ids are good for.
fn calls(conversation: &str, turn: &str, sandbox: &str) -> Vec<(&'static str, String, Value)> {
    let prompt = || json!({"prompt": "echo mine > stolen"});
    vec![
        ("GET", format!("/conversations/{conversation}"), Value::Null),
        ("PATCH", format!("/conversations/{conversation}"), json!({"template": "shell"})),
        ("GET", format!("/conversations/{conversation}/messages"), Value::Null),
        ("GET", format!("/conversations/{conversation}/turns"), Value::Null),
        ("GET", turn.to_owned(), Value::Null),
        ("GET", format!("{turn}/events"), Value::Null),
        ("POST", format!("{turn}/cancel"), Value::Null),
        ("POST", format!("/conversations/{conversation}/sandbox/auto"), prompt()),
        ("POST", format!("/conversations/{conversation}/sandbox/{sandbox}?relink=true"), prompt()),
        ("POST", format!("/conversations/new/sandbox/{sandbox}"), prompt()),
        ("POST", format!("/sandboxes/{sandbox}/claude"), json!({"prompt": "true", "template": "shell"})),
        ("GET", format!("/sandboxes/{sandbox}"), Value::Null),
        ("PATCH", format!("/sandboxes/{sandbox}"), json!({"metadata": {"a": 1}})),
        ("POST", format!("/sandboxes/{sandbox}/exec"), json!({"command": "true"})),
        ("GET", format!("/sandboxes/{sandbox}/files?path=/work"), Value::Null),
        ("GET", format!("/sandboxes/{sandbox}/content?path=/work/file"), Value::Null),
        ("GET", format!("/sandboxes/{sandbox}/versions"), Value::Null),
        ("POST", format!("/sandboxes/{sandbox}/sync"), json!({})),
        ("POST", format!("/sandboxes/{sandbox}/start"), Value::Null),
        ("POST", format!("/sandboxes/{sandbox}/stop"), Value::Null),
        ("DELETE", format!("/sandboxes/{sandbox}"), Value::Null),
        ("DELETE", format!("/conversations/{conversation}?terminate=true"), Value::Null),
    ]
}

#[test]
fn c7_http_what_is_anothers_is_not_there() {
    let served = Served::new();
    let mut view = served.turn(ANY, "echo kept > file");
    view.follow_to_the_end();
    let (conversation, sandbox) = (view.id("conversation_id"), view.id("sandbox_id"));
    let stranger = stranger(&served);
    for (method, path, body) in calls(&conversation, &view.place(), &sandbox) {
        let (status, problem) = stranger.call(method, &path, &body);
        assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{method} {path}: {problem}");
    }
    let theirs = stranger.items("/conversations");
    assert!(theirs.iter().all(|each| each["id"] != *conversation), "{theirs:?}");
    assert!(stranger.items("/sandboxes").is_empty());
    // Theirs to use, and only theirs.
    let mut own = stranger.turn(ANY, "ls");
    own.follow_to_the_end();
    assert_eq!(own.text(), "");
    assert_eq!(served.call("GET", &own.place(), &Value::Null).0, 404);
    assert_eq!(stranger.call("POST", "/accounts", &json!({"name": "more"})).0, 403);
    assert_eq!(served.said(&conversation, "cat file; ls"), "kept\nfile\n");
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 4);
}

#[test]
fn c7_http_without_a_key_there_is_nothing() {
    let served = Served::new();
    let mut view = served.turn(ANY, "true");
    view.follow_to_the_end();
    let nobody = Client { key: "sw_nothing".to_owned(), ..(*served).clone() };
    for (method, path, body) in calls(&view.id("conversation_id"), &view.place(), &view.id("sandbox_id")) {
        assert_eq!(nobody.call(method, &path, &body).0, 401, "{method} {path}");
        let silent = ask(method, &path);
        let silent = if body.is_null() { silent } else { silent.json(&body) };
        assert_eq!(served.send(&silent).status, 401, "{method} {path}");
    }
    assert_eq!(served.stats(&view.id("conversation_id"))["messages_exchanged"], 2);
}
