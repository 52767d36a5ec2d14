//! What was said and what it used, as HTTP tells it.

use crate::world::{ME, World, answer, trouble::Call};
use axum::http::StatusCode;
use bytes::Bytes;
use seawall_api::{
    ConversationId, MessageId, SandboxId, TurnId,
    conversation::{Message, Role, TurnState, Usage},
    event::Event,
};
use seawall_core::{
    delivery::Round,
    ports::store::{BeginTurn, NewConversation, Task},
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;

fn prompt(words: &str) -> Option<Value> {
    Some(json!({"prompt": words}))
}

async fn run(world: &World, id: ConversationId, words: &str) -> Vec<(u64, Event)> {
    let path = format!("/conversations/{id}/sandbox/auto");
    let events = world.sse("POST", &path, &world.mine, prompt(words)).await;
    world.quiet().await;
    // So that no two messages are of one time.
    sleep(Duration::from_secs(1)).await;
    events
}

async fn said(world: &World, id: ConversationId, query: &str) -> Vec<Value> {
    let list = world.get(&format!("/conversations/{id}/messages{query}")).await;
    list["items"].as_array().unwrap().clone()
}

fn bodies(messages: &[Value]) -> Vec<(&str, &str)> {
    messages.iter().map(|said| (said["role"].as_str().unwrap(), said["body"].as_str().unwrap())).collect()
}

fn message(conversation_id: ConversationId, role: Role, world: &World, body: &str) -> Message {
    Message {
        id: MessageId::generate(),
        conversation_id,
        turn_id: None,
        role,
        body: body.to_owned(),
        usage: None,
        tool_calls: Vec::new(),
        created_at: world.services().clock.now(),
        revision: 0,
    }
}

/// A turn as a crash leaves it when its agent had ended: no model answers here. The next server ends it.
async fn left(world: &World, conversation: ConversationId, events: Vec<Event>) -> TurnId {
    let (id, now) = (TurnId::generate(), world.services().clock.now());
    let new = NewConversation {
        id: conversation,
        organization_id: None,
        agent_id: None,
        template: None,
        sandbox_id: None,
        created_at: now,
    };
    world.stores.conversations.ensure(ME, &new).await.unwrap();
    let begin = BeginTurn {
        id,
        conversation_id: conversation,
        sandbox_id: Some(SandboxId::generate()),
        template: Some("claude-code".to_owned()),
        prompt: Message { turn_id: Some(id), ..message(conversation, Role::User, world, "do it") },
        answer_id: MessageId::generate(),
        created_at: now,
        first_event: None,
        lease: None,
        boot: None,
    };
    world.stores.turns.begin(ME, None, &begin).await.unwrap();
    let ended = Event::AgentEnded { state: TurnState::Completed, error: None, exit_code: Some(0) };
    let encoded = |event: Event| Bytes::from(serde_json::to_vec(&event).unwrap());
    let data: Vec<Bytes> = events.into_iter().chain([ended]).map(encoded).collect();
    world.stores.turns.append_events(ME, None, id, 0, &data, 0).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn m1_http_prompts_and_answers_are_there_in_order() {
    let world = World::new().await;
    let id = ConversationId::generate();
    run(&world, id, "say one").await;
    run(&world, id, "say t; err w; say o; exit 3").await;
    let all = said(&world, id, "").await;
    let expected = [
        ("user", "say one"),
        ("assistant", "one"),
        ("user", "say t; err w; say o; exit 3"),
        ("assistant", "two"),
    ];
    assert_eq!(bodies(&all), expected);
    let mut newest = said(&world, id, "?order=newest").await;
    newest.reverse();
    assert_eq!(newest, all);
    // In pages, both ways.
    for order in ["oldest", "newest"] {
        let first = world.get(&format!("/conversations/{id}/messages?limit=3&order={order}")).await;
        let next = first["next"].as_str().unwrap();
        let path = format!("/conversations/{id}/messages?limit=3&order={order}&after={next}");
        let second = world.get(&path).await;
        let both =
            [first["items"].as_array().unwrap().as_slice(), second["items"].as_array().unwrap().as_slice()];
        let mut both = both.concat();
        if order == "newest" {
            both.reverse();
        }
        assert_eq!((both, &second["next"]), (all.clone(), &Value::Null), "{order}");
    }
    let one = format!("/conversations/{id}/messages/{}", all[1]["id"].as_str().unwrap());
    assert_eq!(world.get(&one).await, all[1]);
    assert_eq!(all[1]["usage"], json!({"input_tokens": 0, "output_tokens": 0, "cache_tokens": 0}));
}

#[tokio::test(start_paused = true)]
async fn m1_http_tools_are_there_with_what_came_of_them() {
    let world = World::new().await;
    let id = ConversationId::generate();
    let call = |id: &str| Event::ToolCall { id: id.into(), name: "Bash".into(), input: json!({"c": id}) };
    let result = |id: &str, is_error| Event::ToolResult { id: id.into(), output: json!("out"), is_error };
    let text = Event::Text { text: "done".to_owned(), stderr: false };
    left(&world, id, vec![call("1"), call("2"), call("3"), result("1", false), result("2", true), text])
        .await;
    world.services().turns.take_up().await.unwrap();
    world.quiet().await;
    let answer = &said(&world, id, "").await[1];
    assert_eq!(answer["body"], "done");
    let tools = answer["tool_calls"].as_array().unwrap();
    let statuses: Vec<_> = tools.iter().map(|tool| tool["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["succeeded", "failed", "pending"]);
    assert_eq!((&tools[0]["name"], &tools[0]["input"]), (&json!("Bash"), &json!({"c": "1"})));
    assert_eq!((&tools[0]["output"], &tools[1]["error"]), (&json!("out"), &json!("out")));
}

#[tokio::test(start_paused = true)]
async fn m2_http_without_its_stores_nothing_begins() {
    let world = World::new().await;
    let id = ConversationId::generate();
    let path = format!("/conversations/{id}/sandbox/auto");
    world.trouble.with(Call::BeginTurn);
    let response = world.request("POST", &path, &world.mine, prompt("say hi")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
    sleep(Duration::from_secs(60)).await;
    assert!(world.shell.scripts().is_empty());
    world.trouble.heal();
    assert_eq!(answer(&run(&world, id, "say hi").await), "hi");
    assert_eq!(bodies(&said(&world, id, "").await), [("user", "say hi"), ("assistant", "hi")]);
}

#[tokio::test(start_paused = true)]
async fn m3_http_what_a_turn_used_is_counted_once() {
    let world = World::new().await;
    let id = ConversationId::generate();
    let usage = Usage { input_tokens: 100, output_tokens: 20, cache_tokens: 3 };
    let part = Usage { input_tokens: 10, output_tokens: 1, cache_tokens: 5 };
    let events = vec![
        Event::Usage { message: Some("a".to_owned()), usage: part },
        Event::Usage { message: Some("a".to_owned()), usage: part },
        Event::Usage { message: None, usage },
    ];
    let turn = left(&world, id, events).await;
    for _ in 0..2 {
        world.services().turns.take_up().await.unwrap();
        world.quiet().await;
    }
    let stats = json!({
        "messages_exchanged": 2, "total_input_tokens": 100, "total_output_tokens": 20, "total_cache_tokens": 3,
    });
    assert_eq!(world.get(&format!("/conversations/{id}")).await["stats"], stats);
    assert_eq!(said(&world, id, "").await[1]["usage"], json!(usage));
    assert_eq!(world.get(&format!("/conversations/{id}/turns/{turn}")).await["usage"], json!(usage));
}

#[tokio::test(start_paused = true)]
async fn m4_http_the_last_event_has_the_turns_usage_and_the_totals() {
    let world = World::new().await;
    let id = ConversationId::generate();
    for turns in 1..=2_u64 {
        let usage = Usage { input_tokens: 7, output_tokens: 5, cache_tokens: 3 };
        let turn = left(&world, id, vec![Event::Usage { message: None, usage }]).await;
        world.services().turns.take_up().await.unwrap();
        let path = format!("/conversations/{id}/turns/{turn}/events");
        let told = world.sse("GET", &path, &world.mine, None).await;
        world.quiet().await;
        let Some((_, Event::TurnEnded { usage: used, stats, .. })) = told.last() else { panic!("{told:?}") };
        assert_eq!(*used, usage);
        assert_eq!((stats.messages_exchanged, stats.total_input_tokens), (2 * turns, 7 * turns));
        assert_eq!((stats.total_output_tokens, stats.total_cache_tokens), (5 * turns, 3 * turns));
    }
}

/// The store of messages is away. Turns go on, and what it lacks comes later.
#[tokio::test(start_paused = true)]
async fn m5_http_a_message_that_could_not_be_saved_stops_no_stream() {
    let world = World::new().await;
    let id = ConversationId::generate();
    run(&world, id, "say one").await;
    world.trouble.with(Call::PutMessage);
    let late = Box::new(message(id, Role::System, &world, "late"));
    let due = world.services().clock.now();
    world.stores.outbox.add(&Task::PutMessage { account: ME, message: late }, due).await.unwrap();
    let events = run(&world, id, "say two").await;
    assert!(matches!(events.last().unwrap().1, Event::TurnEnded { state: TurnState::Completed, .. }));
    assert!(!bodies(&said(&world, id, "").await).contains(&("system", "late")));
    world.trouble.heal();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(world.services().courier.round().await.unwrap(), Round { delivered: 1, failed: 0 });
    assert!(bodies(&said(&world, id, "").await).contains(&("system", "late")));
}
