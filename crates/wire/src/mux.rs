//! Many streams on one connection: the home of yamux.
//!
//! Bounds: this side opens at most [`MAX_OPEN`] streams and takes at most [`MAX_TAKEN`] of the other
//! side's. Each holds a window of 256 KiB unread at the most, and all of them together 8 MiB more: that is
//! the memory the other side can make this one hold for a wire.

use crate::{
    Duplex, Error, Result,
    coalesce::{Coalesced, Turn},
};
use futures::future::poll_fn;
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

/// Streams that one side opens itself.
pub const MAX_OPEN: usize = 512;
/// Streams of the other side that live at the same time; one more is reset. More than [`MAX_OPEN`]: a stream
/// that the other side has done with may still be on its way out here.
pub const MAX_TAKEN: usize = 640;
/// Yamux ends the whole wire at its own limit, so that one is out of reach.
const YAMUX_STREAMS: usize = 2048;
/// What may lie unread beyond the 256 KiB of each stream.
const EXTRA_WINDOW: usize = 8 << 20;

type Opening = oneshot::Sender<yamux::Stream>;

/// Opens streams. The wire lives while a `Mux` or a stream of it does.
#[derive(Clone)]
pub struct Mux {
    open: mpsc::Sender<Opening>,
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Mux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mux").field("closed", &self.open.is_closed()).finish()
    }
}

/// Streams that the other side opened.
#[derive(Debug)]
pub struct Incoming {
    streams: mpsc::Receiver<MuxStream>,
}

impl Incoming {
    /// The next one; none when the wire is gone.
    pub async fn next(&mut self) -> Option<MuxStream> {
        self.streams.recv().await
    }
}

impl Mux {
    /// The side that connected.
    pub fn client(io: impl Duplex) -> (Mux, Incoming, impl Future<Output = String> + Send) {
        Mux::new(io, yamux::Mode::Client)
    }

    /// The side that was connected to.
    pub fn server(io: impl Duplex) -> (Mux, Incoming, impl Future<Output = String> + Send) {
        Mux::new(io, yamux::Mode::Server)
    }

    /// The future drives the wire; it ends with the wire, and says why.
    fn new(io: impl Duplex, mode: yamux::Mode) -> (Mux, Incoming, impl Future<Output = String> + Send) {
        let mut config = yamux::Config::default();
        config
            .set_max_num_streams(YAMUX_STREAMS)
            .set_max_connection_receive_window(Some(
                YAMUX_STREAMS * yamux::DEFAULT_CREDIT as usize + EXTRA_WINDOW,
            ))
            .set_split_send_size(256 << 10);
        let turn = Turn::default();
        let io = Coalesced::new(io, turn.clone());
        let connection = yamux::Connection::new(io.compat(), config, mode);
        let (open, opening) = mpsc::channel(16);
        let (accepted, streams) = mpsc::channel(MAX_TAKEN);
        let mux = Mux { open, permits: Arc::new(Semaphore::new(MAX_OPEN)) };
        let keep = mux.open.downgrade();
        (mux, Incoming { streams }, drive(connection, turn, opening, keep, accepted))
    }

    /// A new stream. Waits while too many are open.
    pub async fn open(&self) -> Result<MuxStream> {
        let closed = || Error::Broken("it is closed".into());
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| closed())?;
        let (reply, stream) = oneshot::channel();
        self.open.send(reply).await.map_err(|_| closed())?;
        let stream = stream.await.map_err(|_| closed())?;
        Ok(MuxStream { io: stream.compat(), _permit: permit, _keep: Some(self.open.clone()) })
    }

    pub fn is_closed(&self) -> bool {
        self.open.is_closed()
    }
}

/// Turns the wheel until the wire ends or nobody holds it any more.
async fn drive<T>(
    mut connection: yamux::Connection<T>,
    turn: Turn,
    mut opening: mpsc::Receiver<Opening>,
    keep: mpsc::WeakSender<Opening>,
    accepted: mpsc::Sender<MuxStream>,
) -> String
where
    T: futures::io::AsyncRead + futures::io::AsyncWrite + Unpin,
{
    let mut waiting = VecDeque::new();
    let taken = Arc::new(Semaphore::new(MAX_TAKEN));
    let ended = poll_fn(|cx| {
        turn.begin();
        loop {
            match opening.poll_recv(cx) {
                Poll::Ready(Some(reply)) => {
                    waiting.push_back(reply);
                    continue;
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {}
            }
            if !waiting.is_empty() {
                match connection.poll_new_outbound(cx) {
                    Poll::Ready(Ok(stream)) => {
                        if let Some(reply) = waiting.pop_front() {
                            // Whoever asked may have gone; then the stream is reset.
                            drop(reply.send(stream));
                        }
                        continue;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(error.to_string())),
                    Poll::Pending => {}
                }
            }
            match connection.poll_next_inbound(cx) {
                Poll::Ready(Some(Ok(stream))) => {
                    // Nobody takes it, or there are too many: dropping it resets it.
                    if let Ok(permit) = taken.clone().try_acquire_owned() {
                        let (io, keep) = (stream.compat(), keep.upgrade());
                        drop(accepted.try_send(MuxStream { io, _permit: permit, _keep: keep }));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(error.to_string())),
                Poll::Ready(None) => return Poll::Ready(Some("the other side closed it".into())),
                // Once more, for what was held back.
                Poll::Pending if turn.end() => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
    turn.end();
    match ended {
        Some(reason) => reason,
        None => {
            // Nothing depends on how the farewell goes.
            let _ = poll_fn(|cx| connection.poll_close(cx)).await;
            "this side closed it".into()
        }
    }
}

/// One stream of a wire.
pub struct MuxStream {
    io: Compat<yamux::Stream>,
    _permit: OwnedSemaphorePermit,
    _keep: Option<mpsc::Sender<Opening>>,
}

impl fmt::Debug for MuxStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.get_ref().fmt(f)
    }
}

impl AsyncRead for MuxStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for MuxStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn streams_carry_bytes_both_ways() {
        let (a, b) = tokio::io::duplex(1 << 16);
        let (client, _, drive_client) = Mux::client(a);
        let (_server, mut incoming, drive_server) = Mux::server(b);
        tokio::spawn(drive_client);
        tokio::spawn(drive_server);
        let mut ours = client.open().await.unwrap();
        ours.write_all(b"ping").await.unwrap();
        ours.flush().await.unwrap();
        let mut theirs = incoming.next().await.unwrap();
        let mut buffer = [0; 4];
        theirs.read_exact(&mut buffer).await.unwrap();
        theirs.write_all(b"pong").await.unwrap();
        theirs.shutdown().await.unwrap();
        let mut answer = Vec::new();
        ours.read_to_end(&mut answer).await.unwrap();
        assert_eq!((&buffer, &answer[..]), (b"ping", &b"pong"[..]));
    }

    #[tokio::test]
    async fn the_wire_closes_when_nobody_holds_it() {
        let (a, b) = tokio::io::duplex(1 << 16);
        let (client, _, drive_client) = Mux::client(a);
        let (_server, _incoming, drive_server) = Mux::server(b);
        let server = tokio::spawn(drive_server);
        let driver = tokio::spawn(drive_client);
        let stream = client.open().await.unwrap();
        drop(client);
        assert!(!driver.is_finished());
        drop(stream);
        assert_eq!(driver.await.unwrap(), "this side closed it");
        assert_eq!(server.await.unwrap(), "the other side closed it");
    }
}
