//! Commands of the mock: a name, and the steps that a process of it takes.

use bytes::Bytes;
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

/// A command as it was called.
#[derive(Debug, Clone)]
pub struct MockCall {
    /// Program and arguments.
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// As it was given; none is `/work`.
    pub cwd: Option<String>,
}

/// What a process does next.
#[derive(Debug, Clone)]
pub enum Step {
    Stdout(Bytes),
    Stderr(Bytes),
    /// On tokio's clock, so that a test may pause it.
    Sleep(Duration),
    /// Copies stdin to stdout until stdin is closed.
    ReadStdinToEnd,
    /// Stays until a signal, a timeout or a kill ends the process.
    WaitForSignal,
    Exit(i32),
}

/// The life of a process. Without [`Step::Exit`] it exits with 0 after its last step.
#[derive(Debug, Clone, Default)]
pub struct Script(pub Vec<Step>);

impl Script {
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Script(steps.into_iter().collect())
    }

    /// Exits at once.
    pub fn exit(code: i32) -> Self {
        Script(vec![Step::Exit(code)])
    }

    /// Prints and exits with 0.
    pub fn stdout(bytes: impl Into<Bytes>) -> Self {
        Script(vec![Step::Stdout(bytes.into())])
    }
}

pub(super) type Command = Arc<dyn Fn(&MockCall) -> Script + Send + Sync>;

#[derive(Default)]
pub(super) struct Commands(HashMap<String, Command>);

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Commands {
    pub(super) fn add(&mut self, name: &str, command: impl Fn(&MockCall) -> Script + Send + Sync + 'static) {
        self.0.insert(name.to_owned(), Arc::new(command));
    }

    /// A test's own command before a built-in one.
    pub(super) fn find(&self, name: &str) -> Option<Command> {
        self.0.get(name).cloned()
    }
}

/// The steps of a call, given the test's own command of that name.
pub(super) fn script(own: Option<Command>, call: &MockCall) -> Option<Script> {
    match own {
        Some(command) => Some(command(call)),
        None => built_in(call),
    }
}

fn built_in(call: &MockCall) -> Option<Script> {
    let (name, args) = call.args.split_first()?;
    Some(match name.as_str() {
        "true" => Script::exit(0),
        "false" => Script::exit(1),
        "echo" => Script::stdout(format!("{}\n", args.join(" "))),
        "cat" => Script::new([Step::ReadStdinToEnd]),
        "sleep" => sleep(args),
        _ => return None,
    })
}

fn sleep(args: &[String]) -> Script {
    let time = args
        .first()
        .and_then(|text| text.parse::<f64>().ok())
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match time {
        Some(time) => Script::new([Step::Sleep(time)]),
        None => {
            Script::new([Step::Stderr(Bytes::from_static(b"sleep: invalid time interval\n")), Step::Exit(1)])
        }
    }
}
