//! A server that answers each connection as a script says, and tells what it was asked.

use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// What is done once a request was read. Then the connection is closed.
#[derive(Debug, Clone)]
pub enum Step {
    Send(Vec<u8>),
    /// Until the test goes on.
    Wait(Arc<Notify>),
    /// For ever.
    Hang,
}

/// A request as it came.
#[derive(Debug)]
pub struct Asked {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

pub struct Upstream {
    pub address: SocketAddr,
    asked: mpsc::UnboundedReceiver<Asked>,
    task: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Upstream {
    pub async fn start(script: Vec<Step>) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, asked) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(play(connection, script.clone(), tell.clone()));
            }
        });
        Upstream { address, asked, task }
    }

    /// One that answers at once, and closes.
    pub async fn answering(status: &str, headers: &str, body: &str) -> Upstream {
        Upstream::start(vec![Step::Send(whole(status, headers, body))]).await
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request.
    pub async fn asked(&mut self) -> Asked {
        timeout(PATIENCE, self.asked.recv()).await.expect("no request came").unwrap()
    }

    /// Panics where a request came that nobody took.
    pub fn expect_none(&mut self) {
        if let Ok(asked) = self.asked.try_recv() {
            panic!("{} came through", asked.line);
        }
    }
}

impl Asked {
    /// The values of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(key, _)| key == name);
        named.map(|(_, value)| value.as_str()).collect()
    }
}

/// An address at which nobody listens.
pub async fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// `headers` are lines that each end with CRLF.
pub fn whole(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body.as_bytes()].concat()
}

/// The head of an answer in chunks.
pub fn chunked(content_type: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n";
    format!("{head}content-type: {content_type}\r\n\r\n").into_bytes()
}

pub fn chunk(body: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()
}

pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

async fn play(connection: TcpStream, script: Vec<Step>, tell: mpsc::UnboundedSender<Asked>) {
    let mut connection = BufReader::new(connection);
    let Some(asked) = read(&mut connection).await else {
        return;
    };
    // The test may be over.
    let _ = tell.send(asked);
    for step in script {
        match step {
            Step::Send(bytes) => {
                if connection.write_all(&bytes).await.is_err() {
                    return;
                }
                let _ = connection.flush().await;
            }
            Step::Wait(go) => go.notified().await,
            Step::Hang => std::future::pending().await,
        }
    }
    let _ = connection.shutdown().await;
}

async fn line(connection: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let read = connection.read_line(&mut line).await.ok()?;
    (read > 0).then(|| line.trim_end().to_owned())
}

async fn read(connection: &mut BufReader<TcpStream>) -> Option<Asked> {
    let first = line(connection).await?;
    let mut headers = Vec::new();
    loop {
        let header = line(connection).await?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut asked = Asked { line: first, headers, body: Vec::new() };
    if asked.all("transfer-encoding") == ["chunked"] {
        loop {
            let size = usize::from_str_radix(&line(connection).await?, 16).ok()?;
            let mut part = vec![0; size + 2];
            connection.read_exact(&mut part).await.ok()?;
            asked.body.extend_from_slice(&part[..size]);
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = asked.all("content-length").first() {
        let mut body = vec![0; length.parse().ok()?];
        connection.read_exact(&mut body).await.ok()?;
        asked.body = body;
    }
    Some(asked)
}
