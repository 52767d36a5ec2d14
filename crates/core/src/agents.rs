//! Agents: how each command line is started, and what it prints means.
//!
//! A driver knows one program. It says how to start it ([`Driver::command`]), and its [`Parser`] turns output into
//! events. Parsers keep nothing that the stored events do not tell, so that whoever takes a turn up again after a
//! crash goes on exactly: it replays the events ([`Parser::replay`]) and feeds what follows the stored offset.
//!
//! An agent's own sessions are stored below [`AGENT_HOME`], so they return with the workspace. A turn continues the
//! session of the newest turn with the same template if its file exists. A session's name is a box's input, so it may
//! contain only letters, digits and `-`.

mod claude;
mod codex;
mod lines;
mod shell;

pub use claude::ClaudeCode;
pub use codex::Codex;
pub use shell::Shell;

use crate::Result;
use seawall_api::{
    conversation::TurnState,
    event::Event,
    exec::{ExitStatus, OutputStream},
};

/// Where agents keep what is theirs: in the workspace, so that it outlives the box, and hidden from trees.
pub const AGENT_HOME: &str = "/work/.seawall";

/// What an agent is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentAsk {
    pub prompt: String,
    /// The session of an earlier turn, whose files are there.
    pub session: Option<String>,
    /// None: the agent's default.
    pub model: Option<String>,
    /// Added to its instructions.
    pub system_prompt: Option<String>,
    /// The server's port on the box's loopback, where the agent reaches its model.
    pub port: Option<u16>,
    /// The folder in the box with the agent's program; none: it is found by its name.
    pub program: Option<String>,
    /// The template's own, after the driver's.
    pub args: Vec<String>,
}

/// What to run in the box.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentCommand {
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Given to its stdin, which is closed after it. A prompt may be longer than an argument can be.
    pub stdin: Option<Vec<u8>>,
}

/// How the agent's work came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Completed or failed.
    pub state: TurnState,
    pub error: Option<String>,
}

pub trait Driver: Send + Sync {
    /// The name that templates use.
    fn name(&self) -> &'static str;

    /// Which model API it speaks; none: it needs no model.
    fn api(&self) -> Option<ModelApi>;

    /// The program's name, in its folder or on the box's path.
    fn program(&self) -> &'static str;

    /// The command that installs it, for people.
    fn install_hint(&self) -> &'static str;

    fn command(&self, ask: &AgentAsk) -> Result<AgentCommand>;

    /// Refuses what can never be asked of it, before anything is begun.
    fn check_prompt(&self, _prompt: &str) -> Result<()> {
        Ok(())
    }

    /// A file or folder in the box that is there where the session can be continued.
    fn session_file(&self, session: &str) -> Option<SessionPlace>;

    fn parser(&self) -> Box<dyn Parser>;
}

/// The parser of an agent, by its driver's name, that stores parts of lines and passes lines over at other lengths
/// than usual. Of the shell, which has no lines, it is the usual one.
#[cfg(feature = "testing")]
pub fn parser_with_lengths(driver: &str, part: usize, longest: usize) -> Box<dyn Parser> {
    match driver {
        "claude-code" => claude::parser_with_lengths(part, longest),
        "codex" => codex::parser_with_lengths(part, longest),
        _ => Shell.parser(),
    }
}

/// Where a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionPlace {
    /// A file of this name.
    File(String),
    /// A file somewhere beneath this folder whose name contains the text.
    Beneath { folder: String, contains: String },
}

/// An API of models that the server speaks for agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelApi {
    /// Messages.
    Anthropic,
    /// Responses.
    OpenAi,
}

pub trait Parser: Send {
    /// An event that was stored before a crash. Only [`Event::OutputPart`] matters to most.
    fn replay(&mut self, event: &Event);

    /// Takes output. What it means goes to `events`.
    fn feed(&mut self, stream: OutputStream, bytes: &[u8], events: &mut Vec<Event>);

    /// How many of the bytes that were fed last are not in events yet, or stand behind such: whoever goes on later
    /// needs them again. Stderr of agents tells nothing that is kept as an event, so it may be fed twice.
    fn unread(&self) -> usize;

    /// How many bytes it holds of a line that has not ended.
    fn held(&self) -> usize {
        self.unread()
    }

    /// Gives up a line that has not ended: there is no room for it.
    fn pass_over(&mut self, _events: &mut Vec<Event>) {}

    /// The process ended. What was half a line is a line now.
    fn finish(&mut self, status: &ExitStatus, events: &mut Vec<Event>) -> Outcome;
}
