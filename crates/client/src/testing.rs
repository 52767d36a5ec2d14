//! A server of a few answers, for tests.

use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::Mutex,
};

pub struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// The heads of what was asked, and the bodies that came with them.
    pub async fn asked(&self) -> Vec<String> {
        self.asked.lock().await.clone()
    }
}

/// Each connection gets one answer, and is closed. An empty one is a connection that breaks.
pub async fn serve(answers: Vec<String>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    tokio::spawn(async move {
        for answer in answers {
            let (mut io, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            let mut part = [0; 4096];
            while !is_whole(&head) {
                match io.read(&mut part).await.unwrap() {
                    0 => break,
                    count => head.extend_from_slice(&part[..count]),
                }
            }
            seen.lock().await.push(String::from_utf8_lossy(&head).into_owned());
            let _ = io.write_all(answer.as_bytes()).await;
            let _ = io.shutdown().await;
        }
    });
    Server { url, asked }
}

fn is_whole(asked: &[u8]) -> bool {
    let text = String::from_utf8_lossy(asked);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    if header(head, "transfer-encoding").is_some() {
        return body.ends_with("0\r\n\r\n");
    }
    let length = header(head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    body.len() >= length
}

/// A header of what was asked.
pub fn header(asked: &str, name: &str) -> Option<String> {
    let fields = asked.lines().filter_map(|line| line.split_once(':'));
    let mut found = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.trim().to_owned())
}

/// JSON, whole.
pub fn answer(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// Events, and then the connection ends.
pub fn events(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{body}")
}
