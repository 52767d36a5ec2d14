//! Whoever opens connections and says nothing, or says it slowly, keeps nobody else waiting.

use crate::http_edges::{
    client::{Answer, read_answer},
    server::{Server, skip, text},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// These take the machine's connections, and measure time: one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// Those of the harness, of other tests, and of the server's stores.
const SPARE: u64 = 1000;

/// Whether this process, and a server that it starts, may have so many files. It raises the limit where it may.
fn may_open(count: u64) -> bool {
    let wanted = count + SPARE;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= wanted) {
        return true;
    }
    let enough = now.maximum.is_none_or(|most| most >= wanted);
    // Only root may raise the upper one.
    let maximum = if enough { now.maximum } else { Some(wanted) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok()
}

/// Asks ten times, with a store and without one: each long before the time for a head or a body is up.
#[track_caller]
fn answers_others(server: &Server) {
    for _ in 0..5 {
        for ask in [server.anonymous("GET", "/health"), server.ask("GET", "/sandboxes")] {
            let begun = Instant::now();
            ask.send().is(200);
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
    }
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Reads until the other side is gone; what it said.
fn until_closed(stream: &mut TcpStream) -> String {
    let (mut said, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("it was not closed: {error}"),
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn idle(count: usize) {
    let server = Server::start();
    let open: Vec<TcpStream> = (0..count).map(|_| connect(&server)).collect();
    answers_others(&server);
    assert_eq!(open.len(), count);
    drop(open);
    answers_others(&server);
}

#[test]
fn k5_two_thousand_idle_connections_hold_nobody_up() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match may_open(2000) {
        true => idle(2000),
        false => skip("k5_two_thousand_idle_connections_hold_nobody_up", "RLIMIT_NOFILE is below 3000"),
    }
}

#[test]
fn k5_ten_thousand_idle_connections_hold_nobody_up() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match may_open(10_000) {
        true => idle(10_000),
        false => skip("k5_ten_thousand_idle_connections_hold_nobody_up", "RLIMIT_NOFILE is below 11000"),
    }
}

#[test]
fn k5_where_all_places_are_taken_the_idle_make_room() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::with("connections = 50\n");
    let mut open: Vec<TcpStream> = (0..200).map(|_| connect(&server)).collect();
    answers_others(&server);
    // The oldest had to go, at once and not when their time was up.
    let begun = Instant::now();
    assert_eq!(until_closed(&mut open[0]), "");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

/// The stall of issue 16: each of these stops waits for a minute, for a process that ignores SIGTERM.
#[test]
fn k5_six_hundred_stops_that_wait_hold_nobody_up() {
    const STOPS: usize = 600;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !may_open(STOPS as u64) {
        return skip("k5_six_hundred_stops_that_wait_hold_nobody_up", "RLIMIT_NOFILE is below 1600");
    }
    let server = Server::start();
    let (_, tenant) = server.new_account("tenant");
    let post = |path: &str, body: &Value| server.anonymous("POST", path).key(&tenant).json(body);
    let id = text(&post("/sandboxes", &json!({})).send().is(201).json()["id"]);
    let stubborn = "(trap '' TERM HUP; touch /tmp/ready; while :; do sleep 1000; done) > /dev/null 2>&1 & \
                    while ! [ -e /tmp/ready ]; do sleep 0.01; done";
    post(&format!("/sandboxes/{id}/exec"), &json!({ "command": stubborn })).send().is(200);
    let stop = |grace: u64| post(&format!("/sandboxes/{id}/stop"), &json!({ "grace_ms": grace }));
    stop(60_001).send().refused(400, "invalid");
    let others_work = || {
        for _ in 0..5 {
            let begun = Instant::now();
            let id = server.sandbox();
            assert_eq!(server.run(&id, "echo well"), "well\n");
            server.delete(&format!("/sandboxes/{id}?sync=false&volumes=delete")).is(200);
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        }
    };
    let waiting: Vec<TcpStream> = (0..STOPS).map(|_| stop(60_000).begin()).collect();
    others_work();
    assert_eq!(waiting.len(), STOPS);
    // And when the callers have hung up.
    drop(waiting);
    others_work();
}

#[test]
fn k5_half_a_head_is_waited_for_and_then_hung_up_on() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::start();
    let mut open: Vec<TcpStream> = (0..300).map(|_| connect(&server)).collect();
    for (number, stream) in open.iter_mut().enumerate() {
        let half = "GET /health HTTP/1.1\r\nhost: here\r\n";
        stream.write_all(&half.as_bytes()[..number % half.len()]).unwrap();
    }
    // Some say that they will say no more.
    for stream in open.iter().skip(200) {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    answers_others(&server);
    let begun = Instant::now();
    for stream in &mut open {
        let said = until_closed(stream);
        assert!(!said.starts_with("HTTP/1.1 200"), "{said}");
    }
    // The time for a head is ten seconds.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    answers_others(&server);
}

#[test]
fn k5_a_body_may_come_slowly() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::start();
    let body = b"{    }";
    let head = server
        .ask("POST", "/conversations")
        .header("content-type", "application/json")
        .header("content-length", &body.len().to_string())
        .head();
    let slow = || {
        let mut stream = connect(&server);
        stream.write_all(head.as_bytes()).unwrap();
        for byte in body {
            std::thread::sleep(Duration::from_secs(1));
            stream.write_all(&[*byte]).unwrap();
        }
        Answer::parse(&read_answer(&mut stream, Vec::new(), false), false)
    };
    std::thread::scope(|scope| {
        let open: Vec<_> = (0..20).map(|_| scope.spawn(slow)).collect();
        for _ in 0..5 {
            answers_others(&server);
            std::thread::sleep(Duration::from_secs(1));
        }
        for each in open {
            each.join().unwrap().is(201);
        }
    });
}

#[test]
fn k5_a_body_that_never_ends_has_its_time() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::with("request_timeout_seconds = 2\n");
    let head = server
        .ask("POST", "/conversations")
        .header("content-type", "application/json")
        .header("content-length", "100")
        .head();
    let mut stream = connect(&server);
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(b"{").unwrap();
    let begun = Instant::now();
    let said = read_answer(&mut stream, Vec::new(), false);
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    Answer::parse(&said, false).refused(504, "request_timeout");
    answers_others(&server);
}

#[test]
fn k5_who_takes_nothing_holds_nobody_up() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::start();
    let id = server.sandbox();
    // More than the buffers on the way can take, and nobody reads it.
    let ask = server
        .ask("POST", &format!("/sandboxes/{id}/exec/stream"))
        .json(&json!({ "command": "head -c 50000000 /dev/zero | tr '\\0' x" }));
    let open: Vec<TcpStream> = (0..5).map(|_| ask.begin()).collect();
    std::thread::sleep(Duration::from_secs(1));
    answers_others(&server);
    drop(open);
    assert_eq!(server.run(&id, "echo here"), "here\n");
}
