//! `seawall chat`: a prompt goes in, the answer streams out. The server runs the turn.

use crate::{
    duration, exit, input,
    output::{self, Screen},
    session::Session,
    signals::Signals,
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use seawall_api::{
    ConversationId,
    conversation::{Turn, TurnState, Usage},
    event::Event,
    http::Prompt,
};
use seawall_client::{Page, TurnEvents, TurnRequest};
use std::{io::IsTerminal, time::Duration};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall chat 'echo hello > greeting; ls'      the template `shell`: the prompt is a command
  seawall chat -c CONVERSATION 'cat greeting'   the next turn; its sandbox may be gone meanwhile
  seawall chat -t claude-code 'write a poem'    an agent; its key stays with the server
  seawall chat -c CONVERSATION                  see the turn that runs, or the last one, again

Ctrl-C ends the view, not the turn. `seawall chat -c CONVERSATION --cancel` ends the turn.")]
pub struct ChatArgs {
    /// What the agent shall do; `-` reads it from stdin
    pub prompt: Vec<String>,

    /// The conversation to go on with; an id that is not known is a new one
    #[arg(short, long, value_name = "ID")]
    pub conversation: Option<ConversationId>,

    /// Which kind of agent [default: the conversation's, then `shell`]
    #[arg(short, long, value_name = "NAME")]
    pub template: Option<String>,

    /// The sandbox to use: an id or a name; a whole id that is not known is made
    #[arg(long, value_name = "ID")]
    pub sandbox: Option<String>,

    /// Take that sandbox even where the conversation has another
    #[arg(long, requires = "sandbox")]
    pub relink: bool,

    /// The caller's own name for the agent
    #[arg(long, value_name = "ID")]
    pub agent: Option<String>,

    /// Wait so long for the turn before
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub wait: Option<Duration>,

    /// End the turn that runs; what it did is kept
    #[arg(long, requires = "conversation", conflicts_with = "prompt")]
    pub cancel: bool,
}

pub async fn chat(session: &Session, args: &ChatArgs) -> Result<i32> {
    if args.cancel {
        return cancel(session, args).await;
    }
    let prompt = prompt(args).await?;
    let mut events = match (prompt.is_empty(), args.conversation) {
        (true, Some(conversation)) => {
            let turn = last_turn(session, conversation).await?;
            session.client.turn_events(conversation, turn.id, 0)
        }
        (true, None) => bail!(nothing_said()),
        (false, _) => session.client.prompt(&ask(session, args, prompt).await?).await?,
    };
    let mut signals = Signals::listen()?;
    let mut view = View::new(session.json);
    tokio::select! {
        shown = all(&mut view, &mut events) => shown,
        signal = signals.next() => {
            view.end_line()?;
            if let Some((conversation, _)) = events.turn() {
                goes_on(conversation);
            }
            Ok(exit::by_signal(signal))
        }
    }
}

async fn all(view: &mut View, events: &mut TurnEvents) -> Result<i32> {
    while let Some((number, event)) = events.next().await? {
        view.show(number, event)?;
    }
    Ok(view.code)
}

/// What was said; nothing where only a look is wanted.
async fn prompt(args: &ChatArgs) -> Result<String> {
    match args.prompt.join(" ") {
        dash if dash == "-" => {
            let text = input::text().await?;
            ensure!(!text.trim().is_empty(), exit::Usage("stdin is empty: nothing was asked".to_owned()));
            Ok(text)
        }
        // A variable that is empty, mostly. The last answer would be taken for one to it.
        text if text.trim().is_empty() && !args.prompt.is_empty() => {
            bail!(exit::Usage("the prompt is empty: nothing was asked".to_owned()))
        }
        text => Ok(text),
    }
}

fn nothing_said() -> exit::Usage {
    exit::Usage("say what the agent shall do: seawall chat 'PROMPT'".to_owned())
}

async fn ask(session: &Session, args: &ChatArgs, prompt: String) -> Result<TurnRequest> {
    let sandbox = match &args.sandbox {
        Some(reference) => Some(session.find_id(reference).await?),
        None => None,
    };
    Ok(TurnRequest {
        conversation: args.conversation,
        sandbox,
        relink: args.relink,
        wait: args.wait,
        prompt: Prompt {
            prompt,
            agent_id: args.agent.clone(),
            organization_id: None,
            template: args.template.clone(),
        },
    })
}

async fn last_turn(session: &Session, conversation: ConversationId) -> Result<Turn> {
    let turns = session.client.turns(conversation, &Page::first(1)).await?;
    turns.items.into_iter().next().context("nothing was said in this conversation yet")
}

async fn cancel(session: &Session, args: &ChatArgs) -> Result<i32> {
    let Some(conversation) = args.conversation else { return Ok(exit::USAGE) };
    let turn = last_turn(session, conversation).await?;
    let asked = session.client.cancel_turn(conversation, turn.id).await?;
    ensure!(asked.cancelled, "no turn of this conversation runs");
    Ok(0)
}

/// Whoever looks away may look again.
fn goes_on(conversation: ConversationId) {
    output::note(format!("the turn goes on; see it again with: seawall chat -c {conversation}"));
}

/// What a person sees: the answer on stdout, all else on stderr.
struct View {
    json: bool,
    /// Where that is a terminal. Elsewhere the answer is passed on as it is.
    stdout: Option<Screen>,
    stderr: Option<Screen>,
    open_line: bool,
    /// The exit code, as far as it is known.
    code: i32,
}

impl View {
    fn new(json: bool) -> View {
        let stdout = std::io::stdout().is_terminal().then(Screen::default);
        let stderr = std::io::stderr().is_terminal().then(Screen::default);
        View { json, stdout, stderr, open_line: false, code: 0 }
    }

    fn show(&mut self, number: u64, event: Event) -> Result<()> {
        if let Event::TurnEnded { state, .. } = &event {
            self.code = if *state == TurnState::Completed { 0 } else { exit::FAILED };
        }
        match self.json {
            true => output::json_line(&serde_json::json!({ "id": number, "event": event })),
            false => self.event(event),
        }
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::TurnStarted { conversation_id, .. } => {
                self.aside(&format!("conversation {conversation_id}"))
            }
            Event::SandboxReady { cold: true, version, duration_ms } => match version {
                Some(version) => {
                    self.aside(&format!("sandbox restored from version {version}, {duration_ms} ms"))
                }
                None => self.aside(&format!("sandbox made, {duration_ms} ms")),
            },
            Event::Text { text, stderr: false } => {
                self.open_line = !text.ends_with('\n');
                match &mut self.stdout {
                    Some(screen) => output::raw(screen.show(text.as_bytes()).as_bytes()),
                    None => output::raw(text.as_bytes()),
                }
            }
            Event::Text { text, stderr: true } => {
                match &mut self.stderr {
                    Some(screen) => output::error_raw(screen.show(text.as_bytes()).as_bytes()),
                    None => output::error_raw(text.as_bytes()),
                }
                Ok(())
            }
            Event::ToolCall { name, input, .. } => {
                let called = format!("{name} {}", short(&input.to_string()));
                self.aside(&output::printable(&called))
            }
            Event::ToolResult { is_error: true, output, .. } => {
                let failed = format!("failed: {}", short(&output.to_string()));
                self.aside(&output::printable(&failed))
            }
            Event::Notice { text } => self.aside(&text),
            Event::AgentEnded { exit_code: Some(code), .. } if code != 0 => {
                self.aside(&format!("exited with {code}"))
            }
            Event::WorkspacePushed { version, files_uploaded, .. } => {
                let files = if files_uploaded == 1 { "file" } else { "files" };
                self.aside(&format!("{files_uploaded} {files} saved as version {version}"))
            }
            Event::WorkspaceUnsynced { error } => {
                self.aside(&format!("the files are not in the bucket yet, and the sandbox is kept: {error}"))
            }
            Event::TurnEnded { state, error, usage, stats, .. } => {
                self.ended(state, error, usage, stats.messages_exchanged)
            }
            _ => Ok(()),
        }
    }

    fn ended(&mut self, state: TurnState, error: Option<String>, usage: Usage, messages: u64) -> Result<()> {
        if usage != Usage::default() {
            let Usage { input_tokens, output_tokens, cache_tokens } = usage;
            self.aside(&format!(
                "tokens: {input_tokens} in, {output_tokens} out, {cache_tokens} cached; {messages} messages"
            ))?;
        }
        match error {
            Some(error) => self.aside(&format!("{state}: {error}")),
            None => self.end_line(),
        }
    }

    fn aside(&mut self, text: &str) -> Result<()> {
        self.end_line()?;
        output::aside(text);
        Ok(())
    }

    fn end_line(&mut self) -> Result<()> {
        if let Some(screen) = &mut self.stderr {
            output::error_raw(screen.end().as_bytes());
        }
        if let Some(screen) = &mut self.stdout {
            output::raw(screen.end().as_bytes())?;
        }
        if std::mem::take(&mut self.open_line) {
            output::raw(b"\n")?;
        }
        Ok(())
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
