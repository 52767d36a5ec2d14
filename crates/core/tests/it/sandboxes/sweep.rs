//! Sweeping: boxes without a record, and records without a box.

use crate::sandboxes::world::{World, error, new, within};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    exec::StartProcess,
    http::Reconciliation,
    sandbox::{EndReason, SandboxState},
};
use seawall_core::{
    ports::{Provider, Records, Volumes},
    testing::Op,
};
use std::time::Duration;
use tokio::time::sleep;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::test(start_paused = true)]
async fn p8_orphans_are_removed_and_their_volumes_kept() {
    let world = World::new();
    let (orphan, ours) = (world.running().await, world.running().await);
    world.put(orphan, "a.txt", "kept").await;
    world.records.remove(orphan).await.unwrap();
    let sweep = world.sandboxes.sweep().await.unwrap();
    assert_eq!(sweep, Reconciliation { removed: vec![orphan], ..Reconciliation::default() });
    assert_eq!(world.boxes().await, 1);
    assert_eq!(world.state(ours).await, SandboxState::Running);
    world.sandboxes.create(new(orphan)).await.unwrap();
    world.sandboxes.start(orphan).await.unwrap();
    assert_eq!(world.take(orphan, "a.txt").await, Ok("kept".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn p8_what_is_well_is_left_alone() {
    let world = World::new();
    let (created, running, stopped) = (world.created().await, world.running().await, world.stopped().await);
    let process = world.sandboxes.spawn(running, StartProcess::new(["sleep", "1000"])).await.unwrap();
    let before = world.sandboxes.list().await.unwrap();
    assert_eq!(world.sandboxes.sweep().await.unwrap(), Reconciliation::default());
    assert_eq!(world.sandboxes.list().await.unwrap(), before);
    assert_eq!(world.mock.running(running), 1);
    for id in [created, running, stopped] {
        assert!(world.recorded(id).await.is_some());
    }
    drop(process);
}

#[tokio::test]
async fn p8_records_whose_box_is_gone_are_marked_once() {
    let world = World::new();
    let id = world.running().await;
    world.mock.remove(id, Volumes::Keep).await.unwrap();
    assert_eq!(world.recorded(id).await.unwrap().state, SandboxState::Running);
    let sweep = world.sandboxes.sweep().await.unwrap();
    assert_eq!(sweep, Reconciliation { lost: vec![id], ..Reconciliation::default() });
    let record = world.recorded(id).await.unwrap();
    assert_eq!((record.state, record.reason), (SandboxState::Lost, Some(EndReason::Lost)));
    assert_eq!(world.sandboxes.sweep().await.unwrap(), Reconciliation::default());
    assert_eq!(world.sandboxes.start(id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test]
async fn p8_what_somebody_is_making_or_removing_is_left_alone() {
    let world = World::new();
    for state in [SandboxState::Creating, SandboxState::Stopping] {
        let id = world.leave_record(state).await;
        let claim = world.records.claim(id).await.unwrap();
        assert_eq!(world.sandboxes.sweep().await.unwrap(), Reconciliation::default());
        assert_eq!(world.state(id).await, state);
        // A crash gives the claim back.
        drop(claim);
        let sweep = world.sandboxes.sweep().await.unwrap();
        let done = if state == SandboxState::Creating { sweep.unmade } else { sweep.finished };
        assert_eq!(done, [id]);
        assert!(world.recorded(id).await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn p8_a_sweep_during_a_create_does_no_harm() {
    let world = World::new();
    let id = SandboxId::generate();
    world.faults.delay(Op::Create, Duration::from_secs(10));
    let sandboxes = world.sandboxes.clone();
    let making = tokio::spawn(async move { sandboxes.create(new(id)).await });
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.sandboxes.sweep().await.unwrap(), Reconciliation::default());
    assert_eq!(within(making).await.unwrap().unwrap().state, SandboxState::Created);
    assert_eq!(world.sandboxes.sweep().await.unwrap(), Reconciliation::default());
}

#[tokio::test]
async fn p8_a_box_made_just_before_a_crash_is_kept() {
    let world = World::new();
    let id = world.leave_record(SandboxState::Creating).await;
    let spec = world.recorded(id).await.unwrap().spec;
    world.mock.create(id, &spec, AccountId::LOCAL).await.unwrap();
    world.clock.advance(PATIENCE * 2);
    assert_eq!(world.sandboxes.sweep().await.unwrap(), Reconciliation::default());
    assert_eq!(world.state(id).await, SandboxState::Created);
    assert_eq!(world.sandboxes.start(id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test]
async fn p8_removals_that_were_cut_short_are_finished() {
    let world = World::new();
    // One crashed before its box was gone, the other before its record was.
    let with_box = world.running().await;
    world.faults.fail(Op::Remove, 1, ErrorKind::Unavailable);
    error(world.sandboxes.remove(with_box, Volumes::Keep).await);
    let without_box = world.leave_record(SandboxState::Stopping).await;
    world.clock.advance(PATIENCE * 2);
    world.sandboxes.sweep().await.unwrap();
    for id in [with_box, without_box] {
        assert!(world.recorded(id).await.is_none(), "{:?}", world.recorded(id).await);
    }
    assert_eq!(world.boxes().await, 0);
}

#[tokio::test]
async fn p8_a_provider_that_cannot_be_asked_loses_nothing() {
    let world = World::new();
    let id = world.running().await;
    for op in [Op::List, Op::Get] {
        world.faults.fail(op, 1, ErrorKind::Unavailable);
        assert_eq!(error(world.sandboxes.sweep().await).kind(), ErrorKind::Unavailable);
        assert_eq!(world.recorded(id).await.unwrap().state, SandboxState::Running);
    }
    assert_eq!(world.sandboxes.sweep().await.unwrap(), Reconciliation::default());
}

#[tokio::test]
async fn p8_what_fails_for_one_keeps_no_other_from_being_looked_at() {
    let world = World::new();
    let (first, second, lost) = (world.running().await, world.running().await, world.running().await);
    for orphan in [first, second] {
        world.records.remove(orphan).await.unwrap();
    }
    world.mock.remove(lost, Volumes::Keep).await.unwrap();
    world.faults.fail(Op::Remove, 1, ErrorKind::Unavailable);
    assert_eq!(error(world.sandboxes.sweep().await).kind(), ErrorKind::Unavailable);
    assert_eq!(world.boxes().await, 1);
    assert_eq!(world.recorded(lost).await.unwrap().state, SandboxState::Lost);
    assert_eq!(world.sandboxes.sweep().await.unwrap().removed.len(), 1);
    assert_eq!(world.boxes().await, 0);
}

#[tokio::test]
async fn p8_what_failed_stays_to_be_looked_at() {
    let world = World::new();
    let failed = world.leave_record(SandboxState::Failed).await;
    world.clock.advance(PATIENCE * 2);
    assert_eq!(world.sandboxes.sweep().await.unwrap(), Reconciliation::default());
    assert_eq!(world.state(failed).await, SandboxState::Failed);
}
