//! The sandbox service: what runs is left alone, what does not is brought back, and nothing ends unsaved by mistake.

use crate::turns::world::{Setup, World, error, runs, template, wanted};
use seawall_api::{ErrorKind, SandboxId, sandbox::SandboxState};
use seawall_core::{
    ports::{Provider, Volumes},
    service::Ready,
    templates::{SyncPart, Template},
    testing::Op,
};
use seawall_sync::bucket::{MemoryBucket, SharedBucket};
use std::{sync::Arc, time::Duration};

const COLD: Ready = Ready { cold: true, version: None };
const WARM: Ready = Ready { cold: false, version: None };

/// Its files go to a bucket; the mock's guest knows no sync, so that they never arrive.
fn unsaved() -> (World, Template) {
    let kept = Template { sync: SyncPart::default(), ..template("kept") };
    let bucket: SharedBucket = Arc::new(MemoryBucket::default());
    let setup = Setup { templates: vec![kept.clone()], bucket: Some(bucket), ..Setup::default() };
    (World::with(setup), kept)
}

#[tokio::test(start_paused = true)]
async fn v1_a_sandbox_is_made_as_its_template_says() {
    let mut named = template("named");
    named.sandbox.env.insert("COLOUR".to_owned(), "blue".to_owned());
    named.hooks.cold_start = vec![runs("say ready")];
    let world = World::of([named.clone()]);
    let id = SandboxId::generate();
    assert_eq!(world.service.ensure(&wanted(id, &named)).await.unwrap(), COLD);
    let row = world.row(id).await.unwrap();
    assert_eq!((row.template.as_deref(), row.provider.as_str()), (Some("named"), "mock"));
    assert_eq!(world.shell.of("say ready")[0].env["COLOUR"], "blue");
    let mut odd = template("odd");
    odd.sandbox.provider = Some("moon".to_owned());
    let refused = error(world.service.ensure(&wanted(SandboxId::generate(), &odd)).await);
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("moon"), "{refused}");
    assert_eq!(world.boxes().await, 1);
}

#[tokio::test(start_paused = true)]
async fn v2_what_runs_is_left_alone() {
    let mut plain = template("plain");
    plain.hooks.cold_start = vec![runs("say ready")];
    let world = World::of([plain.clone()]);
    let wanted = wanted(SandboxId::generate(), &plain);
    world.service.ensure(&wanted).await.unwrap();
    let before = world.sandboxes.get(wanted.sandbox).await.unwrap();
    for _ in 0..3 {
        assert_eq!(world.service.ensure(&wanted).await.unwrap(), WARM);
    }
    assert_eq!(world.another().service.ensure(&wanted).await.unwrap(), WARM);
    assert_eq!(world.sandboxes.get(wanted.sandbox).await.unwrap(), before);
    assert_eq!((world.shell.times("say ready"), world.boxes().await), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn v2_what_stopped_is_started() {
    let world = World::new();
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    let id = wanted.sandbox;
    world.service.ensure(&wanted).await.unwrap();
    world.put(id, "a.txt", "kept").await;
    world.sandboxes.stop(id, Duration::ZERO).await.unwrap();
    assert_eq!(world.service.ensure(&wanted).await.unwrap(), WARM);
    world.mock.crash(id);
    assert_eq!(world.service.ensure(&wanted).await.unwrap(), WARM);
    assert_eq!(world.sandboxes.get(id).await.unwrap().state, SandboxState::Running);
    assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn v2_what_is_lost_is_made_again() {
    let world = World::new();
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    let id = wanted.sandbox;
    world.service.ensure(&wanted).await.unwrap();
    let before = world.row(id).await.unwrap();
    world.put(id, "a.txt", "kept").await;
    world.mock.remove(id, Volumes::Keep).await.unwrap();
    assert_eq!(world.service.ensure(&wanted).await.unwrap(), COLD);
    assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
    let after = world.row(id).await.unwrap();
    assert_eq!(
        (after.spec, after.template, after.created_at),
        (before.spec, before.template, before.created_at)
    );
}

#[tokio::test(start_paused = true)]
async fn v2_asked_for_twice_at_once_it_is_made_once() {
    let world = World::new();
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    let other = world.another();
    let (here, there) = tokio::join!(world.service.ensure(&wanted), other.service.ensure(&wanted));
    for made in [here, there] {
        // Whoever comes second may be told to wait for the first, and nothing worse.
        assert!(made.is_ok() || error(made).is_retryable());
    }
    world.service.ensure(&wanted).await.unwrap();
    assert_eq!(world.boxes().await, 1);
    assert_eq!(world.sandboxes.get(wanted.sandbox).await.unwrap().state, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn v2_what_somebody_is_at_is_told_to_be_tried_again() {
    let world = World::new();
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    world.service.ensure(&wanted).await.unwrap();
    world.faults.fail(Op::Remove, 1, ErrorKind::Unavailable);
    error(world.sandboxes.remove(wanted.sandbox, Volumes::Keep).await);
    let refused = error(world.service.ensure(&wanted).await);
    assert!(refused.is_retryable() && refused.to_string().contains("try again"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn v2_terminate_without_a_sync_keeps_the_files() {
    let world = World::new();
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    let id = wanted.sandbox;
    world.service.ensure(&wanted).await.unwrap();
    world.put(id, "a.txt", "kept").await;
    world.service.terminate(&wanted, false, false).await.unwrap();
    assert!(world.is_terminated(id).await);
    assert_eq!(world.boxes().await, 0);
    // What has ended has ended.
    world.service.terminate(&wanted, false, false).await.unwrap();
    assert_eq!(world.service.ensure(&wanted).await.unwrap(), COLD);
    assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn v2_terminate_refuses_where_the_sync_fails() {
    let (world, kept) = unsaved();
    let wanted = wanted(SandboxId::generate(), &kept);
    world.service.ensure(&wanted).await.unwrap();
    for _ in 0..2 {
        let refused = error(world.service.terminate(&wanted, true, false).await);
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(refused.to_string().contains("force"), "{refused}");
        assert_eq!(world.sandboxes.get(wanted.sandbox).await.unwrap().state, SandboxState::Running);
    }
    // What is marked as unsaved is not removed without a sync either.
    let refused = error(world.service.terminate(&wanted, false, false).await);
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    world.service.terminate(&wanted, true, true).await.unwrap();
    assert!(world.is_terminated(wanted.sandbox).await);
    assert_eq!(world.boxes().await, 0);
}

#[tokio::test(start_paused = true)]
async fn v2_force_terminates_at_the_first_word() {
    let (world, kept) = unsaved();
    let wanted = wanted(SandboxId::generate(), &kept);
    world.service.ensure(&wanted).await.unwrap();
    world.put(wanted.sandbox, "a.txt", "kept").await;
    world.service.terminate(&wanted, true, true).await.unwrap();
    assert!(world.is_terminated(wanted.sandbox).await);
    assert_eq!(world.boxes().await, 0);
    // The box goes; what no bucket has stays.
    world.service.ensure(&wanted).await.unwrap();
    assert_eq!(world.take(wanted.sandbox, "a.txt").await, Ok("kept".to_owned()));
}
