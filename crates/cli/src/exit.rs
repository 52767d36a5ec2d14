//! What the exit code says: the command's own, or 124 (timeout), 125 (seawall failed), 126 (cannot be
//! executed), 127 (not found), 128 + signal; 1 where no command was to be run, 2 for bad usage.

use crate::{output, signals::SIGPIPE};
use seawall_api::{ErrorKind, http::Problem};

pub const FAILED: i32 = 1;
pub const USAGE: i32 = 2;
pub const SEAWALL_FAILED: i32 = 125;
pub const NOT_EXECUTABLE: i32 = 126;
pub const NOT_FOUND: i32 = 127;

/// The code after a signal, as a shell has it.
pub fn by_signal(signal: i32) -> i32 {
    128 + signal
}

/// The command line makes no sense, and clap could not know.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The stable kind of an error, where it has one.
pub fn kind_of(error: &anyhow::Error) -> Option<ErrorKind> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<seawall_core::Error>() {
            return Some(error.kind());
        }
        if let Some(error) = cause.downcast_ref::<seawall_sync::Error>() {
            return Some(error.kind());
        }
        if let Some(error) = cause.downcast_ref::<seawall_client::Error>() {
            return Some(error.kind());
        }
        cause.downcast_ref::<seawall_wire::Error>().map(seawall_wire::Error::kind)
    })
}

/// `attached`: the caller wanted a command's own code, so ours must not look like one.
pub fn code_of(error: &anyhow::Error, attached: bool) -> i32 {
    if error.is::<output::Closed>() {
        return by_signal(SIGPIPE);
    }
    if error.is::<Usage>() {
        return USAGE;
    }
    match kind_of(error) {
        _ if !attached => FAILED,
        Some(ErrorKind::ExecFailed) => exec_failed(&message_of(error)),
        _ => SEAWALL_FAILED,
    }
}

// The number of the kernel's refusal does not travel this far; the words do.
fn exec_failed(message: &str) -> i32 {
    let message = message.to_lowercase();
    if message.contains("not found") || message.contains("no such file") { NOT_FOUND } else { NOT_EXECUTABLE }
}

/// The message with its causes; a cause that only repeats what was said is left out.
pub fn message_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// Tells a person, or with `--json` a program.
pub fn report(error: &anyhow::Error, json: bool) {
    if error.is::<output::Closed>() {
        return;
    }
    if json {
        output::error_json(&problem(error));
    } else {
        output::note(message_of(error));
    }
}

/// Converts an error of any origin into a problem of the API (RFC 9457).
fn problem(error: &anyhow::Error) -> serde_json::Value {
    let answered = error.chain().find_map(|cause| cause.downcast_ref::<seawall_client::Error>());
    if let Some(answered) = answered {
        let problem = Problem { detail: message_of(error), ..(*answered.problem).clone() };
        return serde_json::to_value(problem).unwrap_or_default();
    }
    let kind = match kind_of(error) {
        Some(kind) => kind,
        None if error.is::<Usage>() => ErrorKind::Invalid,
        None => ErrorKind::Internal,
    };
    let mut shown = seawall_client::Error::new(kind, message_of(error)).problem;
    shown.title = "Not done".to_owned();
    serde_json::to_value(shown).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn exec_error(message: &str) -> anyhow::Error {
        seawall_core::Error::new(ErrorKind::ExecFailed, message).into()
    }

    #[test]
    fn causes_are_told_once() {
        let error = seawall_core::Error::invalid("bad name").with_source(anyhow!("bad name"));
        assert_eq!(
            message_of(&anyhow::Error::from(error).context("cannot create")),
            "cannot create: bad name"
        );
    }

    #[test]
    fn codes_say_what_happened() {
        assert_eq!(code_of(&exec_error("`nope` was not found"), true), NOT_FOUND);
        assert_eq!(code_of(&exec_error("permission denied"), true), NOT_EXECUTABLE);
        assert_eq!(code_of(&exec_error("`nope` was not found").context("while starting"), true), NOT_FOUND);
        assert_eq!(code_of(&anyhow!("broken"), true), SEAWALL_FAILED);
        assert_eq!(code_of(&anyhow!("broken"), false), FAILED);
        assert_eq!(code_of(&Usage("no".into()).into(), true), USAGE);
        assert_eq!(code_of(&output::Closed.into(), false), 141);
    }
}
