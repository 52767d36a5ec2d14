//! Bodies of files, streamed: on the shared wire, or on a connection of their own.

use crate::{
    Duplex, Error, Guest, Result,
    framed::{FrameReader, FrameWriter},
    guest::{first_reply, in_time, is_inside},
};
use bytes::Bytes;
use seawall_api::{
    ErrorKind, Fault,
    files::{Entry, FileChange, FileRef, ReadFile, WatchDir, WriteFile},
    frame::{DATA_CHUNK, Frame, Kind, MAX_BODY},
    message::Request,
};
use std::fmt;
use tokio::io::{AsyncRead, AsyncWrite};

type Reader = FrameReader<Box<dyn AsyncRead + Send + Unpin>>;
type Writer = FrameWriter<Box<dyn AsyncWrite + Send + Unpin>>;

impl Guest {
    /// Reads a file on the shared wire.
    pub async fn read(&self, read: ReadFile) -> Result<FileReader> {
        match FileReader::begin(self.shared().await?, read.clone()).await {
            Err(Error::Broken(_)) => FileReader::begin(self.shared().await?, read).await,
            other => other,
        }
    }

    /// Reads a file on a connection of its own: faster, for large ones.
    pub async fn read_bulk(&self, read: ReadFile) -> Result<FileReader> {
        FileReader::begin(split(self.link.bulk().await?), read).await
    }

    /// The whole of a file of at most `max` bytes.
    pub async fn read_all(&self, file: FileRef, max: u64) -> Result<Vec<u8>> {
        let read = ReadFile { file, offset: 0, length: max.checked_add(1) };
        let mut reader = self.read(read).await?;
        let mut body = Vec::new();
        while let Some(bytes) = reader.next().await? {
            body.extend_from_slice(&bytes);
        }
        match body.len() as u64 > max {
            true => Err(Error::Guest(Fault::new(
                ErrorKind::TooLarge,
                format!("the file has more than {max} bytes; read a part of it"),
            ))),
            false => Ok(body),
        }
    }

    /// Writes a file on the shared wire. Whether it can be written is known before the body is sent.
    pub async fn write(&self, write: WriteFile) -> Result<FileWriter> {
        match FileWriter::begin(self.shared().await?, write.clone(), DATA_CHUNK).await {
            // Nothing was written yet, so a new wire may be tried.
            Err(Error::Broken(_)) => FileWriter::begin(self.shared().await?, write, DATA_CHUNK).await,
            other => other,
        }
    }

    /// Writes a file on a connection of its own: faster, for large ones.
    pub async fn write_bulk(&self, write: WriteFile) -> Result<FileWriter> {
        FileWriter::begin(split(self.link.bulk().await?), write, MAX_BODY).await
    }

    pub async fn write_all(&self, write: WriteFile, body: &[u8]) -> Result<Entry> {
        let mut writer = self.write(write).await?;
        writer.write(body).await?;
        writer.finish().await
    }

    /// Changes in a directory, from now on.
    pub async fn watch(&self, watch: WatchDir) -> Result<FileWatch> {
        let (mut reader, mut writer) = self.shared().await?;
        writer.message(Kind::Request, &Request::Watch(watch)).await?;
        let () = first_reply(&mut reader).await?;
        Ok(FileWatch { reader, _writer: writer })
    }

    async fn shared(&self) -> Result<(Reader, Writer)> {
        let (reader, writer) = self.link.open().await?;
        // Nothing was read ahead yet: the stream is new.
        Ok((FrameReader::new(Box::new(reader.into_raw())), FrameWriter::new(Box::new(writer.into_inner()))))
    }
}

fn split(io: Box<dyn Duplex>) -> (Reader, Writer) {
    let (read, write) = tokio::io::split(io);
    (FrameReader::new(Box::new(read)), FrameWriter::new(Box::new(write)))
}

/// The body of a file on its way out of a sandbox.
pub struct FileReader {
    entry: Entry,
    reader: Reader,
    _writer: Writer,
    /// What may still come: a guest that sends more is stopped.
    left: u64,
    ended: bool,
}

impl fmt::Debug for FileReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl FileReader {
    async fn begin((mut reader, mut writer): (Reader, Writer), read: ReadFile) -> Result<Self> {
        let (offset, length) = (read.offset, read.length);
        writer.message(Kind::Request, &Request::Read(read)).await?;
        let entry: Entry = first_reply(&mut reader).await?;
        let left = seawall_api::files::body_limit(&entry, offset, length);
        Ok(FileReader { entry, reader, _writer: writer, left, ended: false })
    }

    /// The file as it was when it was opened.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The next part; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.ended {
            return Ok(None);
        }
        let frame = in_time(self.reader.expect()).await?;
        match frame.kind {
            Kind::Data if frame.body.is_empty() => {
                Err(Error::Protocol("a part of a file without a byte".into()))
            }
            Kind::Data => {
                self.left = self
                    .left
                    .checked_sub(frame.body.len() as u64)
                    .ok_or_else(|| Error::Protocol("a file's body is longer than the file".into()))?;
                Ok(Some(frame.body))
            }
            Kind::End => {
                self.ended = true;
                Ok(None)
            }
            Kind::Fault => Err(Error::Guest(frame.decode()?)),
            other => Err(Error::Protocol(format!("a {other:?} frame in a file's body"))),
        }
    }
}

/// The body of a file on its way into a sandbox.
pub struct FileWriter {
    reader: Reader,
    writer: Writer,
    chunk: usize,
}

impl fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileWriter")
    }
}

impl FileWriter {
    async fn begin(
        (mut reader, mut writer): (Reader, Writer),
        write: WriteFile,
        chunk: usize,
    ) -> Result<Self> {
        writer.message(Kind::Request, &Request::Write(write)).await?;
        let () = first_reply(&mut reader).await?;
        Ok(FileWriter { reader, writer, chunk })
    }

    pub async fn write(&mut self, data: &[u8]) -> Result<()> {
        for chunk in data.chunks(self.chunk) {
            if let Err(error) = in_time(self.writer.body(chunk)).await {
                return Err(self.why(error).await);
            }
        }
        Ok(())
    }

    /// Says that the body is whole, and waits until it is in its place.
    pub async fn finish(mut self) -> Result<Entry> {
        if let Err(error) = self.writer.send(&Frame::empty(Kind::End)).await {
            return Err(self.why(error).await);
        }
        first_reply(&mut self.reader).await
    }

    /// A guest that refuses a body says why before it hangs up.
    async fn why(&mut self, error: Error) -> Error {
        match in_time(self.reader.next()).await {
            Ok(Some(frame)) if frame.kind == Kind::Fault => match frame.decode::<Fault>() {
                Ok(fault) => Error::Guest(fault),
                Err(_) => error,
            },
            _ => error,
        }
    }
}

/// Changes of files, as they happen.
pub struct FileWatch {
    reader: Reader,
    _writer: Writer,
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileWatch")
    }
}

impl FileWatch {
    /// The next change; none when the watched directory is gone. May be dropped at any await.
    pub async fn next(&mut self) -> Result<Option<FileChange>> {
        let frame = self.reader.expect().await?;
        match frame.kind {
            Kind::Event => {
                let change: FileChange = frame.decode()?;
                match change.path.as_bytes().is_empty() || is_inside(&change.path) {
                    true => Ok(Some(change)),
                    false => Err(Error::Protocol(format!("a change of {:?}", change.path))),
                }
            }
            Kind::End => Ok(None),
            Kind::Fault => Err(Error::Guest(frame.decode()?)),
            other => Err(Error::Protocol(format!("a {other:?} frame among changes"))),
        }
    }
}
