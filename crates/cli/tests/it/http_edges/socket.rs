//! A small WebSocket client (RFC 6455).

use crate::http_edges::client::{Answer, Ask, find, read_answer};
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// The example of the standard, with its answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
const PATIENCE: Duration = Duration::from_secs(60);

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    /// Read, and not yet a whole frame.
    unread: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Text(String),
    Binary(Vec<u8>),
    /// With its code; 1005 where there is none.
    Close(u16),
    /// The connection is over.
    End,
}

/// What a request for a WebSocket has.
pub fn upgrade(ask: Ask) -> Ask {
    ask.header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", KEY)
}

impl Socket {
    /// The answer, where it is not a WebSocket.
    pub fn open(ask: Ask) -> Result<Socket, Answer> {
        let mut stream = upgrade(ask).begin();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while find(&head, "\r\n\r\n").is_none() {
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&head));
            head.push(byte[0]);
        }
        if !head.starts_with(b"HTTP/1.1 101 ") {
            return Err(Answer::parse(&read_answer(&mut stream, head, false), false));
        }
        let answer = Answer::parse(&head, true);
        assert_eq!(answer.header("sec-websocket-accept"), Some(ACCEPT));
        Ok(Socket { stream, unread: Vec::new() })
    }

    pub fn type_in(&mut self, text: &str) {
        self.send(BINARY, text.as_bytes());
    }

    pub fn say(&mut self, text: &str) {
        self.send(TEXT, text.as_bytes());
    }

    pub fn close(&mut self) {
        self.send(CLOSE, &1000_u16.to_be_bytes());
    }

    /// Clients mask what they send.
    fn send(&mut self, opcode: u8, payload: &[u8]) {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            length @ 0..=125 => frame.push(0x80 | length as u8),
            length @ 126..=0xffff => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(MASK);
        frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.stream.write_all(&frame).unwrap();
    }

    #[track_caller]
    pub fn frame(&mut self) -> Frame {
        self.frame_within(PATIENCE).expect("no frame came in time")
    }

    /// None: there was none in this time. Pings are answered here.
    pub fn frame_within(&mut self, time: Duration) -> Option<Frame> {
        let until = Instant::now() + time;
        loop {
            while let Some((opcode, payload)) = self.take() {
                match opcode {
                    TEXT => return Some(Frame::Text(String::from_utf8(payload).unwrap())),
                    BINARY => return Some(Frame::Binary(payload)),
                    PING => self.send(PONG, &payload),
                    PONG => {}
                    CLOSE => {
                        let code = payload.first_chunk::<2>().map_or(1005, |code| u16::from_be_bytes(*code));
                        return Some(Frame::Close(code));
                    }
                    other => panic!("a frame of kind {other}"),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            let mut buffer = [0; 1 << 14];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Some(Frame::End),
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return None,
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Some(Frame::End),
                    _ => panic!("{error}"),
                },
            }
        }
    }

    /// A frame that is there as a whole.
    fn take(&mut self) -> Option<(u8, Vec<u8>)> {
        let bytes = &self.unread;
        let [first, second, ..] = bytes[..] else { return None };
        assert_eq!(first & 0x80, 0x80, "frames in parts are not known here");
        assert_eq!(second & 0x80, 0, "servers do not mask");
        let (length, from) = match second {
            126 => (usize::from(u16::from_be_bytes(*bytes[2..].first_chunk()?)), 4),
            127 => (usize::try_from(u64::from_be_bytes(*bytes[2..].first_chunk()?)).unwrap(), 10),
            length => (usize::from(length), 2),
        };
        let payload = bytes.get(from..from + length)?.to_vec();
        self.unread.drain(..from + length);
        Some((first & 0x0f, payload))
    }
}
