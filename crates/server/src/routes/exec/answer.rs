//! The answer of `exec` as a body: JSON that is written piece by piece from the raw output.
//!
//! A byte of output may take six in JSON (`\u0000`), so the whole text never exists at once. Blocks of output are freed, and
//! their reservation with them, as soon as they are written. The length is known before the first byte is sent.

use super::output::unfinished;
use axum::{
    body::{Body, HttpBody},
    http::{HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use seawall_api::http::Encoding;
use seawall_core::{
    Error, Result,
    budget::Reservation,
    exec::{Capture, Captured},
};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// Raw bytes that become one piece of the body. A multiple of three, for base64.
const PIECE: usize = 12 << 10;
/// After so many bytes of the body others run.
const TURN: usize = 128 << 10;
/// After so many raw bytes the measuring task lets others run.
const PAUSE: usize = 1 << 20;
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// An `ExecResult`, field by field in its order.
pub(super) async fn answer(done: Captured, encoding: Encoding) -> Result<Response> {
    let Captured { status, stdout, stderr, duration, room } = done;
    let wrong = |error| Error::internal("an exit status that is no JSON").with_source(error);
    let (exit_code, duration) =
        (status.shell_code(), u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    let word = match encoding {
        Encoding::Text => "text",
        Encoding::Base64 => "base64",
    };
    let tail = format!(
        "\",\"encoding\":\"{word}\",\"duration_ms\":{duration},\"stdout_truncated\":{},\"stderr_truncated\":{},\"status\":{}}}",
        stdout.truncated(),
        stderr.truncated(),
        serde_json::to_string(&status).map_err(wrong)?,
    );
    let head = format!("{{\"exit_code\":{exit_code},\"stdout\":\"");
    let between = "\",\"stderr\":\"";
    let output = measured(&stdout, encoding).await + measured(&stderr, encoding).await;
    let left = output + (head.len() + between.len() + tail.len()) as u64;
    let parts = VecDeque::from([
        Part::Whole(head.into()),
        Part::Output(Source::new(stdout)),
        Part::Whole(Bytes::from_static(between.as_bytes())),
        Part::Output(Source::new(stderr)),
        Part::Whole(tail.into()),
    ]);
    let body = ExecBody { parts, encoding, left, room, written: 0 };
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], Body::new(body)).into_response())
}

/// What the body consists of, in its order.
enum Part {
    Whole(Bytes),
    Output(Source),
}

struct ExecBody {
    parts: VecDeque<Part>,
    encoding: Encoding,
    /// Bytes that are still to be sent.
    left: u64,
    room: Option<Reservation>,
    /// Bytes since others could run last.
    written: usize,
}

impl ExecBody {
    fn next(&mut self) -> Option<Bytes> {
        loop {
            let piece = match self.parts.front_mut()? {
                Part::Whole(bytes) => {
                    let bytes = std::mem::take(bytes);
                    self.parts.pop_front();
                    bytes
                }
                Part::Output(source) => match source.next(self.encoding) {
                    Some((piece, freed)) => {
                        if let Some(room) = &mut self.room {
                            room.release(freed);
                        }
                        piece
                    }
                    None => {
                        self.parts.pop_front();
                        continue;
                    }
                },
            };
            // Bytes that begin a character make no piece yet.
            if !piece.is_empty() {
                self.left = self.left.saturating_sub(piece.len() as u64);
                return Some(piece);
            }
        }
    }
}

impl HttpBody for ExecBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        // A client that reads as fast as this is written would have the thread until the end.
        if self.written >= TURN {
            self.written = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = self.next();
        self.written += next.as_ref().map_or(0, Bytes::len);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// One output stream that is written.
struct Source {
    blocks: VecDeque<Vec<u8>>,
    /// How much of the first block is written.
    at: usize,
    /// Bytes that need those that follow: the beginning of a character, or of a group of base64.
    begun: Vec<u8>,
}

impl Source {
    fn new(output: Capture) -> Source {
        Source { blocks: output.into_blocks(), at: 0, begun: Vec::new() }
    }

    /// The next piece of JSON, and how many bytes of blocks it freed. None at the end.
    fn next(&mut self, encoding: Encoding) -> Option<(Bytes, u64)> {
        let Some(block) = self.blocks.front() else {
            let rest = std::mem::take(&mut self.begun);
            return (!rest.is_empty()).then(|| (encode(&rest, encoding), 0));
        };
        let end = block.len().min(self.at + PIECE);
        let (raw, later) = joined(&mut self.begun, &block[self.at..end], encoding);
        self.begun = later;
        self.at = end;
        let mut freed = 0;
        if end == block.len() {
            freed = self.blocks.pop_front().map_or(0, |block| block.capacity() as u64);
            self.at = 0;
        }
        Some((encode(&raw, encoding), freed))
    }
}

/// What can be written of these bytes, and what needs those that follow.
fn joined(begun: &mut Vec<u8>, bytes: &[u8], encoding: Encoding) -> (Vec<u8>, Vec<u8>) {
    let mut raw = std::mem::take(begun);
    raw.extend_from_slice(bytes);
    let later = match encoding {
        Encoding::Text => unfinished(&raw),
        Encoding::Base64 => raw.len() % 3,
    };
    let later = raw.split_off(raw.len() - later);
    (raw, later)
}

fn encode(raw: &[u8], encoding: Encoding) -> Bytes {
    match encoding {
        Encoding::Base64 => STANDARD.encode(raw).into(),
        Encoding::Text => {
            let mut text = String::with_capacity(raw.len() + raw.len() / 8);
            for chunk in raw.utf8_chunks() {
                escape(chunk.valid(), &mut text);
                if !chunk.invalid().is_empty() {
                    text.push('\u{fffd}');
                }
            }
            text.into()
        }
    }
}

/// As serde_json writes it.
fn escape(text: &str, into: &mut String) {
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        let word = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0x08 => "\\b",
            0x0c => "\\f",
            0..0x20 => "",
            _ => continue,
        };
        into.push_str(&text[plain..at]);
        into.push_str(word);
        if word.is_empty() {
            // By hand: output of zeroes is nothing but such bytes, and formatting each took most of the processor time.
            into.push_str(if byte < 0x10 { "\\u000" } else { "\\u001" });
            into.push(char::from(b"0123456789abcdef"[usize::from(byte & 0xf)]));
        }
        plain = at + 1;
    }
    into.push_str(&text[plain..]);
}

/// How long a stream is in JSON.
async fn measured(output: &Capture, encoding: Encoding) -> u64 {
    if encoding == Encoding::Base64 {
        return 4 * (output.len() as u64).div_ceil(3);
    }
    let (mut length, mut since, mut begun) = (0, 0, Vec::new());
    for block in output.blocks() {
        for bytes in block.chunks(PIECE) {
            let (raw, later) = joined(&mut begun, bytes, encoding);
            begun = later;
            length += escaped_length(&raw);
            since += bytes.len();
        }
        if since >= PAUSE {
            since = 0;
            tokio::task::yield_now().await;
        }
    }
    length + escaped_length(&begun)
}

fn escaped_length(raw: &[u8]) -> u64 {
    let of = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    let chunks = raw.utf8_chunks().map(|chunk| {
        let replaced = if chunk.invalid().is_empty() { 0 } else { REPLACEMENT.len() as u64 };
        chunk.valid().bytes().map(of).sum::<u64>() + replaced
    });
    chunks.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::{
        exec::{ExitReason, ExitStatus},
        http::ExecResult,
    };
    use seawall_core::budget::{Budget, BudgetLimits};
    use std::time::Duration;

    fn captured(bytes: &[u8], room: Option<Reservation>) -> Captured {
        let (mut stdout, mut room) = (Capture::default(), room);
        for part in bytes.chunks(1000) {
            stdout.add(part, usize::MAX, room.as_mut());
        }
        let (code, reason, limits) = (Some(3), ExitReason::Exited, Vec::new());
        let status = ExitStatus { code, signal: None, reason, output_end: 0, truncated: 0, limits };
        let stderr = Capture::default();
        Captured { status, stdout, stderr, duration: Duration::from_millis(7), room }
    }

    /// What a client reads, and whether the length was as announced.
    async fn read(bytes: &[u8], encoding: Encoding) -> ExecResult {
        let response = answer(captured(bytes, None), encoding).await.unwrap();
        let announced = response.body().size_hint().exact().unwrap();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert_eq!(body.len() as u64, announced);
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn p5_output_is_told_as_it_is() {
        let every: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let words = "a€😀ü\u{7f}\u{2028}\"\\\u{8}\u{c}\r\n\t\u{1f}".repeat(3000);
        let zeroes = vec![0; 40_001];
        for bytes in [&b""[..], b"x", &every, words.as_bytes(), &zeroes, b"\xe2\x82", b"\xf0\x9f\x98"] {
            let text = read(bytes, Encoding::Text).await;
            assert_eq!(text.stdout, String::from_utf8_lossy(bytes));
            assert_eq!((text.exit_code, text.duration_ms, text.stderr.as_str()), (3, 7, ""));
            let coded = read(bytes, Encoding::Base64).await;
            assert_eq!(STANDARD.decode(coded.stdout).unwrap(), bytes);
        }
    }

    #[tokio::test]
    async fn p5_text_is_escaped_as_serde_does() {
        let all: String = (0..0x3000).filter_map(char::from_u32).collect();
        let mut escaped = String::new();
        escape(&all, &mut escaped);
        assert_eq!(format!("\"{escaped}\""), serde_json::to_string(&all).unwrap());
        assert_eq!(escaped_length(all.as_bytes()), escaped.len() as u64);
    }

    #[tokio::test]
    async fn k5_an_answer_gives_back_its_bytes_as_it_is_sent_and_never_holds_its_text() {
        let budget = Budget::new(BudgetLimits { server: 4 << 20, account: 4 << 20 });
        let done = captured(&vec![0; 1 << 20], Some(budget.open(None)));
        let held = |budget: &Budget| budget.limits().server - budget.free();
        let begun = held(&budget);
        assert!(begun >= 1 << 20, "{begun}");
        let mut body = answer(done, Encoding::Text).await.unwrap().into_body();
        let (mut sent, mut half) = (0, None);
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() <= 6 * PIECE + 200, "{}", piece.len());
            sent += piece.len();
            if sent > 3 << 20 {
                half.get_or_insert(held(&budget));
            }
        }
        assert!(sent > 6 << 20, "{sent}");
        assert!(half.unwrap() < begun * 2 / 3, "{half:?} of {begun}");
        drop(body);
        assert_eq!(held(&budget), 0);
    }
}
