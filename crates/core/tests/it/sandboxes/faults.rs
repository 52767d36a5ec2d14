//! A provider that dawdles, refuses and cuts its connections.

use crate::sandboxes::world::{World, error, pattern, to_the_end, within};
use bytes::Bytes;
use seawall_api::{
    ErrorKind,
    exec::{StartProcess, WhenFull},
    sandbox::SandboxState,
};
use seawall_core::{ExecRequest, testing::Op};
use seawall_wire::ProcessOutput;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_slow_provider_is_waited_for_and_holds_up_nobody_else() {
    let world = World::new();
    let (slow, other) = (world.created().await, world.running().await);
    world.faults.delay(Op::Start, Duration::from_secs(90));
    let sandboxes = world.sandboxes.clone();
    let begun = Instant::now();
    let starting = tokio::spawn(async move { sandboxes.start(slow).await });
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.exec(other, ["echo", "hello"]).await.stdout, b"hello\n");
    assert_eq!(world.sandboxes.list().await.unwrap().len(), 2);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(world.state(slow).await, SandboxState::Created);
    assert_eq!(within(starting).await.unwrap().unwrap().state, SandboxState::Running);
    assert!(begun.elapsed() >= Duration::from_secs(90), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_wire_is_waited_for() {
    let world = World::new();
    let id = world.running().await;
    world.faults.delay(Op::Connect, Duration::from_secs(20));
    let begun = Instant::now();
    assert!(world.exec(id, ["true"]).await.status.success());
    let first = begun.elapsed();
    assert!((20..25).contains(&first.as_secs()), "{first:?}");
    // The wire stays: the second command needs no new one.
    assert!(world.exec(id, ["true"]).await.status.success());
    assert!(begun.elapsed() - first < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_wire_that_comes_at_the_fourth_try_is_good() {
    let world = World::new();
    let id = world.running().await;
    world.faults.fail(Op::Connect, 3, ErrorKind::Unavailable);
    assert!(world.exec(id, ["true"]).await.status.success());
}

#[tokio::test(start_paused = true)]
async fn p9_a_wire_that_cannot_be_had_is_an_error_of_its_kind() {
    let world = World::new();
    let id = world.running().await;
    world.faults.fail(Op::Connect, u32::MAX, ErrorKind::Unavailable);
    let failed = error(within(world.sandboxes.exec(id, ExecRequest::new(["true"]))).await);
    assert_eq!(failed.kind(), ErrorKind::Unavailable);
    assert!(failed.is_retryable());
    // What trying again cannot help is not tried again.
    world.faults.fail(Op::Connect, 1, ErrorKind::Denied);
    let begun = Instant::now();
    let denied = error(within(world.sandboxes.exec(id, ExecRequest::new(["true"]))).await);
    assert_eq!(denied.kind(), ErrorKind::Denied);
    assert!(begun.elapsed() < Duration::from_millis(20), "{:?}", begun.elapsed());
    assert!(world.exec(id, ["true"]).await.status.success());
}

#[tokio::test(start_paused = true)]
async fn p1_output_is_whole_after_the_wire_was_cut() {
    let world = World::new();
    let id = world.running().await;
    // As much as is kept for a reader that is away.
    let body = pattern(1 << 20);
    world.prints("big", &body);
    world.faults.cut_after(200 << 10);
    let mut process = within(world.sandboxes.spawn(id, StartProcess::new(["big"]))).await.unwrap();
    let told = to_the_end(&mut process).await;
    assert!(told.reconnects > 1, "{} wires were cut", told.reconnects);
    assert_eq!((told.gaps.len(), told.bytes.len()), (0, body.len()));
    assert!(told.bytes == body, "the same length, other bytes");
    assert!(told.status.success());
}

#[tokio::test(start_paused = true)]
async fn p1_with_block_output_of_any_size_is_whole_after_the_wire_was_cut() {
    let world = World::new();
    let id = world.running().await;
    let body = pattern(6 << 20);
    world.prints("big", &body);
    world.faults.cut_after(2 << 20);
    let start = StartProcess { when_full: WhenFull::Block, ..StartProcess::new(["big"]) };
    let mut process = within(world.sandboxes.spawn(id, start)).await.unwrap();
    let told = to_the_end(&mut process).await;
    assert!(told.reconnects > 1, "{} wires were cut", told.reconnects);
    assert_eq!((told.gaps.len(), told.bytes.len()), (0, body.len()));
    assert!(told.bytes == body, "the same length, other bytes");
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_that_was_lost_with_its_wire_is_made_again() {
    let world = World::new();
    let id = world.running().await;
    let body = pattern(3 << 19);
    world.prints("big", &body);
    let start = StartProcess { when_full: WhenFull::Block, ..StartProcess::new(["big"]) };
    let mut process = world.sandboxes.spawn(id, start).await.unwrap();
    process.set_manual_ack(true);
    let mut seen = Vec::new();
    // All that it may print before the first acknowledgement.
    while let Ok(output) = timeout(Duration::from_secs(60), process.next()).await {
        match output.unwrap() {
            ProcessOutput::Data { bytes, .. } => seen.extend_from_slice(&bytes),
            other => panic!("{other:?} before anything was acknowledged"),
        }
    }
    world.sandboxes.guest(id).await.unwrap().disconnect().await;
    let offset = process.offset();
    // Whether it knows already that the wire is gone or not: nobody hears this.
    let _ = process.ack(offset).await;
    let told = to_the_end(&mut process).await;
    seen.extend_from_slice(&told.bytes);
    assert!(told.reconnects > 0 && seen == body, "{} bytes, and others", seen.len());
}

#[tokio::test(start_paused = true)]
async fn p5_exec_is_whole_though_the_wire_was_cut() {
    let world = World::new();
    let id = world.running().await;
    let body = pattern(900_000);
    world.prints("big", &body);
    world.faults.cut_after(200 << 10);
    let output = world.exec(id, ["big"]).await;
    assert!(output.stdout == body, "{} bytes, and others", output.stdout.len());
    assert_eq!((output.stdout_truncated, output.status.code), (0, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn p5_half_of_a_stdin_is_never_taken_for_the_whole() {
    let world = World::new();
    let id = world.running().await;
    let body = pattern(700_000);
    let mut request = ExecRequest::new(["cat"]);
    request.stdin = Some(Bytes::from(body.clone()));
    world.faults.cut_after(200 << 10);
    // Whole, or an error: a command that was told "that is all" too early believes it.
    if let Ok(output) = within(world.sandboxes.exec(id, request)).await {
        assert!(output.stdout == body, "{} bytes of {}", output.stdout.len(), body.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_does_not_notice_that_its_wire_was_cut() {
    let world = World::new();
    let id = world.running().await;
    let mut process = world.sandboxes.spawn(id, StartProcess::new(["sleep", "100"])).await.unwrap();
    let pid = process.pid();
    for _ in 0..3 {
        world.sandboxes.guest(id).await.unwrap().disconnect().await;
        assert_eq!(world.mock.running(id), 1);
        assert!(world.exec(id, ["true"]).await.status.success());
    }
    let told = to_the_end(&mut process).await;
    assert!(told.reconnects > 0 && told.status.success(), "{told:?}");
    assert_eq!(process.pid(), pid);
}

#[tokio::test(start_paused = true)]
async fn a_wire_that_is_always_cut_at_once_is_an_error_not_a_wait() {
    let world = World::new();
    let id = world.running().await;
    for bytes in [1, 10, 120] {
        world.faults.cut_after(bytes);
        let failed = error(within(world.sandboxes.exec(id, ExecRequest::new(["true"]))).await);
        assert!(failed.is_retryable(), "{bytes}: {failed}");
    }
    world.faults.heal();
    assert!(world.exec(id, ["true"]).await.status.success());
}
