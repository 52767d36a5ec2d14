//! A conversation moves between providers with its files.

use super::world::{DEBIAN, World};
use seawall_api::{
    AccountId, ConversationId, SandboxId, event::Event, http::CreateSandbox, sandbox::SandboxState,
};
use seawall_core::{
    Providers, Sandboxes, ServiceParts, Services,
    ports::{SystemClock, Volumes},
    service::EndSandbox,
    templates::{SyncPart, Template, Templates},
    testing::{HostClaims, MemoryStore, OneBucket},
    turns::{Choice, TurnAsk},
};
use seawall_providers::{
    docker::DockerSettings,
    native::{NativeProvider, NativeSettings},
};
use seawall_sync::bucket::MemoryBucket;
use std::sync::Arc;

const ME: AccountId = AccountId::LOCAL;

fn services(world: &World) -> Services {
    let (claims, clock) = (Arc::new(HostClaims::default()), Arc::new(SystemClock));
    let native = NativeProvider::open(world.data(), NativeSettings::default()).unwrap();
    let providers = Providers::new("docker", vec![Arc::new(world.reopen()), Arc::new(native)]).unwrap();
    let stores = MemoryStore::default().stores();
    let sandboxes = Sandboxes::on_rows(providers, &stores, claims.clone(), clock.clone(), "node");
    let sync =
        SyncPart { key_prefix: Some("docs/{account}/{conversation}".to_owned()), ..SyncPart::default() };
    let mut templates = Templates::default();
    templates.add(Template { name: "moving".to_owned(), sync, ..Template::default() }).unwrap();
    let buckets = Arc::new(OneBucket(Some(Arc::new(MemoryBucket::default()))));
    let parts = ServiceParts::new(sandboxes, stores, claims, clock, "node");
    ServiceParts { templates, buckets, ..parts }.build()
}

/// Runs a turn in a sandbox and returns what its agent printed.
async fn turn(services: &Services, conversation: ConversationId, sandbox: SandboxId, prompt: &str) -> String {
    let ask = TurnAsk {
        conversation: Some(conversation),
        sandbox: Choice::Relink(sandbox),
        template: Some("moving".to_owned()),
        prompt: prompt.to_owned(),
        ..TurnAsk::default()
    };
    let id = services.turns.start(ME, ask).await.unwrap().turn.id;
    let mut followed = services.turns.follow(ME, id, 0).await.unwrap();
    let mut text = String::new();
    while let Some((_, event)) = followed.next().await.unwrap() {
        if let Event::Text { text: more, .. } = event {
            text.push_str(&more);
        }
    }
    services.turns.idle().await;
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_conversation_is_relinked_from_a_container_to_a_native_sandbox_and_back() {
    let settings = DockerSettings { image: Some(DEBIAN.to_owned()), ..DockerSettings::default() };
    let Some(world) = World::with("c2_a_conversation_is_relinked", settings) else { return };
    let services = services(&world);
    let conversation = ConversationId::generate();
    let mut sandboxes = Vec::new();
    for provider in ["docker", "native"] {
        let ask = CreateSandbox {
            provider: Some(provider.to_owned()),
            template: Some("moving".to_owned()),
            start: false,
            ..CreateSandbox::default()
        };
        sandboxes.push(services.sandboxes.create(ME, &ask).await.unwrap().info.id);
    }
    let [docker, native] = sandboxes[..] else { panic!("two sandboxes") };
    assert_eq!(turn(&services, conversation, docker, "echo one > a; ls").await, "a\n");
    assert_eq!(turn(&services, conversation, native, "cat a; echo two > b; rm a; ls").await, "one\nb\n");
    // The container still runs, with the files that it had.
    assert_eq!(services.sandboxes.get(ME, docker).await.unwrap().info.state, SandboxState::Running);
    assert_eq!(turn(&services, conversation, docker, "cat b; ls; echo three > b").await, "two\nb\n");
    assert_eq!(turn(&services, conversation, native, "cat b").await, "three\n");
    let how = EndSandbox { sync: false, force: true, volumes: Some(Volumes::Delete), delete_versions: false };
    for id in sandboxes {
        services.sandboxes.end(ME, id, &how).await.unwrap();
    }
}
