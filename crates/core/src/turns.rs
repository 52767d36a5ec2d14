//! Turns: a prompt goes in, an agent works in its sandbox, the answer streams out, and everything is kept.
//!
//! A turn belongs to nobody who asked for it: a hang-up cancels nothing. [`Turns::begin`] stores the prompt, and from
//! then on whoever holds the turn's claim runs it ([`run`]): the one that began it, or, after a crash, whoever comes
//! next ([`Turns::take_up`]). Both do the same: fold the stored events, and go on from there.
//!
//! Invariants. An event is stored before anybody sees it. The agent's output is acknowledged when its events are
//! stored. What a turn used is counted in the one transaction that ends it.

mod access;
mod answer;
mod cancel;
mod choose;
mod close;
mod follow;
mod hold;
mod lanes;
mod live;
mod look;
mod manage;
mod pump;
mod room;
mod run;
mod save;
mod usage;
mod wait;

pub use answer::Answer;
pub use follow::Followed;
pub use wait::check_name;

use crate::{
    Error, Result,
    accounts::AccountCatalog,
    budget::Budget,
    delivery::Courier,
    hooks::Hooks,
    ports::{
        Claim, Claims, Clock,
        gateway::Gateway,
        store::{BeginTurn, NewConversation, Stores},
    },
    service::SandboxService,
    shares::as_caller,
    templates::{DEFAULT, Template, Templates},
    tokens::TokenLedger,
};
use bytes::Bytes;
use hold::Held;
use lanes::{Lane, Lanes, Place};
use live::Live;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, MessageId, SandboxId, TurnId,
    conversation::{Conversation, Message, Role, Turn},
    event::Event,
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::sleep};
use tracing::Instrument as _;
use wait::{busy, check_names, is_passing};

/// A prompt that is longer is a file.
const MAX_PROMPT: usize = 1 << 20;
/// Between tries to reach a store, and looks at whether turns are over.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Values of the server's environment, by name.
pub type Secrets = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// M2: a database that stays away refuses the turn.
const BEGIN_TRIES: u32 = 5;

/// Which sandbox a turn wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The linked one, or a new one.
    #[default]
    Auto,
    /// This one; made where it is not there.
    This(SandboxId),
    /// This one, whatever was linked before.
    Relink(SandboxId),
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct TurnAsk {
    /// None: a new one.
    pub conversation: Option<ConversationId>,
    pub sandbox: Choice,
    pub prompt: String,
    pub agent_id: Option<String>,
    pub organization_id: Option<String>,
    pub template: Option<String>,
    /// C8: how long to wait for the turn before.
    pub wait: Duration,
    /// Becomes true where the request is withdrawn while it waits: its key was revoked.
    pub withdrawn: Option<watch::Receiver<bool>>,
}

/// Everything that a turn needs, known.
#[derive(Debug, Clone)]
pub struct Begun {
    pub account: AccountId,
    pub turn: Turn,
    pub conversation: Conversation,
}

/// A turn that is stored, and not run yet.
struct Prepared {
    begun: Begun,
    first: Bytes,
    /// None: whoever runs it takes it first.
    held: Option<Held>,
}

#[derive(Clone)]
pub struct Turns {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    parts: TurnParts,
    ledger: TokenLedger,
    live: Mutex<HashMap<TurnId, Live>>,
    /// What turns hold in memory is counted here. Unset for commands of the operator.
    budget: OnceLock<Budget>,
    lanes: Lanes,
}

impl Deref for Inner {
    type Target = TurnParts;

    fn deref(&self) -> &TurnParts {
        &self.parts
    }
}

/// What a service of turns is made from.
pub struct TurnParts {
    pub accounts: AccountCatalog,
    pub stores: Stores,
    pub service: SandboxService,
    pub hooks: Hooks,
    pub templates: Arc<Templates>,
    /// C1: the template of an agent id.
    pub agents: BTreeMap<String, String>,
    pub gateway: Option<Arc<dyn Gateway>>,
    pub courier: Courier,
    pub claims: Arc<dyn Claims>,
    pub clock: Arc<dyn Clock>,
    /// Who holds leases here: the machine, whose processes have the claims between them.
    pub node: String,
    /// The boot of this machine, as the kernel names it. Of what was not on its disk when an earlier boot ended, nothing is
    /// known. `None`: the machine never goes down while a turn runs.
    pub boot: Option<String>,
    /// The server's environment, for tokens that templates name.
    pub secrets: Secrets,
}

impl TurnParts {
    /// The machine and its boot, as turns that begin here remember it.
    fn boot_name(&self) -> Option<String> {
        self.boot.as_ref().map(|boot| format!("{} {boot}", self.node))
    }
}

impl fmt::Debug for TurnParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnParts").field("node", &self.node).finish_non_exhaustive()
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("node", &self.inner.node).finish_non_exhaustive()
    }
}

impl Turns {
    pub fn new(parts: TurnParts) -> Turns {
        let ledger = TokenLedger::new(parts.stores.tokens.clone(), parts.clock.clone());
        let inner =
            Inner { parts, ledger, live: Mutex::default(), budget: OnceLock::new(), lanes: Lanes::default() };
        Turns { inner: Arc::new(inner) }
    }

    /// The token budgets of all accounts.
    pub fn ledger(&self) -> &TokenLedger {
        &self.inner.ledger
    }

    pub fn templates(&self) -> &Templates {
        &self.inner.templates
    }

    /// Begins a turn and runs it, here, whoever listens.
    pub async fn start(&self, account: AccountId, ask: TurnAsk) -> Result<Begun> {
        let Prepared { begun, first, held } = as_caller(account, self.prepare(account, ask, true)).await?;
        self.live(begun.turn.id).stored(0, &[first]);
        self.spawn_held(account, begun.turn.clone(), held);
        Ok(begun)
    }

    /// Runs a turn on a task of its own, unless somebody else does.
    pub fn spawn(&self, account: AccountId, turn: Turn) {
        self.spawn_held(account, turn, None);
    }

    fn spawn_held(&self, account: AccountId, turn: Turn, held: Option<Held>) {
        let turns = self.clone();
        // Known before the task runs: whoever follows it now waits for it and not for the clock.
        turns.live(turn.id);
        // Below whoever asked, so that all of a turn is one trace.
        let span =
            tracing::info_span!("turn", %account, turn = %turn.id, conversation = %turn.conversation_id);
        // Whoever waits for its end hears of it.
        let lanes = turns.inner.lanes.run(turn.conversation_id, turn.sandbox_id);
        let running = async move {
            let (id, _lanes) = (turn.id, lanes);
            if let Err(error) = turns.run(account, turn, held).await {
                tracing::error!(turn = %id, error = %error.chain(), "a turn could not be run to its end here");
            }
        };
        tokio::spawn(as_caller(account, running).instrument(span));
    }

    /// M2: the prompt is stored when this returns, and the agent has not seen it.
    pub async fn begin(&self, account: AccountId, ask: TurnAsk) -> Result<Begun> {
        self.prepare(account, ask, false).await.map(|prepared| prepared.begun)
    }

    /// `here`: this process runs it.
    async fn prepare(&self, account: AccountId, ask: TurnAsk, here: bool) -> Result<Prepared> {
        check_prompt(&ask.prompt).map_err(Error::without_effect)?;
        check_names(&ask).map_err(Error::without_effect)?;
        match self.try_first(account, &ask, here).await {
            Err(error) if is_passing(&error) && !ask.wait.is_zero() => {
                self.begin_after(account, &ask, here, error).await.map_err(refused)
            }
            other => other.map_err(refused),
        }
    }

    /// Anew each time: while one waits, the conversation gets its sandbox, and its answer. `places`: the lanes in which the
    /// request is the first; in others it does not go before those that wait.
    async fn try_begin(
        &self,
        account: AccountId,
        ask: &TurnAsk,
        here: bool,
        places: &[&Place],
    ) -> Result<Prepared> {
        let known = self.known(account, ask).await?;
        let template = self.template(ask, known.as_ref())?;
        // What cannot be answered is not begun.
        self.check_template(&template).map_err(Error::without_effect)?;
        template.driver()?.check_prompt(&ask.prompt)?;
        let sandbox = self.choose(account, ask, known.as_ref()).await?;
        // Before anything is stored: a turn whose sandbox is refused would be a prompt without an answer.
        let admitted = self.admit(account, sandbox, &template).await?;
        let room = self.new_room(account, &ask.prompt, admitted).await.map_err(Error::without_effect)?;
        let lanes = [ask.conversation.map(Lane::Conversation), Some(Lane::Sandbox(sandbox))];
        let is_first = |lane: &Lane| places.iter().any(|place| place.lane == *lane);
        if lanes.into_iter().flatten().any(|lane| !is_first(&lane) && self.inner.lanes.is_awaited(lane)) {
            return Err(busy());
        }
        let (conversation, is_new) = match known {
            Some(known) => (known, false),
            None => self.new_conversation(account, ask).await?,
        };
        let mut begin = self.row(ask, &conversation, sandbox, &template);
        let messages = [begin.prompt.id, begin.answer_id];
        let first = first_event(begin.id, conversation.id, messages, sandbox, begin.template.as_deref());
        let first = encoded(&first)?;
        begin.first_event = Some(first.clone());
        let held = match here {
            true => self.hold_new(&mut begin, &conversation, room).await?,
            false => None,
        };
        let turn = match self.begin_once(account, &begin).await {
            Ok(turn) => turn,
            Err(error) => {
                if is_new && error.kind() == ErrorKind::Conflict {
                    self.take_back(account, conversation.id).await;
                }
                return Err(error);
            }
        };
        tracing::info!(%account, conversation = %conversation.id, turn = %turn.id, sandbox = %sandbox, template = template.name, "turn begins");
        tracing::info!(key = %turn.prompt_id, conversation = %conversation.id, bytes = ask.prompt.len(), "message stored");
        Ok(Prepared { begun: Begun { account, turn, conversation }, first, held })
    }

    /// Nothing was said in it: its sandbox was another's.
    async fn take_back(&self, account: AccountId, id: ConversationId) {
        if let Err(error) = self.inner.stores.conversations.delete(account, id).await {
            tracing::warn!(conversation = %id, error = %error.chain(), "an empty conversation stays");
        }
    }

    /// A reply that was lost is asked for again: the same turn twice is one.
    async fn begin_once(&self, account: AccountId, begin: &BeginTurn) -> Result<Turn> {
        let mut tries = BEGIN_TRIES;
        loop {
            match self.inner.stores.turns.begin(account, None, begin).await {
                Err(error) if error.is_retryable() && tries > 0 => {
                    tries -= 1;
                    sleep(LOOK_AGAIN).await;
                }
                other => return other,
            }
        }
    }

    fn row(
        &self,
        ask: &TurnAsk,
        conversation: &Conversation,
        sandbox: SandboxId,
        template: &Template,
    ) -> BeginTurn {
        let now = self.inner.clock.now();
        let id = TurnId::generate();
        let prompt = Message {
            id: MessageId::generate(),
            conversation_id: conversation.id,
            turn_id: Some(id),
            role: Role::User,
            body: ask.prompt.clone(),
            usage: None,
            tool_calls: Vec::new(),
            created_at: now,
            revision: 0,
        };
        BeginTurn {
            id,
            conversation_id: conversation.id,
            sandbox_id: Some(sandbox),
            template: Some(template.name.clone()),
            prompt,
            answer_id: MessageId::generate(),
            created_at: now,
            first_event: None,
            lease: None,
            boot: self.inner.boot_name(),
        }
    }

    async fn known(&self, account: AccountId, ask: &TurnAsk) -> Result<Option<Conversation>> {
        let Some(id) = ask.conversation else { return Ok(None) };
        match self.inner.stores.conversations.get(account, id).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// And whether nobody else was quicker to make it.
    async fn new_conversation(&self, account: AccountId, ask: &TurnAsk) -> Result<(Conversation, bool)> {
        let new = NewConversation {
            id: ask.conversation.unwrap_or_else(ConversationId::generate),
            organization_id: ask.organization_id.clone(),
            agent_id: ask.agent_id.clone(),
            template: ask.template.clone(),
            sandbox_id: None,
            created_at: self.inner.clock.now(),
        };
        self.inner.stores.conversations.ensure(account, &new).await
    }

    fn of_agent(&self, agent: Option<&str>) -> Option<String> {
        self.inner.agents.get(agent?).cloned()
    }

    /// C1: the request's, else the conversation's, else the agent's, else `shell`.
    fn template(&self, ask: &TurnAsk, known: Option<&Conversation>) -> Result<Arc<Template>> {
        let agent = ask.agent_id.as_deref().or(known.and_then(|known| known.agent_id.as_deref()));
        let named = ask.template.clone().or_else(|| known.and_then(|known| known.template.clone()));
        let name = named.or_else(|| self.of_agent(agent)).unwrap_or_else(|| DEFAULT.to_owned());
        Ok(Arc::new(self.inner.templates.get(&name)?.clone()))
    }

    /// What can be known to be missing before anything is stored.
    fn check_template(&self, template: &Template) -> Result<()> {
        template.program()?;
        template.check_repository()?;
        let Some(api) = template.driver()?.api() else { return Ok(()) };
        match &self.inner.gateway {
            Some(gateway) => gateway.check(api),
            None => Err(Error::unavailable("this server speaks to no models")),
        }
    }

    /// The right to run a turn, among the processes of this machine.
    pub(crate) async fn claim(&self, turn: TurnId) -> Result<Option<Claim>> {
        // Claims go by id, whatever it is the id of; no sandbox has a turn's.
        let id = SandboxId::try_from(turn.as_uuid())
            .map_err(|error| Error::internal("a turn without an id").with_source(error))?;
        self.inner.claims.try_claim(id).await
    }

    pub(crate) fn live(&self, turn: TurnId) -> Live {
        let mut live = self.inner.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.entry(turn).or_insert_with(Live::new).clone()
    }

    pub(crate) fn find_live(&self, turn: TurnId) -> Option<Live> {
        self.inner.live.lock().unwrap_or_else(PoisonError::into_inner).get(&turn).cloned()
    }

    /// Of a turn that somebody else runs: forgotten, unless that is a task of this process.
    pub(crate) fn over_unless_run(&self, turn: TurnId) {
        let mut live = self.inner.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.get(&turn).is_some_and(|live| !live.is_run_here()) {
            live.remove(&turn);
        }
    }

    pub(crate) fn over(&self, turn: TurnId) {
        self.inner.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&turn);
    }
}

/// Always the first.
fn first_event(
    turn_id: TurnId,
    conversation_id: ConversationId,
    [prompt_id, answer_id]: [MessageId; 2],
    sandbox_id: SandboxId,
    template: Option<&str>,
) -> Event {
    let template = template.unwrap_or_default().to_owned();
    Event::TurnStarted { conversation_id, turn_id, sandbox_id, prompt_id, answer_id, template }
}

pub(crate) fn encoded(event: &Event) -> Result<Bytes> {
    let json = serde_json::to_vec(event);
    json.map(Into::into).map_err(|error| Error::internal("an event cannot be written").with_source(error))
}

/// The other conflict: waiting does not change which sandbox was asked for.
const MISMATCH: &str = "sandbox_mismatch";

/// A refusal leaves no turn behind: the one transaction that begins it did not happen. After a fault nobody knows.
fn refused(error: Error) -> Error {
    match error.is_retryable() || error.kind() == ErrorKind::Internal {
        true => error,
        false => error.without_effect(),
    }
}

fn check_prompt(prompt: &str) -> Result<()> {
    if prompt.trim().is_empty() {
        return Err(Error::invalid("the prompt is empty; say what the agent shall do"));
    }
    if prompt.len() > MAX_PROMPT {
        let message =
            format!("the prompt has {} bytes, the limit is {MAX_PROMPT}; put it into a file", prompt.len());
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    Ok(())
}
