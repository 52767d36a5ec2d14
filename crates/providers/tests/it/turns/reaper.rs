//! The reaper with real guests and a bucket: work is in it before its sandbox is stopped.
//!
//! What needs no bucket is in `crates/core/tests/it/turns/reaper.rs`, on held time.

use crate::turns::world::{ME, World, ask, more, template};
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{EndReason, SandboxState, Timeouts},
};
use seawall_core::{
    accounts::{AccountLimits, Limit},
    ports::{Clock, Volumes},
    reaper::{Reaped, Reaper},
    service::EndSandbox,
    templates::Template,
    turns::TurnAsk,
};
use seawall_sync::engine::Options;
use serde_json::json;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// The server's clock decides over lifetimes, and a test holds it. The guests are told of a time that never comes.
fn short() -> Template {
    let mut short = template("short");
    short.sandbox.timeouts = Timeouts { idle_seconds: None, max_lifetime_seconds: Some(3600) };
    short
}

fn by(template: &str, ask: TurnAsk) -> TurnAsk {
    TurnAsk { template: Some(template.to_owned()), ..ask }
}

fn reaper(world: &World) -> Reaper {
    Reaper::new(world.service.clone(), world.turns.clone())
}

async fn state(world: &World, id: SandboxId) -> (SandboxState, Option<EndReason>) {
    let info = world.sandboxes.get(id).await.unwrap();
    (info.state, info.reason)
}

#[tokio::test]
async fn t5_what_is_over_is_saved_then_stopped_and_comes_back_with_its_files() {
    let world = World::new("local", vec![short()]);
    let first = world.run(by("short", ask("echo one > a"))).await;
    let id = first.sandbox();
    world.clock.advance(HOUR / 2);
    assert_eq!(reaper(&world).round().await.unwrap(), Reaped::default());
    // No turn pushes this.
    world.sh(id, "echo two > b").await;
    world.clock.advance(HOUR / 2);
    let reaped = reaper(&world).round().await.unwrap();
    assert_eq!(reaped, Reaped { ended: vec![(id, EndReason::MaxLifetime)], ..Reaped::default() });
    assert_eq!(state(&world, id).await, (SandboxState::Stopped, Some(EndReason::MaxLifetime)));
    let row = world.row(id).await.unwrap();
    assert_eq!(
        (row.unsynced, &row.metadata["last_synced_at"]),
        (None, &json!(world.clock.now().as_second()))
    );
    // The bucket has it: without box and volume it is there.
    let end =
        EndSandbox { sync: false, force: false, volumes: Some(Volumes::Delete), delete_versions: false };
    world.service.end(ME, id, &end).await.unwrap();
    assert_eq!(world.service.versions(ME, id).await.unwrap().len(), 2);
    world.clock.advance(Duration::from_secs(60));
    let next = world.run(more(first.conversation(), "cat a b")).await;
    assert_eq!((next.sandbox(), next.text().as_str()), (id, "one\ntwo\n"), "{next:?}");
    world.end().await;
}

#[tokio::test]
async fn h8_what_the_bucket_does_not_take_is_kept_and_stopped_when_it_is_there() {
    let world = World::new("local", vec![short()]);
    let first = world.run(by("short", ask("echo one > a"))).await;
    let (id, running) = (first.sandbox(), (SandboxState::Running, None));
    world.sh(id, "echo two > b").await;
    world.clock.advance(HOUR);
    world.bucket.take_away(true);
    let reaping = reaper(&world);
    let kept = Reaped { kept: vec![id], ..Reaped::default() };
    assert_eq!(reaping.round().await.unwrap(), kept);
    assert_eq!(state(&world, id).await, running);
    assert!(world.row(id).await.unwrap().unsynced.is_some());
    // It was asked just now, so it is not asked again at once; a server that was started anew does.
    assert_eq!(reaping.round().await.unwrap(), Reaped::default());
    assert_eq!(reaper(&world).round().await.unwrap(), kept);
    assert_eq!(state(&world, id).await, running);
    world.bucket.take_away(false);
    let reaped = reaper(&world).round().await.unwrap();
    let saved = Reaped { ended: vec![(id, EndReason::MaxLifetime)], pushed: vec![id], kept: Vec::new() };
    assert_eq!(reaped, saved);
    assert_eq!(state(&world, id).await, (SandboxState::Stopped, Some(EndReason::MaxLifetime)));
    assert_eq!(world.row(id).await.unwrap().unsynced, None);
    world.clock.advance(Duration::from_secs(60));
    let next = world.run(more(first.conversation(), "cat a b")).await;
    assert_eq!(next.text(), "one\ntwo\n", "{next:?}");
    world.end().await;
}

/// A turn could not push; later rounds do, long before its time is over.
#[tokio::test]
async fn h8_what_a_turn_could_not_push_is_pushed_when_the_bucket_is_back() {
    let world = World::new("local", vec![short()]);
    let first = world.run(by("short", ask("echo one > a"))).await;
    let id = first.sandbox();
    world.clock.advance(Duration::from_secs(60));
    world.bucket.take_away(true);
    let unsaved = world.run(more(first.conversation(), "echo two > b")).await;
    assert!(unsaved.unsynced(), "{unsaved:?}");
    assert_eq!(reaper(&world).round().await.unwrap(), Reaped { kept: vec![id], ..Reaped::default() });
    world.bucket.take_away(false);
    assert_eq!(reaper(&world).round().await.unwrap(), Reaped { pushed: vec![id], ..Reaped::default() });
    assert_eq!(state(&world, id).await, (SandboxState::Running, None));
    assert_eq!(world.row(id).await.unwrap().unsynced, None);
    assert_eq!(world.service.versions(ME, id).await.unwrap().len(), 2);
    world.end().await;
}

/// What an account may store bounds the pushes that no end needs: those of turns, of calls, and the reaper's own retries.
#[tokio::test]
async fn k8_no_retry_stores_more_than_the_account_may_have() {
    let mut limits = AccountLimits::NONE;
    limits.set(Limit::StoredMb, Some(1));
    let world = World::limited("local", vec![template("kept")], limits);
    let account = AccountId::generate();
    let begun = world.turns.start(account, by("kept", ask("echo one > a"))).await.unwrap();
    let id = world.done(&world.turns, begun).await.sandbox();
    let before = world.stores.stored.total(account).await.unwrap();
    world.sh(id, "head -c 4000000 /dev/urandom > b").await;
    world.clock.advance(Duration::from_secs(60));
    let refused = world.service.sync(account, id, Options::default()).await.unwrap_err();
    assert_eq!(refused.code(), "limit_reached", "{refused:?}");
    assert!(world.row(id).await.unwrap().unsynced.is_some(), "the reaper tries it again");
    for _ in 0..3 {
        // A new reaper makes no pause between tries.
        let reaped = reaper(&world).round().await.unwrap();
        assert_eq!(reaped, Reaped { kept: vec![id], ..Reaped::default() });
        let stored = world.stores.stored.total(account).await.unwrap();
        assert!((before..=1 << 20).contains(&stored), "{stored}");
    }
    assert_eq!(world.service.versions(account, id).await.unwrap().len(), 1);
    world.sh(id, "rm b").await;
    assert_eq!(reaper(&world).round().await.unwrap(), Reaped { pushed: vec![id], ..Reaped::default() });
    world.end().await;
}
