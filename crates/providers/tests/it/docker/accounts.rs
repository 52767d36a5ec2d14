//! The totals of an account hold over sandboxes of both providers together (K8).

use super::world::{DEBIAN, World};
use seawall_api::{AccountId, http::CreateSandbox, sandbox::Limits};
use seawall_core::{
    Providers, Sandboxes, ServiceParts, Services,
    accounts::{AccountLimits, Limit},
    ports::{SystemClock, Volumes},
    service::EndSandbox,
    testing::{HostClaims, MemoryStore},
};
use seawall_providers::{
    docker::DockerSettings,
    native::{NativeProvider, NativeSettings},
};
use std::sync::Arc;

/// A server with both providers, whose accounts may use 1 GiB of memory, two processors and 400 processes.
fn services(world: &World) -> Services {
    let (claims, clock) = (Arc::new(HostClaims::default()), Arc::new(SystemClock));
    let native = NativeProvider::open(world.data(), NativeSettings::default()).unwrap();
    let providers = Providers::new("docker", vec![Arc::new(world.reopen()), Arc::new(native)]).unwrap();
    let stores = MemoryStore::default().stores();
    let sandboxes = Sandboxes::on_rows(providers, &stores, claims.clone(), clock.clone(), "node");
    let mut limits = AccountLimits::NONE;
    for (limit, most) in [(Limit::MemoryMb, 1024), (Limit::Cpus, 2000), (Limit::Processes, 400)] {
        limits.set(limit, Some(most));
    }
    ServiceParts { limits, ..ServiceParts::new(sandboxes, stores, claims, clock, "node") }.build()
}

fn on(provider: &str, memory_mb: u64) -> CreateSandbox {
    let limits =
        Limits { memory_mb: Some(memory_mb), cpus: Some(0.5), max_processes: Some(100), ..Limits::default() };
    // The storage driver of most daemons cannot limit a root file system that can be written.
    let read_only_root = (provider == "docker").then_some(true);
    CreateSandbox { provider: Some(provider.to_owned()), limits, read_only_root, ..CreateSandbox::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn k8_an_account_cannot_exceed_its_totals_by_using_two_providers() {
    let settings = DockerSettings { image: Some(DEBIAN.to_owned()), ..DockerSettings::default() };
    let Some(world) = World::with("k8_an_account_cannot_exceed_its_totals", settings) else { return };
    let services = services(&world);
    let service = &services.sandboxes;
    let account = AccountId::generate();
    let first = service.create(account, &on("native", 512)).await.unwrap().info.id;
    let second = service.create(account, &on("docker", 512)).await.unwrap().info.id;
    for provider in ["native", "docker"] {
        let refused = service.create(account, &on(provider, 128)).await.unwrap_err();
        assert_eq!(
            refused.limit().map(|limit| limit.name.as_str()),
            Some("memory_mb"),
            "{provider}: {refused}"
        );
    }
    let refused = service.create(account, &on("docker", 4096)).await.unwrap_err();
    assert_eq!(refused.code(), "over_limit", "{refused}");
    // A stopped sandbox makes room, and needs room to start again.
    service.stop(account, first, None, false).await.unwrap();
    let third = service.create(account, &on("docker", 512)).await.unwrap().info.id;
    assert!(service.start(account, first).await.is_err());
    // Other accounts have totals of their own.
    let other = AccountId::generate();
    let fourth = service.create(other, &on("docker", 512)).await.unwrap().info.id;
    let how = EndSandbox { sync: false, force: true, volumes: Some(Volumes::Delete), delete_versions: false };
    for (account, id) in [(account, first), (account, second), (account, third), (other, fourth)] {
        service.end(account, id, &how).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k8_twenty_starts_at_once_stay_within_the_sum() {
    let settings = DockerSettings { image: Some(DEBIAN.to_owned()), ..DockerSettings::default() };
    let Some(world) = World::with("k8_twenty_starts_at_once", settings) else { return };
    let services = services(&world);
    let account = AccountId::generate();
    let asks = (0..20).map(|number| on(if number % 2 == 0 { "native" } else { "docker" }, 256));
    let made = asks.map(|ask| {
        let service = services.sandboxes.clone();
        async move { service.create(account, &ask).await.map(|made| (made.info.id, made.info.provider)) }
    });
    let made: Vec<_> = futures::future::join_all(made).await.into_iter().flatten().collect();
    // Native sandboxes alone share the totals. With a container among them, all count.
    let containers = made.iter().filter(|(_, provider)| provider == "docker").count();
    assert!(made.len() <= 4 || containers == 0, "{made:?}");
    assert!(!made.is_empty());
    let how = EndSandbox { sync: false, force: true, volumes: Some(Volumes::Delete), delete_versions: false };
    for (id, _) in made {
        services.sandboxes.end(account, id, &how).await.unwrap();
    }
}
