//! Sandboxes as things of their account: made, looked at, stopped, ended, and made anew by their conversation.

mod ended;

use crate::turns::{
    fakes::Own,
    world::{Left, ME, Setup, World, all, ask, by, error, more, runs, template, wanted, within},
};
use async_trait::async_trait;
use futures::FutureExt;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, SandboxId,
    conversation::{TurnState, Usage},
    event::Event,
    http::CreateSandbox,
    sandbox::{EndReason, Limits, Sandbox, SandboxState, Timeouts},
};
use seawall_core::{
    Error, ExecRequest, Result,
    hooks::{Hook, HookContext, HookKind, Moment},
    ports::{
        Provider, Volumes,
        store::{Page, SandboxFilter},
    },
    service::{EndSandbox, ListFiles},
    templates::{HookPart, SyncPart, Template},
    testing::Op,
    turns::{Choice, TurnAsk},
};
use seawall_sync::{
    bucket::{MemoryBucket, SharedBucket},
    engine::Options,
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::sleep;

const END: EndSandbox = EndSandbox { sync: false, force: false, volumes: None, delete_versions: false };
const SAVE_AND_END: EndSandbox =
    EndSandbox { sync: true, force: false, volumes: None, delete_versions: false };

/// As a request that says nothing has it.
fn new() -> CreateSandbox {
    CreateSandbox { start: true, ..CreateSandbox::default() }
}

fn of(template: &str) -> CreateSandbox {
    CreateSandbox { template: Some(template.to_owned()), ..new() }
}

fn named(name: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.to_owned()), ..new() }
}

fn in_sandbox(id: SandboxId, ask: TurnAsk) -> TurnAsk {
    TurnAsk { sandbox: Choice::This(id), ..ask }
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

async fn create(world: &World, ask: &CreateSandbox) -> Sandbox {
    world.service.create(ME, ask).await.unwrap()
}

async fn get(world: &World, id: SandboxId) -> Sandbox {
    world.service.get(ME, id).await.unwrap()
}

async fn state(world: &World, id: SandboxId) -> SandboxState {
    get(world, id).await.info.state
}

/// Nothing is there of a sandbox, and nothing was.
async fn assert_never_was(world: &World, id: SandboxId) {
    assert!(world.row(id).await.is_none());
    assert_eq!(world.boxes().await, 0);
    assert!(!world.mock.has_volume(&id.to_string()).await.unwrap());
}

/// Its files go to a bucket; the mock's guest knows no sync, so that they never arrive.
fn unsaved() -> World {
    let kept = Template { sync: SyncPart::default(), ..template("kept") };
    let bucket: SharedBucket = Arc::new(MemoryBucket::default());
    World::with(Setup { templates: vec![kept], bucket: Some(bucket), ..Setup::default() })
}

/// Cold starts fail while it says so.
fn unsteady() -> (World, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let seen = broken.clone();
    let own = Own::hook(HookKind::ColdStart, move || {
        let fails = seen.load(Ordering::Relaxed);
        async move { if fails { Err(Error::unavailable("a mirror is down")) } else { Ok(()) } }.boxed()
    });
    (World::with(Setup { own: vec![own], ..Setup::default() }), broken)
}

#[tokio::test(start_paused = true)]
async fn v1_what_asks_for_nothing_gets_the_default() {
    let world = World::new();
    let made = create(&world, &new()).await;
    assert_eq!((made.template.as_deref(), made.info.provider.as_str()), (Some("shell"), "mock"));
    assert_eq!((made.info.state, &made.info.name, &made.unsynced), (SandboxState::Running, &None, &None));
    assert_eq!(get(&world, made.info.id).await, made);
    let output = world.service.exec(ME, made.info.id, ExecRequest::new(["echo", "hi"])).await.unwrap();
    assert_eq!(output.stdout, b"hi\n");
}

#[tokio::test(start_paused = true)]
async fn v1_what_is_asked_for_goes_before_the_template_and_that_before_the_server() {
    let mut tuned = template("tuned");
    tuned.sandbox.env = pairs(&[("COLOUR", "blue"), ("SIZE", "big")]);
    tuned.sandbox.timeouts = Timeouts { idle_seconds: Some(5000), ..Timeouts::default() };
    tuned.hooks.cold_start = vec![runs("say ready")];
    let timeouts = Timeouts { idle_seconds: Some(6000), max_lifetime_seconds: Some(9000) };
    let world = World::with(Setup { templates: vec![tuned], timeouts, ..Setup::default() });
    let ask = CreateSandbox {
        name: Some("web".to_owned()),
        provider: Some("mock".to_owned()),
        env: pairs(&[("COLOUR", "red"), ("SHAPE", "round")]),
        labels: pairs(&[("team", "a")]),
        timeouts: Timeouts { idle_seconds: Some(4000), ..Timeouts::default() },
        ..of("tuned")
    };
    let made = create(&world, &ask).await.info;
    let plain = create(&world, &of("tuned")).await.info;
    assert_eq!(made.name.as_deref(), Some("web"));
    assert_eq!(made.spec.env, pairs(&[("COLOUR", "red"), ("SHAPE", "round"), ("SIZE", "big")]));
    assert_eq!(made.spec.labels, pairs(&[("team", "a")]));
    let timeouts = |idle| Timeouts { idle_seconds: Some(idle), max_lifetime_seconds: Some(9000) };
    assert_eq!((made.spec.timeouts, plain.spec.timeouts), (timeouts(4000), timeouts(5000)));
    // It is so in the box too.
    let ran = world.shell.of("say ready");
    assert_eq!((ran[0].env["COLOUR"].as_str(), ran[1].env["COLOUR"].as_str()), ("red", "blue"));
}

#[tokio::test(start_paused = true)]
async fn h2_a_sandbox_without_a_conversation_starts_cold_when_it_is_started() {
    let mut cold = template("cold");
    cold.hooks.cold_start = vec![runs("say ready")];
    let world = World::of([cold]);
    let made = create(&world, &CreateSandbox { start: false, ..of("cold") }).await;
    assert_eq!((made.info.state, world.shell.times("say ready")), (SandboxState::Created, 0));
    for _ in 0..2 {
        let started = world.service.start(ME, made.info.id).await.unwrap();
        assert_eq!((started.info.state, world.shell.times("say ready")), (SandboxState::Running, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn v1_asked_for_twice_it_is_made_once() {
    let mut cold = template("cold");
    cold.hooks.cold_start = vec![runs("say ready")];
    let world = World::of([cold]);
    let id = SandboxId::generate();
    let ask = CreateSandbox { id: Some(id), name: Some("web".to_owned()), ..of("cold") };
    let first = create(&world, &ask).await;
    assert_eq!(first.info.id, id);
    assert_eq!(create(&world, &ask).await, first);
    let other = CreateSandbox { name: Some("other".to_owned()), ..ask.clone() };
    assert_eq!(error(world.service.create(ME, &other).await).kind(), ErrorKind::Conflict);
    // What does not run is asked for again by running.
    world.service.stop(ME, id, None, false).await.unwrap();
    let unstarted = CreateSandbox { start: false, ..ask.clone() };
    assert_eq!(create(&world, &unstarted).await.info.state, SandboxState::Stopped);
    assert_eq!(create(&world, &ask).await.info.state, SandboxState::Running);
    assert_eq!((world.boxes().await, world.shell.times("say ready")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn v5_what_cannot_be_meant_is_an_invalid_config() {
    let world = World::new();
    let id = SandboxId::generate();
    let nowhere = CreateSandbox { provider: Some("moon".to_owned()), ..new() };
    for (ask, word) in [(of("nope"), "`nope`"), (nowhere, "`moon`")] {
        let refused = error(world.service.create(ME, &CreateSandbox { id: Some(id), ..ask }).await);
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::Invalid, "invalid_config"), "{refused}");
        assert!(refused.to_string().contains(word), "{refused}");
        assert_never_was(&world, id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn v5_what_cannot_be_made_leaves_nothing() {
    let world = World::new();
    let id = SandboxId::generate();
    // The mock enforces none, and says so.
    let limits = Limits { memory_mb: Some(64), ..Limits::default() };
    let ask = CreateSandbox { id: Some(id), limits, ..new() };
    let refused = error(world.service.create(ME, &ask).await);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::LimitUnenforceable, "invalid_config"));
    assert!(refused.chain().contains("memory_mb"), "{}", refused.chain());
    assert_never_was(&world, id).await;
    world.faults.fail(Op::Create, 1, ErrorKind::Unavailable);
    let plain = CreateSandbox { id: Some(id), ..new() };
    let refused = error(world.service.create(ME, &plain).await);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Unavailable, "creation_failed"));
    assert_never_was(&world, id).await;
    create(&world, &plain).await;
}

#[tokio::test(start_paused = true)]
async fn h2_a_new_sandbox_whose_cold_start_fails_leaves_nothing() {
    let (world, broken) = unsteady();
    let ask = CreateSandbox { id: Some(SandboxId::generate()), name: Some("web".to_owned()), ..new() };
    broken.store(true, Ordering::Relaxed);
    let refused = error(world.service.create(ME, &ask).await);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Unavailable, "hook_failed"));
    assert!(refused.chain().contains("a mirror is down"), "{}", refused.chain());
    assert_never_was(&world, ask.id.unwrap()).await;
    broken.store(false, Ordering::Relaxed);
    assert_eq!(create(&world, &ask).await.info.state, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn h2_an_old_sandbox_whose_cold_start_fails_is_failed_and_can_be_revived() {
    let (world, broken) = unsteady();
    let id = create(&world, &new()).await.info.id;
    world.put(id, "a.txt", "kept").await;
    world.mock.remove(id, Volumes::Keep).await.unwrap();
    broken.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let refused = error(world.service.start(ME, id).await);
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::Unavailable, "hook_failed"));
        let failed = get(&world, id).await.info;
        let reason = EndReason::Failed("cold_start".to_owned());
        assert_eq!((failed.state, failed.reason), (SandboxState::Failed, Some(reason)));
        assert_eq!(world.boxes().await, 0);
    }
    // What does not run is not made to run by looking.
    let idle = error(world.service.guest_if_running(ME, id).await);
    assert_eq!((idle.kind(), idle.code()), (ErrorKind::Stopped, "not_running"));
    broken.store(false, Ordering::Relaxed);
    assert_eq!(world.service.start(ME, id).await.unwrap().info.state, SandboxState::Running);
    assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
}

/// A turn whose cold start fails, in a sandbox that was there before and is in that state then; and one that does not.
async fn failed_once(ended: bool, then: SandboxState) -> (World, SandboxId) {
    let (world, broken) = unsteady();
    let first = world.run(ask("say one")).await;
    let id = first.sandbox();
    world.put(id, "a.txt", "kept").await;
    match ended {
        true => drop(world.service.end(ME, id, &END).await.unwrap()),
        false => world.mock.remove(id, Volumes::Keep).await.unwrap(),
    }
    broken.store(true, Ordering::Relaxed);
    let failed = world.run(more(first.conversation(), "say two")).await;
    assert_eq!(failed.turn.state, TurnState::Failed);
    assert!(failed.error().contains("a mirror is down"), "{}", failed.error());
    assert_eq!((state(&world, id).await, world.boxes().await), (then, 0));
    broken.store(false, Ordering::Relaxed);
    let next = world.run(more(first.conversation(), "say three")).await;
    assert_eq!((next.sandbox(), next.cold(), next.text().as_str()), (id, Some(true), "three"));
    (world, id)
}

#[tokio::test(start_paused = true)]
async fn h2_a_turn_whose_cold_start_fails_leaves_what_was_there_for_the_next() {
    for (ended, then) in [(true, SandboxState::Terminated), (false, SandboxState::Failed)] {
        let (world, id) = failed_once(ended, then).await;
        assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
        assert_eq!(state(&world, id).await, SandboxState::Running);
    }
}

/// Its files go nowhere, so that nothing of them can be unsynced: it can be stopped and ended as any other.
#[tokio::test(start_paused = true)]
async fn h8_a_cold_start_that_failed_once_marks_nothing() {
    for (ended, then) in [(true, SandboxState::Terminated), (false, SandboxState::Failed)] {
        let (world, id) = failed_once(ended, then).await;
        assert_eq!(get(&world, id).await.unsynced, None, "ended: {ended}");
        world.service.stop(ME, id, None, false).await.unwrap();
        world.service.end(ME, id, &END).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn v5_what_cannot_be_made_again_says_so_and_stays_as_it_was() {
    let world = World::new();
    let shell = template("shell");
    let lost = create(&world, &new()).await.info.id;
    world.mock.remove(lost, Volumes::Keep).await.unwrap();
    world.faults.fail(Op::Create, 1, ErrorKind::Unavailable);
    let refused = error(world.service.start(ME, lost).await);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Unavailable, "reconstruction_failed"));
    assert_eq!(state(&world, lost).await, SandboxState::Lost);
    world.service.start(ME, lost).await.unwrap();
    let ended = create(&world, &new()).await.info.id;
    world.service.end(ME, ended, &END).await.unwrap();
    world.faults.fail(Op::Create, 1, ErrorKind::Unavailable);
    error(world.service.ensure(&wanted(ended, &shell)).await);
    assert_eq!(state(&world, ended).await, SandboxState::Terminated);
    assert!(world.service.ensure(&wanted(ended, &shell)).await.unwrap().cold);
}

#[tokio::test(start_paused = true)]
async fn v5_what_does_not_run_is_not_running_and_is_revived_by_its_use() {
    let world = World::new();
    let id = create(&world, &new()).await.info.id;
    world.service.guest_if_running(ME, id).await.unwrap();
    let stopped = world.service.stop(ME, id, Some(Duration::ZERO), false).await.unwrap().info;
    assert_eq!((stopped.state, stopped.reason), (SandboxState::Stopped, Some(EndReason::Stopped)));
    for refused in [
        world.service.guest_if_running(ME, id).await.map(drop),
        world.service.metrics(ME, id).await.map(drop),
        world.service.port_stream(ME, id, 80).await.map(drop),
    ] {
        let refused = error(refused);
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::Stopped, "not_running"), "{refused}");
    }
    assert_eq!(state(&world, id).await, SandboxState::Stopped);
    world.service.exec(ME, id, ExecRequest::new(["true"])).await.unwrap();
    assert_eq!(state(&world, id).await, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn v5_what_is_being_made_is_waking() {
    let mut slow = template("slow");
    slow.hooks.cold_start = vec![runs("sleep 30")];
    let world = World::of([slow]);
    let id = SandboxId::generate();
    let (service, ask) = (world.service.clone(), CreateSandbox { id: Some(id), ..of("slow") });
    let making = tokio::spawn(async move { service.create(ME, &ask).await });
    sleep(Duration::from_secs(10)).await;
    let refused = error(world.service.guest_if_running(ME, id).await);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Unavailable, "waking"), "{refused}");
    within(making).await.unwrap().unwrap();
    world.service.guest_if_running(ME, id).await.unwrap();
    assert_eq!(world.shell.times("sleep 30"), 1);
}

#[tokio::test(start_paused = true)]
async fn v5_what_runs_and_cannot_be_reached_is_not_accessible() {
    let world = World::new();
    let id = create(&world, &new()).await.info.id;
    world.sandboxes.guest(id).await.unwrap().disconnect().await;
    world.faults.fail(Op::Connect, 100, ErrorKind::Unavailable);
    let refused = error(world.service.start(ME, id).await);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Unavailable, "not_accessible"), "{refused}");
    world.faults.heal();
    world.service.start(ME, id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn v5_a_sync_that_fails_says_so() {
    let world = unsaved();
    let id = create(&world, &of("kept")).await.info.id;
    let refused = error(world.service.sync(ME, id, Options::default()).await);
    assert_eq!(refused.code(), "sync_failed", "{refused}");
    assert!(get(&world, id).await.unsynced.is_some());
    // Where files go nowhere, there is nothing to fail.
    let nowhere = create(&world, &new()).await.info.id;
    let refused = error(world.service.sync(ME, nowhere, Options::default()).await);
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(get(&world, nowhere).await.unsynced, None);
}

#[tokio::test(start_paused = true)]
async fn c7_of_another_account_nothing_can_be_done() {
    let world = World::new();
    let id = create(&world, &named("web")).await.info.id;
    let before = get(&world, id).await;
    let other = AccountId::generate();
    let service = &world.service;
    for refused in [
        service.get(other, id).await.map(drop),
        service.start(other, id).await.map(drop),
        service.stop(other, id, None, true).await.map(drop),
        service.end(other, id, &EndSandbox { force: true, ..END }).await.map(drop),
        service.set_metadata(other, id, &object(json!({"a": 1}))).await.map(drop),
        service.guest(other, id).await.map(drop),
        service.exec(other, id, ExecRequest::new(["true"])).await.map(drop),
        service.metrics(other, id).await.map(drop),
        service.list_files(other, id, &ListFiles::default()).await.map(drop),
        service.tree(other, id, ".", 1).await.map(drop),
        service.sync(other, id, Options::default()).await.map(drop),
        service.versions(other, id).await.map(drop),
        service.connect_raw(other, id).await.map(drop),
        service.port_stream(other, id, 80).await.map(drop),
    ] {
        assert_eq!(error(refused).kind(), ErrorKind::NotFound);
    }
    // An id is taken once, by whomever; what it is, only its owner is told.
    let refused = error(service.create(other, &CreateSandbox { id: Some(id), ..named("web") }).await);
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    let theirs = service.list(other, &SandboxFilter::default(), &Page::first(10)).await.unwrap();
    assert!(theirs.items.is_empty());
    // Names are an account's own.
    service.create(other, &named("web")).await.unwrap();
    assert_eq!(get(&world, id).await, before);
}
