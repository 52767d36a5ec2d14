//! Turns: which conversation, which sandbox, one at a time; and how they are ended.

use crate::world::{ME, Setup, World, answer, ask, said, until};
use axum::http::{HeaderValue, StatusCode};
use seawall_api::{ConversationId, SandboxId, TurnId, conversation::TurnState, event::Event};
use seawall_core::{
    NewSandbox,
    templates::{HookPart, Template},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::{Instant, sleep};

const ANY: &str = "/conversations/new/sandbox/auto";

fn prompt(words: &str) -> Option<Value> {
    Some(json!({"prompt": words}))
}

/// Whose turn a stream is of.
fn of(events: &[(u64, Event)]) -> (ConversationId, SandboxId, TurnId) {
    match &events[0] {
        (0, Event::TurnStarted { conversation_id, sandbox_id, turn_id, .. }) => {
            (*conversation_id, *sandbox_id, *turn_id)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn c2_http_ids_of_the_client_are_created_and_then_resumed() {
    let world = World::new().await;
    let (conversation, sandbox) = (ConversationId::generate(), SandboxId::generate());
    let path = format!("/conversations/{conversation}/sandbox/{sandbox}");
    for words in ["one", "two"] {
        let events = world.sse("POST", &path, &world.mine, prompt(&format!("say {words}"))).await;
        let (of_conversation, of_sandbox, _) = of(&events);
        assert_eq!((of_conversation, of_sandbox), (conversation, sandbox));
        assert_eq!(answer(&events), words);
        world.quiet().await;
    }
    let found = world.get(&format!("/conversations/{conversation}")).await;
    assert_eq!(found["sandbox_id"], json!(sandbox));
    let turns = world.get(&format!("/conversations/{conversation}/turns")).await;
    let numbers: Vec<_> = turns["items"].as_array().unwrap().iter().map(|turn| &turn["number"]).collect();
    assert_eq!(numbers, [&json!(2), &json!(1)]);
}

#[tokio::test(start_paused = true)]
async fn c2_http_new_is_a_new_conversation_with_what_the_request_says() {
    let world = World::new().await;
    let body = json!({"prompt": "say hi", "agent_id": "bot", "organization_id": "org", "template": "other"});
    let first = of(&world.sse("POST", ANY, &world.mine, Some(body)).await);
    let second = of(&world.sse("POST", ANY, &world.mine, prompt("say hi")).await);
    assert!(first.0 != second.0 && first.1 != second.1);
    let found = world.get(&format!("/conversations/{}", first.0)).await;
    for (field, value) in [("agent_id", "bot"), ("organization_id", "org"), ("template", "other")] {
        assert_eq!(found[field], value);
    }
}

#[tokio::test(start_paused = true)]
async fn c2_http_another_sandbox_is_a_mismatch_unless_it_is_relinked() {
    let world = World::new().await;
    let (conversation, sandbox, _) = of(&world.sse("POST", ANY, &world.mine, prompt("say one")).await);
    world.quiet().await;
    let other = SandboxId::generate();
    let path = format!("/conversations/{conversation}/sandbox/{other}");
    for query in ["", "?relink=false", "?wait=5"] {
        let (status, problem) =
            world.json("POST", &format!("{path}{query}"), &world.mine, prompt("say two")).await;
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("sandbox_mismatch")));
        assert!(problem["detail"].as_str().unwrap().contains(&sandbox.to_string()), "{problem}");
    }
    let relinked = format!("{path}?relink=true");
    let events = world.sse("POST", &relinked, &world.mine, prompt("say two")).await;
    assert_eq!((of(&events).1, answer(&events).as_str()), (other, "two"));
    assert_eq!(world.get(&format!("/conversations/{conversation}")).await["sandbox_id"], json!(other));
}

#[tokio::test(start_paused = true)]
async fn c2_http_the_singular_answers_the_same() {
    let world = World::new().await;
    let path = "/conversation/new/sandbox/auto";
    let response = world.request("POST", path, &world.mine, prompt("say one")).await;
    let events = said(response).await.events;
    assert_eq!(answer(&events), "one");
    world.quiet().await;
    let path = format!("/conversation/{}/sandbox/auto", of(&events).0);
    let (status, turn) =
        world.json("POST", &format!("{path}?stream=false"), &world.mine, prompt("say")).await;
    assert_eq!((status, &turn["number"]), (StatusCode::ACCEPTED, &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn c2_http_what_makes_no_sense_is_refused() {
    let world = World::new().await;
    for (path, body, status, code) in [
        ("/conversations/x/sandbox/auto", json!({"prompt": "say hi"}), 400, "invalid_id"),
        ("/conversations/new/sandbox/x", json!({"prompt": "say hi"}), 400, "invalid_id"),
        (ANY, json!({"prompt": " "}), 400, "invalid"),
        ("/conversations/new/sandbox/auto?wait=601", json!({"prompt": "say hi"}), 400, "invalid_wait"),
        ("/conversations/new/sandbox/auto?wait=-1", json!({"prompt": "say hi"}), 400, "invalid_wait"),
    ] {
        let (found, problem) = world.json("POST", path, &world.mine, Some(body)).await;
        assert_eq!((found.as_u16(), &problem["code"]), (status, &json!(code)), "{path}: {problem}");
    }
    for (path, body) in [
        (ANY, json!({})),
        (ANY, json!({"prompt": 5})),
        (ANY, json!({"prompt": "say hi", "modle": "x"})),
        ("/conversations/new/sandbox/auto?relnik=true", json!({"prompt": "say hi"})),
        ("/conversations/new/sandbox/auto?relink=perhaps", json!({"prompt": "say hi"})),
    ] {
        let (status, problem) = world.json("POST", path, &world.mine, Some(body.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}: {problem}");
    }
    assert!(world.shell.scripts().is_empty());
    assert_eq!(world.get("/conversations").await["items"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn c2_http_without_a_stream_the_turn_is_the_answer() {
    let world = World::new().await;
    let path = format!("{ANY}?stream=false");
    let body = prompt("say one; sleep 10; say two");
    let response = world.request("POST", &path, &world.mine, body).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let place = response.headers()["location"].to_str().unwrap().to_owned();
    let turn = world.get(&place).await;
    assert_eq!((&turn["state"], &turn["number"]), (&json!("running"), &json!(1)));
    let events = world.sse("GET", &format!("{place}/events"), &world.mine, None).await;
    assert_eq!((answer(&events).as_str(), &json!(of(&events).2)), ("onetwo", &turn["id"]));
    assert_eq!(world.get(&place).await["state"], "completed");
}

/// A client that does not know whether its request came through sends it again.
#[tokio::test(start_paused = true)]
async fn c2_http_the_same_request_again_follows_the_same_turn() {
    let world = World::new().await;
    let send = async |words: &str| {
        let request = ask("POST", ANY, &world.mine).header("idempotency-key", "k-1");
        world.send(request, prompt(words)).await
    };
    let first = send("say one; sleep 5; say two").await;
    // The first goes on when the second is asked.
    let (begun, rest) = until(first, "\"one\"").await;
    drop(rest);
    let again = send("say one; sleep 5; say two").await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    let again = said(again).await.events;
    assert_eq!((of(&again), answer(&again).as_str()), (of(&begun.events), "onetwo"));
    assert_eq!(world.shell.scripts().len(), 1);
    let other = send("say three").await;
    assert_eq!(other.status(), StatusCode::CONFLICT);
}

#[tokio::test(start_paused = true)]
async fn c6_http_the_old_route_makes_a_conversation_for_a_sandbox() {
    let world = World::new().await;
    let sandbox = SandboxId::generate();
    let path = format!("/sandboxes/{sandbox}/claude");
    let (status, _) = world.json("POST", &path, &world.mine, prompt("say hi")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // One that was there before there were conversations: it has no template.
    let new = NewSandbox { id: Some(sandbox), account: Some(ME), ..NewSandbox::default() };
    world.services().sandboxes.boxes().launch(new).await.unwrap();
    let mut seen = Vec::new();
    for (body, template) in [
        (json!({"prompt": "say hi"}), "claude-code"),
        (json!({"prompt": "say hi", "template": "other"}), "other"),
    ] {
        let response = world.request("POST", &path, &world.mine, Some(body)).await;
        assert_eq!(response.headers().get("deprecation"), Some(&HeaderValue::from_static("true")));
        let events = said(response).await.events;
        assert_eq!((of(&events).1, answer(&events).as_str()), (sandbox, "hi"));
        let Event::TurnStarted { template: found, .. } = &events[0].1 else { panic!("{events:?}") };
        assert_eq!(found, template);
        seen.push(of(&events).0);
        world.quiet().await;
    }
    assert_ne!(seen[0], seen[1]);
    for conversation in seen {
        let found = world.get(&format!("/conversations/{conversation}")).await;
        assert_eq!(found["sandbox_id"], json!(sandbox));
    }
}

#[tokio::test(start_paused = true)]
async fn c8_http_a_second_turn_is_refused_or_waits() {
    let world = World::new().await;
    let began = Instant::now();
    let (status, turn) =
        world.json("POST", &format!("{ANY}?stream=false"), &world.mine, prompt("sleep 10; say one")).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{turn}");
    let (conversation, sandbox) = (&turn["conversation_id"], &turn["sandbox_id"]);
    let path = format!("/conversations/{}/sandbox/auto", conversation.as_str().unwrap());
    let beside = format!("/conversations/new/sandbox/{}", sandbox.as_str().unwrap());
    for path in [&path, &beside] {
        let (status, problem) = world.json("POST", path, &world.mine, prompt("say two")).await;
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("conflict")), "{path}");
    }
    let (status, _) = world.json("POST", &format!("{path}?wait=2.5"), &world.mine, prompt("say two")).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(began.elapsed().as_secs(), 2);
    let events = world.sse("POST", &format!("{path}?wait=600"), &world.mine, prompt("say two")).await;
    assert_eq!(answer(&events), "two");
    assert_eq!(began.elapsed().as_secs(), 10);
    assert_eq!(world.shell.scripts(), ["sleep 10; say one", "say two"]);
}

#[tokio::test(start_paused = true)]
async fn h6_http_a_cancelled_turn_keeps_what_was_said() {
    let world = World::new().await;
    let response = world.request("POST", ANY, &world.mine, prompt("say one; hang")).await;
    let (begun, rest) = until(response, "\"one\"").await;
    let (conversation, _, turn) = of(&begun.events);
    let place = format!("/conversations/{conversation}/turns/{turn}");
    for cancelled in [true, false] {
        let (status, body) = world.json("POST", &format!("{place}/cancel"), &world.mine, None).await;
        assert_eq!((status, body), (StatusCode::OK, json!({"turn_id": turn, "cancelled": cancelled})));
        world.quiet().await;
    }
    drop(rest);
    let events = world.sse("GET", &format!("{place}/events"), &world.mine, None).await;
    let last = &events.last().unwrap().1;
    assert!(matches!(last, Event::TurnEnded { state: TurnState::Cancelled, .. }), "{last:?}");
    assert_eq!(answer(&events), "one");
    let messages = world.get(&format!("/conversations/{conversation}/messages")).await;
    assert_eq!(messages["items"][1]["body"], "one");
}

#[tokio::test(start_paused = true)]
async fn c2_http_turns_are_listed_in_pages() {
    let world = World::new().await;
    let id = ConversationId::generate();
    for _ in 0..3 {
        let path = format!("/conversations/{id}/sandbox/auto");
        world.sse("POST", &path, &world.mine, prompt("say hi")).await;
        world.quiet().await;
        sleep(Duration::from_secs(1)).await;
    }
    let first = world.get(&format!("/conversations/{id}/turns?limit=2")).await;
    let next = first["next"].as_str().unwrap();
    let second = world.get(&format!("/conversations/{id}/turns?limit=2&after={next}")).await;
    let items = [&first["items"][0], &first["items"][1], &second["items"][0]];
    assert_eq!(items.map(|turn| turn["number"].as_u64().unwrap()), [3, 2, 1]);
    assert_eq!((second["items"].as_array().unwrap().len(), &second["next"]), (1, &Value::Null));
}

#[tokio::test(start_paused = true)]
async fn h5_http_runs_of_hooks_are_listed_with_why_they_failed() {
    let mut hooked = Template { name: "hooked".to_owned(), ..Template::default() };
    let part = HookPart { run: Some("err no room; exit 3".to_owned()), ..HookPart::default() };
    let call = HookPart {
        webhook: Some("https://user:secret@example.com/path?key=secret".to_owned()),
        ..HookPart::default()
    };
    hooked.hooks.stream_finish = vec![part, call];
    let world = World::with(Setup { templates: vec![hooked], ..Setup::default() }).await;
    let body = json!({"prompt": "say hi", "template": "hooked"});
    let (_, sandbox, turn) = of(&world.sse("POST", ANY, &world.mine, Some(body)).await);
    world.quiet().await;
    let path = format!("/sandboxes/{sandbox}/hooks");
    let listed = world.get(&path).await["items"].as_array().unwrap().clone();
    let kinds: BTreeSet<&str> = listed.iter().map(|run| run["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["cold_start", "message", "stream_finish"]));
    let failed: Vec<&Value> = listed.iter().filter(|run| run.get("error").is_some()).collect();
    assert_eq!(failed.len(), 1, "{listed:?}");
    assert_eq!((&failed[0]["name"], &failed[0]["turn_id"]), (&json!("err no room; exit 3"), &json!(turn)));
    assert!(failed[0]["error"].as_str().unwrap().contains("no room") && failed[0]["ended_at"].is_string());
    // Whose address it is, and no more of it.
    assert!(listed.iter().any(|run| run["name"] == "webhook to example.com"), "{listed:?}");
    assert!(!json!(listed).to_string().contains("secret"));
    // Another account's people see what became of theirs, and not the operator's commands.
    let body = json!({"prompt": "say hi", "template": "hooked"});
    let (_, theirs, _) = of(&world.sse("POST", ANY, &world.theirs, Some(body)).await);
    world.quiet().await;
    let (status, told) = world.json("GET", &format!("/sandboxes/{theirs}/hooks"), &world.theirs, None).await;
    assert_eq!(status, StatusCode::OK);
    let failed = |run: &&Value| run.get("error").is_some();
    let failed: Vec<&Value> = told["items"].as_array().unwrap().iter().filter(failed).collect();
    assert_eq!((failed.len(), &failed[0]["name"]), (1, &json!("command")), "{told}");
    assert!(!told.to_string().contains("exit 3"), "{told}");
    // In pages.
    let first = world.get(&format!("{path}?limit=2")).await;
    let rest = world.get(&format!("{path}?limit=100&after={}", first["next"].as_str().unwrap())).await;
    let both =
        [first["items"].as_array().unwrap().clone(), rest["items"].as_array().unwrap().clone()].concat();
    assert_eq!(both, listed);
}
