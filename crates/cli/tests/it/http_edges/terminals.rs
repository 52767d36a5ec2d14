//! P6 over a WebSocket: a terminal is typed at, resized, left and found again as it was.

use crate::http_edges::{
    client::find,
    server::{Server, text},
    socket::{Frame, Socket},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody at a terminal.
struct Seat {
    socket: Socket,
    /// All that was shown.
    seen: Vec<u8>,
    /// Up to where it was looked at.
    at: usize,
    /// Where `seen` begins.
    offset: u64,
    /// What was told beside it.
    told: Vec<Value>,
}

impl Seat {
    #[track_caller]
    fn take(server: &Server, sandbox: &str, process: &str, query: &str) -> Seat {
        let ask = server.ask("GET", &format!("/sandboxes/{sandbox}/terminals/{process}{query}"));
        let mut socket = Socket::open(ask).unwrap_or_else(|answer| panic!("{}", answer.text()));
        let Frame::Text(first) = socket.frame() else { panic!("it does not say where it begins") };
        let first: Value = serde_json::from_str(&first).unwrap();
        assert_eq!((&first["type"], &first["process"]), (&json!("attached"), &json!(process)), "{first}");
        let offset = first["offset"].as_u64().unwrap();
        Seat { socket, seen: Vec::new(), at: 0, offset, told: Vec::new() }
    }

    /// Whether this is shown, behind what was looked for before.
    fn shows(&mut self, wanted: &str, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            if let Some(found) = find(&self.seen[self.at..], wanted) {
                self.at += found + wanted.len();
                return true;
            }
            match self.socket.frame_within(until.saturating_duration_since(Instant::now())) {
                Some(Frame::Binary(bytes)) => self.seen.extend(bytes),
                Some(Frame::Text(text)) => self.told.push(serde_json::from_str(&text).unwrap()),
                Some(Frame::Close(_) | Frame::End) | None => return false,
            }
        }
    }

    #[track_caller]
    fn expect(&mut self, wanted: &str) {
        let shown = self.shows(wanted, PATIENCE);
        assert!(
            shown,
            "{wanted:?} was not shown, but {:?}; {:?}",
            String::from_utf8_lossy(&self.seen),
            self.told
        );
    }

    /// Where the next one has to begin to miss nothing.
    fn end(&self) -> u64 {
        self.offset + self.seen.len() as u64
    }

    /// Up to the end: what was told last, and the code of the close.
    fn until_closed(&mut self) -> (Value, u16) {
        loop {
            match self.socket.frame() {
                Frame::Binary(bytes) => self.seen.extend(bytes),
                Frame::Text(text) => self.told.push(serde_json::from_str(&text).unwrap()),
                Frame::Close(code) => {
                    self.socket.close();
                    assert_eq!(self.socket.frame(), Frame::End);
                    return (self.told.last().cloned().unwrap_or_default(), code);
                }
                Frame::End => panic!("it broke off after {:?}", self.told),
            }
        }
    }
}

/// A terminal with a shell that says nothing of its own.
#[track_caller]
fn open(server: &Server, sandbox: &str, rows: u16, cols: u16) -> String {
    let ask = json!({ "size": { "rows": rows, "cols": cols }, "env": { "PS1": "$ ", "TERM": "dumb" } });
    let opened = server.post(&format!("/sandboxes/{sandbox}/terminals"), &ask).is(201).json();
    assert_eq!((&opened["type"], &opened["offset"]), (&json!("attached"), &json!(0)), "{opened}");
    text(&opened["process"])
}

// What is typed is shown too, so what is waited for must not stand in it.
#[test]
fn p6_a_terminal_is_typed_at_and_resized() {
    let server = Server::start();
    let id = server.sandbox();
    let process = open(&server, &id, 30, 100);
    let mut seat = Seat::take(&server, &id, &process, "");
    seat.socket.type_in("stty size\r");
    seat.expect("30 100");
    seat.socket.say(r#"{"type": "resize", "rows": 40, "cols": 120}"#);
    // Sizes and keys travel apart, so the first answer may still be the old one.
    let resized = (0..20).any(|_| {
        seat.socket.type_in("stty size\r");
        seat.shows("40 120", Duration::from_secs(1))
    });
    assert!(resized, "{:?}", String::from_utf8_lossy(&seat.seen));
    // What hangs is interrupted by its key, and by a signal beside the keys.
    seat.socket.type_in("sleep 600\r");
    std::thread::sleep(Duration::from_millis(500));
    seat.socket.type_in("\x03");
    seat.socket.type_in("echo code''=$?\r");
    seat.expect("code=130");
    // What is no word for a terminal is told, and ends nothing.
    seat.socket.say("nonsense");
    seat.socket.type_in("echo still'' here\r");
    seat.expect("still here");
    let error = seat.told.iter().find(|told| told["type"] == "error").unwrap();
    assert_eq!(error["code"], "invalid", "{error}");
}

#[test]
fn p6_who_comes_back_finds_the_screen_as_it_was() {
    let server = Server::start();
    let id = server.sandbox();
    let process = open(&server, &id, 24, 80);
    let mut seat = Seat::take(&server, &id, &process, "");
    assert_eq!(seat.offset, 0);
    seat.socket.type_in("x=kept; echo before'' the fall\r");
    seat.expect("before the fall");
    let end = seat.end();
    // Without a word, as a network goes.
    drop(seat);
    let mut again = Seat::take(&server, &id, &process, "?from=0");
    assert_eq!(again.offset, 0);
    again.expect("before the fall");
    again.socket.type_in("echo \"<$x>\"\r");
    again.expect("<kept>");
    drop(again);
    // Or from where it was.
    let mut rest = Seat::take(&server, &id, &process, &format!("?from={end}"));
    assert_eq!(rest.offset, end);
    rest.expect("<kept>");
    assert!(find(&rest.seen, "before the fall").is_none(), "{:?}", String::from_utf8_lossy(&rest.seen));
}

#[test]
fn p6_a_terminal_outlives_its_server() {
    let mut server = Server::start();
    let id = server.sandbox();
    let process = open(&server, &id, 24, 80);
    let mut seat = Seat::take(&server, &id, &process, "");
    seat.socket.type_in("x=kept; echo before'' the fall\r");
    seat.expect("before the fall");
    server.crash();
    let mut again = Seat::take(&server, &id, &process, "?from=0");
    again.expect("before the fall");
    again.socket.type_in("echo \"<$x>\"\r");
    again.expect("<kept>");
}

#[test]
fn p6_the_end_of_a_terminal_is_told() {
    let server = Server::start();
    let id = server.sandbox();
    let process = open(&server, &id, 24, 80);
    let mut seat = Seat::take(&server, &id, &process, "");
    seat.socket.type_in("echo last'' words; exit 7\r");
    let (told, code) = seat.until_closed();
    assert_eq!((&told["type"], &told["exit_code"]), (&json!("exit"), &json!(7)), "{told}");
    assert_eq!((&told["status"]["code"], code), (&json!(7), 1000));
    assert!(find(&seat.seen, "last words").is_some(), "{:?}", String::from_utf8_lossy(&seat.seen));
    // Also to who comes later.
    let mut late = Seat::take(&server, &id, &process, "?from=0");
    let (told, code) = late.until_closed();
    assert_eq!((&told["type"], &told["exit_code"], code), (&json!("exit"), &json!(7), 1000), "{told}");
    assert_eq!(late.seen, seat.seen);
}

#[test]
fn p6_a_terminal_may_be_a_program_with_its_own_user_and_folder() {
    let server = Server::start();
    let id = server.sandbox();
    let ask = json!({
        "args": ["sh", "-c", "test -t 0 && test -t 1 && echo \"$WORD at $(pwd) as $(id -un)\""],
        "cwd": "/tmp", "user": "root", "env": { "WORD": "hello" },
    });
    let opened = server.post(&format!("/sandboxes/{id}/terminals"), &ask).is(201).json();
    let mut seat = Seat::take(&server, &id, &text(&opened["process"]), "");
    let (told, code) = seat.until_closed();
    assert_eq!((&told["exit_code"], code), (&json!(0), 1000), "{told}");
    assert_eq!(String::from_utf8_lossy(&seat.seen).trim(), "hello at /tmp as root");
}

#[test]
fn p6_a_terminal_needs_a_key_and_starts_no_sandbox() {
    let server = Server::start();
    let id = server.sandbox();
    let process = open(&server, &id, 24, 80);
    let path = format!("/sandboxes/{id}/terminals/{process}");
    let refused = |ask| Socket::open(ask).expect_err("it was let in");
    refused(server.anonymous("GET", &path)).refused(401, "key_missing");
    refused(server.anonymous("GET", &path).key(&server.new_key("read"))).refused(403, "scope_missing");
    server.get(&path).refused(426, "websocket_expected");
    let other = format!("/sandboxes/{id}/terminals/0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e");
    refused(server.ask("GET", &other)).problem(404);
    server.post(&format!("/sandboxes/{id}/stop"), &json!({})).is(200);
    refused(server.ask("GET", &path)).refused(503, "not_running");
    assert_eq!(server.state(&id), "stopped");
    server.delete(&format!("/sandboxes/{id}")).is(200);
    refused(server.ask("GET", &path)).refused(410, "gone");
}
