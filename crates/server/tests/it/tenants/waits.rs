//! Requests that wait for a turn to end (`?wait=`, C8): they cost nothing, and the first goes first.

use crate::world::{Setup, World, answer, settle, trouble::Call};
use axum::http::StatusCode;
use seawall_server::{InFlightLimits, Options};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

const QUIET: &str = "/conversations/new/sandbox/auto?stream=false";

async fn begun(world: &World, words: &str) -> Value {
    let (status, turn) = world.json("POST", QUIET, &world.theirs, Some(json!({"prompt": words}))).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{turn}");
    turn
}

async fn patient() -> Arc<World> {
    let options = Options { in_flight: Some(InFlightLimits::NONE), ..Options::default() };
    Arc::new(World::with(Setup { options, ..Setup::default() }).await)
}

#[tokio::test(start_paused = true)]
async fn c8_nine_hundred_waiters_ask_the_store_for_nothing() {
    let world = patient().await;
    let first = begun(&world, "sleep 300").await;
    let path = format!(
        "/conversations/{}/sandbox/auto?stream=false&wait=600",
        first["conversation_id"].as_str().unwrap()
    );
    let beside =
        format!("/conversations/new/sandbox/{}?stream=false&wait=600", first["sandbox_id"].as_str().unwrap());
    for number in 0..900 {
        let (world, path) = (world.clone(), if number % 3 == 0 { beside.clone() } else { path.clone() });
        tokio::spawn(async move {
            world.json("POST", &path, &world.theirs, Some(json!({"prompt": "say x"}))).await
        });
    }
    settle().await;
    sleep(Duration::from_secs(1)).await;
    let before = world.trouble.calls(Call::BeginTurn);
    sleep(Duration::from_secs(200)).await;
    let looks = world.trouble.calls(Call::BeginTurn) - before;
    assert!(looks <= 40, "{looks} looks in 200 s");
}

#[tokio::test(start_paused = true)]
async fn c8_waiters_go_in_the_order_in_which_they_came_and_at_once() {
    let world = patient().await;
    let first = begun(&world, "sleep 10").await;
    let conversation = first["conversation_id"].as_str().unwrap().to_owned();
    let path = format!("/conversations/{conversation}/sandbox/auto");
    let mut waiting = Vec::new();
    for number in 0..20 {
        let (world, path) = (world.clone(), format!("{path}?wait=600"));
        waiting.push(tokio::spawn(async move {
            let prompt = json!({"prompt": format!("sleep 1; say {number}")});
            let events = world.sse("POST", &path, &world.theirs, Some(prompt)).await;
            answer(&events)
        }));
        settle().await;
    }
    // Whoever does not wait goes before nobody that does.
    let (begun, mut refused) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(20) {
        let body = Some(json!({"prompt": "say me first"}));
        let (status, _) = world.json("POST", &format!("{path}?stream=false"), &world.theirs, body).await;
        assert_eq!(status, StatusCode::CONFLICT);
        refused += 1;
        sleep(Duration::from_millis(70)).await;
    }
    assert!(refused > 100);
    for (number, waiting) in waiting.into_iter().enumerate() {
        assert_eq!(waiting.await.unwrap(), number.to_string());
    }
    let scripts = world.shell.scripts();
    let expected: Vec<_> = (0..20).map(|number| format!("sleep 1; say {number}")).collect();
    assert_eq!(scripts[1..], expected);
    let took = begun.elapsed().as_secs();
    assert!((29..=32).contains(&took), "one after the other without a pause: {took} s");
}

#[tokio::test(start_paused = true)]
async fn c8_a_waiter_goes_when_the_turn_before_it_is_cancelled() {
    let world = patient().await;
    let first = begun(&world, "hang").await;
    let path = format!("/conversations/{}/sandbox/auto?wait=600", first["conversation_id"].as_str().unwrap());
    let waiting = {
        let world = world.clone();
        tokio::spawn(async move {
            world.sse("POST", &path, &world.theirs, Some(json!({"prompt": "say two"}))).await
        })
    };
    sleep(Duration::from_secs(100)).await;
    let cancel = format!(
        "/conversations/{}/turns/{}/cancel",
        first["conversation_id"].as_str().unwrap(),
        first["id"].as_str().unwrap()
    );
    let begun = Instant::now();
    let (status, _) = world.json("POST", &cancel, &world.theirs, None).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer(&waiting.await.unwrap()), "two");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
