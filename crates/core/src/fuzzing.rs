//! What fuzz targets do with bytes that a box or a tenant may send: the output of agents, and wishes for sandboxes.
//!
//! Each function panics where a promise is broken, and returns otherwise. `fuzz/` runs them on whatever libFuzzer
//! makes, and `tests/fuzz.rs` on the corpora that are kept there.

use crate::{
    agents::{Parser, parser_with_lengths},
    sandboxes::check,
    turns::Answer,
};
use seawall_api::{
    conversation::{ToolCall, TurnState, Usage},
    event::Event,
    exec::{ExitReason, ExitStatus, OutputStream},
    http::CreateSandbox,
    sandbox::{Limits, SandboxSpec},
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// A byte of the input that ends a piece of output. It is no text, and so no loss.
const NEXT_PIECE: u8 = 0xfe;
/// A byte that ends a piece, behind which the other stream goes on.
const OTHER_STREAM: u8 = 0xfd;

/// Output as it arrives.
#[derive(Clone, Default)]
struct Output(Vec<(OutputStream, Vec<u8>)>);

impl Output {
    fn parse(data: &[u8]) -> Output {
        let (mut pieces, mut stream) = (vec![(OutputStream::Stdout, Vec::new())], OutputStream::Stdout);
        for &byte in data {
            match byte {
                NEXT_PIECE => pieces.push((stream, Vec::new())),
                OTHER_STREAM => {
                    stream = match stream {
                        OutputStream::Stdout => OutputStream::Stderr,
                        _ => OutputStream::Stdout,
                    };
                    pieces.push((stream, Vec::new()));
                }
                byte => pieces.last_mut().into_iter().for_each(|(_, piece)| piece.push(byte)),
            }
        }
        pieces.retain(|(_, piece)| !piece.is_empty());
        Output(pieces)
    }

    fn length(&self) -> usize {
        self.0.iter().map(|(_, piece)| piece.len()).sum()
    }

    /// From the first byte to the last, as few pieces as there can be.
    fn merged(&self) -> Output {
        let mut merged: Vec<(OutputStream, Vec<u8>)> = Vec::new();
        for (stream, piece) in &self.0 {
            match merged.last_mut() {
                Some((last, bytes)) if last == stream => bytes.extend_from_slice(piece),
                _ => merged.push((*stream, piece.clone())),
            }
        }
        Output(merged)
    }

    /// A piece for every byte.
    fn single(&self) -> Output {
        let bytes = |(stream, piece): &(OutputStream, Vec<u8>)| {
            let stream = *stream;
            piece.iter().map(move |byte| (stream, vec![*byte])).collect::<Vec<_>>()
        };
        Output(self.0.iter().flat_map(bytes).collect())
    }

    /// What is before a byte, and what is from it on.
    fn split(&self, at: usize) -> (Output, Output) {
        let (mut before, mut after, mut left) = (Output::default(), Output::default(), at);
        for (stream, piece) in &self.0 {
            let (now, later) = piece.split_at(left.min(piece.len()));
            left -= now.len();
            for (output, part) in [(&mut before, now), (&mut after, later)] {
                if !part.is_empty() {
                    output.0.push((*stream, part.to_vec()));
                }
            }
        }
        (before, after)
    }

    fn feed(&self, parser: &mut dyn Parser, events: &mut Vec<Event>) {
        for (stream, piece) in &self.0 {
            parser.feed(*stream, piece, events);
        }
    }

    fn has_stderr(&self) -> bool {
        self.0.iter().any(|(stream, _)| *stream != OutputStream::Stdout)
    }
}

/// What a turn comes to, however its output arrived.
#[derive(Debug, PartialEq)]
struct Folded {
    body: String,
    tool_calls: Vec<ToolCall>,
    session: Option<String>,
    usage: (Usage, bool),
    thread: Option<Usage>,
    state: TurnState,
    error: Option<String>,
}

fn fold(events: &[Event], state: TurnState, error: Option<String>) -> Folded {
    let mut answer = Answer::default();
    for event in events {
        let json = serde_json::to_vec(event).unwrap_or_default();
        assert!(serde_json::from_slice::<Event>(&json).is_ok(), "{event:?} is stored and cannot be read");
        answer.apply(event);
    }
    let (usage, thread) = (answer.usage(), answer.thread());
    Folded {
        body: answer.body,
        tool_calls: answer.tool_calls,
        session: answer.session,
        usage,
        thread,
        state,
        error,
    }
}

/// Output of an agent: whatever it is, nothing panics; in whatever pieces it comes, the turn comes to the same; and a
/// server that dies at any byte and goes on from what it stored comes to the same.
///
/// The first byte chooses the agent, the second how soon a line is stored in parts, the next two where the server
/// dies. The rest is the output.
pub fn agents(data: &[u8]) {
    let [agent, lengths, high, low, output @ ..] = data else { return };
    let driver = ["shell", "claude-code", "codex"][usize::from(*agent) % 3];
    // A part has room for a character at least: in less, half of one would wait for its rest without end.
    let (part, longest) = (4 + usize::from(*lengths & 0x3f), 64 + 8 * usize::from(*lengths));
    let parser = || parser_with_lengths(driver, part, longest);
    let output = Output::parse(output);
    let code = i32::from(agent / 3) % 2;
    let status = ExitStatus {
        code: Some(code),
        signal: None,
        reason: ExitReason::Exited,
        output_end: 0,
        truncated: 0,
        limits: Vec::new(),
    };
    let run = |output: &Output| {
        let (mut parser, mut events) = (parser(), Vec::new());
        output.feed(&mut *parser, &mut events);
        let outcome = parser.finish(&status, &mut events);
        fold(&events, outcome.state, outcome.error)
    };
    let whole = run(&output.merged());
    assert_eq!(run(&output), whole, "pieces make a difference");
    assert_eq!(run(&output.single()), whole, "bytes make a difference");
    let cut = (usize::from(*high) << 8 | usize::from(*low)) % (output.length() + 1);
    let (before, _) = output.split(cut);
    let (mut first, mut events) = (parser(), Vec::new());
    before.feed(&mut *first, &mut events);
    assert!(first.unread() <= cut, "more is unread than there is");
    let (_, rest) = output.split(cut - first.unread());
    let mut second = parser();
    events.iter().for_each(|event| second.replay(event));
    rest.feed(&mut *second, &mut events);
    let outcome = second.finish(&status, &mut events);
    let mut resumed = fold(&events, outcome.state, outcome.error);
    if output.has_stderr() {
        // What stderr said is no event, and an error may quote it.
        resumed.error.clone_from(&whole.error);
    }
    assert_eq!(resumed, whole, "a crash at {cut} makes a difference");
}

/// What is read of a number with a fraction may be off by its last bit.
fn without_fraction(limits: Limits) -> Limits {
    Limits { cpus: limits.cpus.map(f64::trunc), ..limits }
}

/// A value that was read is written, and read again as the same.
fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let json = serde_json::to_vec(value).unwrap_or_default();
    match serde_json::from_slice::<T>(&json) {
        Ok(again) => assert_eq!(&again, value),
        Err(error) => panic!("{value:?} is written and cannot be read: {error}"),
    }
}

/// A wish for a sandbox, as JSON: what passes the checks is something that can be made.
pub fn specs(data: &[u8]) {
    if let Ok(wish) = serde_json::from_slice::<CreateSandbox>(data) {
        survives(&CreateSandbox { limits: without_fraction(wish.limits), ..wish.clone() });
        let spec = SandboxSpec {
            env: wish.env.clone(),
            labels: wish.labels.clone(),
            mounts: wish.mounts.clone(),
            command: wish.command.clone(),
            ports: wish.ports.clone(),
            limits: wish.limits,
            ..SandboxSpec::default()
        };
        is_sound(&spec);
        if let (Some(name), Ok(())) = (&wish.name, check::name(wish.name.as_deref())) {
            assert!((1..=63).contains(&name.len()) && name.is_ascii() && !name.contains(['/', ' ', '\0']));
            assert!(!name.starts_with(['-', '.', '_']));
        }
    }
    if let Ok(spec) = serde_json::from_slice::<SandboxSpec>(data) {
        survives(&SandboxSpec { limits: without_fraction(spec.limits), ..spec.clone() });
        is_sound(&spec);
    }
}

fn is_sound(spec: &SandboxSpec) {
    if check::spec(spec).is_err() {
        return;
    }
    for (key, value) in &spec.env {
        assert!(!key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0'), "{key:?}={value:?}");
    }
    assert!(spec.labels.keys().all(|key| !key.is_empty() && !key.starts_with("seawall.")));
    let limits = &spec.limits;
    assert!(![limits.memory_mb, limits.disk_mb, limits.max_processes].contains(&Some(0)));
    assert!(limits.cpus.is_none_or(|cpus| cpus.is_finite() && cpus > 0.0));
    if let Some(volume) = &spec.volume {
        assert!(
            !volume.contains(['/', '\0']) && !volume.starts_with('.') && volume.len() <= 255,
            "{volume:?}"
        );
    }
}
