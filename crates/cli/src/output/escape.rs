//! Text of others, made safe for a terminal.
//!
//! Sandboxes, agents, servers and other people choose names, messages and errors. What a terminal acts upon instead of
//! showing (control characters, and with them escape sequences), what changes the order in which text is read
//! (bidirectional controls), and what is not seen at all (zero-width characters) is shown as an escape: `\u{1b}`.

use std::borrow::Cow;

/// Whether a character does something else on a terminal than to show itself.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Soft hyphen, grapheme joiner, Arabic letter mark, Hangul and Mongolian fillers.
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{3164}' | '\u{ffa0}'
            // Zero-width characters and marks of direction.
            | '\u{200b}'..='\u{200f}'
            // Line and paragraph separator, embeddings and overrides of direction.
            | '\u{2028}'..='\u{202e}'
            // Word joiner, invisible operators, isolates of direction.
            | '\u{2060}'..='\u{206f}'
            // Byte order mark, annotations, tags.
            | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

fn escape(c: char, to: &mut String) {
    to.extend(c.escape_default());
}

/// Text of one line: also its line ends and tabs are escaped.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match is_unsafe(c) {
            true => escape(c, &mut safe),
            false => safe.push(c),
        }
    }
    safe
}

/// Text of several lines: line feeds and tabs stay. A return before a line feed is a part of it.
pub fn printable_lines(text: &str) -> String {
    let mut screen = Screen::default();
    let mut safe = screen.show(text.as_bytes());
    safe.push_str(&screen.end());
    safe
}

/// JSON, which stays the same JSON: what is unsafe stands in texts alone, and is escaped as JSON does it.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    // The writer has escaped what is below a space in texts; between them it writes line feeds.
    let stays = |c: char| c == '\n' || !is_unsafe(c);
    if json.chars().all(stays) {
        return Cow::Borrowed(json);
    }
    let mut safe = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        match stays(c) {
            true => safe.push(c),
            false => {
                let units = &mut [0; 2];
                for unit in c.encode_utf16(units) {
                    safe.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    Cow::Owned(safe)
}

/// A line of our own log: colours stay, whose escape sequences are the log's. Values are escaped before that by
/// whoever writes them, so no escape character of theirs comes here.
pub fn printable_log(text: &str) -> String {
    let (mut safe, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(c) = rest.chars().next() {
        let length = colour(rest).unwrap_or(0);
        if length > 0 {
            safe.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        match c == '\n' || !is_unsafe(c) {
            true => safe.push(c),
            false => escape(c, &mut safe),
        }
        rest = &rest[c.len_utf8()..];
    }
    safe
}

/// How long the sequence is that sets a colour and stands at the beginning.
fn colour(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\x1b[")?;
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    numbers[end..].starts_with('m').then_some("\x1b[".len() + end + 1)
}

/// A stream of text on its way to a terminal, in pieces that end anywhere. Line feeds and tabs stay.
#[derive(Debug, Default)]
pub struct Screen {
    /// The beginning of a character whose rest is to come.
    half: Vec<u8>,
    /// Whether a return came last: what follows decides what it is.
    after_return: bool,
}

impl Screen {
    /// What of the stream so far can be shown.
    pub fn show(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.half);
        all.extend_from_slice(bytes);
        let mut safe = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            chunk.valid().chars().for_each(|c| self.push(c, &mut safe));
            if chunks.peek().is_none() && is_half(chunk.invalid()) {
                self.half = chunk.invalid().to_vec();
            } else {
                self.invalid(chunk.invalid(), &mut safe);
            }
        }
        safe
    }

    /// What was kept back, at the end of the stream.
    pub fn end(&mut self) -> String {
        let (mut safe, half) = (String::new(), std::mem::take(&mut self.half));
        self.invalid(&half, &mut safe);
        self.settle_return(&mut safe);
        safe
    }

    fn push(&mut self, c: char, safe: &mut String) {
        if c != '\n' {
            self.settle_return(safe);
        }
        self.after_return = c == '\r';
        match c {
            '\r' => {}
            '\n' | '\t' => safe.push(c),
            c if is_unsafe(c) => escape(c, safe),
            c => safe.push(c),
        }
    }

    /// A byte that is no text can be a control character of a terminal that knows no UTF-8.
    fn invalid(&mut self, bytes: &[u8], safe: &mut String) {
        for byte in bytes {
            self.settle_return(safe);
            safe.push_str(&format!("\\x{byte:02x}"));
        }
    }

    fn settle_return(&mut self, safe: &mut String) {
        if std::mem::take(&mut self.after_return) {
            escape('\r', safe);
        }
    }
}

/// Whether these bytes begin a character, and lack only its end.
fn is_half(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// What the issue names, and what may not reach a terminal in any case.
    fn is_named(c: char) -> bool {
        let code = u32::from(c);
        code < 0x20
            || (0x7f..=0x9f).contains(&code)
            || (0x202a..=0x202e).contains(&code)
            || (0x2066..=0x2069).contains(&code)
            || [0x200b, 0x200c, 0x200d, 0x200e, 0x200f, 0x2028, 0x2029, 0x2060, 0x61c, 0xfeff].contains(&code)
    }

    /// Text in which what is unsafe is as likely as what is not.
    fn hostile() -> impl Strategy<Value = String> {
        let c = prop_oneof![
            any::<char>(),
            (0..0xa0u32).prop_map(|code| char::from_u32(code).unwrap()),
            (0x2000..0x2070u32).prop_map(|code| char::from_u32(code).unwrap()),
            Just('\r'),
            Just('\n'),
            Just('\u{1b}'),
            Just('\u{feff}'),
        ];
        proptest::collection::vec(c, 0..80).prop_map(String::from_iter)
    }

    #[test]
    fn what_is_unsafe_is_shown_as_an_escape() {
        for (text, line, lines) in [
            ("plain ü 漢 😀", "plain ü 漢 😀", "plain ü 漢 😀"),
            ("\x1b[2Jx", r"\u{1b}[2Jx", r"\u{1b}[2Jx"),
            ("a\nb\tc", r"a\nb\tc", "a\nb\tc"),
            ("a\r\nb\rc\r", r"a\r\nb\rc\r", "a\nb\\rc\\r"),
            ("\r\r\n", r"\r\r\n", "\\r\n"),
            ("\u{9b}31m\u{7f}", r"\u{9b}31m\u{7f}", r"\u{9b}31m\u{7f}"),
            ("user\u{202e}gpj.exe", r"user\u{202e}gpj.exe", r"user\u{202e}gpj.exe"),
            ("pay\u{200b}pal", r"pay\u{200b}pal", r"pay\u{200b}pal"),
            ("\u{2028}\u{61c}\u{2067}", r"\u{2028}\u{61c}\u{2067}", r"\u{2028}\u{61c}\u{2067}"),
        ] {
            assert_eq!((printable(text).as_str(), printable_lines(text).as_str()), (line, lines), "{text:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_numbers() {
        let mut screen = Screen::default();
        assert_eq!(screen.show(b"a\x9b31m\xff\xe2\x82"), r"a\x9b31m\xff");
        assert_eq!(screen.show(b"\xac!\xe2"), "€!");
        assert_eq!(screen.end(), r"\xe2");
    }

    #[test]
    fn a_log_keeps_its_own_colours_and_nothing_else() {
        let line = "\x1b[33m WARN\x1b[0m name=\u{202e}x \x1b]0;title\x07 \x1b[2J\x1b[31";
        let safe = "\x1b[33m WARN\x1b[0m name=\\u{202e}x \\u{1b}]0;title\\u{7} \\u{1b}[2J\\u{1b}[31";
        assert_eq!(printable_log(line), safe);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn nothing_unsafe_passes(text in hostile()) {
            prop_assert!(text.chars().filter(|c| is_named(*c)).all(is_unsafe));
            let line = printable(&text);
            prop_assert!(!line.chars().any(is_unsafe), "{line:?}");
            let lines = printable_lines(&text);
            prop_assert!(!lines.chars().any(|c| c != '\n' && c != '\t' && is_unsafe(c)), "{lines:?}");
            // What is safe already stays as it is.
            prop_assert_eq!(printable(&line), line);
            prop_assert_eq!(printable_lines(&lines), lines);
            let visible: String = text.chars().filter(|c| !is_unsafe(*c)).collect();
            if visible.len() == text.len() {
                prop_assert_eq!(printable(&text), text);
            }
        }

        #[test]
        fn a_stream_is_the_same_wherever_it_is_cut(
            bytes in prop_oneof![proptest::collection::vec(any::<u8>(), 0..60), hostile().prop_map(String::into_bytes)],
            cuts in proptest::collection::vec(0..60usize, 0..5),
        ) {
            let mut whole = Screen::default();
            let expected = whole.show(&bytes) + &whole.end();
            let (mut screen, mut shown, mut at) = (Screen::default(), String::new(), 0);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            for cut in cuts {
                shown.push_str(&screen.show(&bytes[at..cut]));
                at = cut;
            }
            shown.push_str(&screen.end());
            prop_assert_eq!(&shown, &expected);
            prop_assert!(!shown.chars().any(|c| c != '\n' && c != '\t' && is_unsafe(c)), "{shown:?}");
        }

        #[test]
        fn json_stays_the_same_json(text in hostile(), key in hostile(), pretty: bool) {
            let value = Value::Object([(key, Value::from(vec![text]))].into_iter().collect());
            let json = match pretty {
                true => serde_json::to_string_pretty(&value).unwrap(),
                false => value.to_string(),
            };
            let safe = printable_json(&json);
            prop_assert!(!safe.chars().any(|c| c != '\n' && is_unsafe(c)), "{safe}");
            prop_assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), value);
        }
    }
}
