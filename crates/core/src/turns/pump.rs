//! From the agent's output to stored events, and no byte acknowledged before.

use super::{
    answer::Answer,
    cancel::{CANCEL, Cancel},
    run::Runner,
    usage::changed,
};
use crate::{
    Error, Result,
    agents::{AgentAsk, AgentCommand, Driver, Parser, SessionPlace},
    persist::persist,
    ports::{gateway::Access, store::Page},
    repositories,
    templates::PROGRAM_DIR,
    tunnels::{Expose, Serve},
};
use futures::FutureExt;
use seawall_api::{
    ErrorKind, ProcessId,
    conversation::TurnState,
    event::Event,
    exec::{ExitReason, ExitStatus, StartProcess, WhenFull},
    files::{FileRef, ListDir, WriteFile, WriteMode},
    message::Attach,
    sandbox::{EndReason, SandboxState, WORKDIR},
};
use seawall_wire::{Guest, Process, ProcessOutput};
use std::{sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

/// How the agent's work came out.
pub(super) struct Pumped {
    pub state: TurnState,
    pub error: Option<String>,
}

/// Events of one write, and bytes of output that they come from.
const BATCH: usize = 256;
const BATCH_BYTES: u64 = 256 << 10;
/// Where Codex keeps its sessions: a folder for the year, the month, the day.
const SESSION_DEPTH: u32 = 5;
const SESSION_PAGE: u32 = 500;
/// How far back the agent's session is looked for.
const TURNS_BACK: u32 = 20;
const PORT_TRIES: u32 = 40;
const PORT_PAUSE: Duration = Duration::from_millis(100);
/// Stdin from a file: whoever takes a turn up again has nothing to write. Folders of agents are made.
const WRAPPER: &str = r#"for dir in "$CLAUDE_CONFIG_DIR" "$CODEX_HOME"; do [ -z "$dir" ] || mkdir -p "$dir"; done; exec "$@" < "$0""#;

impl Runner {
    fn process(&self) -> Result<ProcessId> {
        ProcessId::try_from(self.id().as_uuid())
            .map_err(|error| Error::internal("a turn without an id").with_source(error))
    }

    pub(super) async fn start_agent(&mut self) -> Result<Pumped> {
        let driver = self.template().driver()?;
        let guest = self.turns.inner.service.sandboxes.guest(self.sandbox()).await?;
        let boot = guest.info().await?.boot;
        let session = self.continued(&*driver, &guest).await?;
        let exposed = self.expose(0).await?;
        let port = exposed.as_ref().map(|exposed| exposed.port);
        self.clone_repository(port).await?;
        if self.is_cancelled() {
            return Ok(Pumped::cancelled());
        }
        let command = driver.command(&self.ask(session, port).await?)?;
        let start = self.start_process(&guest, command, port).await?;
        let agent = driver.name().to_owned();
        self.store(vec![Event::AgentStarted { agent, port, boot }], 0).await?;
        let process = guest.start(start).await?;
        let parser = driver.parser();
        let pumped = self.pump(&guest, process, parser).await;
        drop(exposed);
        pumped
    }

    /// H7: clones the repository of the template, unless the workspace has one.
    async fn clone_repository(&self, port: Option<u16>) -> Result<()> {
        let (Some(git), Some(port)) = (&self.template().git, port) else { return Ok(()) };
        let cancelled = self.wanted.cancelled.clone();
        repositories::clone(&self.turns.inner.service.sandboxes, self.sandbox(), git, port, cancelled).await
    }

    async fn ask(&self, session: Option<String>, port: Option<u16>) -> Result<AgentAsk> {
        let template = self.template();
        let program = match template.program()? {
            Some(folder) => Some(match self.turns.inner.service.isolates(self.sandbox()).await? {
                true => PROGRAM_DIR.to_owned(),
                false => folder.display().to_string(),
            }),
            None => None,
        };
        Ok(AgentAsk {
            prompt: self.prompt.clone(),
            session,
            model: template.agent.model.clone(),
            system_prompt: template.agent.system_prompt.clone(),
            port,
            program,
            args: template.agent.args.clone(),
        })
    }

    async fn start_process(
        &self,
        guest: &Guest,
        command: AgentCommand,
        port: Option<u16>,
    ) -> Result<StartProcess> {
        let mut args = command.args;
        if let Some(stdin) = command.stdin {
            let path = format!("/tmp/.seawall-prompt-{}", self.id());
            let write = WriteFile {
                file: FileRef::new(path.as_str()),
                mode: WriteMode::Replace,
                permissions: Some(0o600),
                mtime: None,
                parents: true,
                max_size: None,
            };
            guest.write_all(write, &stdin).await?;
            let wrapped = ["/bin/sh", "-c", WRAPPER, &path].map(str::to_owned);
            args = wrapped.into_iter().chain(args).collect();
        }
        let template = self.template();
        let mut start = StartProcess::new(args);
        start.process = self.process()?;
        start.env = command.env;
        start.env.extend(template.agent.env.clone());
        if let (Some(git), Some(port)) = (&template.git, port) {
            start.env.extend(git.environment(port));
        }
        start.cwd = Some(WORKDIR.to_owned());
        start.when_full = WhenFull::Block;
        start.timeout_ms = Some(u64::try_from(template.timeout().as_millis()).unwrap_or(u64::MAX));
        start.tag = Some("turn".to_owned());
        Ok(start)
    }

    /// The server on the box's loopback, where the agent needs it.
    async fn expose(&mut self, port: u16) -> Result<Option<Expose>> {
        let inner = self.turns.inner.clone();
        let ids = (self.conversation.id, self.id(), self.sandbox());
        let counted = self.answer.passed();
        let Some(access) = inner.access(self.wanted.account, ids, self.template(), counted).await? else {
            return Ok(None);
        };
        let gateway = inner.gateway.clone();
        let gateway = gateway.ok_or_else(|| Error::unavailable("this server speaks to no models"))?;
        let access: Arc<Access> = Arc::new(access);
        self.meter = Some(access.meter.clone());
        self.tokens = access.models.as_ref().map(|models| models.tokens.clone());
        let serve: Serve = Arc::new(move |connection| {
            let (gateway, access) = (gateway.clone(), access.clone());
            async move { gateway.serve(connection, access).await }.boxed()
        });
        for _ in 0..PORT_TRIES {
            match inner.service.sandboxes.serve_port(self.sandbox(), port, serve.clone()).await {
                // The listener of the server before us is just going.
                Err(error) if port != 0 && error.kind() == ErrorKind::Conflict => sleep(PORT_PAUSE).await,
                other => return other.map(Some),
            }
        }
        Err(Error::unavailable(format!("port {port} of the sandbox is taken, and the agent needs it")))
    }

    /// The agent's session of an earlier turn, where its files are there.
    async fn continued(&self, driver: &dyn Driver, guest: &Guest) -> Result<Option<String>> {
        if driver.api().is_none() {
            return Ok(None);
        }
        let before = self.before().await?;
        let Some(session) = before.iter().find_map(|answer| answer.session.clone()) else { return Ok(None) };
        match driver.session_file(&session) {
            Some(place) if is_there(guest, &place).await => Ok(Some(session)),
            _ => Ok(None),
        }
    }

    /// Earlier turns of the same kind, the latest first.
    pub(super) async fn before(&self) -> Result<Vec<Answer>> {
        let (turns, account) = (&self.turns, self.wanted.account);
        let store = &turns.inner.stores.turns;
        let found = store.list(account, self.conversation.id, &Page::first(TURNS_BACK)).await?;
        let name = &self.template().name;
        let mut all = Vec::new();
        for turn in found.items {
            if turn.number < self.turn.number && turn.template.as_ref() == Some(name) {
                all.push(turns.folded_briefly(account, turn.id).await?);
            }
        }
        Ok(all)
    }

    /// After a crash of the server: the agent may still be at it.
    pub(super) async fn resume(&mut self) -> Result<Pumped> {
        let started = self.answer.started.clone().unwrap_or_default();
        let sandboxes = self.turns.inner.service.sandboxes.clone();
        let gone = || Pumped {
            state: TurnState::Interrupted,
            error: Some("the server and the sandbox went down while the agent was at work".to_owned()),
        };
        let state = match persist(|| sandboxes.get(self.sandbox())).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(gone()),
            state => state?.state,
        };
        if state != SandboxState::Running {
            self.end_paused(state).await?;
            return Ok(gone());
        }
        let guest = persist(|| sandboxes.guest(self.sandbox())).await?;
        let boot = persist(|| async { Ok(guest.info().await?.boot) }).await?;
        if boot != started.boot {
            return Ok(gone());
        }
        let driver = self.template().driver()?;
        let session = self.continued(&*driver, &guest).await?;
        let exposed = match started.port {
            Some(port) => self.expose(port).await?,
            None => None,
        };
        let from = self.turn.output_offset;
        let attach = Attach { process: self.process()?, from, hold: true, follow: true };
        tracing::info!(turn = %self.id(), sandbox = %self.sandbox(), from, "a turn is taken up again");
        let process = match guest.attach(attach).await {
            // The server died before it started the agent.
            Err(error) if error.kind() == ErrorKind::NotFound && from == 0 => {
                let command = driver.command(&self.ask(session, started.port).await?)?;
                guest.start(self.start_process(&guest, command, started.port).await?).await?
            }
            attached => attached?,
        };
        let mut parser = driver.parser();
        self.replay(&mut *parser).await?;
        let pumped = self.pump(&guest, process, parser).await;
        drop(exposed);
        pumped
    }

    async fn replay(&self, parser: &mut dyn Parser) -> Result<()> {
        let mut followed = 0;
        loop {
            let events = self.turns.some_events(self.wanted.account, self.id(), followed, None).await?;
            let Some(last) = events.last() else { return Ok(()) };
            followed = last.number + 1;
            for event in &events {
                if let Ok(event) = serde_json::from_slice(&event.data) {
                    parser.replay(&event);
                }
            }
        }
    }

    /// Reads to the end. What was read is stored, then acknowledged.
    async fn pump(
        &mut self,
        guest: &Guest,
        mut process: Process,
        mut parser: Box<dyn Parser>,
    ) -> Result<Pumped> {
        process.set_manual_ack(true);
        let mut cancel = Cancel::new(self.turns.live(self.id()).cancel.subscribe());
        let mut metered = self.meter.as_ref().map(|meter| meter.subscribe());
        let mut acknowledged = process.offset();
        loop {
            let next = tokio::select! {
                next = process.next() => next,
                // An agent that prints nothing is counted all the same, also where this server dies.
                () = changed(&mut metered) => {
                    if let Some(event) = self.passed() {
                        self.store(vec![event], self.turn.output_offset).await?;
                    }
                    continue;
                }
                () = cancel.due() => {
                    cancel.kill(guest, process.id()).await;
                    continue;
                }
            };
            let (mut events, begun) = (Vec::new(), process.offset());
            let mut ended = match next {
                Ok(output) => take(&mut *parser, output, &mut events),
                Err(error) => return self.lost(error).await,
            };
            // What is there already goes into the same write.
            while ended.is_none() && events.len() < BATCH && process.offset() - begun < BATCH_BYTES {
                let Some(Ok(output)) = process.next().now_or_never() else { break };
                ended = take(&mut *parser, output, &mut events);
            }
            if let Some(status) = ended {
                return self.ended(&status, parser, events, cancel.asked, process).await;
            }
            if !self.room.holds(parser.held()) {
                parser.pass_over(&mut events);
            }
            // What is before it is in events, or was stderr, which no event tells.
            let offset = process.offset().saturating_sub(parser.unread() as u64);
            if !events.is_empty() {
                self.store(events, offset).await?;
                self.turn.output_offset = offset;
            }
            if offset > acknowledged {
                acknowledged = offset;
                // On a wire that broke it is said again when that is mended.
                let _ = process.ack(offset).await;
            }
        }
    }

    /// What the turn cannot go on with does not go on without it.
    pub(super) async fn kill_agent(&self) {
        if self.answer.started.is_none() {
            return;
        }
        let killed = async {
            let guest = self.turns.inner.service.sandboxes.guest(self.sandbox()).await?;
            Ok::<_, Error>(guest.kill(self.process()?).await?)
        };
        if let Ok(Err(error)) = timeout(CANCEL, killed).await {
            tracing::warn!(turn = %self.id(), error = %error.chain(), "the agent could not be ended");
        }
    }

    async fn ended(
        &mut self,
        status: &ExitStatus,
        mut parser: Box<dyn Parser>,
        mut events: Vec<Event>,
        cancelled: bool,
        mut process: Process,
    ) -> Result<Pumped> {
        let outcome = parser.finish(status, &mut events);
        // Whoever kills the agent from outside means the same.
        let (state, error) = match cancelled || status.reason == ExitReason::Killed {
            true => (TurnState::Cancelled, Pumped::cancelled().error),
            false if status.reason == ExitReason::Stopped => {
                (TurnState::Interrupted, Some("the sandbox was stopped".to_owned()))
            }
            false => (outcome.state, outcome.error),
        };
        events.extend(self.passed());
        // As a shell has it: 128 and the signal.
        let exit_code = status.code.or(status.signal.map(|signal| 128 + signal));
        events.push(Event::AgentEnded { state, error: error.clone(), exit_code });
        self.turn.output_offset = process.offset();
        self.store(events, process.offset()).await?;
        // The guest may forget it all. If this is lost, it remembers longer than it must.
        let _ = process.ack(process.offset()).await;
        Ok(Pumped { state, error })
    }

    /// The wire to the agent is gone for good.
    /// Stops a paused sandbox whose turn ends: its agent would go on beside the next one when the sandbox is continued.
    async fn end_paused(&self, state: SandboxState) -> Result<()> {
        if state != SandboxState::Paused {
            return Ok(());
        }
        let sandboxes = &self.turns.inner.service.sandboxes;
        let stop = || sandboxes.stop_unsaved(self.sandbox(), Duration::ZERO, EndReason::Stopped);
        persist(stop).await.map(drop)
    }

    async fn lost(&mut self, error: seawall_wire::Error) -> Result<Pumped> {
        let error = Error::from(error);
        tracing::error!(turn = %self.id(), sandbox = %self.sandbox(), error = %error.chain(), "the agent cannot be reached any more");
        let there = self.turns.inner.service.sandboxes.get(self.sandbox()).await;
        if let Ok(there) = &there {
            self.end_paused(there.state).await?;
        }
        let state = TurnState::Interrupted;
        let said = match there.map(|there| (there.state, there.reason)) {
            Ok((now, Some(reason))) => format!("the sandbox is {now} ({reason})"),
            Ok((now, None)) => format!("the sandbox is {now}: {}", error.told_to(self.wanted.account)),
            Err(_) => "the sandbox is gone".to_owned(),
        };
        let error = Some(said);
        let ended = Event::AgentEnded { state, error: error.clone(), exit_code: None };
        let events = self.passed().into_iter().chain([ended]).collect();
        self.store(events, self.turn.output_offset).await?;
        Ok(Pumped { state, error })
    }
}

impl Pumped {
    pub fn cancelled() -> Pumped {
        Pumped { state: TurnState::Cancelled, error: Some("it was cancelled".to_owned()) }
    }
}

/// The status, where that was the end.
fn take(parser: &mut dyn Parser, output: ProcessOutput, events: &mut Vec<Event>) -> Option<ExitStatus> {
    match output {
        ProcessOutput::Data { stream, bytes, .. } => {
            parser.feed(stream, &bytes, events);
            None
        }
        ProcessOutput::End(status) => Some(status),
        // Dropped was only what was acknowledged before a crash, and that tells nothing.
        ProcessOutput::Gap { .. } | ProcessOutput::Reconnected | ProcessOutput::Drained => None,
    }
}

async fn is_there(guest: &Guest, place: &SessionPlace) -> bool {
    match place {
        SessionPlace::File(path) => guest.stat(FileRef::new(path.as_str()), true).await.is_ok(),
        SessionPlace::Beneath { folder, contains } => {
            let mut after = None;
            loop {
                let dir = FileRef::new(folder.as_str());
                let list = ListDir { dir, depth: SESSION_DEPTH, after: after.take(), limit: SESSION_PAGE };
                let Ok(listing) = guest.list(list).await else { return false };
                if listing.entries.iter().any(|entry| entry.path.to_string().contains(contains.as_str())) {
                    return true;
                }
                match listing.next {
                    Some(next) => after = Some(next),
                    None => return false,
                }
            }
        }
    }
}
