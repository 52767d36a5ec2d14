//! WebSockets: at processes, and to the guest's wire, over real connections. Boxes of the mock provider have no
//! terminals, so that a process with pipes takes their place; real ones are tested with real boxes.

use crate::world::{ME, World, within};
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use seawall_api::{
    ErrorKind, Fault, ProcessId, SandboxId,
    account::KeyScope,
    exec::StartProcess,
    frame::{self, Frame, Kind},
    hello::{Hello, PREAMBLE, Role, Welcome},
    http::TerminalEvent,
};
use serde_json::json;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, client::IntoClientRequest},
};

type Socket = WebSocketStream<TcpStream>;

/// A world that listens.
struct Served {
    world: World,
    address: SocketAddr,
    sandbox: SandboxId,
}

impl Served {
    async fn new() -> Served {
        let world = World::new().await;
        let (status, made) = world.json("POST", "/sandboxes", &world.mine, Some(json!({}))).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        let sandbox = made["id"].as_str().unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = world.router();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Served { world, address, sandbox }
    }

    /// A WebSocket, or the status of the answer that there is none.
    async fn connect(&self, path: &str, key: &str) -> Result<Socket, u16> {
        let url = format!("ws://{}/sandboxes/{}{path}", self.address, self.sandbox);
        let mut request = url.into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        let stream = TcpStream::connect(self.address).await.unwrap();
        match within(client_async(request, stream)).await {
            Ok((socket, _)) => Ok(socket),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn open(&self, path: &str) -> Socket {
        self.connect(path, &self.world.mine).await.unwrap()
    }

    /// A process that copies its input to its output.
    async fn cat(&self) -> ProcessId {
        let guest = self.world.services().sandboxes.guest(ME, self.sandbox).await.unwrap();
        let cat = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
        guest.start_detached(cat).await.unwrap().process
    }
}

/// The next message but pings.
async fn next(socket: &mut Socket) -> Message {
    loop {
        match within(socket.next()).await.expect("it ended").unwrap() {
            Message::Ping(_) | Message::Pong(_) => {}
            message => return message,
        }
    }
}

async fn event(socket: &mut Socket) -> TerminalEvent {
    match next(socket).await {
        Message::Text(text) => serde_json::from_str(text.as_str()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// So many bytes of what is shown.
async fn shown(socket: &mut Socket, count: usize) -> String {
    let mut bytes = BytesMut::new();
    while bytes.len() < count {
        match next(socket).await {
            Message::Binary(more) => bytes.extend_from_slice(&more),
            other => panic!("{other:?}"),
        }
    }
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn typed(text: &'static str) -> Message {
    Message::Binary(Bytes::from_static(text.as_bytes()))
}

#[tokio::test]
async fn p6_what_is_typed_is_shown_and_comes_back() {
    let served = Served::new().await;
    let process = served.cat().await;
    let path = format!("/terminals/{process}");
    let mut socket = served.open(&path).await;
    assert_eq!(event(&mut socket).await, TerminalEvent::Attached { process, offset: 0 });
    socket.send(typed("one ")).await.unwrap();
    assert_eq!(shown(&mut socket, 4).await, "one ");
    // Gone without a word: the process does not mind.
    drop(socket);
    let mut again = served.open(&path).await;
    assert_eq!(event(&mut again).await, TerminalEvent::Attached { process, offset: 0 });
    assert_eq!(shown(&mut again, 4).await, "one ");
    let mut later = served.open(&format!("{path}?from=4")).await;
    assert_eq!(event(&mut later).await, TerminalEvent::Attached { process, offset: 4 });
    later.send(typed("two")).await.unwrap();
    // Both are at it.
    assert_eq!(shown(&mut later, 3).await, "two");
    assert_eq!(shown(&mut again, 3).await, "two");
}

#[tokio::test]
async fn p6_an_exit_is_told_and_closes_the_socket() {
    let served = Served::new().await;
    let process = served.cat().await;
    let mut socket = served.open(&format!("/terminals/{process}")).await;
    event(&mut socket).await;
    let resize = json!({"type": "resize", "rows": 10, "cols": 20}).to_string();
    socket.send(Message::text(resize)).await.unwrap();
    socket.send(Message::text(json!({"type": "signal", "signal": 15}).to_string())).await.unwrap();
    let TerminalEvent::Exit { exit_code, .. } = event(&mut socket).await else { panic!("no exit") };
    assert_eq!(exit_code, 128 + 15);
    match next(&mut socket).await {
        Message::Close(Some(close)) => assert_eq!(u16::from(close.code), 1000),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn p6_words_that_are_not_known_are_told_of() {
    let served = Served::new().await;
    let process = served.cat().await;
    let mut socket = served.open(&format!("/terminals/{process}")).await;
    event(&mut socket).await;
    socket.send(Message::text("{\"type\": \"dance\"}")).await.unwrap();
    let TerminalEvent::Error { code, .. } = event(&mut socket).await else { panic!("no error") };
    assert_eq!(code, "invalid");
    socket.send(typed("still")).await.unwrap();
    assert_eq!(shown(&mut socket, 5).await, "still");
}

#[tokio::test]
async fn p6_terminals_that_are_not_there_are_refused_before() {
    let served = Served::new().await;
    let world = &served.world;
    let unknown = format!("/terminals/{}", ProcessId::generate());
    assert_eq!(served.connect(&unknown, &world.mine).await.unwrap_err(), 404);
    let cat = format!("/terminals/{}", served.cat().await);
    assert_eq!(served.connect(&cat, &world.theirs).await.unwrap_err(), 404);
    assert_eq!(served.connect(&cat, "sw_wrong").await.unwrap_err(), 401);
    assert_eq!(served.connect(&cat, &world.key(&[KeyScope::Read]).await).await.unwrap_err(), 403);
    assert_eq!(served.connect(&format!("{cat}?from=99"), &world.mine).await.unwrap_err(), 400);
    let one = format!("/sandboxes/{}", served.sandbox);
    let (status, problem) = world.json("GET", &format!("{one}{cat}"), &world.mine, None).await;
    assert_eq!((status.as_u16(), problem["code"].as_str()), (426, Some("websocket_expected")));
    // The mock has none.
    let (status, _) = world.json("POST", &format!("{one}/terminals"), &world.mine, None).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let none = Some(json!({"size": {"rows": 0, "cols": 1}}));
    let (status, _) = world.json("POST", &format!("{one}/terminals"), &world.mine, none).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    // A page that connects again and again wakes nobody.
    world.json("POST", &format!("{one}/stop"), &world.mine, None).await;
    assert_eq!(served.connect(&cat, &world.mine).await.unwrap_err(), 503);
    assert_eq!(world.get(&one).await["state"], "stopped");
}

/// Says hello, in messages of so many bytes. The answer.
async fn greet(socket: &mut Socket, role: Role, sandbox: SandboxId, size: usize) -> Frame {
    let hello = Frame::message(Kind::Hello, &Hello::new(role, sandbox)).unwrap().to_bytes();
    let bytes = [&PREAMBLE[..], &hello[..]].concat();
    for part in bytes.chunks(size) {
        socket.send(Message::Binary(Bytes::copy_from_slice(part))).await.unwrap();
    }
    answer(socket).await
}

async fn answer(socket: &mut Socket) -> Frame {
    let mut bytes = BytesMut::new();
    loop {
        if let Some(frame) = frame::take(&mut bytes).unwrap() {
            return frame;
        }
        match next(socket).await {
            Message::Binary(more) => bytes.extend_from_slice(&more),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn p1_the_wire_is_passed_on() {
    let served = Served::new().await;
    for size in [1, 1000] {
        let mut socket = served.open("/wire").await;
        let welcome = greet(&mut socket, Role::Bulk, served.sandbox, size).await;
        assert!(welcome.decode::<Welcome>().unwrap().build.starts_with("mock-"));
        let request = Frame::message(Kind::Request, &seawall_api::message::Request::Info).unwrap();
        socket.send(Message::Binary(request.to_bytes().into())).await.unwrap();
        assert_eq!(answer(&mut socket).await.kind, Kind::Reply);
    }
    let mut client = served.open("/wire").await;
    assert_eq!(greet(&mut client, Role::Client, served.sandbox, 64).await.kind, Kind::Welcome);
}

#[tokio::test]
async fn p1_nobody_takes_the_control_wire() {
    let served = Served::new().await;
    for (role, sandbox, kind) in [
        (Role::Control { epoch: u64::MAX }, served.sandbox, ErrorKind::Denied),
        (Role::Client, SandboxId::generate(), ErrorKind::Conflict),
    ] {
        let mut socket = served.open("/wire").await;
        let refusal = greet(&mut socket, role, sandbox, 1000).await;
        assert_eq!(refusal.kind, Kind::Fault);
        assert_eq!(refusal.decode::<Fault>().unwrap().kind, kind);
        assert!(matches!(next(&mut socket).await, Message::Close(Some(_))));
    }
    assert_eq!(served.connect("/wire", &served.world.theirs).await.unwrap_err(), 404);
}

#[tokio::test]
async fn p1_a_socket_at_a_sandbox_that_was_stopped_wakes_it() {
    let served = Served::new().await;
    let one = format!("/sandboxes/{}", served.sandbox);
    served.world.json("POST", &format!("{one}/stop"), &served.world.mine, None).await;
    let mut socket = served.open("/wire").await;
    assert_eq!(greet(&mut socket, Role::Client, served.sandbox, 1000).await.kind, Kind::Welcome);
    assert_eq!(served.world.get(&one).await["state"], "running");
}
