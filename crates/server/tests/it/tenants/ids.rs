//! Someone else's id is answered like one that does not exist, on every route of the document.

use crate::world::{World, ask, text};
use axum::{
    body::Body,
    http::{StatusCode, header::CONTENT_TYPE},
};
use seawall_api::{
    ConversationId, KeyId, MessageId, ProcessId, SandboxId, TurnId, event::Event, http::CreateKey,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Ids by the names that paths have for them.
type Ids = BTreeMap<&'static str, String>;

/// What is A's: a sandbox in which a turn runs, its conversation, a message, a process, a key.
async fn anothers(world: &World) -> Ids {
    let events = crate::world::until(
        world
            .request(
                "POST",
                "/conversations/new/sandbox/auto",
                &world.mine,
                Some(json!({"prompt": "say hi; sleep 500"})),
            )
            .await,
        "hi",
    )
    .await
    .0
    .events;
    let Event::TurnStarted { conversation_id, sandbox_id, turn_id, prompt_id, .. } = &events[0].1 else {
        panic!("{events:?}");
    };
    let processes = world.get(&format!("/sandboxes/{sandbox_id}/processes")).await;
    let ask = CreateKey {
        name: "k".to_owned(),
        scopes: [seawall_api::account::KeyScope::Read].into(),
        expires_at: None,
    };
    let key = world.services().keys.create(crate::world::ME, &ask).await.unwrap().key.id;
    BTreeMap::from([
        ("sandbox", sandbox_id.to_string()),
        ("conversation", conversation_id.to_string()),
        ("turn", turn_id.to_string()),
        ("message", prompt_id.to_string()),
        ("process", processes["items"][0]["process"].as_str().unwrap().to_owned()),
        ("key", key.to_string()),
    ])
}

fn nobodys() -> Ids {
    BTreeMap::from([
        ("sandbox", SandboxId::generate().to_string()),
        ("conversation", ConversationId::generate().to_string()),
        ("turn", TurnId::generate().to_string()),
        ("message", MessageId::generate().to_string()),
        ("process", ProcessId::generate().to_string()),
        ("key", KeyId::generate().to_string()),
    ])
}

/// The path of an operation with these ids. None where it names nothing that belongs to an account.
fn filled(path: &str, ids: &Ids) -> Option<String> {
    let others = ["/accounts/", "/templates/", "/volumes/"];
    if !path.contains('{') || others.iter().any(|other| path.starts_with(other)) {
        return None;
    }
    let thing = if path.starts_with("/sandboxes") { "sandbox" } else { "conversation" };
    let filled = path
        .replace("{id}", &ids[thing])
        .replace("{port}", "80")
        .replace("{*path}", "x")
        .replace("{path}", "x");
    let mut filled = filled.replace("{version}", "1700000000000");
    for (name, id) in ids {
        filled = filled.replace(&format!("{{{name}}}"), id);
    }
    assert!(!filled.contains('{'), "{path} has a part that this test does not know");
    Some(filled)
}

/// A body and a query with which an operation is understood.
fn understood(operation: &str) -> (Option<Value>, &'static str) {
    match operation {
        "prompt" | "prompt_singular" | "claude" => (Some(json!({"prompt": "say theirs"})), ""),
        "patch_conversation" => (Some(json!({"template": "other"})), ""),
        "patch_sandbox" => (Some(json!({"metadata": {"a": 1}})), ""),
        "exec" | "exec_stream" => (Some(json!({"command": "say theirs"})), ""),
        "signal_process" => (Some(json!({"signal": 15})), ""),
        "make_directory" => (Some(json!({"path": "x"})), ""),
        "move_file" => (Some(json!({"from": "x", "to": "y"})), ""),
        "restore_version" => (Some(json!({})), ""),
        "prune_versions" => (Some(json!({"keep": 1})), ""),
        "remove_file" | "read_file" | "write_file" => (None, "?path=x"),
        "diff_versions" => (None, "?from=1"),
        _ => (None, ""),
    }
}

/// What B is told, with the ids taken out of it.
async fn told(
    world: &World,
    method: &str,
    path: &str,
    ids: &Ids,
    body: Option<&Value>,
) -> (u16, Vec<String>, String) {
    let mut request = ask(&method.to_uppercase(), path, &world.theirs).header("x-request-id", "one");
    if path.contains("/terminals/") || path.ends_with("/wire") {
        request = request
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    }
    let body = match body {
        Some(body) => {
            request = request.header(CONTENT_TYPE, "application/json");
            Body::from(body.to_string())
        }
        None => Body::empty(),
    };
    let response = world.call(request.body(body).unwrap()).await;
    let status = response.status().as_u16();
    let headers = response.headers().iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
    let mut body = text(response).await;
    // A turn and its process have one id.
    for id in ids.values() {
        body = body.replace(id, "ID");
    }
    (status, headers, body)
}

#[tokio::test(start_paused = true)]
async fn c7_someone_elses_id_is_answered_like_one_that_does_not_exist() {
    let world = World::new().await;
    let (theirs, nobodys) = (anothers(&world).await, nobodys());
    let document: Value = serde_json::from_str(&seawall_server::openapi().to_json().unwrap()).unwrap();
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let operation = operation["operationId"].as_str().unwrap();
            let Some(real) = filled(path, &theirs) else { continue };
            let unreal = filled(path, &nobodys).unwrap();
            // A turn makes what is not there, so that its ids are compared below.
            if matches!(operation, "prompt" | "prompt_singular") {
                continue;
            }
            let (body, query) = understood(operation);
            let real = told(&world, method, &format!("{real}{query}"), &theirs, body.as_ref()).await;
            let unreal = told(&world, method, &format!("{unreal}{query}"), &nobodys, body.as_ref()).await;
            assert_eq!(real, unreal, "{method} {path}");
            // A socket is asked for over a real connection: see the tests of terminals.
            let expected = if real.2.contains("websocket_expected") { 426 } else { 404 };
            assert_eq!(real.0, expected, "{method} {path}: {}", real.2);
            count += 1;
        }
    }
    assert!(count >= 50, "only {count} operations");
}

#[tokio::test(start_paused = true)]
async fn c7_someone_elses_id_cannot_be_made_or_used_and_is_told_of_as_not_there() {
    let world = World::new().await;
    let theirs = anothers(&world).await;
    let (sandbox, conversation) = (&theirs["sandbox"], &theirs["conversation"]);
    let prompt = Some(json!({"prompt": "say theirs"}));
    for (path, body, thing, id) in [
        ("/sandboxes".to_owned(), Some(json!({"id": sandbox})), "sandbox", sandbox),
        ("/sandboxes".to_owned(), Some(json!({"id": sandbox, "start": false})), "sandbox", sandbox),
        ("/conversations".to_owned(), Some(json!({"id": conversation})), "conversation", conversation),
        (format!("/conversations/{conversation}/sandbox/auto"), prompt.clone(), "conversation", conversation),
        (format!("/conversation/{conversation}/sandbox/auto"), prompt.clone(), "conversation", conversation),
        (format!("/conversations/new/sandbox/{sandbox}"), prompt.clone(), "sandbox", sandbox),
        (format!("/conversations/new/sandbox/{sandbox}?relink=true"), prompt.clone(), "sandbox", sandbox),
        (format!("/conversations/new/sandbox/{sandbox}?wait=5"), prompt, "sandbox", sandbox),
    ] {
        let (status, problem) = world.json("POST", &path, &world.theirs, body).await;
        assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("not_found")), "{path}");
        // As a read of it is answered.
        assert_eq!(problem["detail"], format!("there is no {thing} {id}"), "{path}");
        let things = if thing == "sandbox" { "sandboxes" } else { "conversations" };
        let (_, read) = world.json("GET", &format!("/{things}/{id}"), &world.theirs, None).await;
        for member in ["type", "title", "status", "code", "detail", "retryable"] {
            assert_eq!(problem[member], read[member].clone(), "{path}: {member}");
        }
    }
    // Another sandbox of theirs as a source, in a body.
    let (_, own) = world.json("POST", "/sandboxes", &world.theirs, Some(json!({}))).await;
    let path = format!("/sandboxes/{}/restore", own["id"].as_str().unwrap());
    let answers = [sandbox.clone(), SandboxId::generate().to_string()].map(async |id| {
        let (status, problem) = world.json("POST", &path, &world.theirs, Some(json!({"from": id}))).await;
        (status, problem["detail"].as_str().unwrap().replace(&id, "it"))
    });
    let [real, unreal] = answers;
    assert_eq!(real.await, unreal.await);
    let (_, list) =
        world.json("GET", &format!("/conversations?sandbox_id={sandbox}"), &world.theirs, None).await;
    assert_eq!(list["items"], json!([]));
}
