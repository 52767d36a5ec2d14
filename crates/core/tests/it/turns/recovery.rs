//! Turns whose server died: whoever comes next goes on where it was, once.

use crate::turns::{
    fakes::Own,
    world::{Left, ME, Setup, World, all, ask, more, runs, template, text, wanted, within},
};
use futures::FutureExt;
use seawall_api::{ConversationId, SandboxId, conversation::TurnState, event::Event};
use seawall_core::hooks::HookKind;
use std::time::Duration;
use tokio::time::sleep;

fn assert_numbered(events: &[(u64, Event)]) {
    assert!(events.iter().zip(0..).all(|((number, _), expected)| *number == expected), "{events:?}");
    let ends = events.iter().filter(|(_, event)| matches!(event, Event::TurnEnded { .. }));
    assert_eq!(ends.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn m2_a_turn_whose_server_died_at_once_is_run_by_the_next() {
    let world = World::new();
    let begun = world.turns.begin(ME, ask("say one; sleep 5; say two")).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(world.shell.scripts().is_empty());
    let next = world.another();
    assert_eq!(next.turns.take_up().await.unwrap(), 1);
    let seen = all(&next.turns, ME, begun.turn.id, 0).await;
    assert_numbered(&seen);
    assert!(matches!(seen[0].1, Event::TurnStarted { .. }));
    assert_eq!(text(&seen), "onetwo");
    assert_eq!(world.said(begun.conversation.id).await[1].body, "onetwo");
    assert_eq!(next.turns.take_up().await.unwrap(), 0);
}

/// All that its machine can do is wait. When it is back, the turn is over, and it changes nothing.
#[tokio::test(start_paused = true)]
async fn m3_a_machine_that_was_frozen_loses_nothing_and_adds_nothing() {
    let (world, trouble) = World::troubled();
    let prompt = "say one; sleep 20; say two; sleep 200; say three";
    let begun = world.turns.start(ME, ask(prompt)).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    trouble.freeze();
    sleep(Duration::from_secs(60)).await;
    let other = world.elsewhere("two");
    assert_eq!(other.turns.take_up().await.unwrap(), 1);
    let seen = all(&other.turns, ME, begun.turn.id, 0).await;
    assert_numbered(&seen);
    assert_eq!(text(&seen), "onetwothree");
    within(other.turns.idle()).await;
    trouble.thaw();
    world.quiet().await;
    assert_eq!(all(&other.turns, ME, begun.turn.id, 0).await, seen);
    assert_eq!(world.shell.scripts(), [prompt]);
    let id = begun.conversation.id;
    assert_eq!(world.conversation(id).await.stats.messages_exchanged, 2);
    assert_eq!(world.said(id).await[1].body, "onetwothree");
    assert_eq!(world.turns_of(id).await[0].state, TurnState::Completed);
}

#[tokio::test(start_paused = true)]
async fn m3_two_processes_that_take_a_turn_up_run_it_once() {
    let world = World::new();
    for (one, two) in [(world.another(), world.another()), (world.elsewhere("two"), world.elsewhere("three"))]
    {
        let begun = world.turns.begin(ME, ask("say one; sleep 5; say two")).await.unwrap();
        let (first, second) = tokio::join!(one.turns.take_up(), two.turns.take_up());
        assert!(first.unwrap() + second.unwrap() > 0);
        let seen = all(&world.turns, ME, begun.turn.id, 0).await;
        assert_numbered(&seen);
        assert_eq!(text(&seen), "onetwo");
        let agents = seen.iter().filter(|(_, event)| matches!(event, Event::AgentStarted { .. }));
        assert_eq!(agents.count(), 1);
        assert_eq!(world.conversation(begun.conversation.id).await.stats.messages_exchanged, 2);
    }
    assert_eq!(world.shell.times("say one; sleep 5; say two"), 2);
}

#[tokio::test(start_paused = true)]
async fn m3_a_turn_that_somebody_runs_is_not_taken_up() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; sleep 100; say two")).await.unwrap();
    let (beside, elsewhere) = (world.another(), world.elsewhere("two"));
    for _ in 0..5 {
        sleep(Duration::from_secs(15)).await;
        assert_eq!(world.turns.take_up().await.unwrap(), 0);
        assert_eq!(beside.turns.take_up().await.unwrap(), 0);
        // There nobody has the claim; the lease decides.
        elsewhere.turns.take_up().await.unwrap();
        within(elsewhere.turns.idle()).await;
    }
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "onetwo"));
    assert_eq!(world.shell.scripts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn h6_a_turn_whose_server_and_sandbox_died_is_interrupted() {
    let (world, trouble) = World::troubled();
    let begun = world.turns.start(ME, ask("say one; sleep 200; say two")).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    trouble.freeze();
    world.mock.crash(begun.turn.sandbox_id.unwrap());
    sleep(Duration::from_secs(60)).await;
    let other = world.elsewhere("two");
    assert_eq!(other.turns.take_up().await.unwrap(), 1);
    let seen = all(&other.turns, ME, begun.turn.id, 0).await;
    assert_numbered(&seen);
    let turn = &world.turns_of(begun.conversation.id).await[0];
    assert_eq!(turn.state, TurnState::Interrupted, "{turn:?}");
    assert_eq!(world.said(begun.conversation.id).await[1].body, "one");
    // The prompt was the agent's once, and is not given to another.
    assert_eq!(world.shell.scripts().len(), 1);
}

/// The server died between saying that the agent starts, and starting it.
#[tokio::test(start_paused = true)]
async fn m2_an_agent_that_was_not_started_yet_is_started() {
    let world = World::new();
    let shell = wanted(SandboxId::generate(), &template("shell"));
    world.service.ensure(&shell).await.unwrap();
    let boot = world.sandboxes.guest(shell.sandbox).await.unwrap().info().await.unwrap().boot;
    let left = Left {
        conversation: ConversationId::generate(),
        sandbox: shell.sandbox,
        template: "shell",
        prompt: "say hi",
    };
    let events = [
        Event::SandboxReady { cold: false, version: None, duration_ms: 1 },
        Event::AgentStarted { agent: "shell".to_owned(), boot, port: None },
    ];
    let turn = world.left(&left, &events).await;
    assert_eq!(world.turns.take_up().await.unwrap(), 1);
    let seen = all(&world.turns, ME, turn.id, 0).await;
    assert_eq!((text(&seen).as_str(), world.shell.times("say hi")), ("hi", 1));
    assert_eq!(world.turns_of(left.conversation).await[0].state, TurnState::Completed);
}

/// The server died between the turn and its first event.
#[tokio::test(start_paused = true)]
async fn c2_the_first_event_is_there_also_after_a_crash() {
    let world = World::new();
    let left = Left {
        conversation: ConversationId::generate(),
        sandbox: SandboxId::generate(),
        template: "shell",
        prompt: "say hi",
    };
    let turn = world.left(&left, &[]).await;
    assert_eq!(world.turns.take_up().await.unwrap(), 1);
    let seen = all(&world.turns, ME, turn.id, 0).await;
    assert_numbered(&seen);
    assert_eq!(text(&seen), "hi");
    assert!(matches!(seen[0].1, Event::TurnStarted { .. }), "{:?}", seen[0]);
}

/// Also where nothing else of the turn comes to be stored.
#[tokio::test(start_paused = true)]
async fn c2_the_first_event_is_there_also_where_the_turn_fails_at_once() {
    let mut cold = template("cold");
    cold.hooks.cold_start = vec![runs("exit 1")];
    let world = World::of([cold]);
    let left = Left {
        conversation: ConversationId::generate(),
        sandbox: SandboxId::generate(),
        template: "cold",
        prompt: "say hi",
    };
    let turn = world.left(&left, &[]).await;
    assert_eq!(world.turns.take_up().await.unwrap(), 1);
    let seen = all(&world.turns, ME, turn.id, 0).await;
    assert_numbered(&seen);
    assert!(matches!(seen[0].1, Event::TurnStarted { .. }), "{:?}", seen[0]);
}

/// Whether its agent was started is not known, and it must not be started twice.
#[tokio::test(start_paused = true)]
async fn h6_a_turn_from_before_the_machine_went_down_is_interrupted() {
    let world = World::new();
    let begun = world.turns.begin(ME, ask("say hi")).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    let up = world.rebooted();
    assert_eq!(up.turns.take_up().await.unwrap(), 1);
    let seen = all(&up.turns, ME, begun.turn.id, 0).await;
    let last = &seen.last().unwrap().1;
    assert!(matches!(last, Event::TurnEnded { state: TurnState::Interrupted, .. }), "{last:?}");
    assert!(world.shell.scripts().is_empty());
    // What begins later is its own.
    sleep(Duration::from_secs(1)).await;
    let next = up.turns.start(ME, more(begun.conversation.id, "say more")).await.unwrap();
    assert_eq!(text(&all(&up.turns, ME, next.turn.id, 0).await), "more");
}

/// A message hook takes its time, and meanwhile somebody looks for turns that nobody runs.
#[tokio::test(start_paused = true)]
async fn c2_the_first_event_is_there_whoever_is_quicker() {
    let slow = || async {
        sleep(Duration::from_secs(10)).await;
        Ok(())
    };
    let own = vec![Own::hook(HookKind::Message, move || slow().boxed())];
    let world = World::with(Setup { own, ..Setup::default() });
    let (turns, id) = (world.turns.clone(), ConversationId::generate());
    let starting = tokio::spawn(async move { turns.start(ME, more(id, "say hi")).await });
    sleep(Duration::from_secs(1)).await;
    world.another().turns.take_up().await.unwrap();
    let begun = within(starting).await.unwrap().unwrap();
    let done = world.done(begun).await;
    assert_numbered(&done.events);
    assert!(matches!(done.events[0].1, Event::TurnStarted { .. }), "{:?}", done.events[0]);
    assert_eq!((done.text().as_str(), world.shell.times("say hi")), ("hi", 1));
}

#[tokio::test(start_paused = true)]
async fn c8_turns_of_several_conversations_run_beside_each_other() {
    let world = World::new();
    let mut begun = Vec::new();
    for number in 0..20 {
        let prompt = format!("say a{number}; sleep 10; say b{number}");
        begun.push(world.turns.start(ME, ask(&prompt)).await.unwrap());
    }
    let began = tokio::time::Instant::now();
    for (number, begun) in begun.into_iter().enumerate() {
        assert_eq!(world.done(begun).await.text(), format!("a{number}b{number}"));
    }
    assert_eq!(began.elapsed().as_secs(), 10);
    assert_eq!(world.boxes().await, 20);
}
