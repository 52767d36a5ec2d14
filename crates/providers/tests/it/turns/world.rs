//! Turns with a real provider, a bucket in memory that may go away, and stores in memory.

use async_trait::async_trait;
use bytes::Bytes;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, SandboxId,
    conversation::{Message, Turn, Usage},
    event::Event,
    files::{FileRef, WriteFile, WriteMode},
    sandbox::SandboxState,
};
use seawall_core::{
    ExecRequest, Providers, Result, Sandboxes, ServiceParts, Turns,
    accounts::AccountLimits,
    agents::ModelApi,
    ports::{
        Claims, Clock, Provider, Volumes,
        gateway::{Access, Gateway},
        store::{Direction, Page, SandboxRow, Stores},
    },
    service::{SandboxService, Wanted},
    templates::{Template, Templates},
    testing::{HostClaims, ManualClock, MemoryStore, OneBucket},
    turns::{Begun, TurnAsk},
    workspaces::WorkspaceSettings,
};
use seawall_providers::{
    local::LocalProvider,
    native::{NativeProvider, NativeSettings},
};
use seawall_sync::bucket::{Bodies, Bucket, MemoryBucket, Object, SharedBucket};
use seawall_wire::Duplex;
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::timeout;

pub const ME: AccountId = AccountId::LOCAL;

/// A bucket that can be taken away. Nobody tries again what is denied, so that tests need not wait.
#[derive(Debug, Default)]
pub struct Unsteady {
    inner: MemoryBucket,
    away: AtomicBool,
    bodies_away: AtomicBool,
}

impl Unsteady {
    pub fn take_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    /// Versions can be seen, and what is in them cannot be had just now.
    pub fn take_bodies_away(&self, away: bool) {
        self.bodies_away.store(away, Ordering::Relaxed);
    }

    pub fn keys(&self) -> Vec<String> {
        self.inner.keys()
    }

    fn reach(&self) -> seawall_sync::Result<&MemoryBucket> {
        match self.away.load(Ordering::Relaxed) {
            true => Err(seawall_sync::Error::new(ErrorKind::Denied, "a test took the bucket away")),
            false => Ok(&self.inner),
        }
    }
}

#[async_trait]
impl Bucket for Unsteady {
    fn place(&self) -> String {
        self.inner.place()
    }

    async fn create(&self, key: &str, body: Bytes) -> seawall_sync::Result<bool> {
        self.reach()?.create(key, body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> seawall_sync::Result<()> {
        self.reach()?.put(key, body).await
    }

    async fn upload(&self, key: &str, body: Bodies) -> seawall_sync::Result<()> {
        self.reach()?.upload(key, body).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> seawall_sync::Result<Bodies> {
        if range.is_some() && self.bodies_away.load(Ordering::Relaxed) {
            return Err(seawall_sync::Error::unavailable("a test took the bodies away"));
        }
        self.reach()?.get(key, range).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> seawall_sync::Result<Vec<Object>> {
        self.reach()?.list(prefix, after).await
    }

    async fn folders(&self, prefix: &str) -> seawall_sync::Result<Vec<String>> {
        self.reach()?.folders(prefix).await
    }

    async fn delete(&self, key: &str) -> seawall_sync::Result<()> {
        self.reach()?.delete(key).await
    }
}

/// It has every key, and no model behind it.
struct Silent;

#[async_trait]
impl Gateway for Silent {
    /// Each connection is a request that used something.
    async fn serve(&self, _connection: Box<dyn Duplex>, access: Arc<Access>) {
        access.meter.add(&Usage { input_tokens: 10, output_tokens: 2, cache_tokens: 1 });
    }

    fn check(&self, _api: ModelApi) -> Result<()> {
        Ok(())
    }
}

pub struct World {
    pub turns: Turns,
    pub service: SandboxService,
    pub sandboxes: Sandboxes,
    pub stores: Stores,
    pub bucket: Arc<Unsteady>,
    pub clock: ManualClock,
    parts: ServiceParts,
    _data: TempDir,
}

impl World {
    pub fn new(provider: &str, templates: Vec<Template>) -> World {
        World::with(provider, templates, true, AccountLimits::NONE)
    }

    /// Each account but [`ME`] has these limits.
    pub fn limited(provider: &str, templates: Vec<Template>, limits: AccountLimits) -> World {
        World::with(provider, templates, true, limits)
    }

    pub fn without_bucket(provider: &str, templates: Vec<Template>) -> World {
        World::with(provider, templates, false, AccountLimits::NONE)
    }

    fn with(name: &str, templates: Vec<Template>, has_bucket: bool, limits: AccountLimits) -> World {
        let data = tempfile::tempdir().unwrap();
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(data.path(), open).unwrap();
        let provider: Arc<dyn Provider> = match name {
            "local" => Arc::new(LocalProvider::open(data.path()).unwrap()),
            _ => Arc::new(NativeProvider::open(data.path(), NativeSettings::default()).unwrap()),
        };
        let providers = Providers::new(name, vec![provider]).unwrap();
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let held: Arc<dyn Clock> = Arc::new(clock.clone());
        let stores = MemoryStore::with_clock(held.clone()).stores();
        let claims: Arc<dyn Claims> = Arc::new(HostClaims::default());
        let sandboxes = Sandboxes::on_rows(providers, &stores, claims.clone(), held.clone(), "one");
        let bucket = Arc::new(Unsteady::default());
        let shared: SharedBucket = bucket.clone();
        let parts = ServiceParts {
            limits,
            buckets: Arc::new(OneBucket(has_bucket.then_some(shared))),
            workspaces: WorkspaceSettings {
                lock_wait: Duration::from_millis(200),
                ..WorkspaceSettings::default()
            },
            gateway: Some(Arc::new(Silent)),
            ..ServiceParts::new(sandboxes.clone(), stores.clone(), claims, held, "one")
        };
        let (turns, service) = host(&parts, templates);
        World { turns, service, sandboxes, stores, bucket, clock, parts, _data: data }
    }

    /// The same server with other templates.
    pub fn again(&self, templates: Vec<Template>) -> (Turns, SandboxService) {
        host(&self.parts, templates)
    }

    pub async fn run(&self, ask: TurnAsk) -> Done {
        let begun = self.turns.start(ME, ask).await.unwrap();
        self.done(&self.turns, begun).await
    }

    pub async fn done(&self, turns: &Turns, begun: Begun) -> Done {
        let (account, id) = (begun.account, begun.turn.id);
        let work = async {
            let mut followed = turns.follow(account, id, 0).await.unwrap();
            let mut events = Vec::new();
            while let Some((_, event)) = followed.next().await.unwrap() {
                events.push(event);
            }
            turns.idle().await;
            events
        };
        let events = timeout(Duration::from_secs(120), work).await.expect("it hangs");
        Done { turn: self.stores.turns.get(account, id).await.unwrap(), events }
    }

    pub async fn said(&self, id: ConversationId) -> Vec<Message> {
        let page = Page::first(100);
        self.stores.messages.list(ME, id, Direction::OldestFirst, &page).await.unwrap().items
    }

    pub async fn is_terminated(&self, id: SandboxId) -> bool {
        self.row(id).await.is_some_and(|row| row.state == SandboxState::Terminated)
    }

    pub async fn row(&self, id: SandboxId) -> Option<SandboxRow> {
        self.stores.sandboxes.find(id).await.unwrap()
    }

    pub async fn sh(&self, id: SandboxId, script: &str) -> String {
        let output = self.sandboxes.exec(id, ExecRequest::new(["sh", "-c", script])).await.unwrap();
        assert_eq!(output.status.code, Some(0), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub async fn put(&self, id: SandboxId, path: &str, permissions: u32, body: &str) {
        let write = WriteFile {
            file: FileRef::new(path),
            mode: WriteMode::Replace,
            permissions: Some(permissions),
            mtime: None,
            parents: true,
            max_size: None,
        };
        let guest = self.sandboxes.guest(id).await.unwrap();
        guest.write_all(write, body.as_bytes()).await.unwrap();
    }

    /// No process of a test outlives it.
    pub async fn end(&self) {
        for info in self.sandboxes.list().await.unwrap() {
            self.sandboxes.purge(info.id, Volumes::Delete).await.unwrap();
        }
    }
}

fn host(parts: &ServiceParts, own: Vec<Template>) -> (Turns, SandboxService) {
    let mut templates = Templates::default();
    for template in own {
        templates.add(template).unwrap();
    }
    let services = ServiceParts { templates, ..parts.clone() }.build();
    (services.turns, services.sandboxes)
}

/// A turn that has ended.
#[derive(Debug)]
pub struct Done {
    pub turn: Turn,
    pub events: Vec<Event>,
}

impl Done {
    pub fn conversation(&self) -> ConversationId {
        self.turn.conversation_id
    }

    pub fn sandbox(&self) -> SandboxId {
        self.turn.sandbox_id.unwrap()
    }

    pub fn text(&self) -> String {
        let said = self.events.iter().filter_map(|event| match event {
            Event::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        said.collect()
    }

    /// The version that its files became.
    pub fn pushed(&self) -> Option<i64> {
        self.events.iter().find_map(|event| match event {
            Event::WorkspacePushed { version, .. } => Some(*version),
            _ => None,
        })
    }

    pub fn unsynced(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::WorkspaceUnsynced { .. }))
    }

    /// Whether its sandbox was made for it, and the version that it was brought to.
    pub fn ready(&self) -> Option<(bool, Option<i64>)> {
        self.events.iter().find_map(|event| match event {
            Event::SandboxReady { cold, version, .. } => Some((*cold, *version)),
            _ => None,
        })
    }
}

pub fn ask(prompt: &str) -> TurnAsk {
    TurnAsk { prompt: prompt.to_owned(), ..TurnAsk::default() }
}

/// The next turn of a conversation.
pub fn more(conversation: ConversationId, prompt: &str) -> TurnAsk {
    TurnAsk { conversation: Some(conversation), ..ask(prompt) }
}

/// A shell of that name.
pub fn template(name: &str) -> Template {
    Template { name: name.to_owned(), ..Template::default() }
}

/// A sandbox of mine, of a template, for nobody's turn.
pub fn wanted(sandbox: SandboxId, template: &Template) -> Wanted {
    let template = Arc::new(template.clone());
    Wanted {
        account: ME,
        sandbox,
        conversation: None,
        agent: None,
        turn: None,
        template,
        cancelled: None,
        moved: false,
    }
}
