//! Streams: what is in them, how one comes back to them, and how they end.

use crate::world::{Said, World, answer, ask, said, text, trouble::Call, until};
use axum::{http::StatusCode, response::Response};
use seawall_api::{ConversationId, conversation::TurnState, event::Event};
use seawall_core::retention::{Keep, Retention};
use seawall_server::{Listeners, Options, Server};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

const ANY: &str = "/conversations/new/sandbox/auto";
const SLOW: &str = "say one; sleep 1; say two; sleep 1; err three; sleep 1; say four; exit 2";

fn prompt(words: &str) -> Option<Value> {
    Some(json!({"prompt": words}))
}

/// The events of the turn that a stream is of.
fn place(events: &[(u64, Event)]) -> String {
    match &events[0].1 {
        Event::TurnStarted { conversation_id, turn_id, .. } => {
            format!("/conversations/{conversation_id}/turns/{turn_id}/events")
        }
        other => panic!("{other:?}"),
    }
}

/// From the event after `last` on.
async fn back(world: &World, path: &str, last: u64) -> Vec<(u64, Event)> {
    let request = ask("GET", path, &world.mine).header("last-event-id", last);
    said(world.send(request, None).await).await.events
}

#[tokio::test(start_paused = true)]
async fn c2_http_events_are_numbered_from_the_first_to_the_last() {
    let world = World::new().await;
    let events = world.sse("POST", ANY, &world.mine, prompt(SLOW)).await;
    let numbers: Vec<u64> = events.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(answer(&events), "onetwothreefour");
    let Event::TurnStarted { conversation_id, turn_id, sandbox_id, prompt_id, answer_id, template } =
        &events[0].1
    else {
        panic!("{events:?}");
    };
    assert_eq!(template, "shell");
    let turn = world.get(&format!("/conversations/{conversation_id}/turns/{turn_id}")).await;
    let ids = [("id", json!(turn_id)), ("sandbox_id", json!(sandbox_id)), ("prompt_id", json!(prompt_id))];
    for (field, id) in ids.into_iter().chain([("answer_id", json!(answer_id))]) {
        assert_eq!(turn[field], id);
    }
    let last = &events.last().unwrap().1;
    assert!(matches!(last, Event::TurnEnded { state: TurnState::Completed, .. }), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn c2_http_whoever_comes_back_misses_nothing() {
    let world = World::new().await;
    let all = world.sse("POST", ANY, &world.mine, prompt(SLOW)).await;
    let path = place(&all);
    for (last, expected) in (0_u64..).zip(1..=all.len()) {
        assert_eq!(back(&world, &path, last).await, all[expected..], "after {last}");
    }
    assert!(back(&world, &path, u64::MAX).await.is_empty());
    assert_eq!(world.sse("GET", &path, &world.mine, None).await, all);
    assert_eq!(world.sse("GET", &format!("{path}?from=3"), &world.mine, None).await, all[3..]);
    // What a browser saw last goes before the address that it has.
    assert_eq!(back(&world, &format!("{path}?from=1"), 4).await, all[5..]);
    for (query, header) in [("?from=x", ""), ("?from=-1", ""), ("", "x"), ("", "-1")] {
        let request = ask("GET", &format!("{path}{query}"), &world.mine).header("last-event-id", header);
        let response = world.send(request, None).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{query} {header}");
    }
}

#[tokio::test(start_paused = true)]
async fn c2_http_events_come_when_they_happen_to_everybody() {
    let world = World::new().await;
    let began = Instant::now();
    let response = world.request("POST", ANY, &world.mine, prompt(SLOW)).await;
    let (begun, rest) = until(response, "\"one\"").await;
    assert_eq!(began.elapsed().as_secs(), 0);
    let path = place(&begun.events);
    let second = world.sse("GET", &path, &world.mine, None);
    let first = text(Response::new(rest));
    let (second, first) = tokio::join!(second, first);
    assert_eq!(began.elapsed().as_secs(), 3);
    let mut all = begun.events;
    all.extend(Said::read(&first).events);
    assert_eq!(second, all);
}

#[tokio::test(start_paused = true)]
async fn c2_http_a_silent_stream_says_that_it_lives() {
    let world = World::new().await;
    let response = world.request("POST", ANY, &world.mine, prompt("say one; sleep 50; say two")).await;
    let said = said(response).await;
    assert_eq!(said.comments, ["keep-alive"; 3]);
    assert_eq!(answer(&said.events), "onetwo");
}

/// A database that is away ends the stream, not the turn.
#[tokio::test(start_paused = true)]
async fn c2_http_a_stream_that_breaks_off_is_taken_up_again() {
    let world = World::new().await;
    let response = world.request("POST", ANY, &world.mine, prompt("say one; sleep 30; say two")).await;
    let (begun, rest) = until(response, "\"one\"").await;
    world.trouble.with(Call::GetTurn);
    let rest = Said::read(&text(Response::new(rest)).await);
    let seen: Vec<_> = begun.events.iter().chain(&rest.events).cloned().collect();
    assert!(!seen.iter().any(|(_, event)| matches!(event, Event::TurnEnded { .. })), "{seen:?}");
    assert!(rest.comments.last().unwrap().contains("come back with Last-Event-ID"), "{rest:?}");
    let path = place(&seen);
    let (status, problem) = world.json("GET", &path, &world.mine, None).await;
    assert_eq!((status, &problem["retryable"]), (StatusCode::SERVICE_UNAVAILABLE, &json!(true)));
    world.trouble.heal();
    let last = seen.last().unwrap().0;
    let more = back(&world, &path, last).await;
    assert_eq!((more[0].0, answer(&more).as_str()), (last + 1, "two"));
    assert!(matches!(more.last().unwrap().1, Event::TurnEnded { state: TurnState::Completed, .. }));
}

#[tokio::test(start_paused = true)]
async fn m2_http_a_hang_up_cancels_nothing() {
    let world = World::new().await;
    let response = world.request("POST", ANY, &world.mine, prompt("say one; sleep 30; say two")).await;
    let (begun, rest) = until(response, "\"one\"").await;
    drop(rest);
    world.quiet().await;
    let all = world.sse("GET", &place(&begun.events), &world.mine, None).await;
    assert_eq!(answer(&all), "onetwo");
    assert_eq!(world.shell.scripts().len(), 1);
}

/// Whoever hangs up before the turn is begun leaves no turn behind that nobody runs.
#[tokio::test(start_paused = true)]
async fn m2_http_a_hang_up_while_it_begins_strands_nothing() {
    let world = World::new().await;
    let id = ConversationId::generate();
    let path = format!("/conversations/{id}/sandbox/auto");
    let first = world.request("POST", &path, &world.mine, prompt("sleep 10; say one")).await;
    drop(first);
    let patient = format!("{path}?wait=60");
    let waiting = world.request("POST", &patient, &world.mine, prompt("say two"));
    assert!(timeout(Duration::from_secs(1), waiting).await.is_err());
    sleep(Duration::from_secs(60)).await;
    world.quiet().await;
    let turns = world.get(&format!("/conversations/{id}/turns")).await;
    let items = turns["items"].as_array().unwrap();
    assert!(items.iter().all(|turn| turn["state"] == "completed"), "{turns}");
    let next = world.sse("POST", &path, &world.mine, prompt("say three")).await;
    assert_eq!(answer(&next), "three");
}

/// With a network, since what is tested is how a connection ends.
#[tokio::test]
async fn c2_http_a_server_that_goes_down_says_so() {
    let world = World::new().await;
    let server = Server::new(world.services().clone(), Options::default()).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let listeners = Listeners { network: Some(listener), local: None };
    tokio::spawn(server.run(listeners, async move {
        let _ = stopped.await;
    }));
    let mut connection = TcpStream::connect(address).await.unwrap();
    let body = json!({"prompt": "say one; hang"}).to_string();
    let head = format!(
        "POST {ANY} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n",
        world.mine
    );
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&seen).contains("\"one\"") {
            assert!(connection.read_buf(&mut seen).await.unwrap() > 0, "{}", String::from_utf8_lossy(&seen));
        }
        stop.send(()).unwrap();
        connection.read_to_end(&mut seen).await.unwrap();
    };
    timeout(Duration::from_secs(20), reading).await.unwrap();
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.starts_with("HTTP/1.1 200 OK\r\n"), "{seen}");
    assert!(seen.contains(": the server goes down; come back with Last-Event-ID\n\n"), "{seen}");
    assert!(!seen.contains("turn_ended"), "{seen}");
}

/// The head is there before anything happens.
#[tokio::test(start_paused = true)]
async fn c2_http_a_stream_of_what_is_to_come_begins_at_once() {
    let world = World::new().await;
    let response = world.request("POST", ANY, &world.mine, prompt("say one; sleep 5; say two")).await;
    let (begun, rest) = until(response, "\"one\"").await;
    let began = Instant::now();
    let path = format!("{}?from=1000", place(&begun.events));
    let later = world.request("GET", &path, &world.mine, None).await;
    assert_eq!(later.status(), StatusCode::OK);
    assert!(began.elapsed() < Duration::from_secs(1));
    drop(rest);
    // Its numbers are never reached.
    assert!(said(later).await.events.is_empty());
}

/// K11: whoever follows a turn whose events are gone is told so, and where the answer is.
#[tokio::test(start_paused = true)]
async fn k11_http_a_follower_of_an_old_turn_is_told_that_its_events_are_gone() {
    let world = World::new().await;
    let events = world.sse("POST", ANY, &world.mine, prompt("say kept")).await;
    let path = place(&events);
    sleep(Duration::from_secs(8 * 86_400)).await;
    let removed = Retention::new(world.services(), Keep::default()).round().await.unwrap();
    assert_eq!(removed.events, events.len() as u64 - 1);
    for last in [None, Some(0), Some(99)] {
        let request = ask("GET", &path, &world.mine);
        let request =
            last.map_or(request, |last: u64| ask("GET", &path, &world.mine).header("last-event-id", last));
        let response = world.send(request, None).await;
        assert_eq!(response.status(), StatusCode::GONE, "{last:?}");
        let problem: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(problem["code"], "events_gone");
    }
    let messages = path.split("/turns/").next().unwrap().to_owned() + "/messages";
    let said = world.get(&messages).await;
    assert!(said.to_string().contains("kept"), "{said}");
}
