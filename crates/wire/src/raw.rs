//! Streams and connections for a protocol that has a home of its own: frames, and nothing more.

use crate::{
    Error, Guest, Result,
    framed::{FrameReader, FrameWriter},
    guest::{first_reply, in_time},
};
use seawall_api::{
    frame::{Frame, Kind, MAX_BODY},
    message::{Request, SyncOpened},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};

type Reader = FrameReader<Box<dyn AsyncRead + Send + Unpin>>;
type Writer = FrameWriter<Box<dyn AsyncWrite + Send + Unpin>>;

/// So much waits before it is sent.
const QUEUE: usize = 128 << 10;

/// Frames both ways.
pub struct RawStream {
    reader: Reader,
    writer: Writer,
}

impl fmt::Debug for RawStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawStream")
    }
}

impl Guest {
    /// A sync that holds the workspace's lock until the stream is dropped.
    pub async fn open_sync(&self, wait: Duration) -> Result<(RawStream, SyncOpened)> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let (mut reader, writer) = self.ask(&Request::Sync { wait_ms }).await?;
        let patience = wait + Duration::from_secs(60);
        let frame = tokio::time::timeout(patience, reader.expect())
            .await
            .map_err(|_| Error::Timeout("the workspace could not be locked".into()))??;
        let opened = crate::guest::reply(frame)?;
        // Nothing was read ahead: the guest waits for a call now.
        let reader = FrameReader::new(Box::new(reader.into_raw()) as _);
        let writer = FrameWriter::new(Box::new(writer.into_inner()) as _);
        Ok((RawStream { reader, writer }, opened))
    }

    /// A connection of its own, with its request asked.
    pub async fn open_bulk(&self, request: &Request) -> Result<RawStream> {
        let (read, write) = tokio::io::split(self.link.bulk().await?);
        let mut stream =
            RawStream { reader: FrameReader::new(Box::new(read)), writer: FrameWriter::new(Box::new(write)) };
        stream.message(Kind::Request, request).await?;
        Ok(stream)
    }
}

impl RawStream {
    pub async fn message<T: Serialize>(&mut self, kind: Kind, message: &T) -> Result<()> {
        in_time(self.writer.message(kind, message)).await
    }

    pub async fn send(&mut self, frame: &Frame) -> Result<()> {
        in_time(self.writer.send(frame)).await
    }

    /// A frame that may wait for others, so that many small ones are one. The caller keeps it within the limit.
    pub async fn queue(&mut self, kind: Kind, body: &[u8]) -> Result<()> {
        match self.writer.queue(kind, body) >= QUEUE {
            true => in_time(self.writer.flush()).await,
            false => Ok(()),
        }
    }

    /// Bytes as data frames.
    pub async fn data(&mut self, bytes: &[u8]) -> Result<()> {
        for chunk in bytes.chunks(MAX_BODY) {
            in_time(self.writer.body(chunk)).await?;
        }
        Ok(())
    }

    /// The next frame, however long it takes: the link notices a guest that is gone.
    pub async fn next(&mut self) -> Result<Frame> {
        let frame = self.reader.expect().await?;
        match frame.kind {
            Kind::Fault => Err(Error::Guest(frame.decode()?)),
            _ => Ok(frame),
        }
    }

    /// The next frame of one that must not be silent for long.
    pub async fn next_soon(&mut self) -> Result<Frame> {
        in_time(self.next()).await
    }

    /// The reply to what was asked.
    pub async fn reply<T: DeserializeOwned>(&mut self) -> Result<T> {
        first_reply(&mut self.reader).await
    }

    /// A guest that stops taking says why before it hangs up.
    pub async fn why(&mut self, error: Error) -> Error {
        match self.next_soon().await {
            Err(fault @ Error::Guest(_)) => fault,
            _ => error,
        }
    }
}
