//! What the parsers of agents share: output cut into lines of JSON, and how the work came out.

use super::{Outcome, Parser};
use crate::budget::json_weight;
use seawall_api::{
    conversation::{TurnState, Usage},
    event::Event,
    exec::{ExitStatus, OutputStream},
};
use serde_json::Value;

/// What is kept back of a line that is not complete. With more the agent would wait for us, and we for its line.
const PART: usize = 1 << 20;
/// Longer lines are passed over: memory has an end.
const LONGEST: usize = 16 << 20;
/// And so are lines that take more than this once they are parsed.
const HEAVIEST: u64 = 64 << 20;
/// How much of stderr may stand behind half a character of stdout. With more the agent would wait for us.
const MOST_BEHIND: usize = 64 << 10;
/// What is kept of an error, in characters.
const TAIL: usize = 2000;

/// Cuts stdout into lines. What is not a line yet is either in parts, which are stored, or unread.
#[derive(Debug)]
pub(super) struct Lines {
    /// Of the line that is not complete, what is in parts.
    stored: String,
    /// What follows it.
    rest: Vec<u8>,
    /// How many bytes of stderr came behind the beginning of `rest`: whoever goes on from there gets them again.
    behind: usize,
    /// The line is too long: what comes up to its end is thrown away.
    skip: bool,
    part: usize,
    longest: usize,
}

impl Default for Lines {
    fn default() -> Self {
        let (stored, rest) = (String::new(), Vec::new());
        Lines { stored, rest, behind: 0, skip: false, part: PART, longest: LONGEST }
    }
}

impl Lines {
    pub fn feed(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<Event>,
        mut line: impl FnMut(&str, &mut Vec<Event>),
    ) {
        let mut pieces = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            self.add(piece, events);
            // Whatever is not the last piece has a newline behind it.
            if pieces.peek().is_some() {
                self.end(events, &mut line);
            }
        }
    }

    pub fn replay(&mut self, event: &Event) {
        match event {
            Event::OutputPart { end: true, .. } => {
                self.stored = String::new();
                self.skip = false;
            }
            Event::OutputPart { text, .. } if !self.skip => {
                self.stored.push_str(text);
                if self.stored.len() > self.longest {
                    self.pass_over();
                }
            }
            _ => {}
        }
    }

    /// Returns how many of the last bytes of output have to be sent again after a crash: those that are in no event yet, and
    /// those of stderr that came between them.
    pub fn unread(&self) -> usize {
        self.rest.len() + self.behind
    }

    /// Notes that so many bytes of stderr arrived. The part of a line that is held is stored as an event first, so that it
    /// need not be sent again together with them. Half of a character cannot be stored and is held on.
    pub fn pass_by(&mut self, bytes: usize, events: &mut Vec<Event>) {
        self.store(events);
        if self.rest.is_empty() {
            return;
        }
        self.behind += bytes;
        if self.behind > MOST_BEHIND {
            // Its rest does not come, or too late.
            let half = std::mem::take(&mut self.rest);
            self.store_text(&half, events);
        }
    }

    /// Bytes that are held of the line that is not complete.
    pub fn held(&self) -> usize {
        self.stored.len() + self.rest.len()
    }

    /// Gives the line up: what comes of it is thrown away.
    pub fn give_up(&mut self, events: &mut Vec<Event>) {
        events.push(too_long());
        self.pass_over();
    }

    /// What was kept back becomes a part, up to its last whole character.
    pub fn store(&mut self, events: &mut Vec<Event>) {
        let whole = self.rest.len() - half_character(&self.rest);
        let later = self.rest.split_off(whole);
        let now = std::mem::replace(&mut self.rest, later);
        if !now.is_empty() {
            self.store_text(&now, events);
        }
    }

    fn store_text(&mut self, bytes: &[u8], events: &mut Vec<Event>) {
        self.behind = 0;
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.stored.push_str(&text);
        events.push(Event::OutputPart { text, end: false });
        if self.stored.len() > self.longest {
            events.push(too_long());
            self.pass_over();
        }
    }

    fn add(&mut self, mut piece: &[u8], events: &mut Vec<Event>) {
        while !self.skip && !piece.is_empty() {
            let room = self.part.saturating_sub(self.rest.len());
            let (now, later) = piece.split_at(room.min(piece.len()));
            self.rest.extend_from_slice(now);
            piece = later;
            if self.rest.len() >= self.part {
                self.store(events);
            }
        }
    }

    /// A newline, or nothing more comes: what is there is a line.
    pub fn end(&mut self, events: &mut Vec<Event>, line: &mut impl FnMut(&str, &mut Vec<Event>)) {
        let has_parts = self.skip || !self.stored.is_empty();
        let mut text = std::mem::take(&mut self.stored);
        text.push_str(&String::from_utf8_lossy(&self.rest));
        self.rest.clear();
        self.behind = 0;
        self.skip = false;
        if text.len() > self.longest || json_weight(text.as_bytes()) > HEAVIEST {
            events.push(too_long());
        } else if !text.trim().is_empty() {
            line(text.strip_suffix('\r').unwrap_or(&text), events);
        }
        if has_parts {
            events.push(Event::OutputPart { text: String::new(), end: true });
        }
    }

    fn pass_over(&mut self) {
        self.stored = String::new();
        self.rest = Vec::new();
        self.behind = 0;
        self.skip = true;
    }
}

/// It is ours and not the agent's: it explains no end.
const TOO_LONG: &str = "a line of the agent's output was too long and is left out";

fn too_long() -> Event {
    Event::Notice { text: TOO_LONG.to_owned() }
}

/// How many bytes at the end begin a character whose rest is to come.
pub(super) fn half_character(bytes: &[u8]) -> usize {
    let begins = |back: &usize| {
        let end = bytes.len().checked_sub(*back).and_then(|at| bytes.get(at..)).unwrap_or_default();
        std::str::from_utf8(end).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(begins).unwrap_or(0)
}

/// What the lines of one agent mean.
pub(super) trait Meaning: Send {
    fn line(&mut self, line: &Value, events: &mut Vec<Event>);
    fn replay(&mut self, event: &Event);
    fn ending(&mut self) -> &mut Ending;
}

/// The parser of an agent that prints lines of JSON.
#[derive(Debug, Default)]
pub(super) struct JsonLines<M> {
    lines: Lines,
    meaning: M,
}

#[cfg(feature = "testing")]
impl<M: Default> JsonLines<M> {
    /// Stores parts of lines, and passes lines over, at other lengths than usual.
    pub fn with_lengths(part: usize, longest: usize) -> JsonLines<M> {
        JsonLines { lines: Lines { part, longest, ..Lines::default() }, meaning: M::default() }
    }
}

impl<M: Meaning> Parser for JsonLines<M> {
    fn replay(&mut self, event: &Event) {
        self.lines.replay(event);
        self.meaning.ending().replay(event);
        self.meaning.replay(event);
    }

    fn feed(&mut self, stream: OutputStream, bytes: &[u8], events: &mut Vec<Event>) {
        let JsonLines { lines, meaning } = self;
        if stream == OutputStream::Stderr {
            lines.pass_by(bytes.len(), events);
            meaning.ending().stderr.add(bytes);
        } else {
            lines.feed(bytes, events, |line, events| read(meaning, line, events));
        }
    }

    fn unread(&self) -> usize {
        self.lines.unread()
    }

    fn held(&self) -> usize {
        self.lines.held()
    }

    fn pass_over(&mut self, events: &mut Vec<Event>) {
        self.lines.give_up(events);
    }

    fn finish(&mut self, status: &ExitStatus, events: &mut Vec<Event>) -> Outcome {
        let JsonLines { lines, meaning } = self;
        lines.end(events, &mut |line, events| read(meaning, line, events));
        meaning.ending().outcome(status)
    }
}

fn read<M: Meaning>(meaning: &mut M, line: &str, events: &mut Vec<Event>) {
    match serde_json::from_str::<Value>(line) {
        Ok(value) => meaning.line(&value, events),
        Err(error) => tracing::debug!(%error, length = line.len(), "a line of an agent is no JSON"),
    }
}

/// What is known of how the work comes out.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// In the agent's own words; none: it has not said.
    told: Option<Result<(), String>>,
    notice: Option<String>,
    stderr: Tail,
}

impl Ending {
    pub fn done(&mut self) {
        self.told = Some(Ok(()));
    }

    /// Why is kept as an event: the line that tells it is not read a second time. It is no part of the answer.
    pub fn failed(&mut self, why: &str, events: &mut Vec<Event>) {
        let why = if why.trim().is_empty() { "the agent failed and did not say why" } else { why };
        let text: String = why.chars().take(TAIL).collect();
        events.push(Event::OutputPart { text: text.clone(), end: true });
        self.told = Some(Err(text));
    }

    /// Agents that wait for their model repeat themselves.
    pub fn notice(&mut self, text: String, events: &mut Vec<Event>) {
        if !text.is_empty() && self.notice.as_ref() != Some(&text) {
            self.notice = Some(text.clone());
            events.push(Event::Notice { text });
        }
    }

    fn replay(&mut self, event: &Event) {
        match event {
            Event::Usage { message: None, .. } | Event::ThreadUsage { .. } => self.done(),
            Event::OutputPart { text, end: true } if !text.is_empty() => self.told = Some(Err(text.clone())),
            Event::Notice { text } if text != TOO_LONG => self.notice = Some(text.clone()),
            _ => {}
        }
    }

    fn outcome(&self, status: &ExitStatus) -> Outcome {
        let error = match &self.told {
            Some(Ok(())) if status.success() => return Outcome { state: TurnState::Completed, error: None },
            Some(Err(why)) => why.clone(),
            Some(Ok(())) => self.ended(status, "after its answer"),
            None => self.ended(status, "before its answer was complete"),
        };
        Outcome { state: TurnState::Failed, error: Some(error) }
    }

    fn ended(&self, status: &ExitStatus, when: &str) -> String {
        let said = match (self.stderr.text(), &self.notice) {
            (text, Some(notice)) if text.is_empty() => notice.clone(),
            (text, _) => text,
        };
        let colon = if said.is_empty() { "" } else { ": " };
        format!("the agent's program {status} {when}{colon}{said}")
    }
}

/// The end of what was said.
#[derive(Debug, Default)]
struct Tail(Vec<u8>);

impl Tail {
    /// A character has at most four bytes, and the first may be cut.
    const BYTES: usize = 4 * TAIL + 4;

    fn add(&mut self, bytes: &[u8]) {
        let new = bytes.get(bytes.len().saturating_sub(Tail::BYTES)..).unwrap_or_default();
        self.0.extend_from_slice(new);
        let over = self.0.len().saturating_sub(Tail::BYTES);
        self.0.drain(..over);
    }

    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let text = text.trim();
        text.chars().skip(text.chars().count().saturating_sub(TAIL)).collect()
    }
}

/// The text of the answer.
#[derive(Debug, Default)]
pub(super) struct Text {
    begun: bool,
}

impl Text {
    /// Tools were used between one text and the next: each is a paragraph of its own.
    pub fn say(&mut self, text: &str, events: &mut Vec<Event>) {
        if text.trim().is_empty() {
            return;
        }
        let text = if self.begun { format!("\n\n{text}") } else { text.to_owned() };
        self.begun = true;
        events.push(Event::Text { text, stderr: false });
    }

    pub fn replay(&mut self, event: &Event) {
        self.begun |= matches!(event, Event::Text { .. });
    }
}

pub(super) fn think(text: &str, events: &mut Vec<Event>) {
    if !text.trim().is_empty() {
        events.push(Event::Thinking { text: text.to_owned() });
    }
}

/// The text of a field, or none.
pub(super) fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A count that an agent tells. What cannot be true is not believed.
pub(super) fn tokens(usage: &Value, key: &str) -> u64 {
    let number = usage.get(key).unwrap_or(&Value::Null);
    // As a float it stops at the ends: below zero is zero.
    let count = number.as_u64().or_else(|| number.as_f64().map(|count| count as u64));
    count.unwrap_or(0).min(Usage::MOST)
}

/// Whether a name that came out of a box can go back as an argument and be part of a path.
pub(super) fn is_session(text: &str) -> bool {
    let fits = text.len() <= 64 && text.starts_with(|first: char| first.is_ascii_alphanumeric());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::exec::ExitReason;
    use serde_json::json;

    fn small() -> Lines {
        Lines { part: 8, longest: 32, ..Lines::default() }
    }

    /// Events and lines, in their order.
    fn keep(line: &str, events: &mut Vec<Event>) {
        events.push(Event::Text { text: line.into(), stderr: false });
    }

    fn fed(lines: &mut Lines, bytes: &[u8], step: usize) -> Vec<Event> {
        let mut events = Vec::new();
        bytes.chunks(step).for_each(|piece| lines.feed(piece, &mut events, keep));
        events
    }

    fn line(text: &str) -> Event {
        Event::Text { text: text.into(), stderr: false }
    }

    fn part(text: &str) -> Event {
        Event::OutputPart { text: text.to_owned(), end: false }
    }

    fn end() -> Event {
        Event::OutputPart { text: String::new(), end: true }
    }

    fn status(code: i32) -> ExitStatus {
        let reason = ExitReason::Exited;
        ExitStatus { code: Some(code), signal: None, reason, output_end: 0, truncated: 0, limits: Vec::new() }
    }

    #[test]
    fn lines_are_cut_at_newlines_however_they_come() {
        for step in [1, 2, 3, 100] {
            let mut lines = small();
            assert_eq!(fed(&mut lines, b"one\r\n\n  \ntwo\nthr", step), [line("one"), line("two")]);
            assert_eq!(lines.unread(), 3);
            let mut events = Vec::new();
            lines.end(&mut events, &mut keep);
            assert_eq!((events, lines.unread()), (vec![line("thr")], 0));
        }
    }

    #[test]
    fn a_long_line_is_stored_in_parts_that_end_between_characters() {
        for step in [1, 3, 100] {
            let mut lines = small();
            let events = fed(&mut lines, "1234567ä90123456\nx\n".as_bytes(), step);
            assert_eq!(
                events,
                [part("1234567"), part("ä901234"), line("1234567ä90123456"), end(), line("x")]
            );
        }
    }

    #[test]
    fn a_line_goes_on_after_a_crash_wherever_it_came() {
        let text = "short\n1234567ä9012345678901\nmiddle\nä\n".as_bytes();
        let whole = fed(&mut small(), text, 100);
        for cut in 0..=text.len() {
            let mut first = small();
            let mut events = fed(&mut first, &text[..cut], 100);
            let mut second = small();
            events.iter().for_each(|event| second.replay(event));
            events.extend(fed(&mut second, &text[cut - first.unread()..], 5));
            assert_eq!(events, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_without_end_is_passed_over_and_the_next_one_read() {
        let text = format!("{}\nnext\n", "x".repeat(100));
        let notice = |event: &&Event| matches!(event, Event::Notice { .. });
        let whole = fed(&mut small(), text.as_bytes(), 7);
        assert_eq!(whole.iter().filter(notice).count(), 1);
        assert_eq!(whole[whole.len() - 2..], [end(), line("next")]);
        let parts =
            whole.iter().filter(|event| matches!(event, Event::OutputPart { end: false, .. })).count();
        assert_eq!(parts, 5, "nothing is kept once it is too long");
        for cut in [10, 33, 40, 41, 60, 100, 101] {
            let mut first = small();
            let mut events = fed(&mut first, &text.as_bytes()[..cut], 100);
            let mut second = small();
            events.iter().for_each(|event| second.replay(event));
            events.extend(fed(&mut second, &text.as_bytes()[cut - first.unread()..], 100));
            assert_eq!(events, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_is_as_long_as_it_may_be() {
        let fits = "x".repeat(32);
        let events = fed(&mut small(), format!("{fits}\n").as_bytes(), 100);
        assert_eq!(events[events.len() - 2..], [line(&fits), end()]);
        let over = "x".repeat(33);
        assert!(!fed(&mut small(), format!("{over}\n").as_bytes(), 100).contains(&line(&over)));
    }

    #[test]
    fn bytes_that_are_no_text_become_marks() {
        assert_eq!(fed(&mut small(), b"a\xffb\n", 1), [line("a\u{fffd}b")]);
        let events = fed(&mut small(), b"1234567\xff123\n", 1);
        assert_eq!(events[..2], [part("1234567\u{fffd}"), line("1234567\u{fffd}123")]);
    }

    #[test]
    fn half_a_character_is_told_from_a_whole_and_from_none() {
        let euro = "€".as_bytes();
        assert_eq!([1, 2, 3].map(|length| half_character(&euro[..length])), [1, 2, 0]);
        let face = "x😀".as_bytes();
        assert_eq!([1, 2, 3, 4, 5].map(|length| half_character(&face[..length])), [0, 1, 2, 3, 0]);
        assert_eq!([&b""[..], b"\xff", b"\x80\x80", b"\xf0\x80"].map(half_character), [0; 4]);
    }

    #[test]
    fn what_a_name_may_be() {
        assert!(is_session("01a1dddc-04ab-7641-8d4e-a928cc4df416"));
        for bad in ["", "-x", "--resume", "a/b", "..", "a b", "ä", "a\n"] {
            assert!(!is_session(bad), "{bad:?}");
        }
        assert!(!is_session(&"a".repeat(65)));
    }

    #[test]
    fn m3_numbers_that_cannot_be_are_not_believed() {
        let usage = json!({"a": 7, "b": -7, "c": 1e30, "d": "9", "e": 12.0, "f": u64::MAX, "g": -1e300});
        let counts = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|key| tokens(&usage, key));
        assert_eq!(counts, [7, 0, Usage::MOST, 0, 12, Usage::MOST, 0, 0]);
    }

    #[test]
    fn an_error_has_the_end_of_what_was_said() {
        let mut ending = Ending::default();
        "äöü€😀".repeat(2000).as_bytes().chunks(11).for_each(|piece| ending.stderr.add(piece));
        ending.stderr.add("the last words\n".as_bytes());
        let error = ending.outcome(&status(1)).error.unwrap();
        assert!(error.starts_with("the agent's program exited with 1 before its answer was complete: "));
        assert!(error.ends_with("the last words") && !error.contains('\u{fffd}'));
        assert!(error.chars().count() < TAIL + 100);
    }

    #[test]
    fn a_success_counts_only_with_the_programs_own() {
        let mut ending = Ending::default();
        assert_eq!(ending.outcome(&status(0)).state, TurnState::Failed);
        ending.done();
        assert_eq!(ending.outcome(&status(0)), Outcome { state: TurnState::Completed, error: None });
        let late = ending.outcome(&status(3));
        assert_eq!(late.error.as_deref(), Some("the agent's program exited with 3 after its answer"));
    }

    #[test]
    fn why_it_failed_outlives_a_crash() {
        let (mut ending, mut events) = (Ending::default(), Vec::new());
        ending.failed("no more turns", &mut events);
        let mut other = Ending::default();
        events.iter().for_each(|event| other.replay(event));
        assert_eq!(other.outcome(&status(1)), ending.outcome(&status(1)));
        assert_eq!(other.outcome(&status(1)).error.as_deref(), Some("no more turns"));
    }

    #[test]
    fn a_notice_is_not_repeated() {
        let (mut ending, mut events) = (Ending::default(), Vec::new());
        for text in ["waiting", "waiting", "", "gone"] {
            ending.notice(text.to_owned(), &mut events);
        }
        assert_eq!(events.len(), 2);
    }
}
