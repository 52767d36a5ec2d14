//! Counts the tokens that an answer tells of, as it passes.

use crate::scan::{Scanned, Scanner};
use seawall_api::conversation::Usage;
use seawall_core::agents::ModelApi;
use serde_json::Value;

/// Reads one answer.
#[derive(Debug)]
pub struct Counter {
    api: ModelApi,
    /// Of an event stream; else the answer is one JSON object.
    lines: Option<Lines>,
    scanner: Scanner,
    told: Told,
    is_whole: bool,
}

/// As the API counts. Its counts only grow, so of several the largest is the last.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_written: u64,
}

impl Counter {
    pub fn new(api: ModelApi, content_type: Option<&str>) -> Counter {
        let stream = content_type.is_some_and(|text| {
            text.get(..17).is_some_and(|start| start.eq_ignore_ascii_case("text/event-stream"))
        });
        let outer = match api {
            ModelApi::Anthropic => "message",
            ModelApi::OpenAi => "response",
        };
        let lines = stream.then(Lines::default);
        Counter { api, lines, scanner: Scanner::new(outer), told: Told::default(), is_whole: false }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match self.lines.as_mut().map_or(Step::Data, |lines| lines.push(byte)) {
                Step::Data => self.scan(byte),
                Step::EventEnds => self.scanner.reset(),
                Step::Other => {}
            }
        }
    }

    fn scan(&mut self, byte: u8) {
        let Some(Scanned { value, outermost }) = self.scanner.push(byte) else {
            return;
        };
        if let Ok(usage @ Value::Object(_)) = serde_json::from_slice(&value) {
            self.told.add(self.api, &usage);
            // A stream of Anthropic tells in its first event what the input was, within the message.
            self.is_whole |= self.api == ModelApi::OpenAi || outermost;
        }
    }

    /// Whether the answer has told all that it used.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// So far: input is what was not cached, cache is reads and writes, output includes reasoning.
    pub fn usage(&self) -> Usage {
        let Told { input, output, cache_read, cache_written } = self.told;
        let cache = cache_read.saturating_add(cache_written);
        let input = match self.api {
            ModelApi::Anthropic => input,
            // Its input includes what was cached.
            ModelApi::OpenAi => input.saturating_sub(cache),
        };
        Usage { input_tokens: input, output_tokens: output, cache_tokens: cache }.capped()
    }
}

impl Told {
    fn add(&mut self, api: ModelApi, usage: &Value) {
        let count = |names: &[&str]| {
            let told = names.iter().find_map(|name| usage.pointer(name)?.as_u64());
            told.unwrap_or(0)
        };
        let told = match api {
            ModelApi::Anthropic => Told {
                input: count(&["/input_tokens"]),
                output: count(&["/output_tokens"]),
                cache_read: count(&["/cache_read_input_tokens"]),
                cache_written: count(&["/cache_creation_input_tokens"]),
            },
            // Responses, and chat completions.
            ModelApi::OpenAi => Told {
                input: count(&["/input_tokens", "/prompt_tokens"]),
                output: count(&["/output_tokens", "/completion_tokens"]),
                cache_read: count(&[
                    "/input_tokens_details/cached_tokens",
                    "/prompt_tokens_details/cached_tokens",
                ]),
                cache_written: count(&[
                    "/input_tokens_details/cache_write_tokens",
                    "/prompt_tokens_details/cache_write_tokens",
                ]),
            },
        };
        self.input = self.input.max(told.input);
        self.output = self.output.max(told.output);
        self.cache_read = self.cache_read.max(told.cache_read);
        self.cache_written = self.cache_written.max(told.cache_written);
    }
}

/// The lines of an event stream. Keeps none of them.
#[derive(Debug, Default)]
struct Lines {
    line: Line,
    after_return: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// So many bytes of `data:` were read.
    Start(usize),
    Data,
    Other,
}

impl Default for Line {
    fn default() -> Line {
        Line::Start(0)
    }
}

/// What a byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Data,
    EventEnds,
    Other,
}

impl Lines {
    fn push(&mut self, byte: u8) -> Step {
        // A return and a line feed are one end.
        if byte == b'\n' && std::mem::take(&mut self.after_return) {
            return Step::Other;
        }
        self.after_return = byte == b'\r';
        if matches!(byte, b'\n' | b'\r') {
            return match std::mem::take(&mut self.line) {
                Line::Start(0) => Step::EventEnds,
                // Data of several lines is one text, with their ends in it.
                Line::Data => Step::Data,
                _ => Step::Other,
            };
        }
        match self.line {
            Line::Data => return Step::Data,
            Line::Other => {}
            Line::Start(read) if b"data:".get(read) != Some(&byte) => self.line = Line::Other,
            Line::Start(4) => self.line = Line::Data,
            Line::Start(read) => self.line = Line::Start(read + 1),
        }
        Step::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SSE: Option<&str> = Some("text/event-stream; charset=utf-8");
    const JSON: Option<&str> = Some("application/json");

    const MESSAGES: &str = concat!(
        "event: message_start\n",
        r#"data: {"type":"message_start","message":{"id":"msg_1","content":[],"usage":{"input_tokens":25,"#,
        r#""cache_creation_input_tokens":7,"cache_read_input_tokens":1000,"output_tokens":1}}}"#,
        "\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n",
        "event: content_block_delta\n",
        r#"data: {"type":"content_block_delta","delta":{"text":"data: {\"usage\":{\"output_tokens\":9999}}\n\n"}}"#,
        "\n\nevent: message_delta\n",
        r#"data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":40}}"#,
        "\n\nevent: message_delta\n",
        r#"data: {"type":"message_delta","delta":{},"usage":{"input_tokens":25,"output_tokens":57}}"#,
        "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );

    const RESPONSES: &str = concat!(
        "event: response.created\n",
        r#"data: {"type":"response.created","response":{"id":"r","usage":null,"metadata":{"usage":{"a":1}}}}"#,
        "\n\nevent: response.output_text.delta\n",
        r#"data: {"type":"response.output_text.delta","delta":"\"usage\":{\"input_tokens\":1}"}"#,
        "\n\nevent: response.completed\n",
        r#"data: {"type":"response.completed","response":{"output":[{"usage":{"input_tokens":5555}}],"usage":"#,
        r#"{"input_tokens":1200,"input_tokens_details":{"cached_tokens":1000,"cache_write_tokens":150},"#,
        r#""output_tokens":80,"output_tokens_details":{"reasoning_tokens":64},"total_tokens":1280}}}"#,
        "\n\n",
    );

    const CHAT: &str = concat!(
        r#"data: {"choices":[{"delta":{"content":"hi"}}],"usage":null}"#,
        "\n\n",
        r#"data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":9,"total_tokens":59,"#,
        r#""prompt_tokens_details":{"cached_tokens":20},"completion_tokens_details":{"reasoning_tokens":4}}}"#,
        "\n\ndata: [DONE]\n\n",
    );

    fn usage(input_tokens: u64, output_tokens: u64, cache_tokens: u64) -> Usage {
        Usage { input_tokens, output_tokens, cache_tokens }
    }

    fn streams() -> [(ModelApi, &'static str, Usage); 3] {
        [
            (ModelApi::Anthropic, MESSAGES, usage(25, 57, 1007)),
            (ModelApi::OpenAi, RESPONSES, usage(50, 80, 1150)),
            (ModelApi::OpenAi, CHAT, usage(30, 9, 20)),
        ]
    }

    fn count(api: ModelApi, content_type: Option<&str>, parts: &[&[u8]]) -> Usage {
        let mut counter = Counter::new(api, content_type);
        parts.iter().for_each(|part| counter.feed(part));
        counter.usage()
    }

    #[test]
    fn m3_streams_are_counted_wherever_they_are_cut() {
        for (api, stream, expected) in streams() {
            let bytes = stream.as_bytes();
            assert_eq!(count(api, SSE, &bytes.chunks(1).collect::<Vec<_>>()), expected);
            for at in 0..=bytes.len() {
                let (before, after) = bytes.split_at(at);
                assert_eq!(count(api, SSE, &[before, after]), expected, "cut at {at}");
            }
        }
    }

    #[test]
    fn m3_every_kind_of_line_end() {
        for (api, stream, expected) in streams() {
            for end in ["\r\n", "\r"] {
                let stream = stream.replace('\n', end);
                for size in 1..9 {
                    let parts: Vec<_> = stream.as_bytes().chunks(size).collect();
                    assert_eq!(count(api, SSE, &parts), expected, "{end:?} by {size}");
                }
            }
        }
    }

    #[test]
    fn m3_what_was_seen_counts_where_a_stream_breaks_off() {
        let mut last = usage(0, 0, 0);
        for at in 0..=MESSAGES.len() {
            let mut counter = Counter::new(ModelApi::Anthropic, SSE);
            counter.feed(&MESSAGES.as_bytes()[..at]);
            let now = counter.usage();
            assert_eq!(counter.is_whole(), now.output_tokens > 1, "at {at}");
            assert!(now.input_tokens >= last.input_tokens && now.output_tokens >= last.output_tokens);
            assert!([0, 1, 40, 57].contains(&now.output_tokens), "{now:?} at {at}");
            last = now;
        }
        assert_eq!(last, usage(25, 57, 1007));
    }

    #[test]
    fn m3_whole_answers() {
        let message = r#"{"id":"m","usage":{"input_tokens":3,"cache_read_input_tokens":4,
            "cache_creation_input_tokens":5,"cache_creation":{"ephemeral_5m_input_tokens":5},"output_tokens":6}}"#;
        let response = r#"{"usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":10},
            "output_tokens":6}}"#;
        let chat = r#"{"usage":{"prompt_tokens":30,"completion_tokens":2,"total_tokens":32}}"#;
        for (api, body, expected) in [
            (ModelApi::Anthropic, message, usage(3, 6, 9)),
            (ModelApi::OpenAi, response, usage(20, 6, 10)),
            (ModelApi::OpenAi, chat, usage(30, 2, 0)),
            (ModelApi::Anthropic, r#"{"input_tokens":17}"#, usage(0, 0, 0)),
        ] {
            assert_eq!(count(api, JSON, &[body.as_bytes()]), expected, "{body}");
            assert_eq!(count(api, None, &body.as_bytes().chunks(1).collect::<Vec<_>>()), expected, "{body}");
        }
    }

    #[test]
    fn data_of_several_lines_is_one() {
        let stream = "data: {\"usage\":\ndata:{\"input_tokens\":\r\ndata: 5,\"output_tokens\":6}}\n\n";
        assert_eq!(count(ModelApi::Anthropic, SSE, &[stream.as_bytes()]), usage(5, 6, 0));
    }

    #[test]
    fn an_event_that_was_cut_spoils_no_other() {
        let stream = "data: {\"a\":\"\n\ndata: {\"usage\":{\"input_tokens\":5}}\n\n";
        assert_eq!(count(ModelApi::Anthropic, SSE, &[stream.as_bytes()]), usage(5, 0, 0));
    }

    #[test]
    fn nonsense_counts_nothing_and_too_much_is_not_believed() {
        for body in [
            r#"{"usage":7}"#,
            r#"{"usage":{"input_tokens":-1,"output_tokens":1.5}}"#,
            r#"{"usage":{"input_tokens":"9"}}"#,
            r#"{"usage":{"input_tokens":[}}"#,
        ] {
            assert_eq!(count(ModelApi::Anthropic, JSON, &[body.as_bytes()]), usage(0, 0, 0), "{body}");
        }
        let body = format!(r#"{{"usage":{{"input_tokens":{}}}}}"#, u64::MAX);
        assert_eq!(count(ModelApi::Anthropic, JSON, &[body.as_bytes()]).input_tokens, Usage::MOST);
    }
}
