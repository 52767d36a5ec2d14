//! A guest that misbehaves as a case tells it to.

use anyhow::Result;
use async_trait::async_trait;
use futures::future::BoxFuture;
use seawall_api::{
    ErrorKind, ProcessId, SandboxId,
    exec::StartProcess,
    files::{Entry, EntryKind},
    frame::Kind,
    hello::{MAX_VERSION, Role, Welcome},
    message::{Request, Started},
};
use seawall_wire::{
    Connector, Duplex, Error, Guest,
    framed::{FrameReader, FrameWriter},
    handshake,
    mux::{Mux, MuxStream},
};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

type Behave = Arc<dyn Fn(DuplexStream) -> BoxFuture<'static, ()> + Send + Sync>;

struct Fake(Behave);

#[async_trait]
impl Connector for Fake {
    async fn connect(&self) -> Result<Box<dyn Duplex>, Error> {
        let (host, guest) = tokio::io::duplex(64 << 10);
        tokio::spawn((self.0)(guest));
        Ok(Box::new(host))
    }
}

/// A guest of which each connection is treated so.
pub fn by_connection<F>(behave: impl Fn(DuplexStream) -> F + Send + Sync + 'static) -> Guest
where
    F: Future<Output = ()> + Send + 'static,
{
    let behave: Behave = Arc::new(move |io| Box::pin(behave(io)));
    Guest::new(SandboxId::generate(), Role::Client, Arc::new(Fake(behave)))
}

pub fn welcome() -> Welcome {
    Welcome { version: MAX_VERSION, build: "hostile".into(), boot: "hostile".into() }
}

/// A stream that a host opened, after its request.
pub struct Asked {
    pub request: Request,
    pub reader: FrameReader<ReadHalf<MuxStream>>,
    pub writer: FrameWriter<WriteHalf<MuxStream>>,
}

impl Asked {
    /// Bytes as they are, without a frame around them.
    pub async fn raw(self, bytes: &[u8]) {
        let mut io = self.writer.into_inner();
        // The host may hang up on the first bad byte, as it should.
        let _ = io.write_all(bytes).await;
        let _ = io.flush().await;
        wait_for_end(self.reader).await;
    }
}

/// Stays until the host hangs up, so that it is not the silence after it that is seen.
pub async fn wait_for_end<R: tokio::io::AsyncRead + Unpin>(reader: FrameReader<R>) {
    let mut rest = reader.into_raw();
    let mut sink = [0; 4096];
    while rest.read(&mut sink).await.is_ok_and(|read| read > 0) {}
}

async fn take_stream<F>(stream: MuxStream, answer: Arc<impl Fn(Asked) -> F + Send + Sync>)
where
    F: Future<Output = ()> + Send,
{
    let (read, write) = tokio::io::split(stream);
    let (mut reader, writer) = (FrameReader::new(read), FrameWriter::new(write));
    let Ok(Some(first)) = reader.next().await else { return };
    if let Ok(request) = first.decode() {
        answer(Asked { request, reader, writer }).await;
    }
}

/// A guest that greets properly, and then answers each request so.
pub fn by_stream<F>(answer: impl Fn(Asked) -> F + Send + Sync + 'static) -> Guest
where
    F: Future<Output = ()> + Send + 'static,
{
    let answer = Arc::new(answer);
    by_connection(move |mut io| {
        let answer = answer.clone();
        async move {
            if handshake::accept(&mut io, |_| Ok(welcome())).await.is_err() {
                return;
            }
            let (_mux, mut incoming, driver) = Mux::server(io);
            let serve = async {
                while let Some(stream) = incoming.next().await {
                    tokio::spawn(take_stream(stream, answer.clone()));
                }
            };
            tokio::select! { _ = driver => {}, () = serve => {} }
        }
    })
}

/// A guest that answers the first frame of each stream with these bytes.
pub fn raw_answer(bytes: impl Into<Vec<u8>>) -> Guest {
    let bytes: Arc<Vec<u8>> = Arc::new(bytes.into());
    by_stream(move |asked| {
        let bytes = bytes.clone();
        async move { asked.raw(&bytes).await }
    })
}

/// A guest that starts whatever is asked for, and then prints so.
pub fn by_output<F>(print: impl Fn(Asked) -> F + Send + Sync + 'static) -> Guest
where
    F: Future<Output = ()> + Send + 'static,
{
    let print = Arc::new(print);
    by_stream(move |mut asked| {
        let print = print.clone();
        async move {
            let Some(process) = process_of(&asked.request) else { return };
            let started = Started { process, pid: 2, resumed: false };
            if asked.writer.message(Kind::Reply, &started).await.is_ok() {
                print(asked).await;
            }
        }
    })
}

fn process_of(request: &Request) -> Option<ProcessId> {
    match request {
        Request::Start(start) => Some(start.process),
        Request::Attach(attach) => Some(attach.process),
        _ => None,
    }
}

pub fn anything() -> StartProcess {
    StartProcess::new(["true"])
}

pub fn entry(path: &[u8], size: u64) -> Entry {
    Entry {
        path: path.into(),
        kind: EntryKind::File,
        size,
        mode: 0o644,
        uid: 0,
        gid: 0,
        user: None,
        group: None,
        mtime: 0,
        mtime_nanos: 0,
        target: None,
    }
}

/// Errors that say "the other side is at fault", and nothing of ours.
pub const CLEAN: [ErrorKind; 3] = [ErrorKind::Protocol, ErrorKind::Unavailable, ErrorKind::Timeout];
