//! A small HTTP/1.1 client: a connection for each call, bodies that stream, and no patience without end.

use serde_json::Value;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

/// For all of an answer, that of a stream included.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked of a server.
#[derive(Debug, Clone)]
pub struct Ask {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

pub fn ask(method: &str, path: &str) -> Ask {
    Ask { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: String::new() }
}

impl Ask {
    pub fn header(mut self, name: &str, value: impl ToString) -> Ask {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn json(mut self, body: &Value) -> Ask {
        self.body = body.to_string();
        self.header("content-type", "application/json")
    }

    /// Returns with the head of the answer.
    pub fn send(&self, address: &str) -> io::Result<Answer> {
        let socket = self.begin(address)?;
        let mut from = BufReader::new(Timed { socket, until: Instant::now() + PATIENCE });
        let first = line(&mut from)?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status: u16 = status.ok_or_else(|| broken(&first))?;
        let mut headers = Vec::new();
        loop {
            let line = line(&mut from)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| broken(&line))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Answer { status, headers, body: Body { from, framing: Framing::ToTheEnd } };
        answer.body.framing = answer.framing();
        Ok(answer)
    }

    /// Asks, and hangs up before there is an answer.
    pub fn send_and_leave(&self, address: &str) -> io::Result<()> {
        self.begin(address)?.shutdown(Shutdown::Both)
    }

    fn begin(&self, address: &str) -> io::Result<TcpStream> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {address}\r\n", self.method, self.path);
        head.push_str(&format!("connection: close\r\ncontent-length: {}\r\n", self.body.len()));
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.push_str(&self.body);
        socket.write_all(head.as_bytes())?;
        Ok(socket)
    }
}

/// The head of an answer, with a body that is still to be read.
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

impl Answer {
    /// Its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(each, _)| each == name).map(|(_, value)| value.as_str())
    }

    pub fn text(mut self) -> String {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Null where there is no body.
    pub fn json(self) -> Value {
        let text = self.text();
        match text.is_empty() {
            true => Value::Null,
            false => serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")),
        }
    }

    pub fn stream(self) -> Stream {
        Stream { lines: BufReader::new(self.body), comments: Vec::new() }
    }

    fn framing(&self) -> Framing {
        if self.status == 204 {
            return Framing::Over;
        }
        if self.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Framing::Chunked(0);
        }
        match self.header("content-length").and_then(|value| value.parse().ok()) {
            Some(length) => Framing::Length(length),
            None => Framing::ToTheEnd,
        }
    }
}

/// A socket that gives up when its time is over.
struct Timed {
    socket: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(to)
    }
}

#[derive(Clone, Copy)]
enum Framing {
    /// What is left of this chunk.
    Chunked(u64),
    Length(u64),
    ToTheEnd,
    Over,
}

/// The bytes behind a head, without their framing.
struct Body {
    from: BufReader<Timed>,
    framing: Framing,
}

impl Body {
    fn next_chunk(&mut self) -> io::Result<()> {
        let head = line(&mut self.from)?;
        let size = head.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| broken(&head))?;
        self.framing = Framing::Chunked(size);
        if size == 0 {
            self.framing = Framing::Over;
            // Trailers, of which there are none, and the end of them.
            while !line(&mut self.from)?.is_empty() {}
        }
        Ok(())
    }
}

impl Read for Body {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if let Framing::Chunked(0) = self.framing {
            self.next_chunk()?;
        }
        let left = match self.framing {
            Framing::Chunked(left) | Framing::Length(left) => left,
            Framing::ToTheEnd => u64::MAX,
            Framing::Over => 0,
        };
        let most = to.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let count = self.from.read(&mut to[..most])?;
        self.framing = match (self.framing, count as u64) {
            (Framing::ToTheEnd, _) => Framing::ToTheEnd,
            (_, 0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (Framing::Chunked(left), count) => Framing::Chunked(left - count),
            (Framing::Length(left), count) => Framing::Length(left - count),
            (Framing::Over, _) => Framing::Over,
        };
        if let Framing::Chunked(0) = self.framing {
            // The line break behind the chunk comes with it.
            line(&mut self.from)?;
        }
        Ok(count)
    }
}

/// Server-sent events.
pub struct Stream {
    lines: BufReader<Body>,
    pub comments: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    pub id: u64,
    pub event: Value,
}

impl Stream {
    pub fn hang_up(self) {
        let _ = self.lines.get_ref().from.get_ref().socket.shutdown(Shutdown::Both);
    }

    /// None: there are no more whole ones.
    fn line(&mut self) -> Option<String> {
        match line(&mut self.lines) {
            Ok(line) => Some(line),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                panic!("a stream has no end")
            }
            Err(_) => None,
        }
    }
}

/// None: the stream is over, or broke off. An event that is not whole is none.
impl Iterator for Stream {
    type Item = Sent;

    fn next(&mut self) -> Option<Sent> {
        let (mut id, mut data) = (None, None);
        loop {
            let line = self.line()?;
            match line.split_once(':') {
                None if line.is_empty() => {
                    if let (Some(id), Some(event)) = (id.take(), data.take()) {
                        return Some(Sent { id, event });
                    }
                }
                Some(("", comment)) => self.comments.push(comment.trim().to_owned()),
                Some(("id", value)) => id = Some(value.trim().parse::<u64>().unwrap()),
                Some(("data", value)) => data = Some(serde_json::from_str::<Value>(value).unwrap()),
                // C2: a plain `onmessage` sees no event that has a name.
                _ => panic!("this is no event without a name: {line}"),
            }
        }
    }
}

/// Without its end. One that has none is an error.
fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.read_until(b'\n', &mut bytes)?;
    if bytes.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn broken(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is no HTTP: {line}"))
}
