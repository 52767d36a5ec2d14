//! Listing: the substrate's truth, in the light of what was recorded.

use crate::sandboxes::world::{World, error};
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
