//! Traces: a collector of OpenTelemetry that is a socket and a small reader of its messages. A turn is one trace.

use crate::http_edges::{
    client::find,
    server::{Server, text},
};
use crate::world::{World, eventually};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
};

#[derive(Debug, Clone)]
struct Span {
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    name: String,
    /// As it came: what stands in its attributes can be found in it.
    bytes: Vec<u8>,
}

/// A field of a message: its number, and its bytes where it has some.
struct Field<'a> {
    number: u64,
    bytes: &'a [u8],
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first().expect("a number breaks off");
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number without an end")
}

fn taken<'a>(rest: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (bytes, behind) = rest.split_at_checked(length).expect("a field breaks off");
    *rest = behind;
    bytes
}

/// The fields of a message of Protocol Buffers.
fn fields(mut rest: &[u8]) -> Vec<Field<'_>> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let tag = varint(&mut rest);
        let bytes: &[u8] = match tag & 7 {
            0 => {
                varint(&mut rest);
                &[]
            }
            1 => taken(&mut rest, 8),
            2 => {
                let length = usize::try_from(varint(&mut rest)).unwrap();
                taken(&mut rest, length)
            }
            5 => taken(&mut rest, 4),
            kind => panic!("a field of kind {kind}"),
        };
        all.push(Field { number: tag >> 3, bytes });
    }
    all
}

/// The bytes of all fields of this number.
fn all_of(message: &[u8], number: u64) -> Vec<&[u8]> {
    fields(message).into_iter().filter(|field| field.number == number).map(|field| field.bytes).collect()
}

fn one_of(message: &[u8], number: u64) -> Vec<u8> {
    all_of(message, number).first().map(|bytes| bytes.to_vec()).unwrap_or_default()
}

/// Of an ExportTraceServiceRequest: its resource_spans, their scope_spans, and the spans of these.
fn spans(request: &[u8]) -> Vec<Span> {
    let scopes = all_of(request, 1).into_iter().flat_map(|resource| all_of(resource, 2));
    let spans = scopes.flat_map(|scope| all_of(scope, 2));
    let span = |bytes: &[u8]| Span {
        trace: one_of(bytes, 1),
        id: one_of(bytes, 2),
        parent: one_of(bytes, 4),
        name: String::from_utf8(one_of(bytes, 5)).unwrap(),
        bytes: bytes.to_vec(),
    };
    spans.map(span).collect()
}

#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    /// Requests that were not for traces.
    odd: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    /// Listens for as long as the tests run; where.
    fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let collector = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let collector = collector.clone();
                std::thread::spawn(move || collector.serve(stream));
            }
        });
        url
    }

    /// One connection, with any number of requests.
    fn serve(&self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        while let Some((head, body)) = request(&mut stream, &mut bytes) {
            if head.starts_with("POST /v1/traces HTTP/1.1\r\n") && head.contains("application/x-protobuf") {
                self.spans.lock().unwrap_or_else(PoisonError::into_inner).extend(spans(&body));
            } else {
                self.odd.lock().unwrap_or_else(PoisonError::into_inner).push(head);
            }
            let answer =
                "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn all(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The names of the spans of each trace.
    fn traces(&self) -> BTreeMap<Vec<u8>, Vec<String>> {
        let mut traces = BTreeMap::<Vec<u8>, Vec<String>>::new();
        for span in self.all() {
            traces.entry(span.trace).or_default().push(span.name);
        }
        traces
    }
}

/// The next request of a connection: its head, and its body. None: it is over.
fn request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let mut buffer = [0; 1 << 14];
    loop {
        if let Some(end) = find(bytes, "\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end + 4]).into_owned();
            let length_of = |line: &str| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            };
            let whole = end + 4 + head.lines().find_map(length_of).unwrap_or(0);
            if bytes.len() >= whole {
                let body = bytes[end + 4..whole].to_vec();
                bytes.drain(..whole);
                return Some((head, body));
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

const STAGES: [&str; 4] = ["turn", "sandbox", "agent", "push"];

#[test]
fn a_turn_is_one_trace() {
    let collector = Collector::default();
    let url = collector.listen();
    let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "200")];
    let server = Server::within(World::new(), "", &env);
    let turns: Vec<String> =
        (0..3).map(|number| text(&server.turn(&format!("echo {number} > file"))[0]["turn_id"])).collect();
    // Calls that are no turns are traces of their own.
    server.get("/account").is(200);
    let is_whole = |names: &Vec<String>| STAGES.iter().all(|stage| names.iter().any(|name| name == stage));
    let whole = || collector.traces().into_values().filter(|names| is_whole(names)).count();
    eventually("every turn has its trace", || whole() >= turns.len()).unwrap();
    // No more comes of them.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let with_a_turn: Vec<Vec<String>> =
        collector.traces().into_values().filter(|names| names.iter().any(|name| name == "turn")).collect();
    assert_eq!(with_a_turn.len(), turns.len(), "{with_a_turn:?}");
    for names in &with_a_turn {
        for stage in STAGES {
            let count = names.iter().filter(|name| *name == stage).count();
            assert_eq!(count, 1, "{stage} in {names:?}");
        }
        assert!(names.iter().any(|name| name == "request"), "{names:?}");
    }
    let odd = collector.odd.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(odd.is_empty(), "{odd:?}");
    told_apart(&collector.all(), &turns);
}

/// Each turn's id is in a trace of its own, whose spans hang together.
fn told_apart(spans: &[Span], turns: &[String]) {
    let mut seen = BTreeSet::new();
    for turn in turns {
        let is_its = |span: &&Span| span.name == "turn" && find(&span.bytes, turn).is_some();
        let own: Vec<&Span> = spans.iter().filter(is_its).collect();
        let [own] = own[..] else { panic!("{} spans are of turn {turn}", own.len()) };
        assert_eq!((own.trace.len(), own.id.len()), (16, 8));
        assert!(seen.insert(own.trace.clone()), "two turns are one trace");
        let of_it = || spans.iter().filter(|span| span.trace == own.trace);
        for span in of_it().filter(|span| span.name != "request") {
            let parent = of_it().find(|other| other.id == span.parent);
            assert!(parent.is_some(), "the span {} hangs nowhere", span.name);
        }
        for name in ["sandbox", "agent", "push"] {
            let part = of_it().find(|span| span.name == name).unwrap();
            assert_eq!(part.parent, own.id, "{name} is no part of the turn itself");
        }
    }
}

#[test]
fn a_collector_that_is_away_is_no_reason_to_fail() {
    // A port where nobody listens.
    let url = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "200")];
    let mut server = Server::within(World::new(), "", &env);
    server.turn("true");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_reader_of_messages_reads_them() {
    let nested = |number: u8, bytes: &[u8]| [&[(number << 3) | 2, bytes.len() as u8][..], bytes].concat();
    let span = [nested(1, &[7; 16]), nested(2, &[8; 8]), vec![6 << 3, 1], nested(5, b"turn")].concat();
    let message = nested(1, &nested(2, &nested(2, &span)));
    let read = spans(&message);
    assert_eq!(read.len(), 1);
    assert_eq!((read[0].trace.as_slice(), read[0].name.as_str()), (&[7; 16][..], "turn"));
}
