//! Signals: the ones that reach us, and the ones that users name.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub const SIGHUP: i32 = 1;
pub const SIGINT: i32 = 2;
pub const SIGPIPE: i32 = 13;
pub const SIGTERM: i32 = 15;

/// The signals that ask us to end. Once listened to they no longer end the process by themselves.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub fn listen() -> Result<Self> {
        let open = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals {
            interrupt: open(SignalKind::interrupt())?,
            terminate: open(SignalKind::terminate())?,
            hangup: open(SignalKind::hangup())?,
        })
    }

    /// The number of the next one. Cancel safe.
    pub async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SIGINT,
            _ = self.terminate.recv() => SIGTERM,
            _ = self.hangup.recv() => SIGHUP,
        }
    }
}

/// The terminal's size changed.
pub fn window_changes() -> Result<Signal> {
    signal(SignalKind::window_change()).context("cannot listen for changes of the terminal's size")
}

const NAMES: [(&str, i32); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("WINCH", 28),
];

/// A signal by name (`TERM`, `SIGTERM`) or Linux number. For clap.
pub fn parse(text: &str) -> Result<i32, String> {
    if let Ok(number) = text.parse::<i32>() {
        let known = (1..=64).contains(&number);
        return known.then_some(number).ok_or_else(|| format!("`{number}` is no signal: 1 to 64 are"));
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is no signal: use a number or one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!(parse("TERM"), Ok(15));
        assert_eq!(parse("sigkill"), Ok(9));
        assert_eq!(parse("34"), Ok(34));
        assert!(parse("0").is_err());
        assert!(parse("65").is_err());
        assert!(parse("TREM").unwrap_err().contains("TERM"));
    }
}
