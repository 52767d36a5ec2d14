//! A clock that is set, ahead and back: no message changes its place, and nothing is interrupted.

use crate::turns::world::{Left, ME, World, ask, more};
use jiff::SignedDuration;
use seawall_api::{
    ConversationId, SandboxId,
    conversation::{Role, TurnState},
};
use std::time::Duration;
use tokio::time::sleep;

fn hours(hours: i64) -> SignedDuration {
    SignedDuration::from_hours(hours)
}

async fn pass(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn m1_a_clock_that_steps_back_puts_no_answer_before_its_prompt() {
    let world = World::new();
    let mut conversation = None;
    for number in 0..4 {
        let words = format!("say {number}; sleep 10");
        let next = conversation.map_or_else(|| ask(&words), |id| more(id, &words));
        let begun = world.turns.start(ME, next).await.unwrap();
        pass(5).await;
        // In the midst of a turn, and between turns.
        world.clock.step(hours(-1));
        let done = world.done(begun).await;
        world.clock.step(hours(-1));
        assert!(done.turn.ended_at > Some(done.turn.created_at), "{:?}", done.turn);
        conversation = Some(done.conversation());
    }
    let said = world.said(conversation.unwrap()).await;
    let told: Vec<_> = said.iter().map(|message| (message.role, message.body.as_str())).collect();
    let (user, agent) = (Role::User, Role::Assistant);
    let expected = [
        (user, "say 0; sleep 10"),
        (agent, "0"),
        (user, "say 1; sleep 10"),
        (agent, "1"),
        (user, "say 2; sleep 10"),
        (agent, "2"),
        (user, "say 3; sleep 10"),
        (agent, "3"),
    ];
    assert_eq!(told, expected);
    assert!(said.windows(2).all(|pair| pair[0].created_at < pair[1].created_at), "{said:?}");
}

/// Leases end by the database's clock: that of a turn is its runner's until another takes it.
#[tokio::test(start_paused = true)]
async fn h6_a_clock_that_is_set_interrupts_no_turn() {
    for by in [48, -48] {
        let world = World::new();
        let begun =
            world.turns.start(ME, ask("say one; sleep 20; say two; sleep 20; say three")).await.unwrap();
        pass(10).await;
        world.clock.step(hours(by));
        pass(20).await;
        world.clock.step(hours(-by));
        let done = world.done(begun).await;
        let (state, text) = (done.turn.state, done.text());
        assert_eq!((state, text.as_str()), (TurnState::Completed, "onetwothree"), "{by}: {}", done.error());
        assert_eq!(world.shell.scripts().len(), 1, "{by}: the agent was started twice");
    }
}

/// The machine was not down: its boot has the same name, whatever its clock says.
#[tokio::test(start_paused = true)]
async fn h6_a_turn_is_taken_up_after_the_clock_was_set() {
    for by in [48, -48] {
        let world = World::new();
        let left = Left {
            conversation: ConversationId::generate(),
            sandbox: SandboxId::generate(),
            template: "shell",
            prompt: "say one",
        };
        let turn = world.left(&left, &[]).await;
        world.clock.step(hours(by));
        let host = world.another();
        assert_eq!(host.turns.take_up().await.unwrap(), 1);
        host.turns.idle().await;
        let done = world.stores.turns.get(ME, turn.id).await.unwrap();
        assert_eq!(done.state, TurnState::Completed, "{by}: {:?}", done.error);
    }
}
