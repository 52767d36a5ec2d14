//! Pools that all accounts use: none of them is one account's to take.

use crate::world::{Setup, World, ask, settle, within};
use axum::{body::Body, http::StatusCode, response::Response};
use futures::{StreamExt, future::join_all};
use seawall_core::testing::{Faults, Op};
use seawall_server::{InFlightLimits, Options};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

async fn made(world: &World, key: &str) -> String {
    let (status, sandbox) = world.json("POST", "/sandboxes", key, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{sandbox}");
    format!("/sandboxes/{}", sandbox["id"].as_str().unwrap())
}

#[tokio::test(start_paused = true)]
async fn k5_stops_and_starts_that_take_long_hold_up_their_own_account_alone() {
    let faults = Faults::default();
    let world = Arc::new(World::with(Setup { faults: Some(faults.clone()), ..Setup::default() }).await);
    let (_, third) = world.tenant().await;
    let one = made(&world, &world.theirs).await;
    let beside = made(&world, &third).await;
    // Whoever is stopped or started from now on takes an hour.
    faults.delay(Op::Stop, Duration::from_secs(3600));
    for _ in 0..600 {
        let (world, path) = (world.clone(), format!("{one}/stop"));
        tokio::spawn(async move { world.json("POST", &path, &world.theirs, None).await });
    }
    settle().await;
    let begun = Instant::now();
    for _ in 0..50 {
        made(&world, &third).await;
    }
    let (status, done) =
        world.json("POST", &format!("{beside}/exec"), &third, Some(json!({"command": "say hi"}))).await;
    assert_eq!((status, &done["stdout"]), (StatusCode::OK, &json!("hi")));
    // And of the account itself nothing but ends waits.
    made(&world, &world.theirs).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    faults.heal();
    faults.delay(Op::Start, Duration::from_secs(3600));
    for _ in 0..600 {
        let world = world.clone();
        tokio::spawn(async move { world.json("POST", "/sandboxes", &world.theirs, Some(json!({}))).await });
    }
    settle().await;
    faults.heal();
    let begun = Instant::now();
    for _ in 0..50 {
        made(&world, &third).await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

/// A key that was stolen, and takes all places of its account, can still be revoked.
#[tokio::test(start_paused = true)]
async fn k4_a_key_that_takes_all_places_of_its_account_can_be_revoked() {
    let options = Options { concurrency: 4, rate: 20, burst: 20, ..Options::default() };
    let world = Arc::new(World::with(Setup { options, ..Setup::default() }).await);
    let scopes = json!({"name": "stolen", "scopes": ["run"]});
    let (status, stolen) = world.json("POST", "/keys", &world.theirs, Some(scopes)).await;
    assert_eq!(status, StatusCode::CREATED, "{stolen}");
    let one = made(&world, &world.theirs).await;
    for _ in 0..40 {
        let (world, key) = (world.clone(), stolen["secret"].as_str().unwrap().to_owned());
        let path = format!("{one}/exec");
        tokio::spawn(
            async move { world.json("POST", &path, &key, Some(json!({"command": "sleep 3600"}))).await },
        );
    }
    settle().await;
    let (status, _) = world.json("GET", "/sandboxes", &world.theirs, None).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "everything else waits for the flood to end");
    let revoke = format!("/keys/{}", stolen["key"]["id"].as_str().unwrap());
    assert_eq!(world.json("DELETE", &revoke, &world.theirs, None).await.0, StatusCode::NO_CONTENT);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (status, _) = world.json("GET", "/sandboxes", &world.theirs, None).await;
    assert_eq!(status, StatusCode::OK, "and what the key had open is over");
}

/// A server with few places for each account.
async fn few() -> World {
    let in_flight = Some(InFlightLimits { streams: 3, waiters: 2, previews: 2 });
    World::with(Setup { options: Options { in_flight, ..Options::default() }, ..Setup::default() }).await
}

async fn problem(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    (status, serde_json::from_str(&crate::world::text(response).await).unwrap())
}

fn reached((status, problem): &(u16, Value), name: &str, value: f64) {
    assert_eq!((*status, &problem["code"]), (429, &json!("limit_reached")), "{problem}");
    let limit = &problem["limit"];
    assert_eq!(
        (&limit["name"], &limit["value"], &limit["used"]),
        (&json!(name), &json!(value), &json!(value))
    );
}

/// The rest of a stream that has said something.
async fn begun(response: Response) -> Body {
    let (mut body, mut text) = (response.into_body().into_data_stream(), String::new());
    while !text.contains("hi") {
        text.push_str(std::str::from_utf8(&within(body.next()).await.unwrap().unwrap()).unwrap());
    }
    Body::from_stream(body)
}

#[tokio::test(start_paused = true)]
async fn k5_streams_of_an_account_have_a_number() {
    let world = few().await;
    let one = made(&world, &world.theirs).await;
    let stream = async |key: &str, one: &str| {
        let body = Some(json!({"command": "say hi; hang"}));
        world.request("POST", &format!("{one}/exec/stream"), key, body).await
    };
    let mut open = Vec::new();
    for _ in 0..3 {
        let response = stream(&world.theirs, &one).await;
        assert_eq!(response.status(), StatusCode::OK);
        open.push(begun(response).await);
    }
    reached(&problem(stream(&world.theirs, &one).await).await, "streams", 3.0);
    let turn = world.request(
        "POST",
        "/conversations/new/sandbox/auto",
        &world.theirs,
        Some(json!({"prompt": "say no"})),
    );
    reached(&problem(turn.await).await, "streams", 3.0);
    assert_eq!(world.shell.scripts().len(), 3, "what is refused is not begun");
    // Turns can be begun without a stream, and others have their own.
    let quiet = "/conversations/new/sandbox/auto?stream=false";
    let (status, _) = world.json("POST", quiet, &world.theirs, Some(json!({"prompt": "say yes"}))).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (_, third) = world.tenant().await;
    let beside = made(&world, &third).await;
    assert_eq!(stream(&third, &beside).await.status(), StatusCode::OK);
    // The operator's account has no such bound.
    let mine = made(&world, &world.mine).await;
    let all = join_all((0..10).map(|_| stream(&world.mine, &mine))).await;
    assert!(all.iter().all(|response| response.status() == StatusCode::OK));
    drop(open.pop());
    settle().await;
    assert_eq!(stream(&world.theirs, &one).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn k5_waiters_are_counted_also_after_they_hung_up() {
    let world = Arc::new(few().await);
    let quiet = "/conversations/new/sandbox/auto?stream=false";
    let begin = json!({"prompt": "sleep 100"});
    let (status, turn) = world.json("POST", quiet, &world.theirs, Some(begin)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{turn}");
    let path = format!(
        "/conversations/{}/sandbox/auto?stream=false&wait=60",
        turn["conversation_id"].as_str().unwrap()
    );
    for _ in 0..2 {
        let (world, path) = (world.clone(), path.clone());
        let waiting = tokio::spawn(async move {
            world.json("POST", &path, &world.theirs, Some(json!({"prompt": "x"}))).await
        });
        settle().await;
        // The caller is gone; the request waits on.
        waiting.abort();
        settle().await;
    }
    let again = world.send(ask("POST", &path, &world.theirs), Some(json!({"prompt": "x"}))).await;
    reached(&problem(again).await, "waiters", 2.0);
    tokio::time::sleep(Duration::from_secs(61)).await;
    let (status, _) = world.json("POST", &path, &world.theirs, Some(json!({"prompt": "say two"}))).await;
    assert_eq!(status, StatusCode::ACCEPTED, "after those before gave up, and the turn ended");
}

#[tokio::test(start_paused = true)]
async fn k5_requests_that_hold_memory_are_refused_and_others_are_not() {
    // 32 KiB each.
    let options = Options { account_memory_budget: Some(320 << 10), ..Options::default() };
    let world = Arc::new(World::with(Setup { options, ..Setup::default() }).await);
    let one = made(&world, &world.theirs).await;
    for _ in 0..20 {
        let (world, path) = (world.clone(), format!("{one}/exec"));
        tokio::spawn(async move {
            let body = Some(json!({"command": "sleep 50"}));
            world.json("POST", &path, &world.theirs, body).await
        });
    }
    settle().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (status, problem) = world.json("GET", &one, &world.theirs, None).await;
    assert_eq!((status.as_u16(), &problem["code"]), (429, &json!("memory_budget")));
    let (_, third) = world.tenant().await;
    assert_eq!(world.request("GET", "/sandboxes", &third, None).await.status(), StatusCode::OK);
    assert_eq!(world.request("GET", "/ready", "", None).await.status(), StatusCode::OK);
    within(tokio::time::sleep(Duration::from_secs(60))).await;
    settle().await;
    assert_eq!(world.request("GET", &one, &world.theirs, None).await.status(), StatusCode::OK);
}
