//! Turns that are cancelled, and those whose sandbox dies.

use crate::turns::world::{ME, World, all, ask, by, error, more, runs, template, within};
use seawall_api::{ErrorKind, TurnId, conversation::TurnState, event::Event};
use seawall_core::{hooks::HookKind, templates::HookPart, testing::Op};
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn h6_a_cancelled_turn_keeps_what_was_said() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; err two; hang")).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert!(world.turns.cancel(begun.turn.id));
    let began = Instant::now();
    let done = world.done(begun).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Cancelled, "onetwo"));
    assert_eq!(world.said(done.conversation()).await[1].body, "onetwo");
    assert_eq!(world.mock.running(done.sandbox()), 0);
    let last = &done.events.last().unwrap().1;
    assert!(matches!(last, Event::TurnEnded { state: TurnState::Cancelled, .. }), "{last:?}");
    // Once is enough, and the next turn is another.
    assert!(!world.turns.cancel(done.turn.id));
    let next = world.run(more(done.conversation(), "say three")).await;
    assert_eq!((next.turn.state, next.text().as_str()), (TurnState::Completed, "three"));
}

#[tokio::test(start_paused = true)]
async fn h6_only_whoever_runs_a_turn_can_cancel_it() {
    let world = World::new();
    let other = world.another();
    assert!(!world.turns.cancel(TurnId::generate()));
    let begun = world.turns.start(ME, ask("say one; sleep 10; say two")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(!other.turns.cancel(begun.turn.id));
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "onetwo"));
}

/// The agent must not begin what nobody wants any more.
#[tokio::test(start_paused = true)]
async fn h6_a_turn_that_is_cancelled_before_its_agent_runs_never_runs_it() {
    let mut slow = template("slow");
    slow.hooks.cold_start = vec![runs("sleep 30")];
    let world = World::of([slow]);
    let begun = world.turns.start(ME, by("slow", "say hi; hang")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(world.turns.cancel(begun.turn.id));
    let done = world.done(begun).await;
    assert_eq!(done.turn.state, TurnState::Cancelled);
    assert_eq!(world.shell.times("say hi; hang"), 0);
}

/// The wire is away when the agent is to be killed, and back a few seconds later.
#[tokio::test(start_paused = true)]
async fn h6_a_cancel_is_not_forgotten_where_the_sandbox_cannot_be_reached() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; sleep 3000; say two")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let sandbox = begun.turn.sandbox_id.unwrap();
    let guest = world.sandboxes.guest(sandbox).await.unwrap();
    world.faults.fail(Op::Connect, 40, ErrorKind::Unavailable);
    guest.disconnect().await;
    assert!(world.turns.cancel(begun.turn.id));
    // Not after its fifty minutes.
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Cancelled, "one"));
    assert_eq!(world.mock.running(sandbox), 0);
}

/// Somebody else runs it already, in this very process: that must not make the process forget that it does.
#[tokio::test(start_paused = true)]
async fn h6_a_turn_that_is_spawned_twice_can_be_cancelled() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; hang")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    world.turns.spawn(ME, begun.turn.clone());
    sleep(Duration::from_secs(1)).await;
    assert!(world.turns.cancel(begun.turn.id));
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Cancelled, "one"));
    assert_eq!(world.shell.scripts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn h6_a_sandbox_that_dies_interrupts_its_turn() {
    let mut hooked = template("hooked");
    hooked.hooks.stream_finish = vec![runs("say finish")];
    let world = World::of([hooked]);
    let begun = world.turns.start(ME, by("hooked", "say one; hang")).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    world.mock.crash(begun.turn.sandbox_id.unwrap());
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Interrupted, "one"));
    assert!(done.error().contains("guest_died"), "{}", done.error());
    assert_eq!(world.said(done.conversation()).await[1].body, "one");
    let finished = world.shell.of("say finish");
    assert_eq!(finished.len(), 1);
    assert_eq!(finished[0].env["SEAWALL_TURN_STATE"], "interrupted");
    let next = world.run(more(done.conversation(), "say two")).await;
    assert_eq!((next.turn.state, next.text().as_str()), (TurnState::Completed, "two"));
}

#[tokio::test(start_paused = true)]
async fn c7_nobody_follows_anothers_turn() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; sleep 5; say two")).await.unwrap();
    let stranger = seawall_api::AccountId::generate();
    let refused = error(world.turns.follow(stranger, begun.turn.id, 0).await);
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert_eq!(error(world.turns.follow(ME, TurnId::generate(), 0).await).kind(), ErrorKind::NotFound);
    assert!(!all(&world.turns, ME, begun.turn.id, 0).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn h6_a_wish_from_another_process_ends_the_turn() {
    let world = World::new();
    for other in [world.another(), world.elsewhere("two")] {
        let begun = world.turns.start(ME, ask("say one; hang")).await.unwrap();
        sleep(Duration::from_secs(10)).await;
        let id = begun.turn.id;
        // As often as somebody says it.
        for _ in 0..2 {
            assert!(other.turns.cancel_turn(ME, id).await.unwrap());
        }
        let began = Instant::now();
        let done = world.done(begun).await;
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Cancelled, "one"));
        assert_eq!(world.mock.running(done.sandbox()), 0);
        // What is over is over.
        for turns in [&other.turns, &world.turns] {
            assert!(!turns.cancel_turn(ME, id).await.unwrap());
        }
        // The next is another.
        let next = world.run(more(done.conversation(), "say two; sleep 5; say three")).await;
        assert_eq!((next.turn.state, next.text().as_str()), (TurnState::Completed, "twothree"));
    }
}

#[tokio::test(start_paused = true)]
async fn h6_a_wish_ends_a_turn_that_runs_here_at_once() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; hang")).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    let began = Instant::now();
    assert!(world.turns.cancel_turn(ME, begun.turn.id).await.unwrap());
    let done = world.done(begun).await;
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Cancelled, "one"));
}

#[tokio::test(start_paused = true)]
async fn h6_a_wish_from_another_process_before_the_agent_runs_is_kept() {
    let mut slow = template("slow");
    slow.hooks.cold_start = vec![runs("sleep 30")];
    let world = World::of([slow]);
    let begun = world.turns.start(ME, by("slow", "say hi; hang")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(world.another().turns.cancel_turn(ME, begun.turn.id).await.unwrap());
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, world.shell.times("say hi; hang")), (TurnState::Cancelled, 0));
}

/// Its server died, and nobody runs it when the wish comes. Whoever takes it up knows of it.
#[tokio::test(start_paused = true)]
async fn h6_a_wish_while_nobody_runs_a_turn_is_kept() {
    let world = World::new();
    let begun = world.turns.begin(ME, ask("say hi; hang")).await.unwrap();
    assert!(world.another().turns.cancel_turn(ME, begun.turn.id).await.unwrap());
    sleep(Duration::from_secs(60)).await;
    let other = world.another();
    assert_eq!(other.turns.take_up().await.unwrap(), 1);
    let seen = all(&other.turns, ME, begun.turn.id, 0).await;
    let last = &seen.last().unwrap().1;
    assert!(matches!(last, Event::TurnEnded { state: TurnState::Cancelled, .. }), "{last:?}");
    assert_eq!(world.shell.times("say hi; hang"), 0);
    // It stands in nobody's way.
    within(other.turns.idle()).await;
    assert_eq!(world.run(more(begun.conversation.id, "say more")).await.text(), "more");
}

/// Its server died while the agent worked: whoever goes on with it ends it.
#[tokio::test(start_paused = true)]
async fn h6_a_wish_that_came_while_its_server_was_away_ends_the_agent() {
    let (world, trouble) = World::troubled();
    let begun = world.turns.start(ME, ask("say one; sleep 3000; say two")).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    trouble.freeze();
    sleep(Duration::from_secs(60)).await;
    let other = world.elsewhere("two");
    assert!(other.turns.cancel_turn(ME, begun.turn.id).await.unwrap());
    assert_eq!(other.turns.take_up().await.unwrap(), 1);
    let began = Instant::now();
    let seen = all(&other.turns, ME, begun.turn.id, 0).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let last = &seen.last().unwrap().1;
    assert!(matches!(last, Event::TurnEnded { state: TurnState::Cancelled, .. }), "{last:?}");
    assert_eq!(world.mock.running(begun.turn.sandbox_id.unwrap()), 0);
    within(other.turns.idle()).await;
    trouble.thaw();
    world.quiet().await;
    assert_eq!(all(&other.turns, ME, begun.turn.id, 0).await, seen);
}

#[tokio::test(start_paused = true)]
async fn c7_nobody_ends_anothers_turn() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; sleep 5; say two")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let stranger = seawall_api::AccountId::generate();
    for refused in [
        world.turns.cancel_turn(stranger, begun.turn.id).await,
        world.turns.cancel_turn(ME, TurnId::generate()).await,
    ] {
        assert_eq!(error(refused).kind(), ErrorKind::NotFound);
    }
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "onetwo"));
}

/// Also while a hook runs that would take long.
#[tokio::test(start_paused = true)]
async fn h6_a_cancel_cuts_hooks_before_the_agent_short() {
    for kind in [HookKind::ColdStart, HookKind::Message] {
        let mut slow = template("slow");
        let part = HookPart { timeout_seconds: 3600, ..runs("hang") };
        match kind {
            HookKind::ColdStart => slow.hooks.cold_start = vec![part],
            _ => slow.hooks.message = vec![part],
        }
        let world = World::of([slow]);
        let begun = world.turns.start(ME, by("slow", "say hi")).await.unwrap();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(world.shell.times("hang"), 1);
        let asked = Instant::now();
        assert!(world.turns.cancel_turn(ME, begun.turn.id).await.unwrap());
        let done = world.done(begun).await;
        assert!(asked.elapsed() < Duration::from_secs(5), "{kind:?}: {:?}", asked.elapsed());
        assert_eq!((done.turn.state, done.error()), (TurnState::Cancelled, "it was cancelled"), "{kind:?}");
        assert_eq!(world.shell.times("say hi"), 0);
        assert_eq!(world.mock.running(done.sandbox()), 0);
        // A cold start that was cut short leaves nothing.
        assert_eq!(world.boxes().await, usize::from(kind == HookKind::Message));
    }
}
