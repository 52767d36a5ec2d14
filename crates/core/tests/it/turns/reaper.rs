//! The reaper: what nobody uses is stopped, what lived long enough too, and nothing whose work is not saved.
//!
//! The mock's guest knows no sync, so that a bucket never takes anything here. What it takes is in
//! `crates/providers/tests/it/turns/reaper.rs`.

use crate::turns::{
    fakes::{AwayBuckets, GatedBuckets},
    world::{ME, Setup, World, by, error, more, template, wanted, within},
};
use jiff::{SignedDuration, Timestamp};
use seawall_api::{
    ErrorKind, SandboxId,
    conversation::TurnState,
    http::CreateSandbox,
    sandbox::{EndReason, SandboxSpec, SandboxState, Timeouts},
};
use seawall_core::{
    ExecRequest, NewSandbox,
    ports::{Provider, Volumes, store::SandboxRow},
    reaper::{Reaped, Reaper},
    templates::{SyncPart, Template},
    testing::Op,
    workspaces::Buckets,
};
use seawall_sync::bucket::{MemoryBucket, SharedBucket};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

fn timeouts(idle: u64, lifetime: u64) -> Timeouts {
    Timeouts { idle_seconds: Some(idle), max_lifetime_seconds: Some(lifetime) }
}

/// A shell whose sandboxes end by themselves. 0: they do not.
fn timed(name: &str, idle: u64, lifetime: u64) -> Template {
    let mut timed = template(name);
    timed.sandbox.timeouts = timeouts(idle, lifetime);
    timed
}

/// As [`timed`], with files that go to a bucket.
fn saved(idle: u64, lifetime: u64) -> Template {
    Template { sync: SyncPart::default(), ..timed("saved", idle, lifetime) }
}

/// A bucket that takes nothing.
fn refused(template: &Template) -> World {
    let bucket: SharedBucket = Arc::new(MemoryBucket::default());
    World::with(Setup { templates: vec![template.clone()], bucket: Some(bucket), ..Setup::default() })
}

async fn made(world: &World, template: &Template) -> SandboxId {
    let id = SandboxId::generate();
    world.service.ensure(&wanted(id, template)).await.unwrap();
    id
}

async fn pass(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

/// To its end, however long that takes.
async fn round(reaper: &Reaper) -> Reaped {
    reaper.round_within(Duration::from_secs(3600)).await.unwrap()
}

async fn state(world: &World, id: SandboxId) -> (SandboxState, Option<EndReason>) {
    let info = world.sandboxes.get(id).await.unwrap();
    (info.state, info.reason)
}

fn ended(id: SandboxId, reason: EndReason) -> Reaped {
    Reaped { ended: vec![(id, reason)], ..Reaped::default() }
}

fn kept(id: SandboxId) -> Reaped {
    Reaped { kept: vec![id], ..Reaped::default() }
}

const RUNNING: (SandboxState, Option<EndReason>) = (SandboxState::Running, None);

#[tokio::test(start_paused = true)]
async fn t5_what_nobody_uses_is_stopped_and_comes_back_with_the_next_use() {
    let idle = timed("idle", 100, 0);
    let world = World::of([idle.clone()]);
    let (id, reaper) = (made(&world, &idle).await, world.reaper());
    world.put(id, "a.txt", "kept").await;
    pass(99).await;
    assert_eq!(round(&reaper).await, Reaped::default());
    pass(2).await;
    assert_eq!(round(&reaper).await, ended(id, EndReason::Idle));
    assert_eq!(state(&world, id).await, (SandboxState::Stopped, Some(EndReason::Idle)));
    // Once.
    assert_eq!(round(&reaper).await, Reaped::default());
    world.service.guest(ME, id).await.unwrap();
    assert_eq!(state(&world, id).await, RUNNING);
    assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn t5_any_use_counts_and_looking_after_it_is_none() {
    let idle = timed("idle", 100, 0);
    let world = World::of([idle.clone()]);
    let (id, reaper) = (made(&world, &idle).await, world.reaper());
    for _ in 0..3 {
        pass(90).await;
        world.take(id, "a.txt").await.unwrap_err();
        pass(90).await;
        world.service.exec(ME, id, ExecRequest::new(["echo", "hi"])).await.unwrap();
        assert_eq!(round(&reaper).await, Reaped::default());
    }
    for _ in 0..9 {
        pass(11).await;
        world.sandboxes.get(id).await.unwrap();
        world.sandboxes.guest(id).await.unwrap().info().await.unwrap();
        assert_eq!(round(&reaper).await, Reaped::default());
    }
    pass(2).await;
    assert_eq!(round(&reaper).await, ended(id, EndReason::Idle));
}

#[tokio::test(start_paused = true)]
async fn t5_what_lived_long_enough_is_stopped_used_or_not() {
    let short = timed("short", 0, 1000);
    let world = World::of([short.clone()]);
    let (id, reaper) = (made(&world, &short).await, world.reaper());
    for _ in 0..9 {
        pass(100).await;
        world.put(id, "a.txt", "used").await;
        assert_eq!(round(&reaper).await, Reaped::default());
    }
    pass(99).await;
    assert_eq!(round(&reaper).await, Reaped::default());
    pass(2).await;
    world.put(id, "a.txt", "used").await;
    assert_eq!(round(&reaper).await, ended(id, EndReason::MaxLifetime));
    assert_eq!(state(&world, id).await, (SandboxState::Stopped, Some(EndReason::MaxLifetime)));
    // A start begins another life.
    world.service.start(ME, id).await.unwrap();
    pass(500).await;
    assert_eq!(round(&reaper).await, Reaped::default());
    pass(501).await;
    assert_eq!(round(&reaper).await, ended(id, EndReason::MaxLifetime));
}

#[tokio::test(start_paused = true)]
async fn t5_a_turn_that_runs_is_never_reaped() {
    let world = World::of([timed("both", 60, 100)]);
    let begun = world.turns.start(ME, by("both", "say one; sleep 300; say two")).await.unwrap();
    let other = world.another();
    let reapers = [world.reaper(), Reaper::new(other.service.clone(), other.turns.clone())];
    pass(200).await;
    for reaper in &reapers {
        assert_eq!(round(reaper).await, Reaped::default());
    }
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "onetwo"));
    assert_eq!(round(&reapers[1]).await, ended(done.sandbox(), EndReason::MaxLifetime));
    // The conversation goes on.
    let next = world.run(more(done.conversation(), "say three")).await;
    assert_eq!((next.cold(), next.text().as_str()), (Some(false), "three"));
}

/// A round takes its time. What began meanwhile is as little to be reaped as what ran when it began.
#[tokio::test(start_paused = true)]
async fn t5_a_turn_that_begins_while_a_round_goes_on_is_not_reaped() {
    let short = timed("short", 0, 100);
    let world = World::of([short.clone()]);
    // As many as are ended at a time; the last has to wait for them.
    let mut first = Vec::new();
    for _ in 0..4 {
        first.push(made(&world, &short).await);
    }
    pass(1).await;
    let talked = world.run(by("short", "say hi")).await;
    pass(200).await;
    world.faults.delay(Op::Stop, Duration::from_secs(60));
    let reaper = world.reaper();
    let reaping = tokio::spawn(async move { round(&reaper).await });
    pass(30).await;
    let begun =
        world.turns.start(ME, more(talked.conversation(), "say one; sleep 200; say two")).await.unwrap();
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "onetwo"), "{}", done.error());
    let mut reaped = reaping.await.unwrap();
    reaped.ended.sort_by_key(|(id, _)| *id);
    let expected = first.into_iter().map(|id| (id, EndReason::MaxLifetime)).collect();
    assert_eq!(reaped, Reaped { ended: expected, ..Reaped::default() });
}

#[tokio::test(start_paused = true)]
async fn t5_zero_is_never() {
    let never = timed("never", 0, 0);
    let setup = Setup { templates: vec![never.clone()], timeouts: timeouts(60, 100), ..Setup::default() };
    let world = World::with(setup);
    let (stays, ends) = (made(&world, &never).await, made(&world, &template("shell")).await);
    pass(10_000).await;
    assert_eq!(round(&world.reaper()).await, ended(ends, EndReason::MaxLifetime));
    assert_eq!(state(&world, stays).await, RUNNING);
}

#[tokio::test(start_paused = true)]
async fn t5_what_says_nothing_never_ends() {
    let world = World::new();
    let id = made(&world, &template("shell")).await;
    pass(10_000).await;
    assert_eq!(round(&world.reaper()).await, Reaped::default());
    assert_eq!(state(&world, id).await, RUNNING);
}

#[tokio::test(start_paused = true)]
async fn t5_a_sandbox_goes_before_its_template_and_that_before_the_server() {
    let idle = |seconds| Timeouts { idle_seconds: Some(seconds), ..Timeouts::default() };
    let mut middle = template("middle");
    middle.sandbox.timeouts = idle(200);
    let world = World::with(Setup { templates: vec![middle], timeouts: idle(300), ..Setup::default() });
    let create = async |template: &str, timeouts: Timeouts| {
        let template = Some(template.to_owned());
        let ask = CreateSandbox { template, timeouts, start: true, ..CreateSandbox::default() };
        world.service.create(ME, &ask).await.unwrap().info.id
    };
    let own = create("middle", idle(100)).await;
    let templates = create("middle", Timeouts::default()).await;
    let servers = create("shell", Timeouts::default()).await;
    let reaper = world.reaper();
    pass(50).await;
    assert_eq!(round(&reaper).await, Reaped::default());
    for id in [own, templates, servers] {
        pass(100).await;
        assert_eq!(round(&reaper).await, ended(id, EndReason::Idle));
    }
}

#[tokio::test(start_paused = true)]
async fn t5_a_sandbox_without_a_template_ends_too() {
    let world = World::new();
    let spec = SandboxSpec { timeouts: timeouts(100, 0), ..SandboxSpec::default() };
    let (made, _) = world.sandboxes.launch(NewSandbox { spec, ..NewSandbox::default() }).await.unwrap();
    pass(101).await;
    assert_eq!(round(&world.reaper()).await, ended(made.id, EndReason::Idle));
}

#[tokio::test(start_paused = true)]
async fn h8_what_the_bucket_does_not_take_is_kept_marked_and_tried_less_and_less_often() {
    let saved = saved(100, 0);
    let world = refused(&saved);
    let (id, reaper) = (made(&world, &saved).await, world.reaper());
    assert_eq!(world.row(id).await.unwrap().unsynced, None);
    pass(101).await;
    let (began, mut tried) = (Instant::now(), Vec::new());
    while began.elapsed() <= Duration::from_secs(1000) {
        let reaped = round(&reaper).await;
        if reaped != Reaped::default() {
            assert_eq!(reaped, kept(id));
            tried.push(began.elapsed().as_secs());
        }
        pass(1).await;
    }
    assert_eq!(tried, [0, 5, 15, 35, 75, 155, 315, 615, 915]);
    assert_eq!(state(&world, id).await, RUNNING);
    assert!(world.row(id).await.unwrap().unsynced.is_some());
    let stopped = error(world.service.stop(ME, id, None, false).await);
    assert_eq!(stopped.kind(), ErrorKind::Conflict);
}

#[tokio::test(start_paused = true)]
async fn h8_what_lived_long_enough_is_kept_too_until_it_is_saved() {
    let saved = saved(0, 100);
    let world = refused(&saved);
    let (id, reaper) = (made(&world, &saved).await, world.reaper());
    pass(101).await;
    assert_eq!(round(&reaper).await, kept(id));
    assert_eq!(state(&world, id).await, RUNNING);
}

#[tokio::test(start_paused = true)]
async fn h8_a_sandbox_is_stopped_when_its_bucket_is_back_and_not_before() {
    let (saved, away) = (saved(100, 0), AwayBuckets::default());
    let buckets: Option<Arc<dyn Buckets>> = Some(Arc::new(away.clone()));
    let world = World::with(Setup { templates: vec![saved.clone()], buckets, ..Setup::default() });
    let (id, reaper) = (made(&world, &saved).await, world.reaper());
    away.take_away(true);
    pass(101).await;
    let (began, mut tried) = (Instant::now(), Vec::new());
    let (reaped, at) = loop {
        let (reaped, now) = (round(&reaper).await, began.elapsed().as_secs());
        if !reaped.ended.is_empty() {
            break (reaped, now);
        }
        tried.extend(reaped.kept.iter().map(|_| now));
        assert!(now < 100, "it is never stopped");
        assert_eq!(state(&world, id).await, RUNNING);
        if now == 20 {
            away.take_away(false);
        }
        pass(1).await;
    };
    // Back after 20 s, asked again 20 s after the third time.
    assert_eq!((tried.as_slice(), at), (&[0, 5, 15][..], 35));
    assert_eq!(reaped, Reaped { pushed: vec![id], ..ended(id, EndReason::Idle) });
    assert_eq!(state(&world, id).await, (SandboxState::Stopped, Some(EndReason::Idle)));
}

/// Nobody knows where its files go.
#[tokio::test(start_paused = true)]
async fn h8_a_sandbox_whose_template_is_gone_is_kept() {
    let world = World::new();
    let spec = SandboxSpec { timeouts: timeouts(100, 0), ..SandboxSpec::default() };
    let new = NewSandbox { template: Some("gone".to_owned()), spec, ..NewSandbox::default() };
    let (made, _) = world.sandboxes.launch(new).await.unwrap();
    pass(101).await;
    assert_eq!(round(&world.reaper()).await, kept(made.id));
    assert_eq!(state(&world, made.id).await, RUNNING);
}

#[tokio::test(start_paused = true)]
async fn t5_a_box_that_ended_by_itself_is_saved_and_keeps_its_reason() {
    for reason in [EndReason::Idle, EndReason::MaxLifetime] {
        let both = timed("both", 1000, 2000);
        let world = World::of([both.clone()]);
        let (id, reaper) = (made(&world, &both).await, world.reaper());
        let stopped = (SandboxState::Stopped, Some(reason.clone()));
        pass(50).await;
        world.mock.end_itself(id, reason.clone());
        assert_eq!(state(&world, id).await, stopped);
        let before = world.row(id).await.unwrap();
        assert_eq!(before.state, SandboxState::Running);
        assert_eq!(round(&reaper).await, ended(id, reason));
        assert_eq!(state(&world, id).await, stopped);
        // It was started, for its files.
        let after = world.row(id).await.unwrap();
        assert!(after.started_at > before.started_at, "{before:?} {after:?}");
        assert_eq!((after.state, after.reason), stopped);
        assert_eq!(round(&reaper).await, Reaped::default());
    }
}

#[tokio::test(start_paused = true)]
async fn h8_a_box_that_ended_by_itself_and_cannot_be_saved_runs_on() {
    let saved = saved(1000, 0);
    let world = refused(&saved);
    let (id, reaper) = (made(&world, &saved).await, world.reaper());
    world.put(id, "a.txt", "kept").await;
    world.mock.end_itself(id, EndReason::Idle);
    assert_eq!(round(&reaper).await, kept(id));
    assert_eq!(state(&world, id).await, RUNNING);
    assert!(world.row(id).await.unwrap().unsynced.is_some());
    assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
    // Not at once again.
    assert_eq!(round(&reaper).await, Reaped::default());
    pass(5).await;
    assert_eq!(round(&reaper).await, kept(id));
}

/// It may be wanted as it is, and has nothing that was not saved after its last turn.
#[tokio::test(start_paused = true)]
async fn t5_a_box_that_died_is_left_to_whoever_wants_it() {
    let idle = timed("idle", 100, 0);
    let world = World::of([idle.clone()]);
    let id = made(&world, &idle).await;
    world.mock.crash(id);
    let died = (SandboxState::Stopped, Some(EndReason::Failed("guest_died".to_owned())));
    pass(101).await;
    assert_eq!(round(&world.reaper()).await, Reaped::default());
    assert_eq!(state(&world, id).await, died);
}

#[tokio::test(start_paused = true)]
async fn h8_work_that_no_bucket_has_is_brought_back_from_what_is_stopped_or_lost() {
    for lost in [false, true] {
        let saved = saved(0, 0);
        let world = refused(&saved);
        let done = world.run(by("saved", "say hi")).await;
        let (id, reaper) = (done.sandbox(), world.reaper());
        assert!(world.row(id).await.unwrap().unsynced.is_some());
        world.put(id, "a.txt", "kept").await;
        match lost {
            true => world.mock.remove(id, Volumes::Keep).await.unwrap(),
            false => world.mock.crash(id),
        }
        assert_ne!(state(&world, id).await, RUNNING);
        assert_eq!(round(&reaper).await, kept(id), "lost: {lost}");
        assert_eq!(state(&world, id).await, RUNNING);
        assert_eq!(world.take(id, "a.txt").await, Ok("kept".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn t5_the_last_use_is_noted() {
    let world = World::new();
    let id = made(&world, &template("shell")).await;
    pass(50).await;
    world.put(id, "a.txt", "used").await;
    let used = world.now();
    pass(30).await;
    let reaper = world.reaper();
    for _ in 0..2 {
        assert_eq!(round(&reaper).await, Reaped::default());
        let noted = world.service.get(ME, id).await.unwrap().last_used_at;
        assert_eq!(noted.as_second(), used.as_second());
        // What looks after it is no use.
        pass(30).await;
    }
}

#[tokio::test(start_paused = true)]
async fn t5_a_damaged_sandbox_keeps_no_other_from_being_looked_at() {
    let idle = timed("idle", 100, 0);
    let world = World::of([idle.clone()]);
    let id = made(&world, &idle).await;
    world.sandboxes.flush().await;
    // The first that is looked at: of a provider that is not here.
    let damaged = SandboxRow {
        id: SandboxId::generate(),
        provider: "moon".to_owned(),
        created_at: Timestamp::UNIX_EPOCH,
        ..world.row(id).await.unwrap()
    };
    world.stores.sandboxes.insert(&damaged).await.unwrap();
    pass(101).await;
    assert_eq!(round(&world.reaper()).await, ended(id, EndReason::Idle));
}

#[tokio::test(start_paused = true)]
async fn t5_a_guest_that_does_not_answer_keeps_no_other_from_being_looked_at() {
    let idle = timed("idle", 100, 0);
    let world = World::of([idle.clone()]);
    let silent = made(&world, &idle).await;
    pass(1).await;
    let id = made(&world, &idle).await;
    pass(101).await;
    world.sandboxes.guest(silent).await.unwrap().disconnect().await;
    world.faults.delay(Op::Connect, Duration::from_secs(3600));
    let began = Instant::now();
    assert_eq!(round(&world.reaper()).await, ended(id, EndReason::Idle));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(state(&world, silent).await, RUNNING);
}

mod races;
mod tenants;
