//! Turns with everything around them at hand: boxes, stores, hooks, time, and what goes wrong.

use crate::turns::{fakes::FakeWebhooks, shell::Shell, trouble::Trouble};
use bytes::Bytes;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, MessageId, SandboxId, TurnId,
    conversation::{Conversation, Message, Role, Turn},
    event::Event,
    files::{FileRef, WriteFile, WriteMode},
    sandbox::{SandboxState, Timeouts},
};
use seawall_core::{
    Error, Providers, Result, Sandboxes, ServiceParts, Services, Turns,
    delivery::Courier,
    hooks::{Hook, Hooks},
    ports::{
        Claims, Clock, Provider,
        gateway::Gateway,
        store::{BeginTurn, Direction, HookRun, NewConversation, Page, SandboxRow, Stores},
    },
    reaper::Reaper,
    service::{SandboxService, Wanted},
    templates::{HookPart, SyncPart, Template, Templates},
    testing::{Faults, FaultyProvider, HostClaims, MemoryStore, OneBucket, SetClock},
    turns::{Begun, TurnAsk},
    workspaces::Buckets,
};
use seawall_providers::mock::MockProvider;
use seawall_sync::bucket::SharedBucket;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

pub const ME: AccountId = AccountId::LOCAL;

/// What a world is made from.
#[derive(Clone, Default)]
pub struct Setup {
    /// Beside `shell`.
    pub templates: Vec<Template>,
    pub agents: BTreeMap<String, String>,
    pub bucket: Option<SharedBucket>,
    /// In the place of `bucket`.
    pub buckets: Option<Arc<dyn Buckets>>,
    /// T5: the server's.
    pub timeouts: Timeouts,
    pub gateway: Option<Arc<dyn Gateway>>,
    pub own: Vec<Arc<dyn Hook>>,
}

/// A server process.
pub struct Host {
    pub turns: Turns,
    pub service: SandboxService,
    pub sandboxes: Sandboxes,
    pub hooks: Hooks,
    pub courier: Courier,
    pub services: Services,
}

pub struct World {
    /// The substrate itself: what is done here is done behind the service's back.
    pub mock: MockProvider,
    pub faults: Faults,
    /// Without trouble.
    pub stores: Stores,
    /// What is behind the stores.
    pub memory: MemoryStore,
    pub shell: Shell,
    pub webhooks: Arc<FakeWebhooks>,
    pub turns: Turns,
    pub service: SandboxService,
    pub sandboxes: Sandboxes,
    pub hooks: Hooks,
    pub courier: Courier,
    pub services: Services,
    pub clock: SetClock,
    claims: HostClaims,
    setup: Setup,
}

/// Where a host is.
struct Place {
    provider: Arc<dyn Provider>,
    stores: Stores,
    claims: HostClaims,
    node: &'static str,
    clock: SetClock,
    boot: &'static str,
    webhooks: Arc<FakeWebhooks>,
}

fn host(setup: &Setup, place: Place) -> Host {
    let Place { provider, stores, claims, node, clock, boot, webhooks } = place;
    let (clock, claims): (Arc<dyn Clock>, Arc<dyn Claims>) = (Arc::new(clock), Arc::new(claims));
    let providers = Providers::new("mock", vec![provider]).unwrap();
    let sandboxes = Sandboxes::on_rows(providers, &stores, claims.clone(), clock.clone(), node);
    let mut templates = Templates::default();
    for own in std::iter::once(&template("shell")).chain(&setup.templates) {
        templates.add(own.clone()).unwrap();
    }
    let buckets: Arc<dyn Buckets> = match &setup.buckets {
        Some(buckets) => buckets.clone(),
        None => Arc::new(OneBucket(setup.bucket.clone())),
    };
    let parts = ServiceParts {
        boot: Some(boot.to_owned()),
        buckets,
        hooks: setup.own.clone(),
        templates,
        agents: setup.agents.clone(),
        timeouts: setup.timeouts,
        gateway: setup.gateway.clone(),
        webhooks: Some(webhooks),
        ..ServiceParts::new(sandboxes.clone(), stores, claims, clock, node)
    };
    let services = parts.build();
    Host {
        turns: services.turns.clone(),
        service: services.sandboxes.clone(),
        hooks: services.hooks.clone(),
        courier: services.courier.clone(),
        sandboxes,
        services,
    }
}

impl World {
    pub fn new() -> World {
        World::with(Setup::default())
    }

    pub fn of(templates: impl IntoIterator<Item = Template>) -> World {
        World::with(Setup { templates: templates.into_iter().collect(), ..Setup::default() })
    }

    pub fn with(setup: Setup) -> World {
        World::over(setup, |stores| stores)
    }

    /// Its first host has stores that something goes wrong with.
    pub fn troubled() -> (World, Trouble) {
        World::troubled_with(Setup::default())
    }

    pub fn troubled_with(setup: Setup) -> (World, Trouble) {
        let trouble = Trouble::default();
        (World::over(setup, |stores| trouble.around(stores)), trouble)
    }

    /// Somebody removed their files: hosts of now do not know them.
    pub fn forget_templates(&mut self) {
        self.setup.templates.clear();
    }

    /// The operator changed them: hosts from now on have these.
    pub fn change_templates(&mut self, templates: impl IntoIterator<Item = Template>) {
        self.setup.templates = templates.into_iter().collect();
    }

    fn over(setup: Setup, wrap: impl FnOnce(Stores) -> Stores) -> World {
        let (mock, shell) = (MockProvider::new(), Shell::default());
        let log = shell.clone();
        mock.on_command("/bin/sh", move |call| log.run(call));
        let faulty = FaultyProvider::new(Arc::new(mock.clone()));
        let faults = faulty.faults();
        let clock = SetClock::new();
        let memory = MemoryStore::with_clock(Arc::new(clock.clone()));
        let stores = memory.stores();
        let (claims, webhooks) = (HostClaims::default(), Arc::new(FakeWebhooks::default()));
        let place = Place {
            provider: Arc::new(faulty),
            stores: wrap(stores.clone()),
            claims: claims.clone(),
            node: "one",
            clock: clock.clone(),
            boot: "first",
            webhooks: webhooks.clone(),
        };
        let Host { turns, service, sandboxes, hooks, courier, services } = host(&setup, place);
        World {
            mock,
            faults,
            stores,
            memory,
            shell,
            webhooks,
            turns,
            service,
            sandboxes,
            hooks,
            courier,
            services,
            clock,
            claims,
            setup,
        }
    }

    /// Another process of the same machine, without faults.
    pub fn another(&self) -> Host {
        self.host("one", self.claims.clone(), "first")
    }

    /// A process of the same machine, which was down and is just up again.
    pub fn rebooted(&self) -> Host {
        self.host("one", HostClaims::default(), "second")
    }

    /// A process of another machine.
    pub fn elsewhere(&self, node: &'static str) -> Host {
        self.host(node, HostClaims::default(), "first")
    }

    fn host(&self, node: &'static str, claims: HostClaims, boot: &'static str) -> Host {
        let (stores, clock, webhooks) = (self.stores.clone(), self.clock.clone(), self.webhooks.clone());
        let provider = Arc::new(self.mock.reopen());
        host(&self.setup, Place { provider, stores, claims, node, clock, boot, webhooks })
    }

    /// What the first host would run now and then.
    pub fn reaper(&self) -> Reaper {
        Reaper::new(self.service.clone(), self.turns.clone())
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A turn of mine, to its end.
    pub async fn run(&self, ask: TurnAsk) -> Done {
        let begun = within(self.turns.start(ME, ask)).await.unwrap();
        self.done(begun).await
    }

    /// A turn that was begun, to its end.
    pub async fn done(&self, begun: Begun) -> Done {
        let (account, id) = (begun.account, begun.turn.id);
        let events = all(&self.turns, account, id, 0).await;
        self.quiet().await;
        Done { turn: self.stores.turns.get(account, id).await.unwrap(), events }
    }

    /// Ends when nothing is under way any more, also what nobody waits for.
    pub async fn quiet(&self) {
        within(self.turns.idle()).await;
        sleep(Duration::from_millis(1)).await;
    }

    /// A turn as a crash leaves it: begun, with these events, and run by nobody.
    pub async fn left(&self, ask: &Left<'_>, events: &[Event]) -> Turn {
        let (id, now, conversation_id) = (TurnId::generate(), self.clock.now(), ask.conversation);
        let new = NewConversation {
            id: conversation_id,
            organization_id: None,
            agent_id: None,
            template: None,
            sandbox_id: None,
            created_at: now,
        };
        self.stores.conversations.ensure(ME, &new).await.unwrap();
        let prompt = Message {
            id: MessageId::generate(),
            conversation_id,
            turn_id: Some(id),
            role: Role::User,
            body: ask.prompt.to_owned(),
            usage: None,
            tool_calls: Vec::new(),
            created_at: now,
            revision: 0,
        };
        let begin = BeginTurn {
            id,
            conversation_id,
            sandbox_id: Some(ask.sandbox),
            template: Some(ask.template.to_owned()),
            prompt,
            answer_id: MessageId::generate(),
            created_at: now,
            first_event: None,
            lease: None,
            boot: Some("one first".to_owned()),
        };
        let turn = self.stores.turns.begin(ME, None, &begin).await.unwrap();
        let encoded = |event: &Event| Bytes::from(serde_json::to_vec(event).unwrap());
        let data: Vec<Bytes> = events.iter().map(encoded).collect();
        self.stores.turns.append_events(ME, None, id, 0, &data, 0).await.unwrap();
        turn
    }

    pub async fn conversation(&self, id: ConversationId) -> Conversation {
        self.stores.conversations.get(ME, id).await.unwrap()
    }

    pub async fn turns_of(&self, id: ConversationId) -> Vec<Turn> {
        self.stores.turns.list(ME, id, &Page::first(100)).await.unwrap().items
    }

    /// Oldest first.
    pub async fn said(&self, id: ConversationId) -> Vec<Message> {
        let page = Page::first(100);
        self.stores.messages.list(ME, id, Direction::OldestFirst, &page).await.unwrap().items
    }

    /// Oldest first.
    pub async fn hook_runs(&self, sandbox: SandboxId) -> Vec<HookRun> {
        self.quiet().await;
        let page = Page::first(100);
        let mut runs = self.stores.hook_runs.list(ME, Some(sandbox), &page).await.unwrap().items;
        runs.reverse();
        runs
    }

    pub async fn is_terminated(&self, id: SandboxId) -> bool {
        self.row(id).await.is_some_and(|row| row.state == SandboxState::Terminated)
    }

    pub async fn row(&self, id: SandboxId) -> Option<SandboxRow> {
        self.stores.sandboxes.find(id).await.unwrap()
    }

    /// How many boxes the substrate has.
    pub async fn boxes(&self) -> usize {
        self.mock.list().await.unwrap().len()
    }

    pub async fn put(&self, id: SandboxId, path: &str, body: &str) {
        let write = WriteFile {
            file: FileRef::new(path),
            mode: WriteMode::Replace,
            permissions: None,
            mtime: None,
            parents: true,
            max_size: None,
        };
        let guest = self.sandboxes.guest(id).await.unwrap();
        guest.write_all(write, body.as_bytes()).await.unwrap();
    }

    pub async fn take(&self, id: SandboxId, path: &str) -> Result<String, ErrorKind> {
        let guest = self.sandboxes.guest(id).await.unwrap();
        let body = guest.read_all(FileRef::new(path), 1 << 20).await.map_err(|error| error.kind())?;
        Ok(String::from_utf8(body).unwrap())
    }
}

/// What a crash left.
pub struct Left<'a> {
    pub conversation: ConversationId,
    pub sandbox: SandboxId,
    pub template: &'a str,
    pub prompt: &'a str,
}

/// A turn that has ended.
#[derive(Debug)]
pub struct Done {
    pub turn: Turn,
    pub events: Vec<(u64, Event)>,
}

impl Done {
    pub fn conversation(&self) -> ConversationId {
        self.turn.conversation_id
    }

    pub fn sandbox(&self) -> SandboxId {
        self.turn.sandbox_id.unwrap()
    }

    /// All that the agent said.
    pub fn text(&self) -> String {
        text(&self.events)
    }

    /// Whether its sandbox was made for it. None: it never was ready.
    pub fn cold(&self) -> Option<bool> {
        self.events.iter().find_map(|(_, event)| match event {
            Event::SandboxReady { cold, .. } => Some(*cold),
            _ => None,
        })
    }

    pub fn error(&self) -> &str {
        self.turn.error.as_deref().unwrap_or_default()
    }
}

pub fn text(events: &[(u64, Event)]) -> String {
    let said = events.iter().filter_map(|(_, event)| match event {
        Event::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    said.collect()
}

/// Every event from a number on, to the end of the turn.
pub async fn all(turns: &Turns, account: AccountId, turn: TurnId, from: u64) -> Vec<(u64, Event)> {
    within(async {
        let mut followed = turns.follow(account, turn, from).await.unwrap();
        let mut seen = Vec::new();
        while let Some(event) = followed.next().await.unwrap() {
            seen.push(event);
        }
        seen
    })
    .await
}

pub fn ask(prompt: &str) -> TurnAsk {
    TurnAsk { prompt: prompt.to_owned(), ..TurnAsk::default() }
}

/// The next turn of a conversation.
pub fn more(conversation: ConversationId, prompt: &str) -> TurnAsk {
    TurnAsk { conversation: Some(conversation), ..ask(prompt) }
}

/// With a template.
pub fn by(template: &str, prompt: &str) -> TurnAsk {
    TurnAsk { template: Some(template.to_owned()), ..ask(prompt) }
}

/// A shell whose files go nowhere.
pub fn template(name: &str) -> Template {
    let sync = SyncPart { enabled: false, ..SyncPart::default() };
    Template { name: name.to_owned(), sync, ..Template::default() }
}

/// A command as a hook.
pub fn runs(script: &str) -> HookPart {
    HookPart { run: Some(script.to_owned()), ..HookPart::default() }
}

/// A sandbox of mine, of a template, for nobody's turn.
pub fn wanted(sandbox: SandboxId, template: &Template) -> Wanted {
    wanted_by(ME, sandbox, template)
}

pub fn wanted_by(account: AccountId, sandbox: SandboxId, template: &Template) -> Wanted {
    Wanted {
        account,
        sandbox,
        conversation: None,
        agent: None,
        turn: None,
        template: Arc::new(template.clone()),
        cancelled: None,
        moved: false,
    }
}

/// The error of a call that must fail.
#[track_caller]
pub fn error<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("it succeeded, though it must not"),
        Err(error) => error,
    }
}

/// Nothing here takes ten minutes, not even on a clock that jumps: what does, hangs.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(600), work).await.expect("it hangs")
}
