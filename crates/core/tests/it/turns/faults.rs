//! Databases that are away and wires that break: nothing is lost, nothing is there twice, and nobody is left waiting.

use crate::turns::{
    shell::lines,
    trouble::{Call, How},
    world::{Done, ME, World, all, ask, more, text, within},
};
use seawall_api::{
    ConversationId,
    conversation::{Role, TurnState},
    event::Event,
};
use std::time::Duration;
use tokio::time::sleep;

fn assert_whole(done: &Done, expected: &str) {
    assert_eq!(done.turn.state, TurnState::Completed, "{}", done.error());
    assert!(done.events.iter().zip(0..).all(|((number, _), expected)| *number == expected));
    let said = done.text();
    assert!(said == expected, "{} bytes of {}", said.len(), expected.len());
}

async fn assert_stored_once(world: &World, done: &Done, expected: &str) {
    let said = world.said(done.conversation()).await;
    let roles: Vec<Role> = said.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant]);
    assert!(said[1].body == expected, "{} bytes of {}", said[1].body.len(), expected.len());
    assert_eq!(world.conversation(done.conversation()).await.stats.messages_exchanged, 2);
}

#[tokio::test(start_paused = true)]
async fn m2_events_that_could_not_be_stored_are_stored_later_and_once() {
    for how in [How::Fails, How::LosesTheReply] {
        let (world, trouble) = World::troubled();
        let begun = world.turns.start(ME, ask("lines 3000; sleep 5; lines 3000; sleep 5; say end")).await;
        let begun = begun.unwrap();
        trouble.next(Call::Append, 7, how);
        sleep(Duration::from_secs(4)).await;
        trouble.next(Call::Append, 7, how);
        let done = world.done(begun).await;
        let expected = format!("{}{}end", lines(3000), lines(3000));
        assert_whole(&done, &expected);
        assert_stored_once(&world, &done, &expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn m3_an_end_that_could_not_be_stored_is_stored_later_and_once() {
    for how in [How::Fails, How::LosesTheReply] {
        let (world, trouble) = World::troubled();
        let begun = world.turns.start(ME, ask("say hi")).await.unwrap();
        trouble.next(Call::End, 5, how);
        let done = world.done(begun).await;
        assert_whole(&done, "hi");
        assert_stored_once(&world, &done, "hi").await;
    }
}

/// The database is away for longer than a lease lasts. Whoever looks for turns then goes on with it.
#[tokio::test(start_paused = true)]
async fn m2_a_database_that_is_away_for_minutes_loses_nothing() {
    let (world, trouble) = World::troubled();
    let prompt = "say one; sleep 10; say two; sleep 200; say three";
    let begun = world.turns.start(ME, ask(prompt)).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    for call in [Call::Append, Call::Renew] {
        trouble.next(call, u32::MAX, How::Fails);
    }
    sleep(Duration::from_secs(120)).await;
    trouble.heal();
    sleep(Duration::from_secs(5)).await;
    world.turns.take_up().await.unwrap();
    let done = world.done(begun).await;
    assert_whole(&done, "onetwothree");
    assert_stored_once(&world, &done, "onetwothree").await;
    assert_eq!(world.shell.scripts(), [prompt]);
}

/// Either the turn runs, or it was never begun. One that nobody runs would stand in the way of all that follow.
#[tokio::test(start_paused = true)]
async fn m2_a_first_event_that_could_not_be_stored_strands_no_conversation() {
    let (world, trouble) = World::troubled();
    let id = ConversationId::generate();
    trouble.next(Call::Append, 1, How::Fails);
    let done = match world.turns.start(ME, more(id, "say hi")).await {
        Ok(begun) => world.done(begun).await,
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            world.run(more(id, "say hi")).await
        }
    };
    assert_whole(&done, "hi");
    assert!(matches!(done.events[0].1, Event::TurnStarted { .. }), "{:?}", done.events[0]);
}

/// The turn is begun, and whoever began it was not told.
#[tokio::test(start_paused = true)]
async fn m2_a_begin_whose_reply_was_lost_strands_no_conversation() {
    let (world, trouble) = World::troubled();
    let id = ConversationId::generate();
    trouble.next(Call::Begin, 1, How::LosesTheReply);
    let done = match world.turns.start(ME, more(id, "say hi")).await {
        Ok(begun) => world.done(begun).await,
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            world.run(more(id, "say hi")).await
        }
    };
    assert_whole(&done, "hi");
    assert_stored_once(&world, &done, "hi").await;
}

/// The stores are away for a moment when the runner looks at the turn, or at its prompt.
#[tokio::test(start_paused = true)]
async fn m2_stores_that_are_away_for_a_moment_strand_no_turn() {
    for call in [Call::GetTurn, Call::GetMessage] {
        let (world, trouble) = World::troubled();
        let begun = world.turns.start(ME, ask("say hi")).await.unwrap();
        trouble.next(call, 3, How::Fails);
        sleep(Duration::from_secs(60)).await;
        trouble.heal();
        let turn = &world.turns_of(begun.conversation.id).await[0];
        assert_eq!(turn.state, TurnState::Completed, "{call:?}");
        assert_eq!(world.said(begun.conversation.id).await[1].body, "hi");
    }
}

/// A machine that gave a turn up does not hold on to its lease for ever.
#[tokio::test(start_paused = true)]
async fn m2_a_turn_that_a_machine_gave_up_is_anothers_to_run() {
    let (world, trouble) = World::troubled();
    let begun = world.turns.start(ME, ask("say hi")).await.unwrap();
    trouble.next(Call::GetTurn, 1, How::Breaks);
    sleep(Duration::from_secs(120)).await;
    let other = world.elsewhere("two");
    other.turns.take_up().await.unwrap();
    let seen = all(&other.turns, ME, begun.turn.id, 0).await;
    assert_eq!(text(&seen), "hi");
}

/// What cannot be stored fails the turn. Its agent does not go on without it.
#[tokio::test(start_paused = true)]
async fn c8_a_turn_that_fails_leaves_no_agent_behind() {
    let (world, trouble) = World::troubled();
    let begun = world.turns.start(ME, ask("say one; sleep 5; say two; hang")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    trouble.next(Call::Append, 1, How::Breaks);
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Failed, "one"));
    assert!(done.error().contains("a test broke it"), "{}", done.error());
    assert_eq!(world.mock.running(done.sandbox()), 0);
}

/// Each connection dies after so many bytes, in the middle of the answer, again and again.
#[tokio::test(start_paused = true)]
async fn m2_a_wire_that_breaks_loses_nothing() {
    for bytes in [300 << 10, 500 << 10] {
        let world = World::new();
        world.faults.cut_after(bytes);
        let done = world.run(ask("lines 200000")).await;
        let expected = lines(200_000);
        assert_whole(&done, &expected);
        assert_stored_once(&world, &done, &expected).await;
        assert_eq!(world.mock.running(done.sandbox()), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn m2_a_wire_that_is_put_down_is_made_again() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; sleep 10; say two; sleep 10; say three")).await.unwrap();
    for _ in 0..2 {
        sleep(Duration::from_secs(5)).await;
        let guest = world.sandboxes.guest(begun.turn.sandbox_id.unwrap()).await.unwrap();
        within(guest.disconnect()).await;
        sleep(Duration::from_secs(5)).await;
    }
    assert_whole(&world.done(begun).await, "onetwothree");
}
