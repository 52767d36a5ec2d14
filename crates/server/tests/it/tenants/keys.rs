//! What a key has open ends with the key, within a second.

use crate::world::{World, ask, settle, text, until, within};
use axum::{
    body::{Body, to_bytes},
    http::StatusCode,
};
use futures::{SinkExt, StreamExt};
use seawall_api::{
    SandboxId,
    account::KeyScope,
    exec::StartProcess,
    frame::{Frame, Kind},
    hello::{Hello, PREAMBLE, Role},
    http::{CreateKey, NewKey},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest},
};

const SECOND: Duration = Duration::from_secs(1);

/// A key of account B, with its id.
async fn key(world: &World, scopes: &[KeyScope]) -> NewKey {
    let ask = CreateKey { name: "k".to_owned(), scopes: scopes.iter().copied().collect(), expires_at: None };
    world.services().keys.create(world.other, &ask).await.unwrap()
}

/// A turn of B that says something and goes on, as its stream.
async fn stream(world: &World, secret: &str) -> Body {
    let path = "/conversations/new/sandbox/auto";
    let body = Some(json!({"prompt": "say hi; sleep 500"}));
    until(world.request("POST", path, secret, body).await, "hi").await.1
}

/// That a body ends, or breaks off, by itself.
async fn ends(body: Body) -> bool {
    timeout(SECOND, to_bytes(body, usize::MAX)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn k4_streams_of_a_revoked_key_end_within_a_second_and_others_go_on() {
    let world = World::new().await;
    let (mine, other) = (key(&world, &[KeyScope::Run]).await, key(&world, &[KeyScope::Run]).await);
    let (first, beside) = (stream(&world, &mine.secret).await, stream(&world, &other.secret).await);
    let (status, _) = world.json("DELETE", &format!("/keys/{}", mine.key.id), &world.theirs, None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert!(ends(first).await);
    assert!(!ends(beside).await, "the stream of another key goes on");
    let (status, problem) = world.json("GET", "/sandboxes", &mine.secret, None).await;
    assert_eq!((status.as_u16(), &problem["code"]), (401, &json!("key_revoked")));
}

#[tokio::test(start_paused = true)]
async fn k4_a_key_that_was_revoked_elsewhere_or_expires_ends_its_streams_too() {
    let world = World::new().await;
    let elsewhere = key(&world, &[KeyScope::Run]).await;
    let body = stream(&world, &elsewhere.secret).await;
    // Another process on the same database.
    let now = world.services().clock.now();
    world.stores.accounts.revoke_key(world.other, elsewhere.key.id, now).await.unwrap();
    assert!(ends(body).await);
    let expires_at = Some(now + Duration::from_secs(30));
    let scopes = [KeyScope::Run].into();
    let ask = CreateKey { name: "k".to_owned(), scopes, expires_at };
    let short = world.services().keys.create(world.other, &ask).await.unwrap();
    let body = stream(&world, &short.secret).await;
    let mut body = body.into_data_stream();
    let begun = Instant::now();
    // There is nothing but comments, and then its end.
    while let Some(Ok(_)) = within(body.next()).await {}
    let lasted = begun.elapsed();
    assert!((Duration::from_secs(28)..Duration::from_secs(32)).contains(&lasted), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn k10_what_an_account_has_open_ends_when_it_is_suspended() {
    let world = World::new().await;
    let (mine, other) = (stream(&world, &world.theirs).await, stream(&world, &world.mine).await);
    // By another process, so that its turns go on for the moment.
    let now = world.services().clock.now();
    world.stores.accounts.set_suspended(world.other, Some(now)).await.unwrap();
    assert!(ends(mine).await);
    assert!(!ends(other).await);
    world.stores.accounts.set_suspended(world.other, None).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    let again = stream(&world, &world.theirs).await;
    let (status, _) =
        world.json("POST", &format!("/accounts/{}/suspend", world.other), &world.mine, None).await;
    assert_eq!(status, StatusCode::OK);
    assert!(ends(again).await);
}

#[tokio::test(start_paused = true)]
async fn k4_a_call_that_still_runs_when_its_key_is_revoked_is_answered_without_it() {
    let world = World::new().await;
    let reader = key(&world, &[KeyScope::Run]).await;
    let (_, sandbox) = world.json("POST", "/sandboxes", &world.theirs, Some(json!({}))).await;
    let one = format!("/sandboxes/{}", sandbox["id"].as_str().unwrap());
    let world = Arc::new(world);
    let running = {
        let (world, secret, path) = (world.clone(), reader.secret.clone(), format!("{one}/exec"));
        tokio::spawn(async move {
            world.json("POST", &path, &secret, Some(json!({"command": "sleep 500"}))).await
        })
    };
    settle().await;
    let begun = Instant::now();
    world.services().keys.revoke(world.other, reader.key.id).await.unwrap();
    let (status, problem) = running.await.unwrap();
    assert_eq!((status.as_u16(), &problem["code"]), (401, &json!("key_revoked")));
    assert!(begun.elapsed() <= SECOND);
}

#[tokio::test(start_paused = true)]
async fn k4_who_revokes_or_rotates_its_own_key_hears_of_it() {
    let world = World::new().await;
    let own = key(&world, &[KeyScope::Admin]).await;
    let rotated = world.request("POST", &format!("/keys/{}/rotate", own.key.id), &own.secret, None).await;
    assert_eq!(rotated.status(), StatusCode::OK);
    let new: NewKey = serde_json::from_str(&text(rotated).await).unwrap();
    assert_eq!(new.replaces, Some(own.key.id));
    let revoked = world.request("DELETE", &format!("/keys/{}", new.key.id), &new.secret, None).await;
    assert_eq!(revoked.status(), StatusCode::NO_CONTENT);
    assert_eq!(world.request("GET", "/account", &new.secret, None).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn k4_a_turn_that_a_revoked_key_waited_for_is_not_begun() {
    let world = Arc::new(World::new().await);
    let waiter = key(&world, &[KeyScope::Run]).await;
    let path = "/conversations/new/sandbox/auto?stream=false";
    let (_, turn) = world.json("POST", path, &world.theirs, Some(json!({"prompt": "sleep 50"}))).await;
    let path = format!("/conversations/{}/sandbox/auto?wait=600", turn["conversation_id"].as_str().unwrap());
    let waiting = {
        let (world, secret) = (world.clone(), waiter.secret.clone());
        tokio::spawn(
            async move { world.json("POST", &path, &secret, Some(json!({"prompt": "say no"}))).await.0 },
        )
    };
    settle().await;
    world.services().keys.revoke(world.other, waiter.key.id).await.unwrap();
    assert_eq!(waiting.await.unwrap(), StatusCode::UNAUTHORIZED);
    tokio::time::sleep(Duration::from_secs(100)).await;
    world.quiet().await;
    assert_eq!(world.shell.scripts(), ["sleep 50"]);
}

type Socket = WebSocketStream<TcpStream>;

/// A socket of a sandbox of B, with a key.
async fn socket(address: std::net::SocketAddr, path: &str, secret: &str) -> Socket {
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
    let stream = TcpStream::connect(address).await.unwrap();
    within(client_async(request, stream)).await.unwrap().0
}

/// The code that a socket is closed with: within a second, and one more for a busy machine.
async fn closed(socket: &mut Socket) -> Option<u16> {
    let closing = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(frame) = message {
                return frame.map(|frame| u16::from(frame.code));
            }
        }
        None
    };
    timeout(2 * SECOND, closing).await.expect("it is open after two seconds")
}

#[tokio::test]
async fn k4_terminals_and_wires_of_a_revoked_key_end_within_a_second() {
    let world = World::new().await;
    let (_, made) = world.json("POST", "/sandboxes", &world.theirs, Some(json!({}))).await;
    let sandbox: SandboxId = made["id"].as_str().unwrap().parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, router) = (listener.local_addr().unwrap(), world.router());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let guest = world.services().sandboxes.guest(world.other, sandbox).await.unwrap();
    let cat = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
    let process = guest.start_detached(cat).await.unwrap().process;
    let user = key(&world, &[KeyScope::Run]).await;
    let one = format!("/sandboxes/{sandbox}");
    let mut terminal = socket(address, &format!("{one}/terminals/{process}"), &user.secret).await;
    let mut wire = socket(address, &format!("{one}/wire"), &user.secret).await;
    let mut beside = socket(address, &format!("{one}/wire"), &world.theirs).await;
    for socket in [&mut wire, &mut beside] {
        let hello = Frame::message(Kind::Hello, &Hello::new(Role::Client, sandbox)).unwrap().to_bytes();
        socket.send(Message::Binary([&PREAMBLE[..], &hello[..]].concat().into())).await.unwrap();
        assert!(matches!(within(socket.next()).await, Some(Ok(Message::Binary(_)))));
    }
    assert!(matches!(within(terminal.next()).await, Some(Ok(Message::Text(_)))), "attached");
    // By another process, which is the slower way.
    let now = world.services().clock.now();
    world.stores.accounts.revoke_key(world.other, user.key.id, now).await.unwrap();
    let (terminal, wire) = tokio::join!(closed(&mut terminal), closed(&mut wire));
    assert_eq!((terminal, wire), (Some(1008), Some(1008)));
    beside.send(Message::Ping(bytes::Bytes::new())).await.unwrap();
    assert!(matches!(within(beside.next()).await, Some(Ok(_))), "others' go on");
    // What was revoked elsewhere is believed for a second at the most.
    tokio::time::sleep(SECOND).await;
    let request = ask("GET", &one, &user.secret);
    assert_eq!(world.send(request, None).await.status(), StatusCode::UNAUTHORIZED);
}
