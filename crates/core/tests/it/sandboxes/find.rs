//! Finding and listing: the substrate's truth, in the light of what was recorded.

use crate::sandboxes::world::{World, error, named, new};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxState},
};
use seawall_core::{
    NewSandbox,
    ports::{Provider, Volumes},
    testing::Op,
};
use std::time::Duration;

fn id(text: &str) -> SandboxId {
    text.parse().unwrap()
}

/// Two that begin alike, and one that does not.
async fn three(world: &World) -> [SandboxId; 3] {
    let ids = [
        id("f47ac10b-0000-4000-8000-000000000001"),
        id("f47ac10b-0000-4000-9000-000000000002"),
        id("0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e"),
    ];
    for each in ids {
        world.sandboxes.create(new(each)).await.unwrap();
    }
    ids
}

#[tokio::test]
async fn p1_by_id() {
    let world = World::new();
    let [first, _, third] = three(&world).await;
    assert_eq!(world.sandboxes.find(&first.to_string()).await.unwrap().id, first);
    // As people paste it: in capitals, without hyphens, with a blank at the end.
    assert_eq!(world.sandboxes.find("0190A5D0-7C1E-7B3A-9F00-3D2C1B0A9F8E").await.unwrap().id, third);
    assert_eq!(world.sandboxes.find("0190a5d07c1e7b3a9f003d2c1b0a9f8e").await.unwrap().id, third);
    assert_eq!(world.sandboxes.find("0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e ").await.unwrap().id, third);
    let unknown = SandboxId::generate().to_string();
    assert_eq!(error(world.sandboxes.find(&unknown).await).kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn by_name_before_the_beginning_of_an_id() {
    let world = World::new();
    let [_, _, third] = three(&world).await;
    let demo = world.sandboxes.create(named("demo")).await.unwrap().id;
    assert_eq!(world.sandboxes.find("demo").await.unwrap().id, demo);
    assert_eq!(world.sandboxes.find("0190a5d0").await.unwrap().id, third);
    let like_an_id = world.sandboxes.create(named("0190a5d0")).await.unwrap().id;
    assert_eq!(world.sandboxes.find("0190a5d0").await.unwrap().id, like_an_id);
}

#[tokio::test]
async fn by_the_beginning_of_an_id_that_only_one_has() {
    let world = World::new();
    let [first, second, third] = three(&world).await;
    assert_eq!(world.sandboxes.find("0190").await.unwrap().id, third);
    assert_eq!(world.sandboxes.find("F47AC10B-0000-4000-8").await.unwrap().id, first);
    assert_eq!(world.sandboxes.find("f47ac10b-0000-4000-9").await.unwrap().id, second);
    let ambiguous = error(world.sandboxes.find("f47ac10b").await);
    assert_eq!(ambiguous.kind(), ErrorKind::Invalid);
    assert!(ambiguous.to_string().contains("f47ac10b"), "{ambiguous}");
    // Three letters are too few to mean one.
    assert_eq!(error(world.sandboxes.find("019").await).kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn p9_what_is_not_there_is_named() {
    let world = World::new();
    three(&world).await;
    for unknown in ["nobody", "f47ac10c", "f47ac10b-1"] {
        let missing = error(world.sandboxes.find(unknown).await);
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let message = missing.to_string();
        assert!(message.contains(unknown) && message.contains("seawall ls"), "{message}");
    }
}

#[tokio::test]
async fn p1_a_list_is_reconciled_oldest_first() {
    let world = World::new();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(world.running().await);
        world.clock.advance(Duration::from_secs(1));
    }
    ids.push(world.created().await);
    world.sandboxes.stop(ids[1], Duration::ZERO).await.unwrap();
    world.mock.crash(ids[2]);
    world.mock.remove(ids[3], Volumes::Keep).await.unwrap();
    let seen: Vec<_> = world.sandboxes.list().await.unwrap();
    assert_eq!(seen.iter().map(|info| info.id).collect::<Vec<_>>(), ids);
    let seen: Vec<_> = seen.into_iter().map(|info| (info.state, info.reason)).collect();
    let died = EndReason::Failed("guest_died".to_owned());
    let expected = [
        (SandboxState::Running, None),
        (SandboxState::Stopped, Some(EndReason::Stopped)),
        (SandboxState::Stopped, Some(died)),
        (SandboxState::Lost, Some(EndReason::Lost)),
        (SandboxState::Running, None),
        (SandboxState::Created, None),
    ];
    assert_eq!(seen, expected);
    // One by one they are told the same.
    for (id, (state, reason)) in ids.into_iter().zip(expected) {
        let info = world.sandboxes.get(id).await.unwrap();
        assert_eq!((info.state, info.reason), (state, reason));
    }
}

#[tokio::test]
async fn a_box_that_nobody_recorded_is_not_listed() {
    let world = World::new();
    let orphan = SandboxId::generate();
    world.mock.create(orphan, &NewSandbox::default().spec, AccountId::LOCAL).await.unwrap();
    assert!(world.sandboxes.list().await.unwrap().is_empty());
    assert_eq!(error(world.sandboxes.get(orphan).await).kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_provider_that_cannot_be_asked_has_lost_nothing() {
    let world = World::new();
    let id = world.running().await;
    world.faults.fail(Op::Get, 1, ErrorKind::Unavailable);
    assert_eq!(error(world.sandboxes.get(id).await).kind(), ErrorKind::Unavailable);
    world.faults.fail(Op::List, 1, ErrorKind::Unavailable);
    let listed = world.sandboxes.list().await.unwrap();
    assert_eq!((listed[0].id, listed[0].state), (id, SandboxState::Running), "the last known state");
    assert_eq!(world.state(id).await, SandboxState::Running);
}
