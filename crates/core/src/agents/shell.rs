//! No agent at all: the prompt is a command, and what it prints is the answer.

use super::{AgentAsk, AgentCommand, Driver, ModelApi, Outcome, Parser, SessionPlace, lines::half_character};
use crate::{Error, Result};
use seawall_api::{
    conversation::TurnState,
    event::Event,
    exec::{ExitReason, ExitStatus, OutputStream},
};

/// What Linux takes as one argument, with the zero behind it.
const ARGUMENT: usize = 128 << 10;
/// The most text of one event.
const PIECE: usize = 64 << 10;

#[derive(Debug, Clone, Copy, Default)]
pub struct Shell;

impl Driver for Shell {
    fn name(&self) -> &'static str {
        "shell"
    }

    fn api(&self) -> Option<ModelApi> {
        None
    }

    fn program(&self) -> &'static str {
        "sh"
    }

    fn install_hint(&self) -> &'static str {
        "use an image that has /bin/sh"
    }

    fn check_prompt(&self, prompt: &str) -> Result<()> {
        check_argument("the prompt", prompt)
    }

    fn command(&self, ask: &AgentAsk) -> Result<AgentCommand> {
        check_argument("the prompt", &ask.prompt)?;
        let mut args = vec!["/bin/sh".to_owned(), "-c".to_owned()];
        // Else the shell would take it for an option.
        args.extend(ask.prompt.starts_with(['-', '+']).then(|| "--".to_owned()));
        args.push(ask.prompt.clone());
        if !ask.args.is_empty() {
            // What follows the command is its name, then its arguments.
            args.push("sh".to_owned());
            args.extend(ask.args.iter().cloned());
        }
        Ok(AgentCommand { args, ..AgentCommand::default() })
    }

    /// A shell continues nothing.
    fn session_file(&self, _session: &str) -> Option<SessionPlace> {
        None
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(Plain::default())
    }
}

/// Whether a text can be an argument of a program.
pub(super) fn check_argument(what: &str, text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid(format!("{what} has a zero byte, which no command can have")));
    }
    if text.len() >= ARGUMENT {
        let most = ARGUMENT >> 10;
        return Err(Error::invalid(format!("{what} is too long for a command: less than {most} KiB fit")));
    }
    Ok(())
}

/// Text as it comes.
#[derive(Debug, Default)]
struct Plain {
    /// The beginning of a character whose rest is to come.
    half: Vec<u8>,
    /// Whether that is from stderr.
    stderr: bool,
}

impl Plain {
    /// Its rest does not come.
    fn flush(&mut self, events: &mut Vec<Event>) {
        let half = std::mem::take(&mut self.half);
        say(&half, self.stderr, events);
    }
}

impl Parser for Plain {
    /// What is stored was said, and nothing hangs on it.
    fn replay(&mut self, _event: &Event) {}

    fn feed(&mut self, stream: OutputStream, bytes: &[u8], events: &mut Vec<Event>) {
        let stderr = stream == OutputStream::Stderr;
        if bytes.is_empty() {
            return;
        }
        if stderr != self.stderr {
            self.flush(events);
            self.stderr = stderr;
        }
        self.half.extend_from_slice(bytes);
        let later = self.half.split_off(self.half.len() - half_character(&self.half));
        let now = std::mem::replace(&mut self.half, later);
        say(&now, stderr, events);
    }

    fn unread(&self) -> usize {
        self.half.len()
    }

    /// A command that fails is an answer. One that was ended has none.
    fn finish(&mut self, status: &ExitStatus, events: &mut Vec<Event>) -> Outcome {
        self.flush(events);
        match status.reason {
            ExitReason::Exited => Outcome { state: TurnState::Completed, error: None },
            _ => Outcome { state: TurnState::Failed, error: Some(format!("the command {status}")) },
        }
    }
}

fn say(bytes: &[u8], stderr: bool, events: &mut Vec<Event>) {
    let text = String::from_utf8_lossy(bytes);
    let mut rest: &str = &text;
    while !rest.is_empty() {
        let fits = (1..=PIECE.min(rest.len())).rev().find(|at| rest.is_char_boundary(*at));
        let (piece, later) = rest.split_at(fits.unwrap_or(rest.len()));
        events.push(Event::Text { text: piece.to_owned(), stderr });
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::ErrorKind;

    fn ask(prompt: &str) -> AgentAsk {
        AgentAsk {
            prompt: prompt.to_owned(),
            session: None,
            model: None,
            system_prompt: None,
            port: None,
            program: Some("/opt/agent".to_owned()),
            args: Vec::new(),
        }
    }

    fn status(reason: ExitReason, code: Option<i32>) -> ExitStatus {
        ExitStatus { code, signal: None, reason, output_end: 0, truncated: 0, limits: Vec::new() }
    }

    fn said(events: &[Event]) -> Vec<(String, bool)> {
        let text = |event: &Event| match event {
            Event::Text { text, stderr } => (text.clone(), *stderr),
            other => panic!("{other:?}"),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn the_prompt_is_the_command() {
        let command = Shell.command(&ask("echo hi | wc -c")).unwrap();
        assert_eq!(command.args, ["/bin/sh", "-c", "echo hi | wc -c"]);
        assert_eq!((command.env.len(), command.stdin), (0, None));
        let with = AgentAsk { args: vec!["one".to_owned()], ..ask("echo $1") };
        assert_eq!(Shell.command(&with).unwrap().args, ["/bin/sh", "-c", "echo $1", "sh", "one"]);
    }

    #[test]
    fn what_no_command_can_be_is_refused() {
        for bad in ["a\0b".to_owned(), "x".repeat(ARGUMENT)] {
            assert_eq!(Shell.command(&ask(&bad)).unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert!(Shell.command(&ask(&"x".repeat(ARGUMENT - 1))).is_ok());
    }

    #[test]
    fn m1_text_is_whole_whatever_the_pieces() {
        let text = "aä€😀\u{fffd} end".repeat(50);
        for step in [1, 2, 3, 7, 1000] {
            let (mut parser, mut events) = (Shell.parser(), Vec::new());
            for piece in text.as_bytes().chunks(step) {
                parser.feed(OutputStream::Stdout, piece, &mut events);
            }
            assert_eq!(parser.finish(&status(ExitReason::Exited, Some(0)), &mut events).error, None);
            assert_eq!(said(&events).into_iter().map(|(text, _)| text).collect::<String>(), text);
        }
    }

    #[test]
    fn streams_do_not_mix_in_one_character() {
        let (mut parser, mut events) = (Shell.parser(), Vec::new());
        parser.feed(OutputStream::Stdout, b"a\xe2\x82", &mut events);
        assert_eq!(parser.unread(), 2);
        parser.feed(OutputStream::Stderr, b"\xacb", &mut events);
        assert_eq!(parser.unread(), 0);
        let expected = [("a", false), ("\u{fffd}", false), ("\u{fffd}b", true)];
        assert_eq!(said(&events), expected.map(|(text, stderr)| (text.to_owned(), stderr)));
    }

    #[test]
    fn half_a_character_comes_again_after_a_crash_and_at_the_end_it_is_told() {
        let bytes = "zwei €".as_bytes();
        let (mut first, mut events) = (Shell.parser(), Vec::new());
        first.feed(OutputStream::Stdout, &bytes[..6], &mut events);
        let mut second = Shell.parser();
        events.iter().for_each(|event| second.replay(event));
        second.feed(OutputStream::Stdout, &bytes[6 - first.unread()..], &mut events);
        assert_eq!(said(&events).into_iter().map(|(text, _)| text).collect::<String>(), "zwei €");
        let mut last = Vec::new();
        first.finish(&status(ExitReason::Exited, Some(0)), &mut last);
        assert_eq!(said(&last), [("\u{fffd}".to_owned(), false)]);
    }

    #[test]
    fn long_output_comes_in_pieces() {
        let (mut parser, mut events) = (Shell.parser(), Vec::new());
        let text = format!("x{}", "ä".repeat(PIECE));
        parser.feed(OutputStream::Stdout, text.as_bytes(), &mut events);
        let said = said(&events);
        assert_eq!(said.len(), 3);
        assert!(said.iter().all(|(piece, _)| piece.len() <= PIECE));
        assert_eq!(said.into_iter().map(|(piece, _)| piece).collect::<String>(), text);
    }

    #[test]
    fn a_command_that_fails_is_an_answer_and_one_that_is_ended_is_none() {
        let outcome = |reason, code| Shell.parser().finish(&status(reason, code), &mut Vec::new());
        assert_eq!(outcome(ExitReason::Exited, Some(3)).state, TurnState::Completed);
        for reason in
            [ExitReason::Timeout, ExitReason::Oom, ExitReason::Stopped, ExitReason::Killed, ExitReason::Lost]
        {
            assert_eq!(outcome(reason, None).state, TurnState::Failed);
        }
        let late = outcome(ExitReason::Timeout, None);
        assert_eq!(late.error.as_deref(), Some("the command ended after its timeout"));
    }
}
