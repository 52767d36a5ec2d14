//! Several providers in one service (P7).

use crate::sandboxes::{
    watch::{TOO_MANY, next, present},
    world::{error, within},
};
use async_trait::async_trait;
use futures::StreamExt;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    http::Reconciliation,
    sandbox::{SandboxInfo, SandboxSpec, SandboxState},
};
use seawall_core::{
    ExecRequest, NewSandbox, Providers, Result, Sandboxes,
    ports::{BoxEvents, BoxInfo, Capabilities, Provider, Records, Volumes},
    sandboxes::SandboxEvent,
    testing::{ManualClock, MemoryRecords},
};
use seawall_providers::mock::{MockOp, MockProvider};
use seawall_wire::Duplex;
use std::{sync::Arc, time::Duration};

/// The mock under another name.
struct Named(&'static str, MockProvider);

#[async_trait]
impl Provider for Named {
    fn name(&self) -> &'static str {
        self.0
    }

    fn capabilities(&self) -> Capabilities {
        self.1.capabilities()
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec, account: AccountId) -> Result<BoxInfo> {
        self.1.create(id, spec, account).await
    }

    async fn start(&self, id: SandboxId) -> Result<BoxInfo> {
        self.1.start(id).await
    }

    async fn stop(&self, id: SandboxId, grace: Duration) -> Result<()> {
        self.1.stop(id, grace).await
    }

    async fn remove(&self, id: SandboxId, volumes: Volumes) -> Result<()> {
        self.1.remove(id, volumes).await
    }

    async fn get(&self, id: SandboxId) -> Result<BoxInfo> {
        self.1.get(id).await
    }

    async fn list(&self) -> Result<Vec<BoxInfo>> {
        self.1.list().await
    }

    async fn watch(&self) -> Result<BoxEvents> {
        self.1.watch().await
    }

    async fn connect(&self, id: SandboxId) -> Result<Box<dyn Duplex>> {
        self.1.connect(id).await
    }
}

struct Two {
    first: MockProvider,
    second: MockProvider,
    records: MemoryRecords,
    sandboxes: Sandboxes,
}

impl Two {
    /// `second` is the default.
    fn new() -> Two {
        let (first, second) = (MockProvider::new(), MockProvider::new());
        let records = MemoryRecords::new();
        let sandboxes = Sandboxes::new(
            Providers::new("second", all(&first, &second)).unwrap(),
            Arc::new(records.clone()),
            Arc::new(ManualClock::default()),
        );
        Two { first, second, records, sandboxes }
    }

    async fn create(&self, provider: Option<&str>) -> SandboxInfo {
        let provider = provider.map(str::to_owned);
        self.sandboxes.create(NewSandbox { provider, ..NewSandbox::default() }).await.unwrap()
    }

    /// The boxes of the first, and of the second.
    async fn boxes(&self) -> (usize, usize) {
        (self.first.list().await.unwrap().len(), self.second.list().await.unwrap().len())
    }
}

fn all(first: &MockProvider, second: &MockProvider) -> Vec<Arc<dyn Provider>> {
    vec![Arc::new(Named("first", first.clone())), Arc::new(Named("second", second.clone()))]
}

#[tokio::test]
async fn p7_the_default_is_taken_where_none_is_named() {
    let two = Two::new();
    assert_eq!(two.create(None).await.provider, "second");
    assert_eq!(two.boxes().await, (0, 1));
    assert_eq!(two.create(Some("first")).await.provider, "first");
    assert_eq!(two.boxes().await, (1, 1));
    assert_eq!(two.sandboxes.providers().default_name(), "second");
    assert_eq!(two.sandboxes.providers().names(), ["first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn p7_each_call_reaches_the_provider_of_its_sandbox() {
    let two = Two::new();
    two.first.on_command("who", |_| seawall_providers::mock::Script::stdout("first"));
    two.second.on_command("who", |_| seawall_providers::mock::Script::stdout("second"));
    for name in ["first", "second"] {
        let id = two.create(Some(name)).await.id;
        two.sandboxes.start(id).await.unwrap();
        let output = within(two.sandboxes.exec(id, ExecRequest::new(["who"]))).await.unwrap();
        assert_eq!(output.stdout, name.as_bytes());
        let info = two.sandboxes.stop(id, Duration::ZERO).await.unwrap();
        assert_eq!((info.state, info.provider.as_str()), (SandboxState::Stopped, name));
        two.sandboxes.remove(id, Volumes::Delete).await.unwrap();
    }
    assert_eq!(two.boxes().await, (0, 0));
}

#[tokio::test]
async fn p7_an_unknown_provider_is_refused_with_those_there_are() {
    let two = Two::new();
    let new = NewSandbox { provider: Some("nowhere".to_owned()), ..NewSandbox::default() };
    let refused = error(two.sandboxes.create(new).await);
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let message = refused.to_string();
    assert!(message.contains("nowhere") && message.contains("first, second"), "{message}");
    assert!(two.records.list().await.unwrap().is_empty());
    let refused = error(Providers::new("nowhere", all(&two.first, &two.second)));
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn p7_one_id_is_at_one_provider() {
    let two = Two::new();
    let id = two.create(Some("first")).await.id;
    let new = NewSandbox { id: Some(id), provider: Some("second".to_owned()), ..NewSandbox::default() };
    assert_eq!(error(two.sandboxes.create(new).await).kind(), ErrorKind::Conflict);
    assert_eq!(two.boxes().await, (1, 0));
}

#[tokio::test]
async fn p7_lists_and_sweeps_are_of_all() {
    let two = Two::new();
    let (first, second) = (two.create(Some("first")).await.id, two.create(Some("second")).await.id);
    let ids: Vec<_> = two.sandboxes.list().await.unwrap().into_iter().map(|info| info.id).collect();
    assert_eq!(ids, [first, second]);
    two.records.remove(first).await.unwrap();
    two.second.remove(second, Volumes::Keep).await.unwrap();
    let sweep = two.sandboxes.sweep().await.unwrap();
    assert_eq!(
        sweep,
        Reconciliation { removed: vec![first], lost: vec![second], ..Reconciliation::default() }
    );
}

#[tokio::test(start_paused = true)]
async fn p7_a_watch_is_ready_when_all_are() {
    let two = Two::new();
    let (first, second) = (two.create(Some("first")).await.id, two.create(Some("second")).await.id);
    let mut events = two.sandboxes.watch().await.unwrap();
    let seen = present(&mut events).await;
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), [first, second]);
    for id in [second, first] {
        two.sandboxes.remove(id, Volumes::Delete).await.unwrap();
        assert_eq!(next(&mut events).await, SandboxEvent::Gone(id));
    }
}

#[tokio::test(start_paused = true)]
async fn p7_when_one_watch_breaks_the_whole_stream_ends() {
    let two = Two::new();
    let id = two.create(Some("first")).await.id;
    let mut events = two.sandboxes.watch().await.unwrap();
    present(&mut events).await;
    for _ in 0..TOO_MANY / 2 {
        two.first.start(id).await.unwrap();
        two.first.stop(id, Duration::ZERO).await.unwrap();
    }
    let broken = error(within(events.next()).await.expect("it ended without an error"));
    assert_eq!(broken.kind(), ErrorKind::Unavailable);
    // Going on with the other alone would hide that changes of the first are missed.
    assert!(within(events.next()).await.is_none());
}

#[tokio::test]
async fn p7_one_that_is_down_is_no_reason_to_lose_the_others() {
    let two = Two::new();
    let (first, second) = (two.create(Some("first")).await.id, two.create(Some("second")).await.id);
    two.first.fail_next(MockOp::Get, ErrorKind::Unavailable);
    assert_eq!(error(two.sandboxes.get(first).await).kind(), ErrorKind::Unavailable);
    assert_eq!(two.sandboxes.get(second).await.unwrap().state, SandboxState::Created);
    assert_eq!(two.sandboxes.start(second).await.unwrap().state, SandboxState::Running);
}
