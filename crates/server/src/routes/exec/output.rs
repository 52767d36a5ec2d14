//! What a process says, as events: the bytes of its streams as text, or as base64.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use seawall_api::{
    exec::OutputStream,
    http::{Encoding, ExecEvent},
};
use seawall_core::Result;
use seawall_wire::{Process, ProcessOutput};
use std::collections::VecDeque;

/// Bytes of output in one event. In JSON a byte may be six, and somebody who does not read has one event waiting.
const PIECE: usize = 16 << 10;

/// It lives as long as somebody listens; the process does not mind.
pub(super) struct Output {
    process: Process,
    encoding: Encoding,
    /// Of stdout, stderr and a terminal: the beginning of a character whose rest has not come.
    begun: [Vec<u8>; 3],
    ready: VecDeque<(u64, ExecEvent)>,
    /// Output that is not in events yet, and its offset.
    unsaid: Option<(OutputStream, u64, Bytes)>,
    ended: bool,
}

impl Output {
    pub(super) fn new(process: Process, encoding: Encoding) -> Output {
        let started = ExecEvent::Started { process: process.id(), pid: process.pid() };
        let ready = VecDeque::from([(process.offset(), started)]);
        Output { process, encoding, begun: Default::default(), ready, unsaid: None, ended: false }
    }

    /// The next event, with the offset behind it. May be dropped at any await.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, ExecEvent)>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if let Some((stream, offset, mut bytes)) = self.unsaid.take() {
                let piece = bytes.split_to(bytes.len().min(PIECE));
                self.say(stream, offset, &piece);
                if !bytes.is_empty() {
                    self.unsaid = Some((stream, offset + piece.len() as u64, bytes));
                }
                continue;
            }
            if self.ended {
                return Ok(None);
            }
            let output = self.process.next().await?;
            self.take(output);
        }
    }

    fn take(&mut self, output: ProcessOutput) {
        match output {
            ProcessOutput::Data { stream, offset, bytes } => self.unsaid = Some((stream, offset, bytes)),
            ProcessOutput::Gap { from, to } => {
                self.give_up_begun(from);
                self.ready.push_back((to, ExecEvent::Gap { from, to }));
            }
            ProcessOutput::Reconnected => {}
            ProcessOutput::End(status) => {
                self.give_up_begun(status.output_end);
                let exit_code = status.shell_code();
                self.ready.push_back((status.output_end, ExecEvent::Exit { exit_code, status }));
                self.ended = true;
            }
            ProcessOutput::Drained => self.ended = true,
        }
    }

    fn say(&mut self, stream: OutputStream, offset: u64, bytes: &[u8]) {
        let begun = &mut self.begun[place(stream)];
        let data = match self.encoding {
            Encoding::Base64 => STANDARD.encode(bytes),
            Encoding::Text => text(begun, bytes),
        };
        // Who comes back with it gets a character that was begun from its beginning.
        let behind = offset + bytes.len() as u64 - begun.len() as u64;
        if !data.is_empty() {
            self.ready.push_back((behind, event(stream, data)));
        }
    }

    /// The rest of these characters does not come.
    fn give_up_begun(&mut self, at: u64) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr, OutputStream::Tty] {
            let begun = std::mem::take(&mut self.begun[place(stream)]);
            if !begun.is_empty() {
                let data = String::from_utf8_lossy(&begun).into_owned();
                self.ready.push_back((at, event(stream, data)));
            }
        }
    }
}

fn place(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
        OutputStream::Tty => 2,
    }
}

fn event(stream: OutputStream, data: String) -> ExecEvent {
    match stream {
        OutputStream::Stdout => ExecEvent::Stdout { data },
        OutputStream::Stderr => ExecEvent::Stderr { data },
        OutputStream::Tty => ExecEvent::Tty { data },
    }
}

/// What was begun, and these bytes, as text. A character that is not whole yet is kept for the next time.
fn text(begun: &mut Vec<u8>, bytes: &[u8]) -> String {
    let mut all = std::mem::take(begun);
    all.extend_from_slice(bytes);
    *begun = all.split_off(all.len() - unfinished(&all));
    String::from_utf8_lossy(&all).into_owned()
}

/// How many bytes at the end are the beginning of a character.
pub(super) fn unfinished(bytes: &[u8]) -> usize {
    let is_beginning = |count: &usize| {
        let tail = &bytes[bytes.len() - count..];
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).rev().find(is_beginning).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p5_text_is_cut_between_characters_only() {
        let whole = "a€😀ü\u{7f}".as_bytes();
        for at in 0..=whole.len() {
            let mut begun = Vec::new();
            let (first, second) = (text(&mut begun, &whole[..at]), text(&mut begun, &whole[at..]));
            assert!(!first.contains('\u{fffd}'), "{at}");
            assert_eq!(format!("{first}{second}").as_bytes(), whole, "{at}");
            assert!(begun.is_empty());
        }
    }

    #[test]
    fn p5_bytes_that_are_no_text_are_not_waited_for() {
        let mut begun = Vec::new();
        assert_eq!(text(&mut begun, b"a\xff"), "a\u{fffd}");
        assert_eq!(text(&mut begun, b"\x80\x80"), "\u{fffd}\u{fffd}");
        assert!(begun.is_empty());
        assert_eq!((text(&mut begun, b"\xe2\x82"), begun.len()), (String::new(), 2));
        assert_eq!(text(&mut begun, b"x"), "\u{fffd}x");
    }
}
