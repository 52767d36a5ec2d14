//! HTTP by hand: one request a connection, and nothing between a test and the bytes.

use serde_json::Value;
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Longer than any answer of these tests takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request.
#[derive(Debug, Clone)]
pub struct Ask {
    address: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// Names are small.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Ask {
    pub fn new(address: SocketAddr, method: &str, path: &str) -> Ask {
        let method = method.to_uppercase();
        Ask { address, method, path: path.to_owned(), headers: Vec::new(), body: None }
    }

    pub fn header(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn key(self, secret: &str) -> Ask {
        self.header("authorization", &format!("Bearer {secret}"))
    }

    pub fn json(self, body: &Value) -> Ask {
        self.body("application/json", body.to_string())
    }

    pub fn body(self, content_type: &str, body: impl Into<Vec<u8>>) -> Ask {
        let mut ask = self.header("content-type", content_type);
        ask.body = Some(body.into());
        ask
    }

    /// The head, without a length of a body that is none of the request's own.
    pub fn head(&self) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", self.method, self.path, self.address);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("connection")) {
            head.push_str("connection: close\r\n");
        }
        if let Some(body) = &self.body {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head
    }

    /// Sends it, and leaves the answer to the caller.
    pub fn begin(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        // A server that refuses need not hear all of it.
        let _ = stream.write_all(self.head().as_bytes());
        if let Some(body) = &self.body {
            let _ = stream.write_all(body);
        }
        stream
    }

    pub fn send(&self) -> Answer {
        let head_only = self.method == "HEAD";
        Answer::parse(&read_answer(&mut self.begin(), Vec::new(), head_only), head_only)
    }
}

/// The bytes of an answer of which these were read. Where the other side breaks off, that is the end.
pub fn read_answer(stream: &mut TcpStream, mut bytes: Vec<u8>, head_only: bool) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 16];
    while !is_whole(&bytes, head_only) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => break,
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
        }
    }
    bytes
}

/// Connections may stay open behind an answer.
fn is_whole(bytes: &[u8], head_only: bool) -> bool {
    let Some(end) = find(bytes, "\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length_of = |line: &str| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok();
    let length = head.split("\r\n").find_map(length_of);
    let has_none = matches!(head.get(8..13), Some(" 204 " | " 304 "));
    match length {
        _ if head_only || has_none => true,
        Some(length) => bytes.len() >= end + 4 + length,
        None => head.contains("transfer-encoding: chunked") && bytes.ends_with(b"0\r\n\r\n"),
    }
}

/// Where a text stands in bytes.
pub fn find(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text.as_bytes())
}

impl Answer {
    pub fn parse(bytes: &[u8], head_only: bool) -> Answer {
        let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
        let end = find(bytes, "\r\n\r\n").unwrap_or_else(|| panic!("no answer, but {:?}", shown()));
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(':').unwrap_or_else(|| panic!("{line:?} is no header")))
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            .collect();
        let mut answer = Answer { status, headers, body: Vec::new() };
        let body = &bytes[end + 4..];
        answer.body = match (answer.header("transfer-encoding"), answer.header("content-length")) {
            (Some("chunked"), _) if !head_only => unchunked(body),
            (_, Some(length)) if !head_only && status != 304 => {
                let length: usize = length.parse().unwrap();
                assert_eq!(body.len(), length, "the body is not as long as announced: {}", shown());
                body.to_vec()
            }
            _ => body.to_vec(),
        };
        answer
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(each, _)| each == name).map(|(_, value)| value.as_str()).collect()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("{error} in the body of a {}: {}", self.status, self.text()),
        }
    }

    /// Must have this status.
    #[track_caller]
    pub fn is(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// Must be an error as all of them are: a problem of this status, with the id of its request.
    #[track_caller]
    pub fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        let problem = self.json();
        let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(text("type"), "about:blank", "{problem}");
        for name in ["title", "code", "detail", "request_id"] {
            assert!(!text(name).is_empty(), "no {name} in {problem}");
        }
        assert!(problem["retryable"].is_boolean(), "{problem}");
        assert_eq!(self.header("x-request-id"), Some(text("request_id").as_str()), "{problem}");
        problem
    }

    /// Must be a problem with this code.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> Value {
        let problem = self.problem(status);
        assert_eq!(problem["code"], code, "{problem}");
        problem
    }

    /// The events of a stream: their numbers, and what was told.
    #[track_caller]
    pub fn events(&self) -> Vec<(u64, Value)> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{}", self.text());
        let text = self.text();
        let part = |event: &str, name: &str| {
            let found = event.lines().find_map(|line| line.strip_prefix(name));
            found.map(|value| value.trim_start().to_owned())
        };
        let told = text.split("\n\n").filter_map(|event| Some((part(event, "id:")?, part(event, "data:")?)));
        told.map(|(id, data)| (id.parse().unwrap(), serde_json::from_str(&data).unwrap())).collect()
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = find(rest, "\r\n").expect("the body breaks off");
        let size = std::str::from_utf8(&rest[..line]).unwrap().split(';').next().unwrap().trim();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        let chunk = rest.get(line + 2..line + 2 + size).expect("the body breaks off");
        body.extend_from_slice(chunk);
        rest = &rest[line + 2 + size + 2..];
    }
}

/// For a query.
pub fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let escape = |byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}
