//! Finds `usage` in JSON that comes byte by byte, without keeping the rest of it.
//!
//! An answer can be far longer than what may be kept of it, and a box decides how long: what it asked is
//! repeated in some. So nothing is kept but the value that is looked for.

/// More than any `usage` has.
const LONGEST: usize = 16 << 10;

/// Looks for `usage` in the outermost object, and in the object that it has under `outer`.
#[derive(Debug)]
pub struct Scanner {
    outer: &'static str,
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// The text that was read last, or its beginning: no key that matters is longer.
    text: Vec<u8>,
    /// Whether this is the value of `outer`.
    under_outer: bool,
    found: Option<Found>,
}

/// A `usage` that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Scanned {
    pub value: Vec<u8>,
    /// Whether the outermost object has it.
    pub outermost: bool,
}

/// The value that is being read.
#[derive(Debug)]
struct Found {
    /// Of the object that has it.
    depth: usize,
    value: Vec<u8>,
}

impl Scanner {
    pub fn new(outer: &'static str) -> Scanner {
        Scanner {
            outer,
            depth: 0,
            in_text: false,
            escaped: false,
            text: Vec::new(),
            under_outer: false,
            found: None,
        }
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        *self = Scanner::new(self.outer);
    }

    /// Takes one more byte. A value that is complete is given back.
    pub fn push(&mut self, byte: u8) -> Option<Scanned> {
        if self.in_text {
            self.keep(byte);
            self.read_text(byte);
            return None;
        }
        match byte {
            b'"' => {
                self.in_text = true;
                self.text.clear();
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' | b',' => return self.end(byte),
            b':' => {
                self.keep(byte);
                self.begin();
                return None;
            }
            _ => {}
        }
        self.keep(byte);
        None
    }

    fn read_text(&mut self, byte: u8) {
        if self.escaped {
            self.escaped = false;
        } else if byte == b'"' {
            self.in_text = false;
            return;
        } else if byte == b'\\' {
            self.escaped = true;
        }
        // One more than the longest, so that what begins like it is not it.
        if self.text.len() <= self.outer.len().max("usage".len()) {
            self.text.push(byte);
        }
    }

    /// A value begins, and the text before it was its key.
    fn begin(&mut self) {
        if self.depth == 1 {
            self.under_outer = self.text == self.outer.as_bytes();
        }
        let here = self.depth == 1 || (self.depth == 2 && self.under_outer);
        if here && self.text == b"usage" && self.found.is_none() {
            self.found = Some(Found { depth: self.depth, value: Vec::new() });
        }
    }

    /// A value ends, and with a bracket what has it.
    fn end(&mut self, byte: u8) -> Option<Scanned> {
        let complete = self.found.take_if(|found| found.depth == self.depth);
        self.keep(byte);
        if byte != b',' {
            self.depth = self.depth.saturating_sub(1);
        }
        let complete = complete.filter(|found| found.value.len() <= LONGEST)?;
        Some(Scanned { value: complete.value, outermost: complete.depth == 1 })
    }

    fn keep(&mut self, byte: u8) {
        if let Some(found) = &mut self.found
            && found.value.len() <= LONGEST
        {
            found.value.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(json: &str) -> String {
        let mut scanner = Scanner::new("response");
        let values = json.bytes().filter_map(|byte| scanner.push(byte));
        let values: Vec<_> =
            values.map(|found| String::from_utf8(found.value).unwrap().trim().to_owned()).collect();
        values.join("|")
    }

    #[test]
    fn only_where_it_belongs() {
        for (json, expected) in [
            (r#"{"usage":{"a":1}}"#, r#"{"a":1}"#),
            (r#"{"x":[{"usage":1}],"usage" : {"a":[1,{"b":"}"}]} ,"y":2}"#, r#"{"a":[1,{"b":"}"}]}"#),
            (r#"{"response":{"usage":{"a":1},"usage":null}}"#, r#"{"a":1}|null"#),
            (r#"{"response":{"metadata":{"usage":{"a":1}},"tools":[{"usage":1}]}}"#, ""),
            (r#"{"response":1,"other":{"usage":1}}"#, ""),
            (r#"{"responses":{"usage":1},"respons":{"usage":1}}"#, ""),
            (r#"{"text":"\"usage\":{\"a\":1}","usages":1,"usag":1}"#, ""),
            (r#"{"text":"usage","b":2}"#, ""),
            (r#"{"text":"\\","usage":3}"#, "3"),
            (r#"[{"usage":1}]"#, ""),
            (r#"["usage",{"response":{"usage":1}}]"#, ""),
            ("[DONE]", ""),
            (r#"}}}]]],,,::"usage":"usage":"#, ""),
        ] {
            assert_eq!(found(json), expected, "{json}");
        }
    }

    #[test]
    fn nothing_long_is_kept() {
        let long = "x".repeat(1 << 20);
        let mut scanner = Scanner::new("response");
        for byte in format!(r#"{{"{long}":"{long}","usage":{{"a":"{long}"}},"#).bytes() {
            assert!(scanner.push(byte).is_none());
            assert!(scanner.text.capacity() < 64, "{}", scanner.text.capacity());
            let kept = scanner.found.as_ref().map_or(0, |found| found.value.capacity());
            assert!(kept <= 4 * LONGEST, "{kept}");
        }
        // And goes on.
        let rest = br#""usage":1}"#;
        let found: Vec<_> = rest.iter().filter_map(|byte| scanner.push(*byte)).collect();
        assert_eq!(found, [Scanned { value: b"1".to_vec(), outermost: true }]);
    }
}
