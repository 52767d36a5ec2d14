//! What the recorded streams of agents come to, whatever the pieces that they come in and wherever a crash comes.

use seawall_api::{
    conversation::{TurnState, Usage},
    event::Event,
    exec::{ExitReason, ExitStatus, OutputStream},
};
use seawall_core::agents::{ClaudeCode, Codex, Driver, Outcome, Shell};
use serde_json::{Value, json};
use std::collections::HashMap;

/// A recorded stream, and what it comes to.
struct Case {
    driver: &'static dyn Driver,
    stream: &'static str,
    text: &'static str,
    /// With whether it failed.
    tools: &'static [(&'static str, bool)],
    usage: Usage,
    error: Option<&'static str>,
}

const fn usage(input_tokens: u64, output_tokens: u64, cache_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, cache_tokens }
}

const BASH: &[(&str, bool)] = &[("Bash", false)];
const BAD_KEY: &str = "Invalid API key · Fix external API key";

fn claude() -> Vec<Case> {
    let tool = Case {
        driver: &ClaudeCode,
        stream: "claude-tool",
        text: "I will run a command. \n\nAll done. ",
        tools: BASH,
        usage: usage(22, 99, 7110),
        error: None,
    };
    vec![
        Case { stream: "claude-partial", ..tool },
        Case { stream: "claude-mcp", text: "All done. ", tools: &[("mcp__probe__hello", false)], ..tool },
        Case {
            stream: "claude-maxturns",
            text: "I will run a command. ",
            usage: usage(11, 44, 3555),
            error: Some("Reached maximum number of turns (1)"),
            ..tool
        },
        Case {
            stream: "claude-err401b",
            text: BAD_KEY,
            tools: &[],
            usage: Usage::default(),
            error: Some(BAD_KEY),
            ..tool
        },
        // The second turn of a session, with a helper that goes on behind the answer, and so two results.
        Case {
            stream: "claude-subagent",
            text: "Delegating.\n\nAll done. \n\nPlain answer. ",
            tools: &[("Agent", false), ("Bash", false)],
            usage: usage(55, 253, 17775),
            ..tool
        },
        Case {
            stream: "claude-lost-session",
            text: "",
            tools: &[],
            usage: Usage::default(),
            error: Some("No conversation found with session ID: 00000000-0000-4000-8000-000000000000"),
            ..tool
        },
        tool,
    ]
}

fn codex() -> Vec<Case> {
    let exec = Case {
        driver: &Codex,
        stream: "codex-exec",
        text: "All done.",
        tools: &[("command_execution", false)],
        usage: usage(600, 100, 1400),
        error: None,
    };
    vec![
        // The second turn of a thread: what it tells has the first one's 2000, 1400 and 100 in it.
        Case {
            stream: "codex-resumed",
            text: "Half way — ünïcödé.\n\nSunny.",
            tools: &[
                ("file_change", false),
                ("mcp__probe__hello", false),
                ("command_execution", true),
                ("web_search", false),
            ],
            usage: usage(1800, 300, 4200),
            ..exec
        },
        Case {
            stream: "codex-failed",
            text: "",
            tools: &[],
            usage: Usage::default(),
            error: Some("stream disconnected before completion: model blew up"),
            ..exec
        },
        exec,
    ]
}

fn cases() -> Vec<Case> {
    claude().into_iter().chain(codex()).collect()
}

impl Case {
    fn bytes(&self) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/agent-streams");
        std::fs::read(format!("{folder}/{}.jsonl", self.stream)).unwrap()
    }

    /// As it was when it was recorded.
    fn status(&self) -> ExitStatus {
        exited(i32::from(self.error.is_some()))
    }

    fn run(&self, bytes: &[u8], step: usize) -> (Vec<Event>, Outcome) {
        let (mut parser, mut events) = (self.driver.parser(), Vec::new());
        bytes.chunks(step).for_each(|piece| parser.feed(OutputStream::Stdout, piece, &mut events));
        let outcome = parser.finish(&self.status(), &mut events);
        (events, outcome)
    }

    /// The first parser is gone at `cut`; the second has its events, and the bytes that are in none.
    fn crash(&self, bytes: &[u8], cut: usize) -> (Vec<Event>, Outcome) {
        let (mut first, mut events) = (self.driver.parser(), Vec::new());
        first.feed(OutputStream::Stdout, &bytes[..cut], &mut events);
        let mut second = self.driver.parser();
        events.iter().for_each(|event| second.replay(event));
        second.feed(OutputStream::Stdout, &bytes[cut - first.unread()..], &mut events);
        let outcome = second.finish(&self.status(), &mut events);
        (events, outcome)
    }
}

fn exited(code: i32) -> ExitStatus {
    let (code, reason) = (Some(code), ExitReason::Exited);
    ExitStatus { code, signal: None, reason, output_end: 0, truncated: 0, limits: Vec::new() }
}

fn text(events: &[Event]) -> String {
    let text = |event: &Event| match event {
        Event::Text { text, .. } => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

/// Each message once, or the total.
fn used(events: &[Event]) -> Usage {
    let (mut messages, mut total) = (HashMap::new(), None);
    for event in events {
        match event {
            Event::Usage { message: Some(id), usage } => {
                assert!(messages.insert(id.clone(), *usage).is_none(), "{id} was told twice");
            }
            Event::Usage { message: None, usage } | Event::ThreadUsage { usage } => total = Some(*usage),
            _ => {}
        }
    }
    let sum = |a: Usage, b: &Usage| {
        let (input, output) = (a.input_tokens + b.input_tokens, a.output_tokens + b.output_tokens);
        usage(input, output, a.cache_tokens + b.cache_tokens)
    };
    total.unwrap_or_else(|| messages.values().fold(Usage::default(), sum))
}

/// The tools in the order of their calls, with whether they failed. Every one has its result.
fn tools(events: &[Event]) -> Vec<(String, bool)> {
    let failed = |call: &str| {
        let result = |event: &Event| match event {
            Event::ToolResult { id, is_error, .. } if id == call => Some(*is_error),
            _ => None,
        };
        events.iter().find_map(result).expect("a result")
    };
    let call = |event: &Event| match event {
        Event::ToolCall { id, name, .. } => Some((name.clone(), failed(id))),
        _ => None,
    };
    events.iter().filter_map(call).collect()
}

#[test]
fn m1_every_stream_has_its_text_and_its_tools() {
    for case in cases() {
        let (events, outcome) = case.run(&case.bytes(), 4096);
        assert_eq!(text(&events), case.text, "{}", case.stream);
        let expected: Vec<_> =
            case.tools.iter().map(|(name, failed)| ((*name).to_owned(), *failed)).collect();
        assert_eq!(tools(&events), expected, "{}", case.stream);
        let state = if case.error.is_some() { TurnState::Failed } else { TurnState::Completed };
        assert_eq!((outcome.state, outcome.error.as_deref()), (state, case.error), "{}", case.stream);
    }
}

#[test]
fn m3_every_stream_has_exactly_its_usage() {
    for case in cases() {
        assert_eq!(used(&case.run(&case.bytes(), 4096).0), case.usage, "{}", case.stream);
    }
}

#[test]
fn m3_pieces_make_no_difference() {
    for case in cases() {
        let bytes = case.bytes();
        let whole = case.run(&bytes, bytes.len());
        for step in [1, 7, 1000] {
            assert_eq!(case.run(&bytes, step), whole, "{} in pieces of {step}", case.stream);
        }
        let lines = String::from_utf8(bytes).unwrap().replace('\n', "\r\n\n");
        assert_eq!(case.run(lines.trim_end().as_bytes(), 512), whole, "{} with other ends", case.stream);
    }
}

#[test]
fn m3_a_crash_makes_no_difference() {
    for case in cases() {
        let bytes = case.bytes();
        let whole = case.run(&bytes, bytes.len());
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        let cuts = ends.flat_map(|at| [at, at + 1]).chain((0..bytes.len()).step_by(173)).chain([bytes.len()]);
        for cut in cuts {
            assert_eq!(case.crash(&bytes, cut), whole, "{} cut at {cut}", case.stream);
        }
    }
}

#[test]
fn m3_a_turn_that_ends_early_counts_each_message_once() {
    let case = claude().pop().unwrap();
    let bytes = case.bytes();
    let stream = std::str::from_utf8(&bytes).unwrap();
    let result = stream.trim_end().rfind('\n').unwrap();
    let (events, outcome) = case.run(&bytes[..result], 100);
    assert_eq!(used(&events), usage(22, 2, 7110));
    assert_eq!(outcome.state, TurnState::Failed);
}

#[test]
fn c4_what_was_cached_is_no_input_and_reasoning_is_output() {
    let of = |stream: &str| {
        let case = codex().into_iter().find(|case| case.stream == stream).unwrap();
        used(&case.run(&case.bytes(), 4096).0)
    };
    let (before, after) = (of("codex-exec"), of("codex-resumed"));
    assert_eq!(before, usage(600, 100, 1400));
    // Four requests of 1000 with 700 cached, and 50 out with 5 of reasoning.
    let turn = usage(
        after.input_tokens - before.input_tokens,
        after.output_tokens - before.output_tokens,
        after.cache_tokens - before.cache_tokens,
    );
    assert_eq!(turn, usage(4 * 300, 4 * 50, 4 * 700));
}

#[test]
fn sessions_are_told_as_they_are_continued() {
    for (case, session) in [
        (claude().pop().unwrap(), "6b475886-50a9-44c8-9dfa-a43692391c46"),
        (codex().pop().unwrap(), "01a1dddc-04ab-7641-8d4e-a928cc4df416"),
    ] {
        let (events, _) = case.run(&case.bytes(), 4096);
        assert_eq!(events[0], Event::AgentSession { session: session.to_owned() });
        assert!(case.driver.session_file(session).is_some());
    }
}

/// A result of nearly four megabytes, between two ordinary lines.
fn long_stream() -> (Vec<u8>, Value) {
    let output = json!("ä€😀 ".repeat(400_000));
    let content = json!([{"type": "tool_result", "tool_use_id": "t", "content": output}]);
    let long = json!({"type": "user", "message": {"content": content}});
    let said = json!({"type": "assistant", "message": {"content": [{"type": "text", "text": "hi"}]}});
    let done = json!({"type": "result", "subtype": "success", "usage": {"input_tokens": 1}});
    (format!("{said}\n{long}\n{said}\n{done}\n").into_bytes(), output)
}

#[test]
fn m1_a_very_long_line_is_read_in_full_and_never_waited_for() {
    let case = claude().pop().unwrap();
    let (bytes, expected) = long_stream();
    let (mut parser, mut events) = (case.driver.parser(), Vec::new());
    for piece in bytes.chunks(60_000) {
        parser.feed(OutputStream::Stdout, piece, &mut events);
        assert!(parser.unread() < 1 << 20, "more is stored, so that the agent can go on");
    }
    assert_eq!(parser.finish(&case.status(), &mut events).state, TurnState::Completed);
    let result = Event::ToolResult { id: "t".to_owned(), output: expected, is_error: false };
    assert!(events.contains(&result), "the result is there, whole");
    assert_eq!(text(&events), "hi\n\nhi");
    let last = Event::OutputPart { text: String::new(), end: true };
    assert_eq!(events.iter().filter(|event| **event == last).count(), 1);
}

#[test]
fn m1_a_crash_in_a_very_long_line_makes_no_difference() {
    let case = claude().pop().unwrap();
    let (bytes, _) = long_stream();
    let whole = case.run(&bytes, 100_000);
    for cut in [50, 1000, 1 << 20, (1 << 20) + 100, (2 << 20) + 77, 3 << 20, bytes.len() - 10, bytes.len()] {
        assert!(case.crash(&bytes, cut) == whole, "cut at {cut}");
    }
}

#[test]
fn m1_what_stderr_says_in_a_line_does_not_move_what_is_unread() {
    let case = claude().pop().unwrap();
    let bytes = case.bytes();
    let (whole, _) = case.run(&bytes, bytes.len());
    for cut in [100, 3000, 5000] {
        let (mut first, mut events) = (case.driver.parser(), Vec::new());
        first.feed(OutputStream::Stdout, &bytes[..cut], &mut events);
        first.feed(OutputStream::Stderr, b"a warning\n", &mut events);
        assert_eq!(first.unread(), 0);
        let mut second = case.driver.parser();
        events.iter().for_each(|event| second.replay(event));
        second.feed(OutputStream::Stdout, &bytes[cut..], &mut events);
        second.finish(&case.status(), &mut events);
        events.retain(|event| !matches!(event, Event::OutputPart { .. }));
        assert_eq!(events, whole, "cut at {cut}");
    }
}

/// Half a character, then stderr, then a crash.
#[test]
fn m1_a_character_that_stderr_comes_between_outlives_a_crash() {
    let case = claude().pop().unwrap();
    let line = json!({"type": "assistant", "message": {"content": [{"type": "text", "text": "fünf €"}]}});
    let bytes = format!("{line}\n").into_bytes();
    let euro = bytes.iter().position(|byte| *byte == 0xe2).unwrap();
    for half in [euro + 1, euro + 2] {
        let output: Vec<(OutputStream, &[u8])> = vec![
            (OutputStream::Stdout, &bytes[..half]),
            (OutputStream::Stderr, b"a warning\n"),
            (OutputStream::Stderr, b"another\n"),
            (OutputStream::Stdout, &bytes[half..]),
        ];
        for fed in 1..=output.len() {
            let (mut first, mut events) = (case.driver.parser(), Vec::new());
            output[..fed].iter().for_each(|(stream, piece)| first.feed(*stream, piece, &mut events));
            // What is sent again: so many bytes before the place where the first one was.
            let at = output[..fed].iter().map(|(_, piece)| piece.len()).sum::<usize>() - first.unread();
            let mut second = case.driver.parser();
            events.iter().for_each(|event| second.replay(event));
            let mut passed = 0;
            for (stream, piece) in &output {
                let skipped = at.saturating_sub(passed).min(piece.len());
                passed += piece.len();
                second.feed(*stream, &piece[skipped..], &mut events);
            }
            assert_eq!(text(&events), "fünf €", "half at {half}, after {fed}");
        }
    }
}

#[test]
fn an_agent_that_says_nothing_fails_with_what_stderr_said() {
    for driver in [&ClaudeCode as &dyn Driver, &Codex] {
        let (mut parser, mut events) = (driver.parser(), Vec::new());
        parser.feed(OutputStream::Stderr, b"cannot execute\n", &mut events);
        let outcome = parser.finish(&exited(127), &mut events);
        let error = "the agent's program exited with 127 before its answer was complete: cannot execute";
        assert_eq!(outcome, Outcome { state: TurnState::Failed, error: Some(error.to_owned()) });
        assert!(events.is_empty());
    }
}

#[test]
fn m1_a_crash_loses_no_character_of_a_command() {
    let bytes = "eins ä zwei € drei 😀\n".as_bytes();
    for cut in 0..=bytes.len() {
        let (mut first, mut events) = (Shell.parser(), Vec::new());
        first.feed(OutputStream::Stdout, &bytes[..cut], &mut events);
        let mut second = Shell.parser();
        second.feed(OutputStream::Stdout, &bytes[cut - first.unread()..], &mut events);
        assert_eq!(second.finish(&exited(1), &mut events).state, TurnState::Completed);
        assert_eq!(text(&events).as_bytes(), bytes, "cut at {cut}");
    }
}
