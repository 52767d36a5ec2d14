//! Hooks: what runs at a cold start, with a message, at the end of a stream, before a sandbox ends.
//!
//! Each kind has a default (H3) and what its template adds, before, after or instead. Cold starts are critical: their
//! failure fails what they belong to. The others are logged, and life goes on (H2). Each run has a timeout, is logged
//! (H5) and recorded.

use crate::{
    Error, Result, Sandboxes,
    exec::ExecRequest,
    ports::{
        Clock,
        store::{HookOutcome, HookRun, HookRuns, Outbox, SandboxRows, Task},
    },
    templates::{HookPart, Template, When},
};
use async_trait::async_trait;
use futures::future::BoxFuture;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, HookRunId, SandboxId, TurnId,
    conversation::{Message, TurnState, Usage},
    files::FileRef,
    sandbox::EndReason,
};
use serde_json::{Map, Value, json};
use std::{fmt, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout};

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
}

/// How long a default may take: restoring a large workspace takes its time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);
/// Of metadata that a command writes.
const MAX_NOTES: u64 = 64 << 10;
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
    /// V6: where metadata is. None: hooks change none.
    rows: Option<Arc<dyn SandboxRows>>,
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
        Hooks { runs, outbox, sandboxes, clock, own: Vec::new(), rows: None }
    }

    /// Adds one that runs after the default, for every template.
    pub fn with(mut self, hook: Arc<dyn Hook>) -> Hooks {
        self.own.push(hook);
        self
    }

    /// V6: hooks may change the metadata of their sandbox.
    pub fn with_metadata(mut self, rows: Arc<dyn SandboxRows>) -> Hooks {
        self.rows = Some(rows);
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
        for part in parts.iter().filter(|part| part.when == When::Before) {
            self.part(context, moment, part).await?;
        }
        let replaced = parts.iter().any(|part| part.when == When::Instead);
        if let Some(default) = default.filter(|_| !replaced) {
            self.one(context, kind, "default", kind.is_critical(), DEFAULT_TIMEOUT, default).await?;
        }
        for hook in self.own.iter().filter(|hook| hook.kind() == kind) {
            let work = async {
                hook.run(context, moment).await?;
                self.merge(context, hook.metadata(context, moment)).await
            };
            self.one(context, kind, hook.name(), hook.is_critical(), hook.timeout(), work).await?;
        }
        for part in parts.iter().filter(|part| part.when != When::Before) {
            self.part(context, moment, part).await?;
        }
        Ok(())
    }

    async fn part(&self, context: &HookContext, moment: &Moment, part: &HookPart) -> Result<()> {
        let kind = moment.kind();
        let critical = part.critical || kind.is_critical();
        let limit = Duration::from_secs(part.timeout_seconds);
        match (&part.run, &part.webhook) {
            (Some(run), _) => {
                let work = self.command(context, moment, run, limit);
                self.one(context, kind, run, critical, limit + GRACE, work).await
            }
            (None, Some(url)) => {
                let work = self.webhook(context, moment, url, part.secret_env.as_deref());
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
        self.record(context, kind, began, done.as_ref().err().map(Error::chain));
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
    fn record(&self, context: &HookContext, kind: HookKind, began: jiff::Timestamp, error: Option<String>) {
        let run = HookRun {
            id: HookRunId::generate(),
            kind: kind.as_str().to_owned(),
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

    /// In the sandbox, with what it is about in its environment.
    async fn command(
        &self,
        context: &HookContext,
        moment: &Moment,
        run: &str,
        limit: Duration,
    ) -> Result<()> {
        let mut request = ExecRequest::new(["/bin/sh", "-c", run]);
        request.start.env = environment(context, moment);
        let notes = format!("/tmp/.seawall-metadata-{}", HookRunId::generate());
        request.start.env.push(("SEAWALL_METADATA".to_owned(), notes.clone()));
        request.start.timeout_ms = Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        request.max_output = 64 << 10;
        let output = self.sandboxes.exec(context.sandbox, request).await?;
        match output.status.success() {
            true => self.merge(context, self.noted(context, &notes).await?).await,
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                let said: String = said.trim().chars().take(MAX_SAID).collect();
                Err(Error::new(ErrorKind::ExecFailed, format!("the command {}: {said}", output.status)))
            }
        }
    }

    /// V6: what a command wrote into the file that `SEAWALL_METADATA` names.
    async fn noted(&self, context: &HookContext, file: &str) -> Result<Map<String, Value>> {
        let guest = self.sandboxes.guest(context.sandbox).await?;
        let bytes = match guest.read_all(FileRef::new(file), MAX_NOTES).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Map::new()),
            Err(error) => return Err(error.into()),
        };
        // It has been read; where it stays it hurts nobody.
        let _ = guest.remove(FileRef::new(file), false).await;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::invalid("what the hook wrote into $SEAWALL_METADATA is no JSON object").with_source(error)
        })
    }

    async fn merge(&self, context: &HookContext, changes: Map<String, Value>) -> Result<()> {
        let Some(rows) = self.rows.as_ref().filter(|_| !changes.is_empty()) else { return Ok(()) };
        if let Some(key) = changes.keys().find(|key| is_own_key(key)) {
            return Err(Error::invalid(format!("`{key}` is the service's own; choose another key")));
        }
        rows.merge_metadata(context.account, context.sandbox, &changes).await.map(drop)
    }

    /// By the outbox: it arrives, however often it has to be tried.
    async fn webhook(
        &self,
        context: &HookContext,
        moment: &Moment,
        url: &str,
        secret_env: Option<&str>,
    ) -> Result<()> {
        let now = self.clock.now();
        let task = Task::CallWebhook {
            account: context.account,
            url: url.to_owned(),
            secret_env: secret_env.map(str::to_owned),
            id: HookRunId::generate().to_string(),
            body: body(context, moment, now).to_string(),
        };
        self.outbox.add(&task, now).await.map(drop)
    }
}

/// Keys of metadata that only the service sets.
pub(crate) fn is_own_key(key: &str) -> bool {
    matches!(key, "ready" | "last_synced_at" | "lives") || key.starts_with("total_")
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
