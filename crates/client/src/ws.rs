//! WebSockets of the server: how they are opened, and one as plain bytes.

use crate::{Client, Error, Result, call::Call};
use bytes::{Bytes, BytesMut};
use futures::{Sink, Stream};
use reqwest::{
    StatusCode, Upgraded,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
};
use seawall_api::ErrorKind;
use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error as WsError, Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

/// A server may have to wake a sandbox first.
const PATIENCE: Duration = Duration::from_secs(120);
/// The largest message that is sent: large enough to be cheap, small enough for the server to pass on at once.
const MESSAGE: usize = 128 << 10;

pub(crate) type Socket = WebSocketStream<Upgraded>;

impl Client {
    /// On a connection of its own, by the same rules as every other call: key, certificates, problems.
    pub(crate) async fn websocket(&self, call: Call) -> Result<Socket> {
        let key = generate_key();
        let call = call
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key);
        let opening = async {
            let response = call.open_once().await?;
            let accept = derive_accept_key(key.as_bytes());
            let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT).map(|value| value.as_bytes());
            if response.status() != StatusCode::SWITCHING_PROTOCOLS || accepted != Some(accept.as_bytes()) {
                return Err(Error::unreadable("answer", "it speaks no WebSocket there"));
            }
            response.upgrade().await.map_err(|error| Error::broken(self.base(), &error))
        };
        let upgraded = match timeout(PATIENCE, opening).await {
            Ok(opened) => opened?,
            Err(_) => {
                let why = format!("no WebSocket was opened within {} s", PATIENCE.as_secs());
                return Err(Error::new(ErrorKind::Timeout, why));
            }
        };
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
    }
}

/// A WebSocket whose binary messages are the bytes of a connection.
pub struct WsStream<S = Upgraded> {
    socket: WebSocketStream<S>,
    /// Of the last message, what was not read yet.
    ahead: Bytes,
}

impl<S> fmt::Debug for WsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WsStream")
    }
}

impl<S> WsStream<S> {
    pub fn new(socket: WebSocketStream<S>) -> WsStream<S> {
        WsStream { socket, ahead: Bytes::new() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WsStream<S> {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        message: impl FnOnce() -> Bytes,
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io_error)?;
        let bytes = message();
        let length = bytes.len();
        // Written out when enough has come together, or by a flush.
        Pin::new(&mut self.socket).start_send(Message::Binary(bytes)).map_err(io_error)?;
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.ahead.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.ahead = bytes,
                Some(Ok(Message::Close(frame))) => return Poll::Ready(farewell(frame.as_ref())),
                None => return Poll::Ready(Ok(())),
                // Pings are answered by the socket itself; texts mean nothing here.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
            }
        }
        let count = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WsStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_send(cx, || Bytes::copy_from_slice(&buf[..buf.len().min(MESSAGE)]))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.poll_send(cx, || gathered(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io_error)
    }

    /// There is no half of a WebSocket: both directions end.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.socket).poll_close(cx)) {
            // Ended is ended, whoever was first.
            Ok(()) | Err(WsError::ConnectionClosed | WsError::AlreadyClosed) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(io_error(error))),
        }
    }
}

/// Small pieces as one message.
fn gathered(parts: &[IoSlice<'_>]) -> Bytes {
    let whole = parts.iter().map(|part| part.len()).sum::<usize>().min(MESSAGE);
    let mut bytes = BytesMut::with_capacity(whole);
    for part in parts {
        let room = whole - bytes.len();
        bytes.extend_from_slice(&part[..part.len().min(room)]);
    }
    bytes.freeze()
}

/// An end, or why it is none.
fn farewell(frame: Option<&CloseFrame>) -> io::Result<()> {
    match frame {
        Some(frame) if frame.code != CloseCode::Normal && !frame.reason.as_str().is_empty() => {
            Err(io::Error::new(io::ErrorKind::ConnectionAborted, frame.reason.as_str().to_owned()))
        }
        _ => Ok(()),
    }
}

pub(crate) fn io_error(error: WsError) -> io::Error {
    match error {
        WsError::Io(error) => error,
        WsError::ConnectionClosed | WsError::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        other => io::Error::other(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    async fn pair() -> (WsStream<DuplexStream>, WsStream<DuplexStream>) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let client = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
        let server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
        (WsStream::new(client), WsStream::new(server))
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_in_any_size() {
        let (mut client, server) = pair().await;
        let body: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
        let sent = body.clone();
        let echo = tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(server);
            let mut all = vec![0; 3_000_000];
            read.read_exact(&mut all).await.unwrap();
            write.write_all(&all).await.unwrap();
            write.flush().await.unwrap();
            // Held until the other side has all.
            let _ = read.read(&mut [0]).await;
        });
        client.write_all(&sent).await.unwrap();
        client.flush().await.unwrap();
        let mut back = vec![0; body.len()];
        client.read_exact(&mut back).await.unwrap();
        assert!(back == body);
        drop(client);
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn a_shutdown_is_an_end() {
        let (mut client, mut server) = pair().await;
        client.write_all(b"bye").await.unwrap();
        client.shutdown().await.unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"bye");
    }

    #[test]
    fn pieces_become_one_message() {
        let large = vec![7; MESSAGE];
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"c")];
        assert_eq!(gathered(&parts), "abc");
        assert_eq!(gathered(&[IoSlice::new(b"ab"), IoSlice::new(&large)]).len(), MESSAGE);
    }
}
