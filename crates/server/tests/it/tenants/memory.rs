//! Memory: what requests and answers of one account may make the server hold.

use crate::world::{Setup, World, ask, settle, text, within};
use axum::{
    body::Body,
    http::{Request, StatusCode, header::CONTENT_TYPE},
    response::Response,
};
use bytes::Bytes;
use futures::{StreamExt, future::join_all, stream};
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, MessageId, SandboxId,
    conversation::{Message, Role},
    sandbox::{SandboxSpec, SandboxState},
};
use seawall_core::ports::store::{NewConversation, SandboxRow};
use seawall_providers::mock::Script;
use seawall_server::Options;
use serde_json::{Map, Value, json};

const MIB: usize = 1 << 20;

/// A server whose accounts have so many bytes each.
async fn small(account: usize) -> World {
    let (server, account) = (Some(64 * MIB as u64), Some(account as u64));
    let options = Options { memory_budget: server, account_memory_budget: account, ..Options::default() };
    World::with(Setup { options, ..Setup::default() }).await
}

async fn made(world: &World, key: &str) -> String {
    let (status, sandbox) = world.json("POST", "/sandboxes", key, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{sandbox}");
    format!("/sandboxes/{}", sandbox["id"].as_str().unwrap())
}

fn problem(text: &str) -> (String, Value) {
    let problem: Value = serde_json::from_str(text).unwrap();
    (problem["code"].as_str().unwrap_or_default().to_owned(), problem)
}

async fn exec(world: &World, one: &str, key: &str) -> Response {
    let command = json!({"args": ["zeroes"], "max_output": 64 * MIB});
    world.request("POST", &format!("{one}/exec"), key, Some(command)).await
}

#[tokio::test(start_paused = true)]
async fn k5_answers_of_zero_bytes_take_no_more_than_the_account_has() {
    let world = small(8 * MIB).await;
    world.mock.on_command("zeroes", |_| Script::stdout(vec![0; 4 * MIB]));
    let one = made(&world, &world.theirs).await;
    // Nobody reads them yet: all are held at the same time.
    let answers = join_all((0..8).map(|_| exec(&world, &one, &world.theirs))).await;
    let mut kept = 0;
    for answer in answers {
        assert_eq!(answer.status(), StatusCode::OK);
        let announced = answer.headers().get("content-length").cloned();
        let mut body = answer.into_body().into_data_stream();
        let mut sent = Vec::new();
        while let Some(piece) = body.next().await {
            let piece = piece.unwrap();
            assert!(piece.len() < MIB / 8, "{} bytes at once", piece.len());
            sent.extend_from_slice(&piece);
        }
        assert!(announced.is_none_or(|length| length.to_str().unwrap() == sent.len().to_string()));
        let result: Value = serde_json::from_slice(&sent).unwrap();
        let stdout = result["stdout"].as_str().unwrap();
        assert!(stdout.bytes().all(|byte| byte == 0));
        let truncated = usize::try_from(result["stdout_truncated"].as_u64().unwrap()).unwrap();
        assert_eq!(stdout.len() + truncated, 4 * MIB, "what does not fit is counted");
        kept += stdout.len();
    }
    assert!((4 * MIB..=8 * MIB).contains(&kept), "{kept} bytes were held");
    // All of it was given back.
    let again = exec(&world, &one, &world.theirs).await;
    let result: Value = serde_json::from_str(&text(again).await).unwrap();
    assert_eq!(result["stdout_truncated"], json!(0));
}

#[tokio::test(start_paused = true)]
async fn k5_the_answers_of_one_account_leave_room_for_anothers() {
    let world = small(8 * MIB).await;
    world.mock.on_command("zeroes", |_| Script::stdout(vec![0; 4 * MIB]));
    let (_, third) = world.tenant().await;
    let (one, other) = (made(&world, &world.theirs).await, made(&world, &third).await);
    let held = join_all((0..8).map(|_| exec(&world, &one, &world.theirs))).await;
    let theirs: Value = serde_json::from_str(&text(exec(&world, &other, &third).await).await).unwrap();
    assert_eq!(theirs["stdout_truncated"], json!(0));
    drop(held);
}

/// A request whose body begins, and does not end.
fn endless(path: &str, key: &str, bytes: usize) -> Request<Body> {
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes]))]);
    let body = Body::from_stream(first.chain(stream::pending()));
    ask("POST", path, key).header(CONTENT_TYPE, "application/json").body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn k5_bodies_are_reserved_while_they_are_read() {
    let world = small(MIB).await;
    let world = std::sync::Arc::new(world);
    for path in ["/conversations", "/sandboxes"] {
        let (holder, request) = (world.clone(), endless(path, &world.theirs, 700 << 10));
        tokio::spawn(async move { holder.call(request).await });
        settle().await;
        let body = json!({"organization_id": "x".repeat(500 << 10)});
        let refused = world.request("POST", "/conversations", &world.theirs, Some(body)).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        let (code, problem) = problem(&text(refused).await);
        assert_eq!((code.as_str(), &problem["retryable"]), ("memory_budget", &json!(true)));
        // Small ones pass, and so do others'.
        let (_, third) = world.tenant().await;
        let body = Some(json!({"organization_id": "x".repeat(300)}));
        let (status, _) = world.json("POST", "/conversations", &third, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "it is read, and the name is too long");
        let (status, _) = world.json("POST", "/conversations", &world.theirs, Some(json!({}))).await;
        assert_eq!(status, StatusCode::CREATED);
        // Until the request's time is over.
        tokio::time::sleep(std::time::Duration::from_secs(3700)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn k5_bodies_that_are_large_once_they_are_parsed_wait_for_each_other() {
    let world = small(8 * MIB).await;
    let one = made(&world, &world.theirs).await;
    // 600 KB of text are 30 MB of values: as much as the account has, so that one passes alone.
    let numbers: Vec<u8> = vec![0; 300_000];
    let body = json!({"metadata": {"a": numbers}});
    let patched =
        join_all((0..6).map(|_| world.request("PATCH", &one, &world.theirs, Some(body.clone())))).await;
    for answer in patched {
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE, "the metadata is too large");
    }
    let with_key = ask("PATCH", &one, &world.theirs).header("idempotency-key", "k");
    assert_eq!(world.send(with_key, Some(body)).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

fn row(account: AccountId, number: i64, metadata: Map<String, Value>) -> SandboxRow {
    let at = Timestamp::from_second(1_800_000_000 + number).unwrap();
    SandboxRow {
        id: SandboxId::generate(),
        account_id: account,
        name: None,
        provider: "mock".into(),
        node: Some("one".into()),
        template: None,
        spec: SandboxSpec::default(),
        state: SandboxState::Stopped,
        reason: None,
        removing: None,
        unsynced: None,
        metadata,
        created_at: at,
        started_at: None,
        last_used_at: at,
        version: 1,
    }
}

/// All ids of a list, and the largest page in bytes.
async fn all(world: &World, path: &str, key: &str) -> (Vec<String>, usize) {
    let (mut ids, mut largest, mut after) = (Vec::new(), 0, String::new());
    loop {
        let response = world.request("GET", &format!("{path}?limit=1000{after}"), key, None).await;
        let page = text(response).await;
        largest = largest.max(page.len());
        let page: Value = serde_json::from_str(&page).unwrap();
        ids.extend(
            page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return (ids, largest),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn k5_lists_end_where_they_have_enough_bytes_and_go_on() {
    let world = small(16 * MIB).await;
    let mut expected = Vec::new();
    for number in 0..150 {
        let metadata = json!({"text": "x".repeat(60_000)}).as_object().unwrap().clone();
        let row = row(world.other, number, metadata);
        world.stores.sandboxes.insert(&row).await.unwrap();
        expected.push(row.id.to_string());
    }
    // From before there was a bound: it is shown, alone.
    let metadata = json!({"text": "x".repeat(6 * MIB)}).as_object().unwrap().clone();
    let old = row(world.other, 200, metadata);
    world.stores.sandboxes.insert(&old).await.unwrap();
    expected.push(old.id.to_string());
    expected.reverse();
    let (ids, largest) = all(&world, "/sandboxes", &world.theirs).await;
    assert_eq!(ids, expected, "each once, the newest first");
    assert!(largest < 7 * MIB, "{largest}");
    let small = world.request("GET", "/sandboxes?limit=3", &world.theirs, None).await;
    let small: Value = serde_json::from_str(&text(small).await).unwrap();
    assert_eq!(small["items"].as_array().unwrap().len(), 1, "the first is large enough for a page");
    assert!(small["next"].is_string());
    // What was too large before can become smaller, and nothing else.
    let one = format!("/sandboxes/{}", old.id);
    let (status, _) = world.json("PATCH", &one, &world.theirs, Some(json!({"metadata": {"a": 1}}))).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, _) =
        world.json("PATCH", &one, &world.theirs, Some(json!({"metadata": {"text": "y"}}))).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn k5_large_messages_are_read_one_after_the_other() {
    let world = small(16 * MIB).await;
    let (id, now) = (ConversationId::generate(), Timestamp::from_second(1_800_000_000).unwrap());
    let new = NewConversation {
        id,
        organization_id: None,
        agent_id: None,
        template: None,
        sandbox_id: None,
        created_at: now,
    };
    world.stores.conversations.ensure(world.other, &new).await.unwrap();
    let message = |number: i64| Message {
        id: MessageId::generate(),
        conversation_id: id,
        turn_id: None,
        role: Role::User,
        body: "x".repeat(5 * MIB),
        usage: None,
        tool_calls: Vec::new(),
        created_at: Timestamp::from_second(1_800_000_000 + number).unwrap(),
        revision: 0,
    };
    let messages: Vec<_> = (0..4).map(message).collect();
    world.stores.messages.put(world.other, &messages).await.unwrap();
    let path = format!("/conversations/{id}/messages");
    let (ids, largest) = all(&world, &path, &world.theirs).await;
    assert_eq!(ids, messages.iter().map(|message| message.id.to_string()).collect::<Vec<_>>());
    assert!(largest < 6 * MIB, "{largest}");
    // Answers that nobody reads hold what they take.
    let one = format!("{path}/{}", messages[0].id);
    let held = join_all((0..5).map(|_| world.request("GET", &one, &world.theirs, None))).await;
    let good = held.iter().filter(|answer| answer.status() == StatusCode::OK).count();
    assert!((1..=3).contains(&good), "{good} of 5 MiB each in 16 MiB");
    for refused in held.into_iter().filter(|answer| answer.status() != StatusCode::OK) {
        assert_eq!(problem(&text(refused).await).0, "memory_budget");
    }
}

#[tokio::test(start_paused = true)]
async fn k5_downloads_that_nobody_reads_are_counted() {
    let world = small(2 * MIB).await;
    let one = made(&world, &world.theirs).await;
    let path = format!("{one}/content?path=file");
    let put = ask("PUT", &path, &world.theirs).body(Body::from("body")).unwrap();
    assert_eq!(world.call(put).await.status(), StatusCode::OK);
    let held = join_all((0..8).map(|_| world.request("GET", &path, &world.theirs, None))).await;
    let (good, refused): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|answer| answer.status() == StatusCode::OK);
    assert!((1..=5).contains(&good.len()), "{} of 8", good.len());
    for refused in refused {
        assert_eq!(problem(&text(refused).await).0, "memory_budget");
    }
    for answer in good {
        assert_eq!(text(answer).await, "body");
    }
    assert_eq!(world.request("GET", &path, &world.theirs, None).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn k5_what_a_turn_says_is_bounded_in_memory_and_told_all_the_same() {
    let world = small(4 * MIB).await;
    let path = "/conversations/new/sandbox/auto";
    world.mock.on_command("/bin/sh", |_| Script::stdout(vec![b'x'; 6 * MIB]));
    let response = world.request("POST", path, &world.theirs, Some(json!({"prompt": "much"}))).await;
    assert_eq!(response.status(), StatusCode::OK);
    let said = crate::world::said(response).await;
    assert_eq!(crate::world::answer(&said.events).len(), 6 * MIB, "events tell all of it");
    within(world.services().turns.idle()).await;
    let seawall_api::event::Event::TurnStarted { conversation_id, answer_id, .. } = &said.events[0].1 else {
        panic!("no start")
    };
    let answer = world.stores.messages.get(world.other, *conversation_id, *answer_id).await.unwrap();
    assert!(answer.body.len() < 5 * MIB, "{}", answer.body.len());
    assert!(answer.body.ends_with("[the rest of the answer is in the turn's events]"));
}
