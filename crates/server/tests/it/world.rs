//! A whole server without a network: the real router and the real core, boxes of the mock provider, stores in memory.
//!
//! With `#[tokio::test(start_paused = true)]` hours take no time.

#![allow(dead_code)] // Each file of tests uses a part of it.

pub mod shell;
pub mod trouble;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{
        Request, StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE},
        request::Builder,
    },
    response::Response,
};
use futures::StreamExt;
use seawall_api::{
    AccountId,
    account::{Account, KeyScope},
    event::Event,
    http::CreateKey,
};
use seawall_core::{
    Providers, Sandboxes, ServiceParts, Services,
    accounts::AccountLimits,
    ports::{Claims, Clock, Provider, store::Stores},
    templates::{SyncPart, Template, Templates},
    testing::{Faults, FaultyProvider, HostClaims, MemoryStore, OneBucket, TokioClock},
};
use seawall_providers::mock::MockProvider;
use seawall_server::{Options, Server};
use seawall_sync::bucket::SharedBucket;
use serde_json::{Map, Value};
use shell::Shell;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt;
use trouble::Trouble;

/// Account A: `local`, whose admin keys are the operator's.
pub const ME: AccountId = AccountId::LOCAL;

pub const ALL: &[KeyScope] = &[KeyScope::Read, KeyScope::Run, KeyScope::Admin];

/// What a world is made from.
#[derive(Default)]
pub struct Setup {
    pub options: Options,
    /// Beside `shell`, `other`, and a `claude-code` that is a shell too.
    pub templates: Vec<Template>,
    /// C1: the template of an agent id.
    pub agents: BTreeMap<String, String>,
    pub bucket: Option<SharedBucket>,
    /// C5's default.
    pub delete_terminates_sandbox: bool,
    /// Of every account but `local`, where its settings say nothing.
    pub limits: AccountLimits,
    /// What goes wrong with the provider. None: it is the mock itself.
    pub faults: Option<Faults>,
}

pub struct World {
    /// The substrate itself: what is done here is done behind the service's back.
    pub mock: MockProvider,
    pub shell: Shell,
    /// What goes wrong with the server's stores.
    pub trouble: Trouble,
    /// Without trouble.
    pub stores: Stores,
    /// Account B.
    pub other: AccountId,
    /// Secrets with all scopes, of A and of B.
    pub mine: String,
    pub theirs: String,
    services: Services,
    router: Router,
}

impl World {
    pub async fn new() -> World {
        World::with(Setup::default()).await
    }

    pub async fn with(setup: Setup) -> World {
        let (mock, shell, trouble) = (MockProvider::new(), Shell::default(), Trouble::default());
        let log = shell.clone();
        mock.on_command("/bin/sh", move |call| log.run(call));
        let clock: Arc<dyn Clock> = Arc::new(TokioClock(Instant::now()));
        let stores = MemoryStore::with_clock(clock.clone()).stores();
        let services = services(&setup, &mock, trouble.around(stores.clone()), clock);
        // What a test computes takes real time, and would let held time pass.
        let options = Options { processor_percent: 0, ..setup.options };
        let server = Server::new(services.clone(), options).unwrap();
        let other = AccountId::generate();
        for (id, name) in [(ME, "local"), (other, "other")] {
            let (name, settings, created_at) = (name.to_owned(), Map::new(), services.clock.now());
            stores.accounts.create(&Account::new(id, name, settings, created_at)).await.unwrap();
        }
        let (mine, theirs) = (secret(&services, ME, ALL).await, secret(&services, other, ALL).await);
        let router = server.router();
        World { mock, shell, trouble, stores, other, mine, theirs, services, router }
    }

    pub fn services(&self) -> &Services {
        &self.services
    }

    /// Another server on the same stores, as one is after the first was killed.
    pub async fn restarted(&self) -> Router {
        self.stores.idempotency.close_all(&seawall_server::cut_off()).await.unwrap();
        Server::new(self.services.clone(), Options::default()).unwrap().router()
    }

    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// The secret of a new key of account A.
    pub async fn key(&self, scopes: &[KeyScope]) -> String {
        secret(&self.services, ME, scopes).await
    }

    /// The secret of a new key of account B, with all scopes.
    pub async fn other_key(&self) -> String {
        secret(&self.services, self.other, ALL).await
    }

    /// The secret of a key of a new account, which is neither A nor B.
    pub async fn tenant(&self) -> (AccountId, String) {
        let (id, settings, created_at) = (AccountId::generate(), Map::new(), self.services.clock.now());
        self.stores.accounts.create(&Account::new(id, id.to_string(), settings, created_at)).await.unwrap();
        (id, secret(&self.services, id, ALL).await)
    }

    /// An empty key is none.
    pub async fn request(&self, method: &str, path: &str, key: &str, body: Option<Value>) -> Response {
        self.send(ask(method, path, key), body).await
    }

    /// For requests with headers of their own: see [`ask`].
    pub async fn send(&self, request: Builder, body: Option<Value>) -> Response {
        let request = match body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        self.call(request.unwrap()).await
    }

    pub async fn call(&self, request: Request<Body>) -> Response {
        within(self.router().oneshot(request)).await.unwrap()
    }

    /// The status and the body; null where there is none.
    pub async fn json(
        &self,
        method: &str,
        path: &str,
        key: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let response = self.request(method, path, key, body).await;
        let status = response.status();
        let text = text(response).await;
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
        (status, body)
    }

    /// What a call that must succeed answers.
    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.json("GET", path, &self.mine, None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    /// All events of a stream, to its end.
    pub async fn sse(&self, method: &str, path: &str, key: &str, body: Option<Value>) -> Vec<(u64, Event)> {
        let response = self.request(method, path, key, body).await;
        said(response).await.events
    }

    /// Ends when no turn is under way any more.
    pub async fn quiet(&self) {
        within(self.services.turns.idle()).await;
        sleep(Duration::from_millis(1)).await;
    }
}

/// A server's core.
fn services(setup: &Setup, mock: &MockProvider, stores: Stores, clock: Arc<dyn Clock>) -> Services {
    let claims: Arc<dyn Claims> = Arc::new(HostClaims::default());
    let mut provider: Arc<dyn Provider> = Arc::new(mock.clone());
    if let Some(faults) = &setup.faults {
        provider = Arc::new(FaultyProvider::with(provider, faults.clone()));
    }
    let providers = Providers::new("mock", vec![provider]).unwrap();
    let boxes = Sandboxes::on_rows(providers, &stores, claims.clone(), clock.clone(), "one");
    let parts = ServiceParts {
        limits: setup.limits,
        buckets: Arc::new(OneBucket(setup.bucket.clone())),
        templates: templates(setup),
        agents: setup.agents.clone(),
        signing_secret: [7; 32],
        delete_terminates_sandbox: setup.delete_terminates_sandbox,
        ..ServiceParts::new(boxes, stores, claims, clock, "one")
    };
    parts.build()
}

fn templates(setup: &Setup) -> Templates {
    let mut templates = Templates::default();
    let own = ["shell", "other", "claude-code"].map(template);
    for template in own.into_iter().chain(setup.templates.iter().cloned()) {
        templates.add(template).unwrap();
    }
    templates
}

/// A shell whose files go nowhere.
pub fn template(name: &str) -> Template {
    let sync = SyncPart { enabled: false, ..SyncPart::default() };
    Template { name: name.to_owned(), sync, ..Template::default() }
}

async fn secret(services: &Services, account: AccountId, scopes: &[KeyScope]) -> String {
    let scopes = scopes.iter().copied().collect();
    let ask = CreateKey { name: "test".to_owned(), scopes, expires_at: None };
    services.keys.create(account, &ask).await.unwrap().secret
}

/// A request to be sent. An empty key is none.
pub fn ask(method: &str, path: &str, key: &str) -> Builder {
    let request = Request::builder().method(method).uri(path);
    if key.is_empty() { request } else { request.header(AUTHORIZATION, format!("Bearer {key}")) }
}

/// What another task of the runtime needs some turns for.
pub async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

pub async fn text(response: Response) -> String {
    let body = within(to_bytes(response.into_body(), usize::MAX)).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// What a stream said.
#[derive(Debug, Default)]
pub struct Said {
    pub events: Vec<(u64, Event)>,
    pub comments: Vec<String>,
}

impl Said {
    /// Whole events; of what is cut off, nothing.
    pub fn read(text: &str) -> Said {
        let mut said = Said::default();
        let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
        for event in whole.split("\n\n") {
            let (mut id, mut data): (Option<u64>, Option<Event>) = (None, None);
            for line in event.lines() {
                match line.split_once(": ") {
                    Some(("", comment)) => said.comments.push(comment.to_owned()),
                    Some(("id", number)) => id = number.parse::<u64>().ok(),
                    Some(("data", json)) => data = Some(serde_json::from_str(json).unwrap()),
                    _ => panic!("no line of ours: {line}"),
                }
            }
            said.events.extend(id.zip(data));
        }
        said
    }
}

/// Everything to the end of a stream, which must be one.
pub async fn said(response: Response) -> Said {
    let (status, headers) = (response.status(), response.headers().clone());
    let text = text(response).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("content-type").as_deref(), Some("text/event-stream"));
    assert_eq!(header("cache-control").as_deref(), Some("no-store"));
    assert_eq!(header("x-accel-buffering").as_deref(), Some("no"));
    Said::read(&text)
}

/// A stream up to a text, and the rest of it.
pub async fn until(response: Response, wanted: &str) -> (Said, Body) {
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    while !text.contains(wanted) {
        let more = within(body.next()).await.expect("it ended").unwrap();
        text.push_str(std::str::from_utf8(&more).unwrap());
    }
    (Said::read(&text), Body::from_stream(body))
}

/// All that the agent said.
pub fn answer(events: &[(u64, Event)]) -> String {
    let said = events.iter().filter_map(|(_, event)| match event {
        Event::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    said.collect()
}

/// Nothing here takes ten minutes, not even on a clock that jumps: what does, hangs.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(600), work).await.expect("it hangs")
}
