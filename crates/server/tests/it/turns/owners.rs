//! C7: every read and every write asks whose it is.

use crate::world::World;
use axum::http::StatusCode;
use seawall_api::{ConversationId, SandboxId, account::KeyScope, event::Event};
use serde_json::{Value, json};

/// A conversation of A with a turn, by the paths of all that it has.
struct Owned {
    conversation: ConversationId,
    sandbox: SandboxId,
    turn: String,
    message: String,
}

async fn owned(world: &World) -> Owned {
    let path = "/conversations/new/sandbox/auto";
    let events = world.sse("POST", path, &world.mine, Some(json!({"prompt": "say mine"}))).await;
    world.quiet().await;
    let Event::TurnStarted { conversation_id, sandbox_id, turn_id, prompt_id, .. } = &events[0].1 else {
        panic!("{events:?}");
    };
    Owned {
        conversation: *conversation_id,
        sandbox: *sandbox_id,
        turn: format!("/conversations/{conversation_id}/turns/{turn_id}"),
        message: format!("/conversations/{conversation_id}/messages/{prompt_id}"),
    }
}

/// Every call on what is A's: the method, the path, the body, and whether it changes something.
fn calls(owned: &Owned) -> Vec<(&'static str, String, Option<Value>, bool)> {
    let (conversation, prompt) = (owned.conversation, Some(json!({"prompt": "say theirs"})));
    let one = format!("/conversations/{conversation}");
    vec![
        ("GET", one.clone(), None, false),
        ("GET", format!("{one}/messages"), None, false),
        ("GET", owned.message.clone(), None, false),
        ("GET", format!("{one}/turns"), None, false),
        ("GET", owned.turn.clone(), None, false),
        ("GET", format!("{}/events", owned.turn), None, false),
        ("POST", format!("{}/cancel", owned.turn), None, true),
        ("POST", "/conversations".to_owned(), Some(json!({"id": conversation})), true),
        ("POST", format!("{one}/sandbox/auto"), prompt.clone(), true),
        ("POST", format!("{one}/sandbox/{}?relink=true", SandboxId::generate()), prompt.clone(), true),
        ("POST", format!("/conversation/{conversation}/sandbox/auto"), prompt.clone(), true),
        ("POST", format!("/conversations/new/sandbox/{}", owned.sandbox), prompt.clone(), true),
        ("POST", format!("/sandboxes/{}/claude", owned.sandbox), prompt, true),
        ("PATCH", one.clone(), Some(json!({"template": "other"})), true),
        ("DELETE", format!("{one}?terminate=true"), None, true),
    ]
}

#[tokio::test(start_paused = true)]
async fn c7_http_of_another_account_nothing_is_found() {
    let world = World::new().await;
    let owned = owned(&world).await;
    let before = world.get(&format!("/conversations/{}", owned.conversation)).await;
    for (method, path, body, _) in calls(&owned) {
        let (status, problem) = world.json(method, &path, &world.theirs, body).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::NOT_FOUND, &json!("not_found")),
            "{method} {path}"
        );
    }
    let (_, list) = world.json("GET", "/conversations", &world.theirs, None).await;
    assert!(!list.to_string().contains(&owned.conversation.to_string()), "{list}");
    assert_eq!(world.get(&format!("/conversations/{}", owned.conversation)).await, before);
    assert_eq!(world.shell.scripts(), ["say mine"]);
}

#[tokio::test(start_paused = true)]
async fn c7_http_what_is_of_another_conversation_is_not_found_in_this_one() {
    let world = World::new().await;
    let (first, second) = (owned(&world).await, owned(&world).await);
    let (here, there) = (first.conversation.to_string(), second.conversation.to_string());
    let turn = second.turn.replace(&there, &here);
    for (method, path) in [
        ("GET", turn.clone()),
        ("GET", format!("{turn}/events")),
        ("POST", format!("{turn}/cancel")),
        ("GET", second.message.replace(&there, &here)),
    ] {
        let (status, problem) = world.json(method, &path, &world.mine, None).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::NOT_FOUND, &json!("not_found")),
            "{method} {path}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn c7_http_a_key_does_what_its_scopes_say() {
    let world = World::new().await;
    let owned = owned(&world).await;
    let read = world.key(&[KeyScope::Read]).await;
    for (method, path, body, changes) in calls(&owned) {
        let (status, problem) = world.json(method, &path, "", body.clone()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path}: {problem}");
        if changes {
            let (status, problem) = world.json(method, &path, &read, body).await;
            assert_eq!(
                (status, &problem["code"]),
                (StatusCode::FORBIDDEN, &json!("scope_missing")),
                "{method} {path}"
            );
        } else {
            assert_eq!(world.request(method, &path, &read, body).await.status(), StatusCode::OK, "{path}");
        }
    }
    assert_eq!(world.shell.scripts(), ["say mine"]);
}
