//! Conversations: what they have, which are listed, and what goes with them.

use crate::world::{ME, Setup, World, answer};
use axum::http::StatusCode;
use seawall_api::{ConversationId, SandboxId, event::Event, sandbox::SandboxState};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::sleep;

/// Makes a conversation.
async fn made(world: &World, body: Value) -> Value {
    let (status, conversation) = world.json("POST", "/conversations", &world.mine, Some(body)).await;
    assert_eq!(status, StatusCode::CREATED, "{conversation}");
    // So that no two of them are of one time.
    sleep(Duration::from_millis(10)).await;
    conversation
}

/// The template of a turn.
async fn template_of(world: &World, conversation: &str, body: Value) -> String {
    let path = format!("/conversations/{conversation}/sandbox/auto");
    let events = world.sse("POST", &path, &world.mine, Some(body)).await;
    match &events[0].1 {
        Event::TurnStarted { template, .. } => template.clone(),
        other => panic!("{other:?}"),
    }
}

fn ids(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn c1_http_a_conversation_has_all_its_fields() {
    let world = World::new().await;
    let id = ConversationId::generate();
    let body = json!({"id": id, "organization_id": "org", "agent_id": "bot", "template": "other"});
    let conversation = made(&world, body.clone()).await;
    assert_eq!((&conversation["id"], &conversation["account_id"]), (&json!(id), &json!(ME)));
    for (field, value) in [("organization_id", "org"), ("agent_id", "bot"), ("template", "other")] {
        assert_eq!(conversation[field], value);
    }
    assert!(conversation["stats"].is_object() && conversation["created_at"].is_string());
    assert!(conversation["updated_at"].is_string());
    // The same again is the same one.
    let (status, again) = world.json("POST", "/conversations", &world.mine, Some(body)).await;
    assert_eq!((status, &again), (StatusCode::OK, &conversation));
    assert_eq!(world.get(&format!("/conversations/{id}")).await, conversation);
    // Without a wish it is a new one each time.
    assert_ne!(made(&world, json!({})).await["id"], made(&world, json!({})).await["id"]);
}

#[tokio::test(start_paused = true)]
async fn c1_http_an_unknown_template_is_an_error_that_says_which_there_are() {
    let world = World::new().await;
    let conversation = made(&world, json!({"template": "other"})).await;
    let one = format!("/conversations/{}", conversation["id"].as_str().unwrap());
    for (method, path) in [("POST", "/conversations"), ("PATCH", one.as_str())] {
        let (status, problem) =
            world.json(method, path, &world.mine, Some(json!({"template": "nope"}))).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid")), "{method}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("`nope`") && detail.contains(", shell"), "{detail}");
    }
    assert_eq!(world.get(&one).await, conversation);
    let path = "/conversations/new/sandbox/auto";
    let body = json!({"prompt": "say hi", "template": "nope"});
    let (status, problem) = world.json("POST", path, &world.mine, Some(body)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
}

#[tokio::test(start_paused = true)]
async fn c1_http_the_template_is_the_requests_else_the_conversations_else_the_agents() {
    let agents = BTreeMap::from([("bot".to_owned(), "other".to_owned())]);
    let world = World::with(Setup { agents, ..Setup::default() }).await;
    let conversation = made(&world, json!({"agent_id": "bot"})).await;
    let id = conversation["id"].as_str().unwrap();
    let plain = json!({"prompt": "say hi"});
    assert_eq!(template_of(&world, id, plain.clone()).await, "other");
    let path = format!("/conversations/{id}");
    let change = Some(json!({"template": "claude-code"}));
    let (status, changed) = world.json("PATCH", &path, &world.mine, change).await;
    assert_eq!((status, &changed["template"]), (StatusCode::OK, &json!("claude-code")));
    world.quiet().await;
    assert_eq!(template_of(&world, id, plain.clone()).await, "claude-code");
    world.quiet().await;
    assert_eq!(template_of(&world, id, json!({"prompt": "say hi", "template": "shell"})).await, "shell");
    assert_eq!(template_of(&world, "new", plain).await, "shell");
}

#[tokio::test(start_paused = true)]
async fn c1_http_lists_are_filtered_sorted_and_paged() {
    let world = World::new().await;
    let mut all = Vec::new();
    for (organization, agent) in [("a", "x"), ("a", "y"), ("b", "x")] {
        let body = json!({"organization_id": organization, "agent_id": agent});
        all.push(made(&world, body).await["id"].as_str().unwrap().to_owned());
    }
    let newest: Vec<&str> = all.iter().rev().map(String::as_str).collect();
    assert_eq!(ids(&world.get("/conversations?sort=created").await), newest);
    assert_eq!(ids(&world.get("/conversations?organization_id=a").await), newest[1..]);
    assert_eq!(ids(&world.get("/conversations?organization_id=a&agent_id=x").await), newest[2..]);
    // The oldest is the latest that was changed.
    let path = format!("/conversations/{}/sandbox/auto", all[0]);
    world.sse("POST", &path, &world.mine, Some(json!({"prompt": "say hi"}))).await;
    assert_eq!(ids(&world.get("/conversations").await)[0], all[0]);
    let sandbox = world.get(&format!("/conversations/{}", all[0])).await["sandbox_id"].clone();
    let linked = format!("/conversations?sandbox_id={}", sandbox.as_str().unwrap());
    assert_eq!(ids(&world.get(&linked).await), [all[0].as_str()]);
    let first = world.get("/conversations?sort=created&limit=2").await;
    assert_eq!(ids(&first), newest[..2]);
    let next = first["next"].as_str().unwrap();
    let second = world.get(&format!("/conversations?sort=created&limit=2&after={next}")).await;
    assert_eq!((ids(&second), &second["next"]), (newest[2..].to_vec(), &Value::Null));
    for wrong in ["limit=0", "limit=1001", "limit=x", "after=x", "sort=size", "sandbox_id=x", "colour=red"] {
        let path = format!("/conversations?{wrong}");
        let (status, problem) = world.json("GET", &path, &world.mine, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn c3_http_a_conversation_gets_a_sandbox_and_keeps_it() {
    let world = World::new().await;
    let conversation = made(&world, json!({})).await;
    assert_eq!(conversation["sandbox_id"], Value::Null);
    let one = format!("/conversations/{}", conversation["id"].as_str().unwrap());
    let path = format!("{one}/sandbox/auto");
    let run = async |words: &str| world.sse("POST", &path, &world.mine, Some(json!({"prompt": words}))).await;
    let cold = |events: &[(u64, Event)]| {
        events.iter().find_map(|(_, event)| match event {
            Event::SandboxReady { cold, .. } => Some(*cold),
            _ => None,
        })
    };
    let first = run("say one").await;
    assert_eq!((answer(&first).as_str(), cold(&first)), ("one", Some(true)));
    let sandbox = world.get(&one).await["sandbox_id"].clone();
    assert!(sandbox.is_string());
    world.quiet().await;
    assert_eq!(cold(&run("say two").await), Some(false));
    world.quiet().await;
    // Its box is gone: it is made again, under the same id.
    let id: SandboxId = serde_json::from_value(sandbox.clone()).unwrap();
    world.mock.crash(id);
    sleep(Duration::from_secs(1)).await;
    let third = run("say three").await;
    assert_eq!(answer(&third), "three");
    assert_eq!(world.get(&one).await["sandbox_id"], sandbox);
}

#[tokio::test(start_paused = true)]
async fn c4_http_a_conversation_tells_its_totals() {
    let world = World::new().await;
    let conversation = made(&world, json!({})).await;
    let none = json!({
        "messages_exchanged": 0, "total_input_tokens": 0, "total_output_tokens": 0, "total_cache_tokens": 0,
    });
    assert_eq!(conversation["stats"], none);
    let one = format!("/conversations/{}", conversation["id"].as_str().unwrap());
    let path = format!("{one}/sandbox/auto");
    world.sse("POST", &path, &world.mine, Some(json!({"prompt": "say hi"}))).await;
    assert_eq!(world.get(&one).await["stats"]["messages_exchanged"], 2);
}

/// A conversation with a turn that has ended, and its sandbox.
async fn used(world: &World) -> (String, SandboxId) {
    let path = "/conversations/new/sandbox/auto";
    let events = world.sse("POST", path, &world.mine, Some(json!({"prompt": "say hi"}))).await;
    world.quiet().await;
    match &events[0].1 {
        Event::TurnStarted { conversation_id, sandbox_id, .. } => {
            (format!("/conversations/{conversation_id}"), *sandbox_id)
        }
        other => panic!("{other:?}"),
    }
}

async fn state_of(world: &World, sandbox: SandboxId) -> SandboxState {
    world.services().sandboxes.get(ME, sandbox).await.unwrap().info.state
}

#[tokio::test(start_paused = true)]
async fn c5_http_deleting_ends_the_sandbox_where_that_is_asked_for() {
    let world = World::new().await;
    for (query, state) in [
        ("", SandboxState::Running),
        ("?terminate=false", SandboxState::Running),
        ("?terminate=true", SandboxState::Terminated),
    ] {
        let (one, sandbox) = used(&world).await;
        let (status, body) = world.json("DELETE", &format!("{one}{query}"), &world.mine, None).await;
        assert_eq!((status, body), (StatusCode::NO_CONTENT, Value::Null), "{query}");
        assert_eq!(state_of(&world, sandbox).await, state, "{query}");
        for gone in [one.clone(), format!("{one}/messages"), format!("{one}/turns")] {
            let (status, _) = world.json("GET", &gone, &world.mine, None).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{gone}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c5_http_or_where_the_server_is_set_up_so() {
    let setup = Setup { delete_terminates_sandbox: true, ..Setup::default() };
    let world = World::with(setup).await;
    for (query, state) in [("?terminate=false", SandboxState::Running), ("", SandboxState::Terminated)] {
        let (one, sandbox) = used(&world).await;
        let (status, _) = world.json("DELETE", &format!("{one}{query}"), &world.mine, None).await;
        assert_eq!(status, StatusCode::NO_CONTENT);
        assert_eq!(state_of(&world, sandbox).await, state, "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn c5_http_a_conversation_whose_turn_runs_is_not_deleted() {
    let world = World::new().await;
    let path = "/conversations/new/sandbox/auto?stream=false";
    let body = Some(json!({"prompt": "say one; sleep 30"}));
    let (status, turn) = world.json("POST", path, &world.mine, body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{turn}");
    let one = format!("/conversations/{}", turn["conversation_id"].as_str().unwrap());
    let (status, problem) = world.json("DELETE", &one, &world.mine, None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("conflict")));
    world.quiet().await;
    assert_eq!(world.json("DELETE", &one, &world.mine, None).await.0, StatusCode::NO_CONTENT);
}
