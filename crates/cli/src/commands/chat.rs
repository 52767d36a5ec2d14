//! `seawall chat`: a prompt goes in, the answer streams out. And the process that runs the turn.

use crate::{
    app::App,
    duration, exit, input,
    output::{self, Screen},
    signals::Signals,
    turns,
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use seawall_api::{
    AccountId, ConversationId, ProcessId, SandboxId, TurnId,
    conversation::{TurnState, Usage},
    event::Event,
};
use seawall_core::{
    Turns,
    ports::store::Page,
    turns::{Choice, Followed, TurnAsk},
};
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

    /// The sandbox to use; an id that is not known is made
    #[arg(long, value_name = "ID")]
    pub sandbox: Option<SandboxId>,

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

const LOOK_AFTER: Duration = Duration::from_secs(2);
const LOOK_SELDOM: Duration = Duration::from_secs(60);
/// For what comes after a turn's end: the outbox.
const LAST_WORDS: Duration = Duration::from_secs(130);

#[derive(Debug, Args)]
pub struct RunTurnArgs {
    pub turn: TurnId,
}

pub async fn chat(app: &App, args: &ChatArgs) -> Result<i32> {
    let account = turns::account(app).await?;
    let turns = turns::open(app).await?;
    if args.cancel {
        return cancel(app, &turns, account, args).await;
    }
    let prompt = prompt(args).await?;
    let turn = match (prompt.is_empty(), args.conversation) {
        (true, Some(conversation)) => last_turn(app, account, conversation).await?,
        (true, None) => bail!(nothing_said()),
        (false, _) => {
            let begun = turns.begin(account, ask(args, prompt)).await?;
            turns::run_apart(app, begun.turn.id)?;
            begun.turn.id
        }
    };
    show(app, &turns, account, turn).await
}

/// What was said; nothing where only a look is wanted.
pub async fn prompt(args: &ChatArgs) -> Result<String> {
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

pub fn nothing_said() -> exit::Usage {
    exit::Usage("say what the agent shall do: seawall chat 'PROMPT'".to_owned())
}

fn ask(args: &ChatArgs, prompt: String) -> TurnAsk {
    TurnAsk {
        conversation: args.conversation,
        sandbox: match (args.sandbox, args.relink) {
            (None, _) => Choice::Auto,
            (Some(id), false) => Choice::This(id),
            (Some(id), true) => Choice::Relink(id),
        },
        prompt,
        agent_id: args.agent.clone(),
        organization_id: None,
        template: args.template.clone(),
        wait: args.wait.unwrap_or_default(),
        withdrawn: None,
    }
}

async fn last_turn(app: &App, account: AccountId, conversation: ConversationId) -> Result<TurnId> {
    app.stores.conversations.get(account, conversation).await?;
    let turns = app.stores.turns.list(account, conversation, &Page::first(1)).await?;
    let last = turns.items.first().map(|turn| turn.id);
    last.context("nothing was said in this conversation yet")
}

async fn cancel(app: &App, turns: &Turns, account: AccountId, args: &ChatArgs) -> Result<i32> {
    let Some(conversation) = args.conversation else { return Ok(exit::USAGE) };
    let id = last_turn(app, account, conversation).await?;
    let turn = app.stores.turns.get(account, id).await?;
    // Whoever runs the turn hears of it, also where its agent does not run yet.
    ensure!(turns.cancel_turn(account, id).await?, "no turn of this conversation runs");
    // And at once where it does.
    if let Some(sandbox) = turn.sandbox_id
        && let Ok(guest) = app.sandboxes.guest(sandbox).await
    {
        let _ = guest.kill(ProcessId::try_from(id.as_uuid())?).await;
    }
    Ok(0)
}

async fn show(app: &App, turns: &Turns, account: AccountId, turn: TurnId) -> Result<i32> {
    let mut signals = Signals::listen()?;
    let mut followed = turns.follow(account, turn, 0).await?;
    let mut view = View::new(app.json);
    // Should the process that runs it be killed, somebody has to take it up.
    let looking_after = async {
        let mut pause = LOOK_AFTER;
        loop {
            tokio::time::sleep(pause).await;
            // Where processes cannot live, e.g. on a full disk, more of them help nobody.
            pause = (pause * 2).min(LOOK_SELDOM);
            if let Err(error) = turns::take_up(app).await {
                tracing::warn!(error = %format!("{error:#}"), "turns could not be looked after");
            }
        }
    };
    tokio::select! {
        shown = view.all(&mut followed) => shown,
        () = looking_after => Ok(exit::FAILED),
        signal = signals.next() => {
            view.end_line()?;
            let conversation = app.stores.turns.get(account, turn).await?.conversation_id;
            goes_on(conversation);
            Ok(exit::by_signal(signal))
        }
    }
}

/// Whoever looks away may look again.
pub fn goes_on(conversation: ConversationId) {
    output::note(format!("the turn goes on; see it again with: seawall chat -c {conversation}"));
}

/// What a person sees: the answer on stdout, all else on stderr.
pub struct View {
    json: bool,
    /// Where that is a terminal. Elsewhere the answer is passed on as it is.
    stdout: Option<Screen>,
    stderr: Option<Screen>,
    open_line: bool,
    /// The exit code, as far as it is known.
    pub code: i32,
}

impl View {
    pub fn new(json: bool) -> View {
        let stdout = std::io::stdout().is_terminal().then(Screen::default);
        let stderr = std::io::stderr().is_terminal().then(Screen::default);
        View { json, stdout, stderr, open_line: false, code: 0 }
    }

    async fn all(&mut self, followed: &mut Followed) -> Result<i32> {
        while let Some((number, event)) = followed.next().await? {
            self.show(number, event)?;
        }
        Ok(self.code)
    }

    pub fn show(&mut self, number: u64, event: Event) -> Result<()> {
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

    pub fn end_line(&mut self) -> Result<()> {
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

/// Apart from the terminal that asked for it, to the turn's end.
pub async fn run_turn(app: &App, args: &RunTurnArgs) -> Result<i32> {
    // A session of its own: no terminal's end reaches it. It fails only where that is so already.
    let _ = rustix::process::setsid();
    let turns = turns::open(app).await?;
    if let Some(account) = account_of(app, args.turn).await? {
        turns.spawn(account, app.stores.turns.get(account, args.turn).await?);
        tokio::select! {
            () = turns.idle() => {}
            // Whatever this process still waits for, it waits for nothing.
            () = is_over(app, account, args.turn) => {}
        }
    }
    Ok(0)
}

/// The account of a turn that runs.
async fn account_of(app: &App, turn: TurnId) -> Result<Option<AccountId>> {
    let mut page = Page::first(500);
    loop {
        let running = app.stores.turns.running(&page).await?;
        if let Some(found) = running.items.iter().find(|running| running.id == turn) {
            return Ok(Some(found.account_id));
        }
        match running.next {
            Some(next) => page = Page::first(500).after(next),
            None => return Ok(None),
        }
    }
}

/// A while after somebody, here or elsewhere, ended the turn.
async fn is_over(app: &App, account: AccountId, turn: TurnId) {
    loop {
        tokio::time::sleep(LOOK_AFTER).await;
        if app.stores.turns.get(account, turn).await.is_ok_and(|turn| turn.state != TurnState::Running) {
            tokio::time::sleep(LAST_WORDS).await;
            return;
        }
    }
}
