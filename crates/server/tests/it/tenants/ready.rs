//! `/ready` tells the truth, part by part, without a key.

use crate::world::{Setup, World, trouble::Call};
use axum::http::StatusCode;
use seawall_api::ErrorKind;
use seawall_core::testing::{Faults, Op};
use seawall_server::Options;
use serde_json::Value;
use std::{
    sync::mpsc,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

async fn ready(world: &World) -> (u16, Value) {
    let (status, health) = world.json("GET", "/ready", "", None).await;
    (status.as_u16(), health)
}

fn parts(health: &Value) -> Vec<&str> {
    let checks = health["checks"].as_object();
    checks.into_iter().flatten().map(|(part, _)| part.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn ready_writes_to_the_store_asks_the_provider_and_is_asked_once_a_second() {
    let faults = Faults::default();
    let world = World::with(Setup { faults: Some(faults.clone()), ..Setup::default() }).await;
    assert_eq!(ready(&world).await.0, 200);
    world.trouble.with(Call::AcquireLease);
    faults.fail(Op::Check, 1, ErrorKind::Unavailable);
    assert_eq!(ready(&world).await.0, 200, "what was found just now is told again");
    tokio::time::advance(Duration::from_millis(1100)).await;
    let (status, health) = ready(&world).await;
    assert_eq!((status, &health["status"]), (503, &Value::from("unready")));
    assert_eq!(parts(&health), ["provider mock", "store"]);
    world.trouble.heal();
    // A provider that does not answer at all.
    faults.delay(Op::Check, Duration::from_secs(60));
    tokio::time::advance(Duration::from_millis(1100)).await;
    let (status, health) = ready(&world).await;
    assert_eq!((status, parts(&health)), (503, vec!["provider mock"]));
    faults.heal();
    tokio::time::advance(Duration::from_millis(1100)).await;
    assert_eq!(ready(&world).await.0, 200);
    assert_eq!(world.request("GET", "/health", "", None).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn ready_says_when_the_disk_has_no_more_than_its_reserve() {
    let folder = tempfile::tempdir().unwrap();
    let data = Some(folder.path().to_owned());
    let with = |data, disk_reserve| {
        let options = Options { data, disk_reserve, ..Options::default() };
        World::with(Setup { options, ..Setup::default() })
    };
    assert_eq!(ready(&with(data.clone(), 0).await).await.0, 200);
    let (status, health) = ready(&with(data, u64::MAX).await).await;
    assert_eq!((status, parts(&health)), (503, vec!["disk"]));
    let gone = Some(folder.path().join("gone"));
    let (status, health) = ready(&with(gone, 0).await).await;
    assert_eq!((status, parts(&health)), (503, vec!["disk"]));
    assert!(!health.to_string().contains(folder.path().to_str().unwrap()), "{health}");
}

#[test]
fn ready_says_when_no_blocking_thread_is_free() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::new().await;
        let (release, held) = mpsc::channel::<()>();
        let (begins, began) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            begins.send(()).unwrap();
            let _ = held.recv();
        });
        began.await.unwrap();
        let begun = Instant::now();
        let (status, health) = ready(&world).await;
        assert_eq!((status, parts(&health)), (503, vec!["threads"]));
        assert!(begun.elapsed() < Duration::from_secs(4));
        drop(release);
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert_eq!(ready(&world).await.0, 200);
    });
}
