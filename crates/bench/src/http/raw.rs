//! A client that adds next to nothing: HTTP/1.1 on one connection that is kept, a request at a time.

use anyhow::{Context, Result, bail, ensure};
use seawall_api::event::Event;
use serde_json::Value;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// Small: there are thousands of them.
const BUFFER: usize = 4 << 10;

/// A server's address and an API key.
#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    pub key: Arc<str>,
}

impl Target {
    /// All of a request, so that it is one write.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Vec<u8> {
        let (address, key) = (self.address, &self.key);
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n");
        if method == "GET" {
            return format!("{head}\r\n").into_bytes();
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let length = body.len();
        format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    }
}

/// The parsed head of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    /// `None` means a chunked body.
    pub length: Option<usize>,
}

pub fn head(text: &str) -> Result<Head> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let status: Option<u16> = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.with_context(|| format!("that is no answer of HTTP: {first:?}"))?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        if is_length { value.trim().parse::<usize>().ok() } else { None }
    });
    // A 204 has no body and no length.
    Ok(Head { status, length: if status == 204 { Some(0) } else { length } })
}

/// One message of an event stream.
#[derive(Debug)]
pub enum Told {
    Event(Event),
    /// A comment, such as a keep-alive.
    Comment,
}

pub struct Http {
    stream: BufReader<TcpStream>,
    target: Target,
    /// Bytes of an event stream that [`Http::next`] has not returned yet.
    pending: Vec<u8>,
}

impl Http {
    pub async fn connect(target: &Target) -> Result<Http> {
        let stream = TcpStream::connect(target.address).await.context("the server cannot be reached")?;
        stream.set_nodelay(true)?;
        let stream = BufReader::with_capacity(BUFFER, stream);
        Ok(Http { stream, target: target.clone(), pending: Vec::new() })
    }

    /// Sends a request and returns the answer's body. A status other than 2xx is an error.
    pub async fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Vec<u8>> {
        let head = self.send(method, path, body).await?;
        let answer = self.body(&head).await?;
        let said = || String::from_utf8_lossy(&answer).into_owned();
        ensure!((200..300).contains(&head.status), "{method} {path}: {} {}", head.status, said());
        Ok(answer)
    }

    /// Begins a stream, which [`Http::next`] reads. After its end the connection can be used again.
    pub async fn stream(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<()> {
        let head = self.send(method, path, body).await?;
        if head.status != 200 || head.length.is_some() {
            let answer = self.body(&head).await?;
            let said = String::from_utf8_lossy(&answer);
            bail!("{method} {path} is no stream: {} {said}", head.status);
        }
        Ok(())
    }

    /// The next message. `None` means that the stream has ended.
    pub async fn next(&mut self) -> Result<Option<Told>> {
        let mut text = std::mem::take(&mut self.pending);
        loop {
            if let Some(end) = text.windows(2).position(|two| two == b"\n\n") {
                self.pending = text.split_off(end + 2);
                return told(&text).map(Some);
            }
            if !self.chunk(&mut text).await? {
                return Ok(None);
            }
        }
    }

    async fn send(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Head> {
        let request = self.target.request(method, path, body);
        self.stream.get_mut().write_all(&request).await?;
        let mut text: Vec<u8> = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            let count = self.stream.read_until(b'\n', &mut text).await?;
            ensure!(count > 0, "{method} {path}: the server hung up");
        }
        head(std::str::from_utf8(&text)?)
    }

    async fn body(&mut self, head: &Head) -> Result<Vec<u8>> {
        let mut answer = Vec::new();
        match head.length {
            Some(length) => {
                answer.resize(length, 0);
                self.stream.read_exact(&mut answer).await?;
            }
            None => while self.chunk(&mut answer).await? {},
        }
        Ok(answer)
    }

    /// Appends the next chunk to the buffer. Returns false after the last one.
    async fn chunk(&mut self, to: &mut Vec<u8>) -> Result<bool> {
        let mut line = String::new();
        let count = self.stream.read_line(&mut line).await?;
        ensure!(count > 0, "the server hung up in the middle of an answer");
        let size = line.trim_end().split(';').next().unwrap_or_default();
        let size =
            usize::from_str_radix(size, 16).with_context(|| format!("{line:?} is no length of a chunk"))?;
        let begin = to.len();
        // With the end of its line.
        to.resize(begin + size + 2, 0);
        self.stream.read_exact(&mut to[begin..]).await?;
        to.truncate(begin + size);
        Ok(size > 0)
    }
}

fn told(text: &[u8]) -> Result<Told> {
    let text = std::str::from_utf8(text)?;
    match text.lines().find_map(|line| line.strip_prefix("data:")) {
        Some(data) => Ok(Told::Event(serde_json::from_str(data.trim_start())?)),
        None => Ok(Told::Comment),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokio::net::TcpListener;

    #[test]
    fn heads_tell_what_follows() {
        let short = head("HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y\r\n\r\n").unwrap();
        assert_eq!(short, Head { status: 200, length: Some(12) });
        let chunks = head("HTTP/1.1 429 Too Many Requests\r\ntransfer-encoding: chunked\r\n").unwrap();
        assert_eq!(chunks, Head { status: 429, length: None });
        assert_eq!(head("HTTP/1.1 204 No Content\r\n").unwrap().length, Some(0));
        assert!(head("SSH-2.0-x").is_err());
    }

    #[test]
    fn requests_are_whole() {
        let target = Target { address: ([127, 0, 0, 1], 7).into(), key: "k".into() };
        let get = "GET /a HTTP/1.1\r\nhost: 127.0.0.1:7\r\nauthorization: Bearer k\r\n\r\n";
        assert_eq!(target.request("GET", "/a", None), get.as_bytes());
        let post = String::from_utf8(target.request("POST", "/a", Some(&json!({"b": 1})))).unwrap();
        assert!(post.ends_with("content-length: 7\r\n\r\n{\"b\":1}"), "{post}");
    }

    #[tokio::test]
    async fn events_are_whole_however_they_are_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target { address: listener.local_addr().unwrap(), key: "k".into() };
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                      9\r\nid: 3\ndat\r\n25\r\na: {\"type\":\"text\",\"text\":\"hi\"}\n\n: kee\r\n\
                      9\r\np-alive\n\n\r\n0\r\n\r\n";
        let serving = async {
            let (mut peer, _) = listener.accept().await.unwrap();
            peer.write_all(answer.as_bytes()).await.unwrap();
            peer
        };
        let reading = async {
            let mut http = Http::connect(&target).await.unwrap();
            http.stream("GET", "/", None).await.unwrap();
            let mut all = Vec::new();
            while let Some(told) = http.next().await.unwrap() {
                all.push(told);
            }
            all
        };
        let (_peer, all) = tokio::join!(serving, reading);
        assert!(matches!(&all[0], Told::Event(Event::Text { text, .. }) if text == "hi"), "{all:?}");
        assert!(matches!(all[1], Told::Comment) && all.len() == 2, "{all:?}");
    }
}
