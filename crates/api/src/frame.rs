//! Frames: one byte of kind, a little-endian u32 of length, a body.
//!
//! Bodies that are messages are MessagePack with field names, so that both sides may add fields;
//! bodies that are data are plain bytes. Nothing is believed: a length over [`MAX_BODY`] or an unknown
//! kind is an error before anything is allocated for it.

use crate::exec::OutputStream;
use bytes::{Buf, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};

/// The largest body. Senders of data stay at [`DATA_CHUNK`].
pub const MAX_BODY: usize = 1 << 20;
/// The size of data bodies on a shared wire: large enough to be cheap, small enough to interleave.
pub const DATA_CHUNK: usize = 128 << 10;
pub const HEADER: usize = 5;
/// Before the bytes of an [`Kind::Output`] body: the stream, and the offset of the first byte.
pub const OUTPUT_PREFIX: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first frame of a stream: a [`crate::message::Request`].
    Request = 1,
    /// The answer, of the type that the request promises.
    Reply = 2,
    /// The answer that is an error: a [`crate::Fault`]. Nothing follows.
    Fault = 3,
    /// Plain bytes: a part of a file's body, or input for a process.
    Data = 4,
    /// Output of a process: stream (1 byte), offset (8 bytes), bytes.
    Output = 5,
    /// Something happened: a message whose type the request promises.
    Event = 6,
    /// The sender has no more to say. The body may tell how it ended.
    End = 7,
    /// The reader has everything before this offset (8 bytes) in safety.
    Ack = 8,
    /// A [`crate::exec::ProcessControl`].
    Control = 9,
    /// The first frame of a connection, and its answer.
    Hello = 10,
    Welcome = 11,
    Ping = 12,
    Pong = 13,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Fault,
            4 => Kind::Data,
            5 => Kind::Output,
            6 => Kind::Event,
            7 => Kind::End,
            8 => Kind::Ack,
            9 => Kind::Control,
            10 => Kind::Hello,
            11 => Kind::Welcome,
            12 => Kind::Ping,
            13 => Kind::Pong,
            _ => return None,
        })
    }
}

/// Why bytes are not a frame, or a body not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    #[error("a frame of {0} bytes, the limit is {MAX_BODY}")]
    TooLong(usize),
    #[error("a {kind:?} frame that cannot be read: {reason}")]
    Malformed { kind: Kind, reason: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub body: Bytes,
}

/// The header of a frame whose body has `len` bytes. The caller keeps `len` within [`MAX_BODY`].
pub fn header(kind: Kind, len: usize) -> [u8; HEADER] {
    debug_assert!(len <= MAX_BODY);
    let [a, b, c, d] = (len as u32).to_le_bytes();
    [kind as u8, a, b, c, d]
}

pub fn parse_header(bytes: [u8; HEADER]) -> Result<(Kind, usize), FrameError> {
    let [kind, a, b, c, d] = bytes;
    let kind = Kind::from_byte(kind).ok_or(FrameError::UnknownKind(kind))?;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    if len > MAX_BODY {
        return Err(FrameError::TooLong(len));
    }
    Ok((kind, len))
}

impl Frame {
    pub fn new(kind: Kind, body: impl Into<Bytes>) -> Self {
        Frame { kind, body: body.into() }
    }

    pub fn empty(kind: Kind) -> Self {
        Frame { kind, body: Bytes::new() }
    }

    /// A frame whose body is a message.
    pub fn message<T: Serialize>(kind: Kind, message: &T) -> Result<Self, FrameError> {
        let body = rmp_serde::to_vec_named(message)
            .map_err(|e| FrameError::Malformed { kind, reason: e.to_string() })?;
        if body.len() > MAX_BODY {
            return Err(FrameError::TooLong(body.len()));
        }
        Ok(Frame::new(kind, body))
    }

    pub fn ack(offset: u64) -> Self {
        Frame::new(Kind::Ack, offset.to_le_bytes().to_vec())
    }

    /// Reads the body as a message.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        rmp_serde::from_slice(&self.body)
            .map_err(|e| FrameError::Malformed { kind: self.kind, reason: e.to_string() })
    }

    /// Reads an [`Kind::Ack`].
    pub fn decode_ack(&self) -> Result<u64, FrameError> {
        let bytes: [u8; 8] = self.body[..].try_into().map_err(|_| FrameError::Malformed {
            kind: self.kind,
            reason: format!("{} bytes instead of 8", self.body.len()),
        })?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads an [`Kind::Output`]: the stream, the offset of the first byte, the bytes.
    pub fn decode_output(mut self) -> Result<(OutputStream, u64, Bytes), FrameError> {
        let malformed =
            |reason: &str| FrameError::Malformed { kind: Kind::Output, reason: reason.to_owned() };
        if self.body.len() < OUTPUT_PREFIX {
            return Err(malformed("shorter than its prefix"));
        }
        let stream =
            OutputStream::from_code(self.body.get_u8()).ok_or_else(|| malformed("of an unknown stream"))?;
        let offset = self.body.get_u64_le();
        offset
            .checked_add(self.body.len() as u64)
            .ok_or_else(|| malformed("with an offset that overflows"))?;
        Ok((stream, offset, self.body))
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.body.len());
        out.extend_from_slice(&header(self.kind, self.body.len()));
        out.extend_from_slice(&self.body);
        out
    }
}

/// Header and prefix of an output frame whose `len` bytes follow.
pub fn output_header(stream: OutputStream, offset: u64, len: usize) -> [u8; HEADER + OUTPUT_PREFIX] {
    let mut out = [0; HEADER + OUTPUT_PREFIX];
    out[..HEADER].copy_from_slice(&header(Kind::Output, OUTPUT_PREFIX + len));
    out[HEADER] = stream.code();
    out[HEADER + 1..].copy_from_slice(&offset.to_le_bytes());
    out
}

/// Takes the next whole frame from the front of `buffer`, or none while it is not all there.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
    let Some(head) = buffer.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let (kind, len) = parse_header(*head)?;
    if buffer.len() < HEADER + len {
        return Ok(None);
    }
    buffer.advance(HEADER);
    Ok(Some(Frame { kind, body: buffer.split_to(len).freeze() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_any_split(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..8),
            step in 1usize..64,
        ) {
            let frames: Vec<_> = bodies.into_iter().map(|b| Frame::new(Kind::Data, b)).collect();
            let bytes: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
            let mut buffer = BytesMut::new();
            let mut seen = Vec::new();
            for piece in bytes.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some(frame) = take(&mut buffer).unwrap() {
                    seen.push(frame);
                }
            }
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = take(&mut buffer) {
                let _ = frame.decode::<crate::message::Request>();
                let _ = frame.decode_ack();
                let _ = frame.decode_output();
            }
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_from_its_header() {
        let mut head = header(Kind::Data, 0);
        head[1..].copy_from_slice(&(MAX_BODY as u32 + 1).to_le_bytes());
        assert_eq!(parse_header(head), Err(FrameError::TooLong(MAX_BODY + 1)));
        assert_eq!(parse_header([99, 0, 0, 0, 0]), Err(FrameError::UnknownKind(99)));
    }

    #[test]
    fn output_round_trip() {
        let mut bytes = output_header(OutputStream::Stderr, 77, 3).to_vec();
        bytes.extend_from_slice(b"abc");
        let frame = take(&mut BytesMut::from(&bytes[..])).unwrap().unwrap();
        let (stream, offset, body) = frame.decode_output().unwrap();
        assert_eq!((stream, offset, &body[..]), (OutputStream::Stderr, 77, &b"abc"[..]));
    }

    #[test]
    fn an_offset_that_overflows_is_refused() {
        let mut bytes = output_header(OutputStream::Stdout, u64::MAX, 2).to_vec();
        bytes.extend_from_slice(b"ab");
        let frame = take(&mut BytesMut::from(&bytes[..])).unwrap().unwrap();
        assert!(frame.decode_output().is_err());
    }
}
