//! Hooks: what runs at a cold start, with a message, at the end of a stream, before a sandbox ends.
//!
//! Each kind has a default (H3) and what its template adds, before, after or instead. Cold starts are critical: their
//! failure fails what they belong to. The others are logged, and life goes on (H2). Each run has a timeout, is logged
//! (H5) and recorded.

mod notes;

use self::notes::{Files, Notes};
use crate::{
    Error, Result, Sandboxes,
    exec::{self, ExecRequest},
    ports::{
        Clock,
        store::{
            Conversations, DEFAULT_HOOK, HookOutcome, HookRun, HookRuns, Outbox, SandboxRows, Task,
            WEBHOOK_TO,
        },
    },
    templates::{HookPart, Template, When},
};
use async_trait::async_trait;
use futures::future::BoxFuture;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, HookRunId, ProcessId, SandboxId, TurnId,
    conversation::{Message, TurnState, Usage},
    sandbox::{EndReason, WORKDIR},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::{fmt, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

pub(crate) use notes::is_own_key;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HookKind {
    ColdStart,
    Message,
    StreamFinish,
    Terminate,
}

impl HookKind {
    pub const ALL: [HookKind; 4] =
        [HookKind::ColdStart, HookKind::Message, HookKind::StreamFinish, HookKind::Terminate];

    pub fn as_str(self) -> &'static str {
        match self {
            HookKind::ColdStart => "cold_start",
            HookKind::Message => "message",
            HookKind::StreamFinish => "stream_finish",
            HookKind::Terminate => "terminate",
        }
    }

    /// H2: goes by the kind.
    pub fn is_critical(self) -> bool {
        self == HookKind::ColdStart
    }
}

/// H1: what each kind has to work with.
#[derive(Debug, Clone, PartialEq)]
pub enum Moment {
    ColdStart,
    Message { message: Box<Message> },
    StreamFinish { state: TurnState, answer: Option<Box<Message>>, usage: Usage },
    Terminate { reason: EndReason },
}

impl Moment {
    pub fn kind(&self) -> HookKind {
        match self {
            Moment::ColdStart => HookKind::ColdStart,
            Moment::Message { .. } => HookKind::Message,
            Moment::StreamFinish { .. } => HookKind::StreamFinish,
            Moment::Terminate { .. } => HookKind::Terminate,
        }
    }
}

/// Where and for whom.
#[derive(Debug, Clone)]
pub struct HookContext {
    pub account: AccountId,
    pub template: Arc<Template>,
    /// None for a sandbox without one.
    pub conversation: Option<ConversationId>,
    pub turn: Option<TurnId>,
    pub sandbox: SandboxId,
    /// Where it is true, commands are cut short. None: nobody can wish that.
    pub cancelled: Option<watch::Receiver<bool>>,
}

/// A hook in Rust. See [`Hooks::with`].
#[async_trait]
pub trait Hook: Send + Sync {
    fn kind(&self) -> HookKind;

    fn name(&self) -> &str;

    fn is_critical(&self) -> bool {
        self.kind().is_critical()
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn run(&self, context: &HookContext, moment: &Moment) -> Result<()>;

    /// V6: what it puts into the sandbox's metadata after it ran; null takes a key away.
    fn metadata(&self, _context: &HookContext, _moment: &Moment) -> Map<String, Value> {
        Map::new()
    }

    /// V6: the tokens that it used, added to the totals of its conversation and sandbox after it ran. In a turn that
    /// is done once for each name.
    fn usage(&self, _context: &HookContext, _moment: &Moment) -> Usage {
        Usage::default()
    }
}

/// How long a default may take: restoring a large workspace takes its time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);
/// Of a command's output in an error.
const MAX_SAID: usize = 500;

/// Runs what belongs to a moment.
#[derive(Clone)]
pub struct Hooks {
    runs: Arc<dyn HookRuns>,
    outbox: Arc<dyn Outbox>,
    sandboxes: Sandboxes,
    clock: Arc<dyn Clock>,
    own: Vec<Arc<dyn Hook>>,
    /// V6: where metadata and totals are. None: hooks change none.
    rows: Option<Arc<dyn SandboxRows>>,
    conversations: Option<Arc<dyn Conversations>>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

impl Hooks {
    pub fn new(
        runs: Arc<dyn HookRuns>,
        outbox: Arc<dyn Outbox>,
        sandboxes: Sandboxes,
        clock: Arc<dyn Clock>,
    ) -> Hooks {
        Hooks { runs, outbox, sandboxes, clock, own: Vec::new(), rows: None, conversations: None }
    }

    /// Adds one that runs after the default, for every template.
    pub fn with(mut self, hook: Arc<dyn Hook>) -> Hooks {
        self.own.push(hook);
        self
    }

    /// V6: hooks may change the metadata of their sandbox, and add to the totals of their conversation.
    pub fn with_notes(mut self, rows: Arc<dyn SandboxRows>, conversations: Arc<dyn Conversations>) -> Hooks {
        self.rows = Some(rows);
        self.conversations = Some(conversations);
        self
    }

    /// All of a moment, in order. What comes back is the failure of a critical one.
    pub async fn run(
        &self,
        context: &HookContext,
        moment: &Moment,
        default: Option<BoxFuture<'static, Result<()>>>,
    ) -> Result<()> {
        let kind = moment.kind();
        let parts = context.template.hooks.of(kind);
        let numbered = || parts.iter().enumerate();
        for (number, part) in numbered().filter(|(_, part)| part.when == When::Before) {
            self.part(context, moment, number, part).await?;
        }
        let replaced = parts.iter().any(|part| part.when == When::Instead);
        if let Some(default) = default.filter(|_| !replaced) {
            self.one(context, kind, DEFAULT_HOOK, kind.is_critical(), DEFAULT_TIMEOUT, default).await?;
        }
        for hook in self.own.iter().filter(|hook| hook.kind() == kind) {
            let work = async {
                hook.run(context, moment).await?;
                let (metadata, usage) = (hook.metadata(context, moment), hook.usage(context, moment));
                let run = match context.turn {
                    Some(turn) => format!("{turn} {} {}", kind.as_str(), hook.name()),
                    None => HookRunId::generate().to_string(),
                };
                self.keep(context, &run, Notes { metadata, usage }).await
            };
            self.one(context, kind, hook.name(), hook.is_critical(), hook.timeout(), work).await?;
        }
        for (number, part) in numbered().filter(|(_, part)| part.when != When::Before) {
            self.part(context, moment, number, part).await?;
        }
        Ok(())
    }

    async fn part(
        &self,
        context: &HookContext,
        moment: &Moment,
        number: usize,
        part: &HookPart,
    ) -> Result<()> {
        let kind = moment.kind();
        let critical = part.critical || kind.is_critical();
        let limit = Duration::from_secs(part.timeout_seconds);
        match (&part.run, &part.webhook) {
            (Some(run), _) => {
                let work = async {
                    let process = self.process_of(context, kind, number).await?;
                    let files = Files::new(context, process);
                    let done = self.command(context, moment, run, limit, (process, number), &files).await;
                    let (wrote, notes) = self.noted(context, &files).await;
                    let kept = match done.and(notes) {
                        Ok(notes) => self.keep(context, &process.to_string(), notes).await,
                        Err(error) => Err(error),
                    };
                    // Not before all of it is kept: after a crash they are read again.
                    if wrote {
                        self.take_away(context, &files).await;
                    }
                    kept
                };
                self.one(context, kind, run, critical, limit + GRACE, work).await
            }
            (None, Some(url)) => {
                let work = self.webhook(context, moment, number, url, part.secret_env.as_deref());
                self.one(context, kind, url, critical, limit, work).await
            }
            (None, None) => Ok(()),
        }
    }

    /// One run: timed, logged, recorded. Its failure comes back where it is critical.
    async fn one(
        &self,
        context: &HookContext,
        kind: HookKind,
        name: &str,
        critical: bool,
        limit: Duration,
        work: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let (began, begun) = (self.clock.now(), Instant::now());
        let late = || Error::new(ErrorKind::Timeout, format!("it took longer than {} s", limit.as_secs()));
        let done = timeout(limit, work).await.unwrap_or_else(|_| Err(late()));
        let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let HookContext { template, conversation, sandbox, turn, .. } = context;
        let (template, conversation) = (&template.name, conversation.map(|id| id.to_string()));
        tracing::info!(hook = kind.as_str(), name, template, conversation, %sandbox, ?turn, duration_ms, ok = done.is_ok(), "hook ran");
        self.record(context, kind, name, began, done.as_ref().err().map(Error::chain));
        let Err(error) = done else { return Ok(()) };
        tracing::error!(
            hook = kind.as_str(), name, template, conversation, %sandbox, ?turn, duration_ms, critical,
            error = %error.chain(), "a hook failed"
        );
        match critical {
            true => {
                let message = format!("the hook {} of template `{template}` failed ({name})", kind.as_str());
                Err(Error::new(error.kind(), message).with_source(error))
            }
            false => Ok(()),
        }
    }

    /// For people to look at; nobody waits for it.
    fn record(
        &self,
        context: &HookContext,
        kind: HookKind,
        name: &str,
        began: jiff::Timestamp,
        error: Option<String>,
    ) {
        let run = HookRun {
            id: HookRunId::generate(),
            kind: kind.as_str().to_owned(),
            name: Some(told(name)),
            turn_id: context.turn,
            template: Some(context.template.name.clone()),
            conversation_id: context.conversation,
            sandbox_id: Some(context.sandbox),
            began_at: began,
            outcome: Some(HookOutcome { ended_at: self.clock.now(), error }),
        };
        let (runs, account) = (self.runs.clone(), context.account);
        tokio::spawn(async move {
            if let Err(error) = runs.begin(account, &run).await {
                tracing::warn!(error = %error.chain(), "a run of a hook was not recorded");
            }
        });
    }

    /// Without a turn it may run again, when it is asked for again; but not beside itself. Two who ask at once see the
    /// same list, and so come to the same id: a start of one that is there already is none.
    async fn process_of(&self, context: &HookContext, kind: HookKind, number: usize) -> Result<ProcessId> {
        if let Some(process) = named(context, kind, number)? {
            return Ok(process);
        }
        let guest = self.sandboxes.guest(context.sandbox).await?;
        let (tag, boot, all) = (tag(kind, number), guest.info().await?.boot, guest.processes().await?);
        let running = all.iter().find(|info| info.exit.is_none() && info.tag.as_ref() == Some(&tag));
        if let Some(running) = running {
            return Ok(running.process);
        }
        // Those that ended lately are listed too, so one more than they are is free. Another life of the box has other ids:
        // what a run used is counted once for each.
        for time in 0..=all.len() {
            let process = id_of(&format!("{boot} {tag} {time}"))?;
            if !all.iter().any(|info| info.process == process) {
                return Ok(process);
            }
        }
        Ok(ProcessId::generate())
    }

    /// In the sandbox, with what it is about in its environment.
    async fn command(
        &self,
        context: &HookContext,
        moment: &Moment,
        run: &str,
        limit: Duration,
        (process, number): (ProcessId, usize),
        files: &Files,
    ) -> Result<()> {
        let cancelled = || Error::new(ErrorKind::ExecFailed, "the turn was cancelled");
        let mut request = ExecRequest::new(["/bin/sh", "-c", run]);
        // Where it was begun before a crash, this is attached to it instead of a second one beside it.
        request.start.process = process;
        request.start.cwd = Some(WORKDIR.to_owned());
        request.start.tag = Some(tag(moment.kind(), number));
        request.start.env = environment(context, moment);
        request.start.env.extend(files.environment());
        request.start.timeout_ms = Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        request.max_output = 64 << 10;
        let Some(output) =
            exec::run_unless(&self.sandboxes, context.sandbox, request, context.cancelled.clone()).await?
        else {
            return Err(cancelled());
        };
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.trim().chars().take(MAX_SAID).collect();
        let said = if said.is_empty() { said } else { format!(": {said}") };
        Err(Error::new(ErrorKind::ExecFailed, format!("the command {}{said}", output.status)))
    }

    /// By the outbox: it arrives, however often it has to be tried.
    async fn webhook(
        &self,
        context: &HookContext,
        moment: &Moment,
        number: usize,
        url: &str,
        secret_env: Option<&str>,
    ) -> Result<()> {
        let now = self.clock.now();
        let task = Task::CallWebhook {
            account: context.account,
            url: url.to_owned(),
            secret_env: secret_env.map(str::to_owned),
            // Of a turn the same each time, so that a receiver can tell a repetition after a crash.
            id: named(context, moment.kind(), number)?.unwrap_or_else(ProcessId::generate).to_string(),
            body: body(context, moment, now).to_string(),
        };
        self.outbox.add(&task, now).await.map(drop)
    }
}

/// By which a command is found again.
fn tag(kind: HookKind, number: usize) -> String {
    format!("hook {} {number}", kind.as_str())
}

/// Of a turn the same each time: whoever takes it up after a crash finds what was begun before.
fn named(context: &HookContext, kind: HookKind, number: usize) -> Result<Option<ProcessId>> {
    let Some(turn) = context.turn else { return Ok(None) };
    id_of(&format!("{turn} {} {number}", kind.as_str())).map(Some)
}

fn id_of(name: &str) -> Result<ProcessId> {
    let hash = Sha256::digest(name);
    let id: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    id.parse().map_err(|error| Error::internal("a hook without an id").with_source(error))
}

/// As the account's people may see it: of a webhook the server alone, since addresses may be secrets.
fn told(name: &str) -> String {
    let address = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://"));
    match address.and_then(|rest| rest.split(['/', '?', '#']).next()) {
        Some(place) => format!("{WEBHOOK_TO}{}", place.rsplit('@').next().unwrap_or_default()),
        None => name.chars().take(MAX_SAID).collect(),
    }
}

/// What a command gets beyond its own timeout before it counts as stuck.
const GRACE: Duration = Duration::from_secs(15);

fn environment(context: &HookContext, moment: &Moment) -> Vec<(String, String)> {
    let mut all = vec![
        ("SEAWALL_HOOK".to_owned(), moment.kind().as_str().to_owned()),
        ("SEAWALL_SANDBOX".to_owned(), context.sandbox.to_string()),
        ("SEAWALL_TEMPLATE".to_owned(), context.template.name.clone()),
    ];
    if let Some(conversation) = context.conversation {
        all.push(("SEAWALL_CONVERSATION".to_owned(), conversation.to_string()));
    }
    if let Some(turn) = context.turn {
        all.push(("SEAWALL_TURN".to_owned(), turn.to_string()));
    }
    if let Moment::StreamFinish { state, .. } = moment {
        all.push(("SEAWALL_TURN_STATE".to_owned(), state.to_string()));
    }
    all
}

fn body(context: &HookContext, moment: &Moment, now: jiff::Timestamp) -> Value {
    let mut body = json!({
        "type": moment.kind().as_str(),
        "at": now,
        "template": context.template.name,
        "sandbox_id": context.sandbox,
        "conversation_id": context.conversation,
        "turn_id": context.turn,
    });
    match moment {
        Moment::ColdStart => {}
        Moment::Message { message } => body["message"] = json!(message),
        Moment::StreamFinish { state, answer, usage } => {
            body["state"] = json!(state);
            body["answer"] = json!(answer);
            body["usage"] = json!(usage);
        }
        Moment::Terminate { reason } => body["reason"] = json!(reason),
    }
    body
}
