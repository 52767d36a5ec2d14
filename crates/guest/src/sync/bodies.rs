//! Bodies of a sync, on a connection and a thread of their own.

use crate::{
    bulk::{say, send_exactly},
    fault::from_errno,
};
use rustix::io::Errno;
use seawall_api::{
    Fault,
    files::FileName,
    frame::{self, HEADER, Kind, MAX_BODY},
};
use seawall_sync::{
    disk::{Disk, Placer, SMALL},
    protocol::{
        ABORT, CHANGED, WHOLE,
        codec::{self, Encoder, Item},
    },
    tree::Node,
};
use seawall_wire::{Error, Result};
use std::{
    io::{BufReader, BufWriter, Read, Write},
    os::unix::net::UnixStream,
};

const BUFFER: usize = 256 << 10;

/// Sends the bodies of files, in the order asked for.
pub fn collect(disk: &Disk, files: &[FileName], stream: UnixStream) -> Result<()> {
    let mut writer = BufWriter::with_capacity(BUFFER, stream);
    let mut body = Vec::new();
    for path in files {
        if let Err(errno) = send_one(disk, path, &mut body, &mut writer)? {
            let fault = from_errno(path.lossy(), errno);
            writer.write_all(&frame::Frame::message(Kind::Fault, &fault)?.to_bytes())?;
            break;
        }
    }
    Ok(writer.flush()?)
}

/// The outer error is the connection's, the inner one the file's.
fn send_one(
    disk: &Disk,
    path: &FileName,
    body: &mut Vec<u8>,
    writer: &mut BufWriter<UnixStream>,
) -> Result<Result<(), Errno>> {
    let opened = match disk.open_scanned(path) {
        Ok(Some(opened)) => opened,
        Ok(None) => return Ok(Ok(end(writer, CHANGED)?)),
        Err(errno) => return Ok(Err(errno)),
    };
    if opened.size() <= SMALL {
        body.resize(opened.size() as usize, 0);
        let whole = match opened.read_at(body, 0) {
            Ok(read) => read == body.len() && opened.is_unchanged(),
            Err(errno) => return Ok(Err(errno)),
        };
        if !whole {
            return Ok(Ok(end(writer, CHANGED)?));
        }
        writer.write_all(&frame::header(Kind::Data, body.len()))?;
        writer.write_all(body)?;
        return Ok(Ok(end(writer, WHOLE)?));
    }
    let mut offset = 0;
    while offset < opened.size() {
        let want = (opened.size() - offset).min(MAX_BODY as u64) as usize;
        writer.write_all(&frame::header(Kind::Data, want))?;
        writer.flush()?;
        if !send_exactly(writer.get_mut(), &opened.fd, offset, want)? {
            return Ok(Ok(end(writer, CHANGED)?));
        }
        offset += want as u64;
    }
    let word = if opened.is_unchanged() { WHOLE } else { CHANGED };
    Ok(Ok(end(writer, word)?))
}

fn end(writer: &mut impl Write, word: u8) -> std::io::Result<()> {
    writer.write_all(&frame::header(Kind::End, 1))?;
    writer.write_all(&[word])
}

/// Takes files with their bodies.
pub fn put(disk: &Disk, mut stream: UnixStream) -> Result<()> {
    say(&mut stream, Kind::Reply, &())?;
    let mut reader = BufReader::with_capacity(BUFFER, stream.try_clone()?);
    let (mut refused, mut changes) = (Vec::new(), Vec::new());
    let mut placer = match disk.placer() {
        Ok(placer) => placer,
        Err(errno) => return say(&mut stream, Kind::Fault, &from_errno("the workspace", errno)),
    };
    let mut buffer = vec![0u8; BUFFER];
    let taken = loop {
        let (kind, len) = next(&mut reader)?;
        match kind {
            Kind::Control => break Ok(()),
            Kind::Event => {
                let mut message = vec![0; len];
                reader.read_exact(&mut message)?;
                let (path, node) = head(&message)?;
                match take_one(&mut placer, &path, &node, &mut reader, &mut buffer)? {
                    Ok(Some(Ok(seen))) => changes.push((seen.0, Some(seen.1))),
                    Ok(Some(Err(why))) => refused.push(why),
                    Ok(None) => {}
                    Err(errno) => break Err(from_errno(path.lossy(), errno)),
                }
            }
            other => return Err(Error::Protocol(format!("a {other:?} frame instead of a file"))),
        }
    };
    disk.remember(changes);
    finish(stream, taken, refused)
}

fn finish(
    mut stream: UnixStream,
    taken: Result<(), Fault>,
    refused: Vec<seawall_sync::disk::Refused>,
) -> Result<()> {
    if let Err(fault) = taken {
        return say(&mut stream, Kind::Fault, &fault);
    }
    let mut encoder = Encoder::default();
    let parts: Vec<Vec<u8>> =
        refused.into_iter().filter_map(|one| encoder.add(&Item::Refused(one))).collect();
    for part in parts.into_iter().chain(encoder.finish()) {
        stream.write_all(&frame::Frame::new(Kind::Event, part).to_bytes())?;
    }
    say(&mut stream, Kind::Reply, &())
}

fn next(reader: &mut impl Read) -> Result<(Kind, usize)> {
    let mut head = [0; HEADER];
    reader.read_exact(&mut head)?;
    Ok(frame::parse_header(head)?)
}

/// The file that comes next. It must be one, at a path of a workspace.
fn head(message: &[u8]) -> Result<(FileName, Node)> {
    let items = codec::decode(message).map_err(|error| Error::Protocol(error.to_string()))?;
    match <[Item; 1]>::try_from(items) {
        Ok([Item::Entry(path, node @ Node::File(_))])
            if seawall_sync::state::check_entry(&path, &node).is_ok() =>
        {
            Ok((path, node))
        }
        _ => Err(Error::Protocol("something that cannot be put into a workspace".into())),
    }
}

type Taken = Result<Option<Result<seawall_sync::disk::Placed, seawall_sync::disk::Refused>>, Errno>;

/// The outer error is the connection's, the inner one the file's; none where the host took it back.
fn take_one(
    placer: &mut Placer<'_>,
    path: &FileName,
    node: &Node,
    reader: &mut impl Read,
    buffer: &mut [u8],
) -> Result<Taken> {
    let mut incoming = match placer.incoming() {
        Ok(incoming) => incoming,
        Err(errno) => return Ok(Err(errno)),
    };
    loop {
        let (kind, len) = next(reader)?;
        match kind {
            Kind::Data => {
                let mut left = len;
                while left > 0 {
                    let want = left.min(buffer.len());
                    reader.read_exact(&mut buffer[..want])?;
                    if let Err(errno) = incoming.write(&buffer[..want]) {
                        return Ok(Err(errno));
                    }
                    left -= want;
                }
            }
            Kind::End if len == 1 => {
                let mut word = [0];
                reader.read_exact(&mut word)?;
                return Ok(match word[0] {
                    WHOLE => incoming.finish(path, node).map(Some),
                    ABORT => Ok(None),
                    other => return Err(Error::Protocol(format!("a body ended with {other}"))),
                });
            }
            other => return Err(Error::Protocol(format!("a {other:?} frame in a body"))),
        }
    }
}
