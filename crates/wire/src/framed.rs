//! A stream cut into frames. Both halves may be dropped at any await without losing a byte.

use crate::{Error, Result};
use bytes::{Buf, Bytes, BytesMut};
use seawall_api::{
    ErrorKind, Fault,
    exec::OutputStream,
    frame::{self, Frame, FrameError, HEADER, Kind},
};
use serde::Serialize;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// How much is read at once, where the next frame does not say that it needs more.
const READ_AHEAD: usize = 16 << 10;

#[derive(Debug)]
pub struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(io: R) -> Self {
        FrameReader { io, buffer: BytesMut::new() }
    }

    /// The next frame; none when the stream ended between two frames.
    pub async fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = frame::take(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            self.make_room()?;
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(Error::Broken("it ended within a frame".into())),
                };
            }
        }
    }

    /// The next frame, where the stream must not end.
    pub async fn expect(&mut self) -> Result<Frame> {
        let frame = self.next().await?;
        frame.ok_or_else(|| Error::Broken("it ended before the answer".into()))
    }

    /// Room for the whole of a frame whose header is known, so that large ones are not copied twice.
    fn make_room(&mut self) -> Result<()> {
        let wanted = match self.buffer.first_chunk::<HEADER>() {
            Some(head) => HEADER + frame::parse_header(*head)?.1 - self.buffer.len(),
            None => 0,
        };
        self.buffer.reserve(wanted.max(READ_AHEAD));
        Ok(())
    }

    /// The stream as plain bytes from here on.
    pub fn into_raw(self) -> Raw<R> {
        Raw { buffered: self.buffer.freeze(), io: self.io }
    }
}

#[derive(Debug)]
pub struct FrameWriter<W> {
    io: W,
    /// What was said and not yet written. It outlives a dropped `send`.
    pending: BytesMut,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub fn new(io: W) -> Self {
        FrameWriter { io, pending: BytesMut::new() }
    }

    pub async fn send(&mut self, frame: &Frame) -> Result<()> {
        self.put(frame.kind, &frame.body);
        self.flush().await
    }

    pub async fn message<T: Serialize>(&mut self, kind: Kind, message: &T) -> Result<()> {
        let frame = Frame::message(kind, message).map_err(|error| match error {
            // Ours, not the other side's.
            FrameError::TooLong(bytes) => Error::Guest(Fault::new(
                ErrorKind::TooLarge,
                format!("{bytes} bytes are too much for one request, with its arguments and environment; the limit is {}", frame::MAX_BODY),
            )),
            other => other.into(),
        })?;
        self.send(&frame).await
    }

    pub async fn data(&mut self, bytes: &[u8]) -> Result<()> {
        for chunk in bytes.chunks(frame::DATA_CHUNK) {
            self.put(Kind::Data, chunk);
            self.flush().await?;
        }
        Ok(())
    }

    /// One data frame; the caller keeps it within the limit.
    pub async fn body(&mut self, bytes: &[u8]) -> Result<()> {
        self.put(Kind::Data, bytes);
        self.flush().await
    }

    pub async fn output(&mut self, stream: OutputStream, offset: u64, bytes: &[u8]) -> Result<()> {
        self.pending.reserve(HEADER + frame::OUTPUT_PREFIX + bytes.len());
        self.pending.extend_from_slice(&frame::output_header(stream, offset, bytes.len()));
        self.pending.extend_from_slice(bytes);
        self.flush().await
    }

    /// To be sent with what comes next, or by [`FrameWriter::flush`]. The bytes that wait.
    pub fn queue(&mut self, kind: Kind, body: &[u8]) -> usize {
        self.put(kind, body);
        self.pending.len()
    }

    fn put(&mut self, kind: Kind, body: &[u8]) {
        self.pending.reserve(HEADER + body.len());
        self.pending.extend_from_slice(&frame::header(kind, body.len()));
        self.pending.extend_from_slice(body);
    }

    pub async fn flush(&mut self) -> Result<()> {
        while !self.pending.is_empty() {
            let written = self.io.write(&self.pending).await?;
            if written == 0 {
                return Err(Error::Broken("it takes no more".into()));
            }
            self.pending.advance(written);
        }
        self.io.flush().await?;
        Ok(())
    }

    /// Says that nothing more comes from this side.
    pub async fn close(&mut self) -> Result<()> {
        self.flush().await?;
        Ok(self.io.shutdown().await?)
    }

    /// The stream as plain bytes from here on. Everything sent was flushed.
    pub fn into_inner(self) -> W {
        self.io
    }
}

/// What is left of a framed stream: bytes that were read ahead, then the stream itself.
#[derive(Debug)]
pub struct Raw<R> {
    buffered: Bytes,
    io: R,
}

impl<R: AsyncRead + Unpin> AsyncRead for Raw<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.buffered.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let n = self.buffered.len().min(buf.remaining());
        buf.put_slice(&self.buffered.split_to(n));
        Poll::Ready(Ok(()))
    }
}
