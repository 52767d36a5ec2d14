//! The shell of mock boxes: scripts of a few words, and a log of all that ran.

use bytes::Bytes;
use seawall_providers::mock::{MockCall, Script, Step};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// One script that ran: an agent's prompt, or a hook's command.
#[derive(Debug, Clone)]
pub struct Ran {
    pub script: String,
    pub env: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default)]
pub struct Shell(Arc<Mutex<Vec<Ran>>>);

impl Shell {
    /// `/bin/sh -c SCRIPT`.
    pub fn run(&self, call: &MockCall) -> Script {
        let script = call.args.get(2).cloned().unwrap_or_default();
        if script.starts_with("for file;") {
            // What the service itself runs, to see what a hook noted: nothing, here.
            return Script::new(Vec::new());
        }
        let steps: Vec<Step> = script.split(';').map(|part| step(part.trim())).collect();
        self.0.lock().unwrap().push(Ran { script, env: call.env.clone() });
        Script::new(steps)
    }

    /// Something that happened outside of boxes, at its place among what ran in them.
    pub fn note(&self, what: &str) {
        self.0.lock().unwrap().push(Ran { script: what.to_owned(), env: BTreeMap::new() });
    }

    pub fn ran(&self) -> Vec<Ran> {
        self.0.lock().unwrap().clone()
    }

    pub fn scripts(&self) -> Vec<String> {
        self.ran().into_iter().map(|ran| ran.script).collect()
    }

    /// The runs of one script.
    pub fn of(&self, script: &str) -> Vec<Ran> {
        self.ran().into_iter().filter(|ran| ran.script == script).collect()
    }

    pub fn times(&self, script: &str) -> usize {
        self.of(script).len()
    }
}

fn step(part: &str) -> Step {
    let (word, rest) = part.split_once(' ').unwrap_or((part, ""));
    let number = || rest.parse().unwrap_or(0_usize);
    match word {
        "say" => Step::Stdout(Bytes::from(rest.to_owned())),
        "err" => Step::Stderr(Bytes::from(rest.to_owned())),
        "lines" => Step::Stdout(Bytes::from(lines(number()))),
        "faces" => Step::Stdout(Bytes::from(faces(number()))),
        "sleep" => Step::Sleep(Duration::from_secs(number() as u64)),
        "hang" => Step::WaitForSignal,
        "exit" => Step::Exit(i32::try_from(number()).unwrap_or(1)),
        _ => Step::Exit(127),
    }
}

/// No two of them are the same, so that a lost or doubled one shows.
pub fn lines(count: usize) -> String {
    (0..count).map(|number| format!("line {number}\n")).collect()
}

/// Characters of four bytes behind one of a single byte: no power of two is between two of them.
pub fn faces(count: usize) -> String {
    format!("x{}", "😀".repeat(count))
}
