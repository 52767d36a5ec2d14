//! Start, stop and remove, from every state and more than once.

use crate::sandboxes::world::{World, error, eventually, new, within};
use seawall_api::{
    ErrorKind, SandboxId,
    exec::{ExitReason, StartProcess},
    sandbox::{EndReason, SandboxState},
};
use seawall_core::{
    ExecRequest,
    ports::{BoxState, Clock, Provider, Volumes},
    testing::Op,
};
use std::time::Duration;

const GRACE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn p1_start_from_created() {
    let world = World::new();
    let id = world.created().await;
    world.clock.advance(Duration::from_secs(60));
    let info = world.sandboxes.start(id).await.unwrap();
    assert_eq!((info.state, &info.reason), (SandboxState::Running, &None));
    assert_eq!(info.started_at, Some(world.clock.now()));
    assert_eq!(world.mock.get(id).await.unwrap().state, BoxState::Running);
    // Another host process sees the same.
    assert_eq!(world.another_host().get(id).await.unwrap(), info);
}

#[tokio::test]
async fn p1_start_of_a_running_one_changes_nothing() {
    let world = World::new();
    let id = world.running().await;
    let before = world.sandboxes.get(id).await.unwrap();
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.sandboxes.start(id).await.unwrap(), before);
    assert_eq!(world.sandboxes.get(id).await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn p1_start_from_stopped_finds_the_files() {
    let world = World::new();
    let id = world.running().await;
    world.put(id, "notes/a.txt", "kept").await;
    world.sandboxes.stop(id, GRACE).await.unwrap();
    let info = world.sandboxes.start(id).await.unwrap();
    assert_eq!((info.state, info.reason), (SandboxState::Running, None));
    assert_eq!(world.take(id, "notes/a.txt").await, Ok("kept".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn p8_start_from_lost_makes_the_box_anew_with_its_volume() {
    let world = World::new();
    let id = world.running().await;
    world.put(id, "notes/a.txt", "kept").await;
    world.mock.remove(id, Volumes::Keep).await.unwrap();
    let lost = world.sandboxes.get(id).await.unwrap();
    assert_eq!((lost.state, lost.reason), (SandboxState::Lost, Some(EndReason::Lost)));
    let info = world.sandboxes.start(id).await.unwrap();
    assert_eq!((info.state, info.reason), (SandboxState::Running, None));
    assert_eq!(world.take(id, "notes/a.txt").await, Ok("kept".to_owned()));
}

#[tokio::test]
async fn a_start_that_fails_can_be_tried_again() {
    let world = World::new();
    let id = world.created().await;
    world.faults.fail(Op::Start, 1, ErrorKind::Unavailable);
    assert!(error(world.sandboxes.start(id).await).is_retryable());
    assert_eq!(world.state(id).await, SandboxState::Created);
    assert_eq!(world.sandboxes.start(id).await.unwrap().state, SandboxState::Running);

    world.mock.remove(id, Volumes::Keep).await.unwrap();
    world.faults.fail(Op::Create, 1, ErrorKind::Unavailable);
    assert!(error(world.sandboxes.start(id).await).is_retryable());
    assert_eq!(world.state(id).await, SandboxState::Lost);
    assert_eq!(world.sandboxes.start(id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test]
async fn p9_start_of_what_is_not_there() {
    let world = World::new();
    let refused = error(world.sandboxes.start(SandboxId::generate()).await);
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert!(refused.to_string().contains("seawall ls"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn p1_stop_ends_every_process_and_may_be_repeated() {
    let world = World::new();
    let id = world.running().await;
    let process = world.sandboxes.spawn(id, StartProcess::new(["sleep", "1000"])).await.unwrap();
    assert_eq!(world.mock.running(id), 1);
    let first = world.sandboxes.stop(id, GRACE).await.unwrap();
    assert_eq!((first.state, first.reason.clone()), (SandboxState::Stopped, Some(EndReason::Stopped)));
    assert_eq!(world.mock.running(id), 0);
    assert_eq!(world.sandboxes.stop(id, GRACE).await.unwrap(), first);
    assert_eq!(world.sandboxes.get(id).await.unwrap(), first);
    drop(process);
}

#[tokio::test]
async fn stop_of_what_does_not_run_changes_nothing() {
    let world = World::new();
    let created = world.created().await;
    assert_eq!(world.sandboxes.stop(created, GRACE).await.unwrap().state, SandboxState::Created);
    let lost = world.running().await;
    world.mock.remove(lost, Volumes::Keep).await.unwrap();
    assert_eq!(world.sandboxes.stop(lost, GRACE).await.unwrap().state, SandboxState::Lost);
    let crashed = world.running().await;
    world.mock.crash(crashed);
    let info = world.sandboxes.stop(crashed, GRACE).await.unwrap();
    assert_eq!(info.reason, Some(EndReason::Failed("guest_died".to_owned())));
}

#[tokio::test]
async fn a_stop_that_fails_can_be_tried_again() {
    let world = World::new();
    let id = world.running().await;
    world.faults.fail(Op::Stop, 1, ErrorKind::Unavailable);
    assert!(error(world.sandboxes.stop(id, GRACE).await).is_retryable());
    assert_eq!(world.state(id).await, SandboxState::Running);
    assert_eq!(world.sandboxes.stop(id, GRACE).await.unwrap().state, SandboxState::Stopped);
}

#[tokio::test]
async fn p1_remove_from_every_state_and_twice() {
    let world = World::new();
    let failed = {
        let id = SandboxId::generate();
        world.faults.fail(Op::Create, 1, ErrorKind::Unavailable);
        world.faults.fail(Op::Remove, 1, ErrorKind::Unavailable);
        error(world.sandboxes.create(new(id)).await);
        id
    };
    let lost = world.running().await;
    world.mock.remove(lost, Volumes::Keep).await.unwrap();
    let crashed = world.running().await;
    world.mock.crash(crashed);
    let mut ids = vec![failed, lost, crashed];
    ids.extend([world.created().await, world.running().await, world.stopped().await]);
    for state in SandboxState::ALL {
        ids.push(world.leave_record(state).await);
    }
    for id in ids {
        world.sandboxes.remove(id, Volumes::Keep).await.unwrap();
        assert!(world.recorded(id).await.is_none());
        assert_eq!(error(world.sandboxes.get(id).await).kind(), ErrorKind::NotFound);
        assert_eq!(error(world.sandboxes.remove(id, Volumes::Keep).await).kind(), ErrorKind::NotFound);
    }
    assert_eq!(world.boxes().await, 0);
    assert!(world.sandboxes.list().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn p1_remove_keeps_the_volume_or_deletes_it() {
    let world = World::new();
    let id = world.running().await;
    world.put(id, "a.txt", "kept").await;
    world.sandboxes.remove(id, Volumes::Keep).await.unwrap();
    world.sandboxes.create(new(id)).await.unwrap();
    world.sandboxes.start(id).await.unwrap();
    assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
    world.sandboxes.remove(id, Volumes::Delete).await.unwrap();
    world.sandboxes.create(new(id)).await.unwrap();
    world.sandboxes.start(id).await.unwrap();
    assert_eq!(world.take(id, "a.txt").await, Err(ErrorKind::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_fails_is_finished_by_the_next() {
    let world = World::new();
    let id = world.running().await;
    let process = world.sandboxes.spawn(id, StartProcess::new(["sleep", "1000"])).await.unwrap();
    world.faults.fail(Op::Remove, 1, ErrorKind::Unavailable);
    assert!(error(world.sandboxes.remove(id, Volumes::Keep).await).is_retryable());
    // It is on its way out, and nobody gets in any more.
    assert_eq!(world.state(id).await, SandboxState::Stopping);
    for refused in [world.sandboxes.start(id).await.err(), world.sandboxes.guest(id).await.err()] {
        assert_eq!(refused.unwrap().kind(), ErrorKind::Unavailable);
    }
    world.sandboxes.remove(id, Volumes::Keep).await.unwrap();
    assert_eq!(error(world.sandboxes.get(id).await).kind(), ErrorKind::NotFound);
    assert_eq!(world.boxes().await, 0);
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn p9_using_what_does_not_run_says_what_to_do() {
    let world = World::new();
    let lost = world.running().await;
    world.mock.remove(lost, Volumes::Keep).await.unwrap();
    for id in [world.created().await, world.stopped().await, lost] {
        let refused = error(world.sandboxes.exec(id, ExecRequest::new(["true"])).await);
        assert_eq!(refused.kind(), ErrorKind::Stopped);
        assert!(refused.to_string().contains("seawall start"), "{refused}");
        let refused = error(world.sandboxes.spawn(id, StartProcess::new(["true"])).await);
        assert_eq!(refused.kind(), ErrorKind::Stopped);
        assert_eq!(error(world.sandboxes.guest(id).await).kind(), ErrorKind::Stopped);
    }
    let unknown = error(world.sandboxes.exec(SandboxId::generate(), ExecRequest::new(["true"])).await);
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let making = world.leave_record(SandboxState::Creating).await;
    let early = error(world.sandboxes.guest(making).await);
    assert_eq!(early.kind(), ErrorKind::Unavailable);
    assert!(early.to_string().contains("try again"), "{early}");
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_no_end_it_starts_again() {
    let world = World::new();
    let id = world.running().await;
    world.put(id, "a.txt", "kept").await;
    world.mock.crash(id);
    let info = world.sandboxes.get(id).await.unwrap();
    assert_eq!(info.state, SandboxState::Stopped);
    assert_eq!(info.reason, Some(EndReason::Failed("guest_died".to_owned())));
    let info = world.sandboxes.start(id).await.unwrap();
    assert_eq!((info.state, info.reason), (SandboxState::Running, None));
    // The client of before is told of the new life by itself.
    assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
    assert_eq!(world.exec(id, ["echo", "hello"]).await.stdout, b"hello\n");
}

#[tokio::test(start_paused = true)]
async fn a_command_in_progress_ends_with_its_sandbox() {
    let world = World::new();
    let id = world.running().await;
    let sandboxes = world.sandboxes.clone();
    let running = tokio::spawn(async move { sandboxes.exec(id, ExecRequest::new(["sleep", "1000"])).await });
    eventually("the command runs", || world.mock.running(id) == 1).await;
    world.sandboxes.stop(id, GRACE).await.unwrap();
    // It is told either by the guest before it goes, or by the provider after.
    match within(running).await.unwrap() {
        Ok(output) => assert_eq!(output.status.reason, ExitReason::Stopped),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Stopped, "{error}"),
    }
}
