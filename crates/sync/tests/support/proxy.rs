//! A way to an HTTP server on which things go wrong, as a schedule says.
//!
//! Each request is read whole, and each reply too, before anything of it goes on: so what reached the server and what
//! reached the client is decided by the fault alone.
#![allow(dead_code, reason = "each test program uses its part of it")]

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::JoinHandle,
};

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Pass,
    /// The server hears nothing, and this is the answer: a status, and the code in its body.
    Status(u16, &'static str),
    /// The server hears nothing, and the connection breaks.
    Reset,
    /// The server does it, and its reply is lost.
    ResetAfter,
    /// The reply comes late.
    Slow(Duration),
    /// Half of the reply's body comes, then the connection breaks.
    CutBody,
    /// A byte in the middle of the reply's body is wrong.
    CorruptBody,
}

/// What a proxy does to each request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// A header that the server does not get to see, in lower case.
    pub strip: Option<&'static str>,
    /// One request at a time reaches the server.
    pub serial: bool,
}

type Schedule = dyn Fn(u64, &str) -> Fault + Send + Sync;

pub struct Proxy {
    pub addr: SocketAddr,
    requests: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

struct Shared {
    target: SocketAddr,
    options: Options,
    schedule: Box<Schedule>,
    requests: Arc<AtomicU64>,
    turn: Mutex<()>,
}

impl Proxy {
    /// The schedule is told the number of the request and its first line.
    pub async fn start(
        target: SocketAddr,
        schedule: impl Fn(u64, &str) -> Fault + Send + Sync + 'static,
    ) -> Proxy {
        Proxy::with(target, Options::default(), schedule).await
    }

    pub async fn with(
        target: SocketAddr,
        options: Options,
        schedule: impl Fn(u64, &str) -> Fault + Send + Sync + 'static,
    ) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let (schedule, turn) = (Box::new(schedule), Mutex::new(()));
        let shared = Arc::new(Shared { target, options, schedule, requests: requests.clone(), turn });
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = shared.clone();
                // A client that hangs up ends its own connection only.
                tokio::spawn(async move { shared.serve(client).await });
            }
        });
        Proxy { addr, requests, task }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// How many requests came so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let mut ahead = Vec::new();
        while let Some(request) = Message::read(&mut client, &mut ahead, false).await? {
            let number = self.requests.fetch_add(1, Ordering::SeqCst);
            let fault = (self.schedule)(number, request.first_line());
            match fault {
                Fault::Reset => return broken(client),
                Fault::Status(status, code) => {
                    client.write_all(&answer(status, code)).await?;
                    continue;
                }
                _ => {}
            }
            let reply = self.forward(&request).await?;
            match fault {
                Fault::ResetAfter => return broken(client),
                Fault::Slow(time) => tokio::time::sleep(time).await,
                _ => {}
            }
            let bytes = reply.to_client(&request, fault);
            client.write_all(&bytes).await?;
            if fault == Fault::CutBody {
                return client.shutdown().await;
            }
        }
        Ok(())
    }

    /// A connection for each request: some servers close theirs after every reply.
    async fn forward(&self, request: &Message) -> io::Result<Message> {
        let _turn = match self.options.serial {
            true => Some(self.turn.lock().await),
            false => None,
        };
        let mut server = TcpStream::connect(self.target).await?;
        server.write_all(&request.to_server(self.options.strip)).await?;
        let reply = Message::read(&mut server, &mut Vec::new(), true).await?;
        reply.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// The client is told at once, and nothing that is on its way arrives.
fn broken(client: TcpStream) -> io::Result<()> {
    client.set_zero_linger()
}

fn answer(status: u16, code: &str) -> Vec<u8> {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>A test says so.</Message></Error>"
    );
    let size = body.len();
    format!(
        "HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {size}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A request or a reply: its lines without their ends, and its body as it is meant.
#[derive(Debug)]
struct Message {
    lines: Vec<String>,
    body: Vec<u8>,
}

impl Message {
    /// None where the connection ended before. What came behind the message is left in `ahead`.
    async fn read(
        stream: &mut (impl AsyncRead + Unpin),
        ahead: &mut Vec<u8>,
        is_reply: bool,
    ) -> io::Result<Option<Message>> {
        let end = loop {
            if let Some(at) = find(ahead, b"\r\n\r\n") {
                break at;
            }
            if stream.read_buf(ahead).await? == 0 {
                return Ok(None);
            }
        };
        let rest = ahead.split_off(end + 4);
        let head = String::from_utf8_lossy(&ahead[..end]).into_owned();
        *ahead = rest;
        let mut message =
            Message { lines: head.split("\r\n").map(str::to_owned).collect(), body: Vec::new() };
        let size = message.header("content-length").and_then(|text| text.parse::<usize>().ok());
        let is_chunked = message.header("transfer-encoding").is_some_and(|text| text.contains("chunked"));
        message.body = match (is_chunked, size) {
            (true, _) => chunks(stream, ahead).await?,
            // A reply to HEAD has a size and no body: the end of the connection tells.
            (false, Some(size)) => take(stream, ahead, size, is_reply).await?,
            (false, None) if is_reply => take(stream, ahead, usize::MAX, true).await?,
            (false, None) => Vec::new(),
        };
        Ok(Some(message))
    }

    fn first_line(&self) -> &str {
        &self.lines[0]
    }

    fn header(&self, name: &str) -> Option<&str> {
        let found = self.lines[1..].iter().find(|line| is_header(line, name))?;
        found.split_once(':').map(|(_, value)| value.trim())
    }

    fn head_without(&self, names: &[&str]) -> String {
        let kept = self.lines.iter().filter(|line| !names.iter().any(|name| is_header(line, name)));
        kept.map(|line| format!("{line}\r\n")).collect()
    }

    fn to_server(&self, strip: Option<&str>) -> Vec<u8> {
        let gone = ["connection", "content-length", "transfer-encoding", strip.unwrap_or("connection")];
        let (head, size) = (self.head_without(&gone), self.body.len());
        let mut bytes = format!("{head}Connection: close\r\nContent-Length: {size}\r\n\r\n").into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    fn to_client(&self, request: &Message, fault: Fault) -> Vec<u8> {
        let line = self.first_line();
        let is_bare =
            request.first_line().starts_with("HEAD ") || [" 204", " 304"].iter().any(|s| line.contains(s));
        let mut bytes = match is_bare {
            true => format!("{}\r\n", self.head_without(&["connection", "transfer-encoding"])),
            false => {
                let head = self.head_without(&["connection", "content-length", "transfer-encoding"]);
                format!("{head}Content-Length: {}\r\n\r\n", self.body.len())
            }
        }
        .into_bytes();
        let half = self.body.len() / 2;
        match fault {
            Fault::CutBody => bytes.extend_from_slice(&self.body[..half]),
            _ => bytes.extend_from_slice(&self.body),
        }
        if fault == Fault::CorruptBody && !self.body.is_empty() {
            let middle = bytes.len() - self.body.len() + half;
            bytes[middle] ^= 1;
        }
        bytes
    }
}

fn is_header(line: &str, name: &str) -> bool {
    line.split_once(':').is_some_and(|(found, _)| found.trim().eq_ignore_ascii_case(name))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// The next so many bytes; fewer only where the connection may end.
async fn take(
    stream: &mut (impl AsyncRead + Unpin),
    ahead: &mut Vec<u8>,
    size: usize,
    may_end: bool,
) -> io::Result<Vec<u8>> {
    while ahead.len() < size {
        if stream.read_buf(ahead).await? == 0 {
            match may_end {
                true => return Ok(std::mem::take(ahead)),
                false => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
    let rest = ahead.split_off(size);
    Ok(std::mem::replace(ahead, rest))
}

async fn chunks(stream: &mut (impl AsyncRead + Unpin), ahead: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = find(ahead, b"\r\n") {
                break at;
            }
            if stream.read_buf(ahead).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let line = take(stream, ahead, end + 2, false).await?;
        let text = String::from_utf8_lossy(&line);
        let digits = text.trim().split(';').next().unwrap_or_default().to_owned();
        let size = usize::from_str_radix(&digits, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        let chunk = take(stream, ahead, size + 2, false).await?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(&chunk[..size]);
    }
}
