//! Running a turn, from whatever is stored of it to its end.
//!
//! The stored events tell how far a turn is, so a runner that takes up a turn continues like this:
//!
//! | last stored event or row | next step |
//! | --- | --- |
//! | the turn, `turn_started`, `sandbox_ready` | ensure the sandbox, start the agent |
//! | `agent_started` | same boot of the guest: attach to the process with the turn's id, or start it if no output was read; another boot, or no box: `interrupted` |
//! | events of the agent | replay the events to the parser, attach at the stored offset |
//! | `agent_ended` | run the `stream_finish` hooks and the push |
//! | `workspace_pushed`, `workspace_unsynced` | close the turn |
//! | the usage row | none: the turn has ended |
//!
//! `agent_started`, with the guest's boot id and the gateway's port, is stored before the program starts. Events and
//! the output offset are one transaction of up to 256 events, so no output is read twice. The final event is made
//! from rows when a client reads it.

use super::{
    Turns,
    answer::Answer,
    encoded, first_event,
    hold::{Found, Held, LEASE},
    pump::Pumped,
    room::{Room, Stores},
};
use crate::{
    Error, Result,
    hooks::Moment,
    persist::persist,
    ports::{
        gateway::Meter,
        store::{Fence, Lease, Page},
    },
    service::{Wanted, told},
    templates::Template,
    tokens::TurnTokens,
};
use bytes::Bytes;
use futures::FutureExt;
use seawall_api::{
    AccountId, ErrorKind, SandboxId, TurnId,
    conversation::{Conversation, Message, Role, Turn, TurnState},
    event::Event,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tracing::Instrument as _;

const RENEW: Duration = Duration::from_secs(8);
/// Between looks at whether somebody wants the turn's end.
const LISTEN: Duration = Duration::from_secs(1);
/// Beyond a turn's own time: until then its sandbox does not end by itself.
const SLACK: Duration = Duration::from_secs(600);
/// How long a guest may take to hear of that.
const TELL: Duration = Duration::from_secs(5);

/// One turn, in the hands of whoever has its claim.
pub(super) struct Runner {
    pub turns: Turns,
    pub wanted: Wanted,
    pub turn: Turn,
    pub conversation: Conversation,
    pub prompt: String,
    pub answer: Answer,
    pub room: Room,
    /// How many events are stored.
    pub stored: u64,
    /// Events that are stored with the next ones.
    early: Vec<Event>,
    pub fence: Fence,
    /// This process began it just now.
    is_new: bool,
    /// Its guest hears of the turn.
    telling: Option<JoinHandle<()>>,
    /// What passed to models, as the server saw it.
    pub meter: Option<Arc<Meter>>,
    /// The turn's part of its account's token budget. `None` where its agent needs no model.
    pub tokens: Option<TurnTokens>,
}

/// Who ran the turn.
enum Ran {
    Here,
    Elsewhere,
}

/// Ends with whoever runs the turn.
struct Renewing(JoinHandle<()>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Turns {
    /// Runs a turn to its end, unless somebody else does.
    pub(super) async fn run(&self, account: AccountId, turn: Turn, held: Option<Held>) -> Result<()> {
        let id = turn.id;
        let ran = async {
            let Some(Held { claim, lease, known }) = self.held(id, held).await? else {
                return Ok(Ran::Elsewhere);
            };
            let renewing = Renewing(self.renew(account, id, lease.clone()));
            let ran = self.run_held(account, turn, lease.fence(), known).await;
            drop(renewing);
            // Where that fails it ends by itself.
            let _ = self.inner.stores.leases.release(&lease).await;
            drop(claim);
            // What waits for its store is brought there now; what fails stays in the outbox (M5).
            if let Err(error) = self.inner.courier.round().await {
                tracing::warn!(error = %error.chain(), "the outbox could not be looked at");
            }
            ran.map(|()| Ran::Here)
        };
        let ran = ran.await;
        match &ran {
            // Another task of this process may have it, and be listened to.
            Ok(Ran::Elsewhere) => self.over_unless_run(id),
            _ => self.over(id),
        }
        ran.map(drop)
    }

    async fn run_held(
        &self,
        account: AccountId,
        turn: Turn,
        fence: Fence,
        known: Option<(Conversation, String, Room)>,
    ) -> Result<()> {
        let is_new = known.is_some();
        let found = match known {
            Some((conversation, prompt, room)) => {
                Some(Found { turn, conversation, answer: Answer::default(), room, prompt })
            }
            None => persist(|| self.found(account, turn.id)).await?,
        };
        match found {
            Some(found) => self.runner(account, found, fence, is_new).await,
            None => Ok(()),
        }
    }

    /// Keeps the lease, and listens for a wish to end the turn that came to another process.
    fn renew(&self, account: AccountId, turn: TurnId, lease: Lease) -> JoinHandle<()> {
        let leases = self.inner.stores.leases.clone();
        let (turns, cancel) = (self.inner.stores.turns.clone(), self.live(turn).cancel);
        tokio::spawn(async move {
            let mut renewed = Instant::now();
            loop {
                sleep(LISTEN).await;
                if turns.get(account, turn).await.is_ok_and(|turn| turn.cancelling) {
                    cancel.send_replace(true);
                }
                if renewed.elapsed() < RENEW {
                    continue;
                }
                renewed = Instant::now();
                // A database that is down now may be back in time; writes are fenced anyhow.
                if let Ok(false) = leases.renew(&lease, LEASE).await {
                    tracing::warn!(lease = lease.name, "a lease was lost");
                    return;
                }
            }
        })
    }

    /// Whether the turn before this one of its conversation ran in another sandbox.
    async fn was_elsewhere(&self, account: AccountId, turn: &Turn, sandbox: SandboxId) -> Result<bool> {
        let turns = self.inner.stores.turns.list(account, turn.conversation_id, &Page::first(2)).await?;
        let before = turns.items.iter().find(|other| other.id != turn.id);
        Ok(before.and_then(|before| before.sandbox_id).is_some_and(|other| other != sandbox))
    }

    /// To its end.
    async fn runner(&self, account: AccountId, found: Found, fence: Fence, is_new: bool) -> Result<()> {
        let Found { turn, conversation, answer, room, prompt } = found;
        let sandbox = turn.sandbox_id.ok_or_else(|| Error::internal("a turn without a sandbox"))?;
        let template = self.inner.templates.get(turn.template.as_deref().unwrap_or_default()).cloned();
        // A pull never runs during a turn, so only before its agent was started.
        let moved = answer.started.is_none() && self.was_elsewhere(account, &turn, sandbox).await?;
        let wanted = Wanted {
            moved,
            account,
            sandbox,
            conversation: Some(conversation.id),
            agent: conversation.agent_id.clone(),
            turn: Some(turn.id),
            cancelled: Some(self.live(turn.id).cancel.subscribe()),
            template: Arc::new(template.as_ref().cloned().unwrap_or_default()),
        };
        let (stored, turns) = (turn.events, self.clone());
        let early = match stored {
            // Begun by a version that stored it apart, and killed in between.
            0 => vec![first_event(
                turn.id,
                turn.conversation_id,
                [turn.prompt_id, turn.answer_id],
                sandbox,
                turn.template.as_deref(),
            )],
            _ => Vec::new(),
        };
        let runner = Runner {
            turns,
            wanted,
            turn,
            conversation,
            prompt,
            answer,
            room,
            stored,
            early,
            fence,
            is_new,
            telling: None,
            meter: None,
            tokens: None,
        };
        match template {
            Ok(_) => runner.finished().await,
            // It was there when the turn began.
            Err(error) => runner.abandon(error).await,
        }
    }
}

impl Runner {
    pub fn id(&self) -> TurnId {
        self.turn.id
    }

    pub fn sandbox(&self) -> SandboxId {
        self.wanted.sandbox
    }

    pub fn template(&self) -> &Arc<Template> {
        &self.wanted.template
    }

    /// Without its template nobody knows how to read its agent, or where its files go. They stay in the sandbox (H8).
    async fn abandon(mut self, error: Error) -> Result<()> {
        self.kill_agent().await;
        if self.answer.started.is_some() && !self.answer.pushed {
            let why = format!("{}: its files could not be pushed", error.chain());
            let sandboxes = &self.turns.inner.service.sandboxes;
            match persist(|| sandboxes.mark_unsynced(self.sandbox(), Some(why.clone()))).await {
                Err(failed) if failed.kind() != ErrorKind::NotFound => return Err(failed),
                _ => {}
            }
            self.store(
                vec![Event::WorkspaceUnsynced { error: told(self.wanted.account, why) }],
                self.turn.output_offset,
            )
            .await?;
        }
        if !self.early.is_empty() {
            self.store(Vec::new(), self.turn.output_offset).await?;
        }
        self.look_after(self.turns.inner.service.sandboxes.attended()).await;
        let told = error.told_to(self.wanted.account);
        self.close(TurnState::Failed, Some(told)).await
    }

    async fn finished(mut self) -> Result<()> {
        let (state, error) = match self.answer.ended.clone() {
            Some(ended) => ended,
            None => match self.work().await {
                Ok(Pumped { state, error }) => (state, error),
                Err(error) if self.is_anothers(&error).await => return Err(error),
                // A hook was cut short.
                Err(_) if self.answer.started.is_none() && self.is_cancelled() => {
                    (TurnState::Cancelled, Pumped::cancelled().error)
                }
                Err(error) => {
                    let (id, chain) = (self.id(), error.chain());
                    tracing::error!(turn = %id, conversation = %self.conversation.id, sandbox = %self.sandbox(), error = %chain, "a turn failed");
                    self.kill_agent().await;
                    (TurnState::Failed, Some(error.told_to(self.wanted.account)))
                }
            },
        };
        if !self.early.is_empty()
            && let Err(failed) = self.store(Vec::new(), self.turn.output_offset).await
        {
            tracing::error!(turn = %self.id(), error = %failed.chain(), "the first events could not be stored");
        }
        self.settle_tokens().await?;
        self.answer.base = persist(|| self.base()).await?;
        let (state, error) = match self.finish(state, &error).await {
            Ok(()) => (state, error),
            Err(failed) if self.is_anothers(&failed).await => return Err(failed),
            // A hook that asked to be critical.
            Err(failed) => (TurnState::Failed, Some(failed.told_to(self.wanted.account))),
        };
        // After what was said before, and before the next turn can begin.
        if let Some(telling) = self.telling.take() {
            let _ = telling.await;
        }
        self.look_after(self.turns.inner.service.sandboxes.attended()).await;
        self.close(state, error).await
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.turn.cancelling || *self.turns.live(self.id()).cancel.borrow()
    }

    /// Somebody else has the turn now: nothing may be written any more.
    async fn is_anothers(&self, error: &Error) -> bool {
        let held = persist(|| self.turns.inner.stores.leases.holds(&self.fence)).await;
        match held {
            Ok(held) => !held,
            Err(_) => error.kind() == ErrorKind::Conflict,
        }
    }

    /// Up to the end of the agent's output.
    async fn work(&mut self) -> Result<Pumped> {
        if self.answer.started.is_some() {
            return self.resume().await;
        }
        if !self.is_new && self.is_of_an_earlier_boot().await? {
            // Whether the agent was started is not known, and it must not be started twice.
            let error = Some("the machine went down while the turn ran".to_owned());
            return Ok(Pumped { state: TurnState::Interrupted, error });
        }
        let begun = Instant::now();
        let ensuring = self.turns.inner.service.ensure(&self.wanted);
        let ready = ensuring.instrument(tracing::info_span!("sandbox")).await;
        self.room.admitted = None;
        let ready = ready?;
        self.link().await?;
        if ready.cold || !self.answer.ready {
            let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            let (cold, version) = (ready.cold, ready.version);
            // Stored with what comes next, which is soon.
            self.early.push(Event::SandboxReady { cold, version, duration_ms });
        }
        // Nobody has to wait for that.
        let telling = self.look_after(self.template().timeout() + SLACK);
        self.telling = Some(tokio::spawn(telling.in_current_span()));
        self.on_message().await?;
        if self.is_cancelled() {
            return Ok(Pumped::cancelled());
        }
        self.start_agent().instrument(tracing::info_span!("agent")).await
    }

    /// Whether this machine was started again since the turn began, or may have been. Not by times: the clock may have been
    /// set since.
    async fn is_of_an_earlier_boot(&self) -> Result<bool> {
        let inner = &self.turns.inner;
        if inner.boot.is_none() {
            return Ok(false);
        }
        let began = persist(|| inner.stores.turns.boot(self.wanted.account, self.id())).await?;
        Ok(match &began {
            None => true,
            Some(began) if began.starts_with(&inner.node) => began != &inner.boot_name().unwrap_or_default(),
            Some(_) => false,
        })
    }

    /// H3: the default, saving and counting the message, was the transaction that began the turn.
    async fn on_message(&self) -> Result<()> {
        let message = Message {
            id: self.turn.prompt_id,
            conversation_id: self.conversation.id,
            turn_id: Some(self.id()),
            role: Role::User,
            body: self.prompt.clone(),
            usage: None,
            tool_calls: Vec::new(),
            created_at: self.turn.created_at,
            revision: 0,
        };
        let moment = Moment::Message { message: Box::new(message) };
        let saved = async { Ok(()) };
        self.turns.inner.hooks.run(&self.wanted.context(), &moment, Some(saved.boxed())).await
    }

    /// T5: a turn is use, however long it takes. After it the sandbox ends by itself again.
    fn look_after(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        let (sandboxes, id) = (self.turns.inner.service.sandboxes.clone(), self.sandbox());
        async move {
            match timeout(TELL, sandboxes.look_after_id(id, time)).await {
                Ok(Err(error)) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(sandbox = %id, error = %error.chain(), "its guest was not told of the turn");
                }
                _ => {}
            }
        }
    }

    /// C3.
    async fn link(&mut self) -> Result<()> {
        let (linked, sandbox) = (self.conversation.sandbox_id, self.sandbox());
        if linked == Some(sandbox) {
            return Ok(());
        }
        let now = self.turns.inner.clock.now();
        let store = &self.turns.inner.stores.conversations;
        let (account, id) = (self.wanted.account, self.conversation.id);
        persist(|| store.link(account, id, linked, Some(sandbox), now)).await?;
        self.conversation.sandbox_id = Some(sandbox);
        Ok(())
    }

    /// Stores events, however long the database takes: nobody sees one that is not stored, and the agent waits.
    pub async fn store(&mut self, events: Vec<Event>, output_offset: u64) -> Result<()> {
        let events: Vec<Event> = self.early.iter().cloned().chain(events).collect();
        let (events, encoded) = self.admitted(events)?;
        let turns = self.turns.clone();
        let store = &turns.inner.stores.turns;
        let (account, id, first) = (self.wanted.account, self.id(), self.stored);
        persist(|| store.append_events(account, Some(&self.fence), id, first, &encoded, output_offset))
            .await?;
        self.early.clear();
        self.stored += encoded.len() as u64;
        events.iter().for_each(|event| self.room.fold(&mut self.answer, event));
        turns.live(id).stored(first, &encoded);
        Ok(())
    }

    /// Those that may be stored, and as they are stored.
    fn admitted(&mut self, events: Vec<Event>) -> Result<(Vec<Event>, Vec<Bytes>)> {
        let (mut admitted, mut bytes) = (Vec::with_capacity(events.len()), Vec::with_capacity(events.len()));
        for event in events {
            let data = encoded(&event)?;
            let (event, data) = match self.room.stores(&event, data.len()) {
                Stores::It => (event, data),
                Stores::Instead(notice) => {
                    let data = encoded(&notice)?;
                    (notice, data)
                }
                Stores::Nothing => continue,
            };
            admitted.push(event);
            bytes.push(data);
        }
        Ok((admitted, bytes))
    }
}
