//! Watching: what is there, that it was all, and what changes.

use crate::sandboxes::world::{World, error, named, within};
use futures::{StreamExt, stream::BoxStream};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxInfo, SandboxSpec, SandboxState},
};
use seawall_core::{
    Result,
    ports::{Provider, Volumes},
    sandboxes::SandboxEvent,
    testing::Op,
};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::timeout;

pub type Events = BoxStream<'static, Result<SandboxEvent>>;

/// More changes than a provider keeps for a watcher that does not look.
pub const TOO_MANY: usize = 1200;

pub async fn next(events: &mut Events) -> SandboxEvent {
    within(events.next()).await.expect("the stream ended").unwrap()
}

async fn next_info(events: &mut Events) -> SandboxInfo {
    match next(events).await {
        SandboxEvent::Is(info) => *info,
        other => panic!("{other:?} instead of a sandbox"),
    }
}

/// Up to [`SandboxEvent::Ready`], by id.
pub async fn present(events: &mut Events) -> BTreeMap<SandboxId, SandboxState> {
    let mut seen = BTreeMap::new();
    loop {
        match next(events).await {
            SandboxEvent::Is(info) => assert_eq!(seen.insert(info.id, info.state), None, "told twice"),
            SandboxEvent::Ready => return seen,
            SandboxEvent::Gone(id) => panic!("{id} went"),
        }
    }
}

async fn ready(world: &World) -> Events {
    let mut events = world.sandboxes.watch().await.unwrap();
    present(&mut events).await;
    events
}

#[tokio::test(start_paused = true)]
async fn p1_watch_tells_what_is_there_then_that_it_was_all() {
    let world = World::new();
    let (created, running, stopped) = (world.created().await, world.running().await, world.stopped().await);
    let mut events = world.sandboxes.watch().await.unwrap();
    let expected = BTreeMap::from([
        (created, SandboxState::Created),
        (running, SandboxState::Running),
        (stopped, SandboxState::Stopped),
    ]);
    assert_eq!(present(&mut events).await, expected);
    assert!(timeout(Duration::from_secs(60), events.next()).await.is_err(), "nothing changed");
}

#[tokio::test(start_paused = true)]
async fn p1_watch_tells_each_change() {
    let world = World::new();
    let mut events = ready(&world).await;
    let id = world.sandboxes.create(named("demo")).await.unwrap().id;
    let info = next_info(&mut events).await;
    assert_eq!((info.id, info.state, info.name.as_deref()), (id, SandboxState::Created, Some("demo")));
    world.sandboxes.start(id).await.unwrap();
    assert_eq!(next_info(&mut events).await.state, SandboxState::Running);
    world.sandboxes.stop(id, Duration::ZERO).await.unwrap();
    let info = next_info(&mut events).await;
    assert_eq!((info.state, info.reason), (SandboxState::Stopped, Some(EndReason::Stopped)));
    world.sandboxes.start(id).await.unwrap();
    assert_eq!(next_info(&mut events).await.state, SandboxState::Running);
    world.mock.crash(id);
    let info = next_info(&mut events).await;
    assert_eq!(info.reason, Some(EndReason::Failed("guest_died".to_owned())));
    world.sandboxes.remove(id, Volumes::Delete).await.unwrap();
    assert_eq!(next(&mut events).await, SandboxEvent::Gone(id));
    assert!(timeout(Duration::from_secs(60), events.next()).await.is_err(), "nothing else changed");
}

#[tokio::test(start_paused = true)]
async fn each_watcher_is_told() {
    let world = World::new();
    let (mut first, mut second) = (ready(&world).await, ready(&world).await);
    let id = world.created().await;
    for events in [&mut first, &mut second] {
        assert_eq!(next_info(events).await.id, id);
    }
    drop(first);
    world.sandboxes.start(id).await.unwrap();
    assert_eq!(next_info(&mut second).await.state, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_box_without_a_record_is_not_told_of() {
    let world = World::new();
    let mut events = ready(&world).await;
    world.mock.create(SandboxId::generate(), &SandboxSpec::default(), AccountId::LOCAL).await.unwrap();
    let ours = world.created().await;
    assert_eq!(next_info(&mut events).await.id, ours);
}

#[tokio::test(start_paused = true)]
async fn p1_a_stream_that_broke_tells_an_error_and_ends() {
    let world = World::new();
    let id = world.created().await;
    let mut events = ready(&world).await;
    for _ in 0..TOO_MANY / 2 {
        world.mock.start(id).await.unwrap();
        world.mock.stop(id, Duration::ZERO).await.unwrap();
    }
    let broken = error(within(events.next()).await.expect("it ended without an error"));
    assert_eq!(broken.kind(), ErrorKind::Unavailable);
    assert!(broken.is_retryable());
    assert!(within(events.next()).await.is_none());
    // Whoever subscribes again is told everything again.
    let mut again = world.sandboxes.watch().await.unwrap();
    assert_eq!(present(&mut again).await, BTreeMap::from([(id, SandboxState::Stopped)]));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_cannot_begin_is_an_error() {
    let world = World::new();
    world.faults.fail(Op::Watch, 1, ErrorKind::Unavailable);
    assert_eq!(error(world.sandboxes.watch().await).kind(), ErrorKind::Unavailable);
    drop(ready(&world).await);
}
