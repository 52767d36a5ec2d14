//! Processes that are started, left, and come back to.

use crate::sandboxes::world::{World, error, eventually, pattern, to_the_end, within};
use bytes::Bytes;
use seawall_api::{
    ErrorKind, ProcessId, SandboxId,
    exec::{ExitReason, OutputStream, StartProcess, WhenFull},
    message::Attach,
};
use seawall_providers::mock::{Script, Step};
use seawall_wire::{Process, ProcessOutput};
use std::time::Duration;
use tokio::time::timeout;

const DIGITS: &[u8] = b"0123456789";

/// Prints ten digits and stays.
async fn counting(world: &World) -> SandboxId {
    world.mock.on_command("count", |_| {
        Script::new([Step::Stdout(Bytes::from_static(DIGITS)), Step::WaitForSignal])
    });
    world.running().await
}

fn from(process: ProcessId, from: u64) -> Attach {
    Attach { process, from, hold: true, follow: true }
}

/// What is there now, and no more.
fn glance(process: ProcessId, from: u64) -> Attach {
    Attach { process, from, hold: false, follow: false }
}

async fn next(process: &mut Process) -> ProcessOutput {
    within(process.next()).await.unwrap()
}

fn stdout(offset: u64, bytes: &'static [u8]) -> ProcessOutput {
    ProcessOutput::Data { stream: OutputStream::Stdout, offset, bytes: Bytes::from_static(bytes) }
}

#[tokio::test(start_paused = true)]
async fn p1_attach_replays_from_the_offset_asked_for() {
    let world = World::new();
    let id = counting(&world).await;
    let mut first = world.sandboxes.spawn(id, StartProcess::new(["count"])).await.unwrap();
    assert_eq!(next(&mut first).await, stdout(0, DIGITS));
    assert_eq!(first.offset(), 10);
    let process = first.id();
    // Its reader goes, and the process does not notice.
    drop(first);
    for at in [0, 4, 9] {
        let mut later = world.sandboxes.attach(id, glance(process, at)).await.unwrap();
        assert!(later.resumed());
        assert_eq!(next(&mut later).await, stdout(at, &DIGITS[at as usize..]));
        assert_eq!(next(&mut later).await, ProcessOutput::Drained);
    }
    let mut at_the_end = world.sandboxes.attach(id, glance(process, 10)).await.unwrap();
    assert_eq!(next(&mut at_the_end).await, ProcessOutput::Drained);
    assert_eq!(world.mock.running(id), 1);
}

#[tokio::test(start_paused = true)]
async fn p1_output_and_exit_can_be_read_after_the_end() {
    let world = World::new();
    let id = counting(&world).await;
    let mut first = world.sandboxes.spawn(id, StartProcess::new(["count"])).await.unwrap();
    assert_eq!(next(&mut first).await, stdout(0, DIGITS));
    world.sandboxes.guest(id).await.unwrap().kill(first.id()).await.unwrap();
    let told = to_the_end(&mut first).await;
    assert_eq!((told.status.reason, told.status.signal), (ExitReason::Killed, Some(9)));
    let mut later = world.sandboxes.attach(id, from(first.id(), 3)).await.unwrap();
    let again = to_the_end(&mut later).await;
    assert_eq!((again.bytes.as_slice(), again.status), (&DIGITS[3..], told.status.clone()));
    // The end stays the end.
    assert_eq!(next(&mut later).await, ProcessOutput::End(told.status));
}

#[tokio::test(start_paused = true)]
async fn p8_another_host_process_goes_on_where_the_first_ended() {
    let world = World::new();
    let id = world.running().await;
    world.mock.on_command("slow", |_| {
        let halves = [Bytes::from_static(b"01234"), Bytes::from_static(b"56789")];
        let [first, second] = halves.map(Step::Stdout);
        Script::new([first, Step::Sleep(Duration::from_secs(60)), second, Step::Exit(4)])
    });
    let mut before = world.sandboxes.spawn(id, StartProcess::new(["slow"])).await.unwrap();
    assert_eq!(next(&mut before).await, stdout(0, b"01234"));
    let (process, offset) = (before.id(), before.offset());
    let after = world.another_host();
    drop((before, world));
    let mut found = after.attach(id, from(process, offset)).await.unwrap();
    let told = to_the_end(&mut found).await;
    assert_eq!((told.bytes.as_slice(), told.status.code), (&b"56789"[..], Some(4)));
    assert!(told.gaps.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_start_asked_for_twice_starts_once() {
    let world = World::new();
    let id = counting(&world).await;
    let start = StartProcess::new(["count"]);
    let first = world.sandboxes.spawn(id, start.clone()).await.unwrap();
    let mut second = world.sandboxes.spawn(id, start).await.unwrap();
    assert_eq!((first.resumed(), second.resumed()), (false, true));
    assert_eq!((first.id(), first.pid()), (second.id(), second.pid()));
    assert_eq!(next(&mut second).await, stdout(0, DIGITS));
    assert_eq!(world.mock.running(id), 1);
}

#[tokio::test(start_paused = true)]
async fn p9_attaching_to_what_is_not_there() {
    let world = World::new();
    let id = counting(&world).await;
    let unknown = error(world.sandboxes.attach(id, from(ProcessId::generate(), 0)).await);
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let mut process = world.sandboxes.spawn(id, StartProcess::new(["count"])).await.unwrap();
    assert_eq!(next(&mut process).await, stdout(0, DIGITS));
    let beyond = error(world.sandboxes.attach(id, from(process.id(), 11)).await);
    assert_eq!(beyond.kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn a_signal_reaches_it() {
    let world = World::new();
    let id = counting(&world).await;
    let mut process = world.sandboxes.spawn(id, StartProcess::new(["count"])).await.unwrap();
    process.input().signal(2).await.unwrap();
    let told = to_the_end(&mut process).await;
    assert_eq!((told.status.signal, told.status.shell_code()), (Some(2), 130));
}

#[tokio::test(start_paused = true)]
async fn input_in_pieces_while_output_is_read() {
    let world = World::new();
    let id = world.running().await;
    let start = StartProcess { stdin: true, ..StartProcess::new(["cat"]) };
    let mut process = world.sandboxes.spawn(id, start).await.unwrap();
    let input = process.input();
    input.write(b"01234").await.unwrap();
    assert_eq!(next(&mut process).await, stdout(0, b"01234"));
    input.write(b"56789").await.unwrap();
    assert_eq!(next(&mut process).await, stdout(5, b"56789"));
    input.close().await.unwrap();
    assert!(to_the_end(&mut process).await.status.success());
}

#[tokio::test(start_paused = true)]
async fn unread_output_is_dropped_oldest_first_and_the_gap_is_told() {
    let world = World::new();
    let id = world.running().await;
    let body = pattern(3 << 20);
    world.prints("big", &body);
    let guest = world.sandboxes.guest(id).await.unwrap();
    let started = guest.start_detached(StartProcess::new(["big"])).await.unwrap();
    eventually("it has ended", || world.mock.running(id) == 0).await;
    let mut process = world.sandboxes.attach(id, from(started.process, 0)).await.unwrap();
    let told = to_the_end(&mut process).await;
    let [(0, to)] = told.gaps[..] else { panic!("{:?}", told.gaps) };
    assert!(told.bytes == body[to as usize..], "not what is behind the gap");
    assert_eq!(told.status.output_end, 3 << 20);
}

#[tokio::test(start_paused = true)]
async fn with_block_it_waits_for_the_acknowledgement() {
    let world = World::new();
    let id = world.running().await;
    let body = pattern(3 << 19);
    world.prints("big", &body);
    let start = StartProcess { when_full: WhenFull::Block, ..StartProcess::new(["big"]) };
    let mut process = world.sandboxes.spawn(id, start).await.unwrap();
    process.set_manual_ack(true);
    let mut seen = Vec::new();
    while let Ok(output) = timeout(Duration::from_secs(60), process.next()).await {
        match output.unwrap() {
            ProcessOutput::Data { bytes, .. } => seen.extend_from_slice(&bytes),
            other => panic!("{other:?} before anything was acknowledged"),
        }
    }
    assert!(!seen.is_empty() && seen.len() < body.len(), "{} bytes", seen.len());
    assert_eq!(world.mock.running(id), 1);
    let offset = process.offset();
    process.ack(offset).await.unwrap();
    let told = to_the_end(&mut process).await;
    seen.extend_from_slice(&told.bytes);
    assert!(told.gaps.is_empty() && seen == body, "{} bytes, and others", seen.len());
}
