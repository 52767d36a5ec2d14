//! Making sandboxes: once per id, with the intent written down first and nothing left of a failure.

use crate::sandboxes::world::{World, error, named, new, within};
use seawall_api::{
    ErrorKind, SandboxId,
    sandbox::{EndReason, Limits, SandboxSpec, SandboxState},
};
use seawall_core::{
    NewSandbox,
    ports::{BoxState, Clock, Provider, Records, Volumes},
    testing::Op,
};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::sleep;

fn with_env(id: SandboxId, value: &str) -> NewSandbox {
    let env = BTreeMap::from([("MODE".to_owned(), value.to_owned())]);
    NewSandbox { spec: SandboxSpec { env, ..SandboxSpec::default() }, ..new(id) }
}

#[tokio::test]
async fn p1_create_makes_a_box_and_starts_nothing() {
    let world = World::new();
    world.clock.advance(Duration::from_secs(77));
    let info = world.sandboxes.create(named("demo")).await.unwrap();
    assert_eq!((info.state, info.reason, info.started_at), (SandboxState::Created, None, None));
    assert_eq!((info.name.as_deref(), info.provider.as_str()), (Some("demo"), "mock"));
    assert_eq!(info.created_at, world.clock.now());
    assert_eq!(world.mock.get(info.id).await.unwrap().state, BoxState::Created);
    assert_eq!(world.recorded(info.id).await.unwrap().state, SandboxState::Created);
}

#[tokio::test]
async fn p1_create_twice_is_once() {
    let world = World::new();
    let id = SandboxId::generate();
    let first = world.sandboxes.create(with_env(id, "test")).await.unwrap();
    world.clock.advance(Duration::from_secs(5));
    let second = world.sandboxes.create(with_env(id, "test")).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(world.boxes().await, 1);
    assert_eq!(world.sandboxes.list().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn p1_create_at_the_same_time_is_once() {
    let world = World::new();
    let id = SandboxId::generate();
    world.faults.delay(Op::Create, Duration::from_secs(1));
    let (first, second) = tokio::join!(world.sandboxes.create(new(id)), world.sandboxes.create(new(id)));
    assert_eq!(first.unwrap(), second.unwrap());
    assert_eq!(world.boxes().await, 1);
}

#[tokio::test]
async fn create_again_leaves_a_running_one_running() {
    let world = World::new();
    let id = world.running().await;
    assert_eq!(world.sandboxes.create(new(id)).await.unwrap().state, SandboxState::Running);
    assert_eq!(world.recorded(id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test]
async fn create_again_makes_a_lost_box_anew() {
    let world = World::new();
    let id = world.running().await;
    world.mock.remove(id, Volumes::Keep).await.unwrap();
    assert_eq!(world.state(id).await, SandboxState::Lost);
    assert_eq!(world.sandboxes.create(new(id)).await.unwrap().state, SandboxState::Stopped);
}

#[tokio::test]
async fn a_second_create_that_fails_harms_nothing() {
    let world = World::new();
    let id = world.running().await;
    world.faults.fail(Op::Create, 1, ErrorKind::Unavailable);
    assert_eq!(error(world.sandboxes.create(new(id)).await).kind(), ErrorKind::Unavailable);
    let record = world.recorded(id).await.expect("the record of a running sandbox was removed");
    assert_eq!(record.state, SandboxState::Running);
    assert_eq!(world.state(id).await, SandboxState::Running);
}

#[tokio::test]
async fn another_spec_under_one_id_is_a_conflict() {
    let world = World::new();
    let id = SandboxId::generate();
    let first = world.sandboxes.create(with_env(id, "test")).await.unwrap();
    let other = NewSandbox { name: Some("other".to_owned()), ..with_env(id, "test") };
    for new in [with_env(id, "other"), new(id), other] {
        let refused = error(world.sandboxes.create(new).await);
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(!refused.is_retryable());
        assert!(refused.to_string().contains(&id.to_string()), "{refused}");
    }
    assert_eq!(world.sandboxes.get(id).await.unwrap(), first);
}

#[tokio::test]
async fn names_are_tame() {
    let world = World::new();
    let longest = "a".repeat(63);
    for good in ["a", "0", "demo", "a-b_c.d", "9lives", longest.as_str()] {
        world.sandboxes.create(named(good)).await.unwrap();
    }
    let made = world.boxes().await;
    let too_long = "a".repeat(64);
    let id_like = ["f47ac10b-58cc-4372-a567-0e02b2c3d479", "f47ac10b58cc4372a5670e02b2c3d479"];
    let odd = ["", "Demo", "-a", "_a", ".a", "a b", "a/b", "ü", "a\0", "a\n", too_long.as_str()];
    for bad in odd.into_iter().chain(id_like) {
        let refused = error(world.sandboxes.create(named(bad)).await);
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{bad:?}");
        assert!(refused.to_string().contains("a-z"), "{refused}");
    }
    assert_eq!(world.boxes().await, made);
    assert_eq!(world.records.list().await.unwrap().len(), made);
}

#[tokio::test]
async fn a_name_is_taken_once_and_free_again_after() {
    let world = World::new();
    let first = world.sandboxes.create(named("demo")).await.unwrap();
    let refused = error(world.sandboxes.create(named("demo")).await);
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("demo"), "{refused}");
    assert_eq!(world.boxes().await, 1);
    world.sandboxes.remove(first.id, Volumes::Delete).await.unwrap();
    world.sandboxes.create(named("demo")).await.unwrap();
}

#[tokio::test]
async fn a_spec_that_cannot_be_is_refused_before_anything_is_done() {
    let world = World::new();
    let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let limits = |limits: Limits| SandboxSpec { limits, ..SandboxSpec::default() };
    let specs = [
        SandboxSpec { labels: map("seawall.id", "x"), ..SandboxSpec::default() },
        SandboxSpec { labels: map("", "x"), ..SandboxSpec::default() },
        SandboxSpec { env: map("A=B", "x"), ..SandboxSpec::default() },
        SandboxSpec { env: map("", "x"), ..SandboxSpec::default() },
        SandboxSpec { env: map("A", "x\0y"), ..SandboxSpec::default() },
        limits(Limits { memory_mb: Some(0), ..Limits::default() }),
        limits(Limits { cpus: Some(0.0), ..Limits::default() }),
        limits(Limits { cpus: Some(f64::NAN), ..Limits::default() }),
    ];
    for spec in specs {
        let shown = format!("{spec:?}");
        let new = NewSandbox { spec, ..NewSandbox::default() };
        assert_eq!(error(world.sandboxes.create(new).await).kind(), ErrorKind::Invalid, "{shown}");
    }
    assert_eq!((world.boxes().await, world.records.list().await.unwrap().len()), (0, 0));
}

#[tokio::test]
async fn what_the_provider_refuses_leaves_nothing() {
    let world = World::new();
    let memory = Limits { memory_mb: Some(64), ..Limits::default() };
    let image = Some("ubuntu:22.04".to_owned());
    let cases = [
        (SandboxSpec { limits: memory, ..SandboxSpec::default() }, ErrorKind::LimitUnenforceable),
        (SandboxSpec { image, ..SandboxSpec::default() }, ErrorKind::Unsupported),
    ];
    for (spec, kind) in cases {
        let new = NewSandbox { spec, ..NewSandbox::default() };
        assert_eq!(error(world.sandboxes.create(new).await).kind(), kind);
    }
    assert_eq!((world.boxes().await, world.records.list().await.unwrap().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn p8_the_intent_is_recorded_before_the_box_is_made() {
    let world = World::new();
    let id = SandboxId::generate();
    world.faults.delay(Op::Create, Duration::from_secs(10));
    let sandboxes = world.sandboxes.clone();
    let making = tokio::spawn(async move { sandboxes.create(new(id)).await });
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.recorded(id).await.unwrap().state, SandboxState::Creating);
    assert_eq!(world.boxes().await, 0);
    assert_eq!(world.state(id).await, SandboxState::Creating);
    let early = error(world.sandboxes.start(id).await);
    assert_eq!(early.kind(), ErrorKind::Unavailable);
    assert!(early.is_retryable() && early.to_string().contains("try again"), "{early}");
    assert_eq!(within(making).await.unwrap().unwrap().state, SandboxState::Created);
    assert_eq!(world.sandboxes.start(id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_removal_during_the_making_leaves_no_box() {
    let world = World::new();
    let id = SandboxId::generate();
    world.faults.delay(Op::Create, Duration::from_secs(10));
    let sandboxes = world.sandboxes.clone();
    let making = tokio::spawn(async move { sandboxes.create(new(id)).await });
    sleep(Duration::from_secs(5)).await;
    // The removal has its turn when the making is done.
    within(world.sandboxes.remove(id, Volumes::Delete)).await.unwrap();
    assert_eq!(within(making).await.unwrap().unwrap().state, SandboxState::Created);
    assert!(world.recorded(id).await.is_none());
    assert_eq!(world.boxes().await, 0, "a box that nobody knows");
}

#[tokio::test]
async fn a_create_that_fails_leaves_nothing_behind() {
    let world = World::new();
    let id = SandboxId::generate();
    world.faults.fail(Op::Create, 1, ErrorKind::Unavailable);
    let failed = error(world.sandboxes.create(new(id)).await);
    assert_eq!(failed.kind(), ErrorKind::Unavailable);
    assert!(failed.is_retryable());
    assert!(world.recorded(id).await.is_none());
    assert_eq!(world.boxes().await, 0);
    // And so the same call may be made again.
    assert_eq!(world.sandboxes.create(new(id)).await.unwrap().state, SandboxState::Created);
}

#[tokio::test]
async fn what_cannot_be_cleaned_up_is_recorded_as_failed() {
    let world = World::new();
    let id = SandboxId::generate();
    world.faults.fail(Op::Create, 1, ErrorKind::Denied);
    world.faults.fail(Op::Remove, 1, ErrorKind::Unavailable);
    // The reason that is told is that of the making, not of the cleaning.
    assert_eq!(error(world.sandboxes.create(new(id)).await).kind(), ErrorKind::Denied);
    let info = world.sandboxes.get(id).await.unwrap();
    assert_eq!(info.state, SandboxState::Failed);
    assert_eq!(info.reason, Some(EndReason::Failed("denied".to_owned())));
    assert_eq!(world.recorded(id).await.unwrap().reason, info.reason);
    // A failed one can be started: its box is made anew.
    let started = world.sandboxes.start(id).await.unwrap();
    assert_eq!((started.state, started.reason), (SandboxState::Running, None));
}
