//! Rust source without what is not code: enough of its grammar to tell a word from a mention of it.

/// The source with comments, texts and characters blanked; lines stay where they are.
pub fn code_of(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at..] {
            [b'/', b'/', ..] => line_end(bytes, at),
            [b'/', b'*', ..] => comment_end(bytes, at),
            [b'"', ..] => text_end(bytes, at + 1),
            [b'\'', ..] => character_end(bytes, at),
            [first, ..] if is_word(first) => {
                let end = word_end(bytes, at);
                // A text may have a prefix: `r#"…"#`, `b"…"`, `br"…"`, `c"…"`, `b'…'`.
                let prefix = matches!(&bytes[at..end], b"r" | b"b" | b"c" | b"br" | b"cr");
                match prefix.then(|| prefixed_end(bytes, at, end)).flatten() {
                    Some(end) => end,
                    None => {
                        at = end;
                        continue;
                    }
                }
            }
            _ => {
                at += 1;
                continue;
            }
        };
        code[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end;
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Each word of code with its line, counted from 1, and whether a macro's `!` follows.
pub fn words(code: &str) -> Vec<(usize, &str, bool)> {
    let bytes = code.as_bytes();
    let (mut found, mut line, mut at) = (Vec::new(), 1, 0);
    while at < bytes.len() {
        if is_word(bytes[at]) {
            let end = word_end(bytes, at);
            let called = bytes.get(end) == Some(&b'!') && bytes.get(end + 1) != Some(&b'=');
            found.push((line, &code[at..end], called));
            at = end;
        } else {
            line += usize::from(bytes[at] == b'\n');
            at += 1;
        }
    }
    found
}

fn is_word(byte: u8) -> bool {
    // What is not ASCII is a part of a letter here.
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn word_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| !is_word(*byte)).map_or(bytes.len(), |length| at + length)
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length)
}

/// Comments of this kind nest.
fn comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        match bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
            }
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Behind the closing quote of a text whose content begins at `at`.
fn text_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// A text with a prefix; none where the word before `end` was no prefix.
fn prefixed_end(bytes: &[u8], at: usize, end: usize) -> Option<usize> {
    let raw = bytes[end - 1] == b'r';
    let hashes = bytes[end..].iter().take_while(|byte| **byte == b'#').count();
    match bytes.get(end + hashes)? {
        b'"' if raw => {
            let closing = [&b"\""[..], b"#".repeat(hashes).as_slice()].concat();
            let content = end + hashes + 1;
            let length = bytes[content..].windows(closing.len()).position(|window| *window == closing[..]);
            Some(length.map_or(bytes.len(), |length| content + length + closing.len()))
        }
        b'"' if hashes == 0 => Some(text_end(bytes, end + 1)),
        b'\'' if hashes == 0 && bytes[at..end] == *b"b" => Some(character_end(bytes, end)),
        _ => None,
    }
}

/// Behind a character, or behind the quote alone where it begins a lifetime.
fn character_end(bytes: &[u8], at: usize) -> usize {
    match bytes[at + 1..] {
        [b'\\', ..] => {
            let rest = bytes.iter().enumerate().skip(at + 3).find(|(_, byte)| **byte == b'\'');
            rest.map_or(bytes.len(), |(quote, _)| quote + 1)
        }
        // One character of up to four bytes, then a quote.
        [_, ref rest @ ..] => {
            let length = match bytes[at + 1] {
                first if first.is_ascii() => 0,
                _ => rest.iter().take_while(|byte| **byte & 0xc0 == 0x80).count(),
            };
            match rest.get(length) {
                Some(b'\'') => at + 3 + length,
                _ => at + 1,
            }
        }
        [] => bytes.len(),
    }
}

#[test]
fn mentions_are_no_words() {
    let source = r##"
        // unsafe here
        /* unsafe /* and */ unsafe */
        let a = "unsafe \" unsafe";
        let b = r#"unsafe " unsafe"#;
        let c = (b"unsafe", br"unsafe\", c"unsafe", b'"', '"', '\'', '\u{22}', 'ü', b'\'');
        fn d<'a>(unsafe_code: &'a str, r#type: u8) -> &'static str { todo!() }
        unsafe { e != f }
    "##;
    let code = code_of(source);
    let words = words(&code);
    let lines: Vec<usize> =
        words.iter().filter(|(_, word, _)| *word == "unsafe").map(|each| each.0).collect();
    assert_eq!(lines, [8], "{code}");
    let called: Vec<&str> = words.iter().filter(|(_, _, called)| *called).map(|each| each.1).collect();
    assert_eq!(called, ["todo"], "{code}");
    assert!(words.iter().any(|(line, word, _)| (*line, *word) == (7, "unsafe_code")), "{code}");
}
