//! Server-sent events, read as they come: in pieces of any size.

use std::collections::VecDeque;

/// A server of ours sends nothing near this; what does is stopped.
pub const MAX_EVENT: usize = 64 << 20;

const BOM: &[u8] = "\u{feff}".as_bytes();

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sse {
    /// The last id that was said, with this event or before it.
    pub id: Option<String>,
    pub event: Option<String>,
    /// Several lines of data are one text.
    pub data: String,
}

/// An event that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {MAX_EVENT} bytes")]
pub struct TooLong;

/// Takes bytes, gives events.
#[derive(Debug, Default)]
pub struct Parser {
    /// What there is of the line that is not whole yet.
    line: Vec<u8>,
    /// The last line ended with a CR: an LF that comes next belongs to it.
    after_cr: bool,
    begun: bool,
    id: Option<String>,
    event: Option<String>,
    data: Option<String>,
    ready: VecDeque<Sse>,
}

impl Parser {
    pub fn new() -> Parser {
        Parser::default()
    }

    /// The next event that is whole.
    pub fn next_event(&mut self) -> Option<Sse> {
        self.ready.pop_front()
    }

    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), TooLong> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.line.extend_from_slice(&bytes[..end]);
            let is_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if is_cr {
                self.after_cr = bytes.is_empty();
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
            let mut line = std::mem::take(&mut self.line);
            self.take_line(&line);
            line.clear();
            self.line = line;
        }
        self.line.extend_from_slice(bytes);
        let held = self.line.len() + self.data.as_ref().map_or(0, String::len);
        if held > MAX_EVENT { Err(TooLong) } else { Ok(()) }
    }

    fn take_line(&mut self, line: &[u8]) {
        let line = match std::mem::replace(&mut self.begun, true) {
            true => line,
            false => line.strip_prefix(BOM).unwrap_or(line),
        };
        if line.is_empty() {
            return self.dispatch();
        }
        let text = String::from_utf8_lossy(line);
        let (field, value) = text.split_once(':').unwrap_or((&*text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "event" => self.event = Some(value.to_owned()),
            // Comments have no name; others mean nothing here.
            _ => {}
        }
    }

    /// What has no data is no event.
    fn dispatch(&mut self) {
        let event = self.event.take();
        if let Some(data) = self.data.take() {
            self.ready.push_back(Sse { id: self.id.clone(), event, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parts: &[&[u8]]) -> Vec<Sse> {
        let mut parser = Parser::new();
        for part in parts {
            parser.feed(part).unwrap();
        }
        std::iter::from_fn(|| parser.next_event()).collect()
    }

    fn event(id: &str, data: &str) -> Sse {
        Sse { id: Some(id.to_owned()), event: None, data: data.to_owned() }
    }

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let text = "id: 1\ndata: {\"ü\":1}\n\nid: 2\ndata: b\n\n".as_bytes();
        let wanted = [event("1", "{\"ü\":1}"), event("2", "b")];
        for size in 1..=text.len() {
            let parts: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(all(&parts), wanted, "parts of {size}");
        }
    }

    #[test]
    fn lines_end_in_any_way() {
        let wanted = [event("7", "x"), event("8", "y")];
        for end in ["\n", "\r\n", "\r"] {
            let text = ["id: 7", "data: x", "", "id: 8", "data: y", "", ""].join(end);
            assert_eq!(all(&[text.as_bytes()]), wanted, "{end:?}");
            for size in 1..4 {
                let parts: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
                assert_eq!(all(&parts), wanted, "{end:?} in parts of {size}");
            }
        }
    }

    #[test]
    fn comments_and_unknown_fields_say_nothing() {
        assert_eq!(all(&[b": keep-alive\n\n:\n\nretry: 5\nwhat\ndata: a\n\n"])[0].data, "a");
        assert!(all(&[b": keep-alive\n\nid: 3\n\nevent: x\n\n"]).is_empty());
    }

    #[test]
    fn lines_of_data_are_one_text() {
        assert_eq!(all(&[b"data: a\ndata:\ndata:  b\n\n"])[0].data, "a\n\n b");
        assert_eq!(all(&[b"data\n\n"])[0].data, "");
    }

    #[test]
    fn an_id_lasts_until_the_next() {
        let found = all(&[b"id: 4\ndata: a\n\ndata: b\n\nid\ndata: c\n\n"]);
        let ids: Vec<_> = found.iter().map(|each| each.id.as_deref()).collect();
        assert_eq!(ids, [Some("4"), Some("4"), Some("")]);
    }

    #[test]
    fn names_are_of_one_event() {
        let found = all(&[b"event: x\ndata: a\n\ndata: b\n\n"]);
        assert_eq!((found[0].event.as_deref(), found[1].event.as_deref()), (Some("x"), None));
    }

    #[test]
    fn a_mark_at_the_beginning_is_passed_over() {
        assert_eq!(all(&["\u{feff}data: a\n\n".as_bytes()])[0].data, "a");
    }

    #[test]
    fn half_an_event_is_none() {
        assert!(all(&[b"id: 1\ndata: a\n"]).is_empty());
    }

    #[test]
    fn what_never_ends_is_stopped() {
        let mut parser = Parser::new();
        let part = vec![b'x'; 1 << 20];
        let fed = (0..80).try_for_each(|_| parser.feed(&part));
        assert_eq!(fed, Err(TooLong));
    }
}
