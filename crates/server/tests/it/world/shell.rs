//! The shell of mock boxes: scripts of a few words, and a log of all that ran.

use bytes::Bytes;
use seawall_providers::mock::{MockCall, Script, Step};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// `say WORDS`, `err WORDS`, `sleep SECONDS`, `hang`, `exit CODE`, with `;` between them.
#[derive(Debug, Clone, Default)]
pub struct Shell(Arc<Mutex<Vec<String>>>);

impl Shell {
    /// `/bin/sh -c SCRIPT`.
    pub fn run(&self, call: &MockCall) -> Script {
        // Commands of the API come behind `--`.
        let script = call.args.iter().skip(2).find(|arg| *arg != "--").cloned().unwrap_or_default();
        let steps: Vec<Step> = script.split(';').map(|part| step(part.trim())).collect();
        self.0.lock().unwrap().push(script);
        Script::new(steps)
    }

    /// All that ran, in the order in which it began.
    pub fn scripts(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn step(part: &str) -> Step {
    let (word, rest) = part.split_once(' ').unwrap_or((part, ""));
    match word {
        "say" => Step::Stdout(Bytes::from(rest.to_owned())),
        "err" => Step::Stderr(Bytes::from(rest.to_owned())),
        "sleep" => Step::Sleep(Duration::from_secs(rest.parse().unwrap_or(0))),
        "hang" => Step::WaitForSignal,
        "exit" => Step::Exit(rest.parse().unwrap_or(1)),
        _ => Step::Exit(127),
    }
}
