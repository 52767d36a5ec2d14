//! What was asked and what was answered is kept, in order and whole, whatever becomes of the turn.

use crate::turns::{
    shell::{faces, lines},
    trouble::{Call, How},
    world::{ME, World, ask, by, error, more, template, within},
};
use futures::FutureExt;
use seawall_api::{
    ConversationId, ErrorKind,
    conversation::{Message, Role, TurnState, Usage},
};
use seawall_core::{
    ports::store::{Direction, Page},
    turns::TurnAsk,
};
use seawall_providers::mock::Script;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::sleep;

fn bodies(said: &[Message]) -> Vec<(Role, &str)> {
    said.iter().map(|message| (message.role, message.body.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn m1_prompts_and_answers_are_stored_in_order() {
    let world = World::new();
    let first = world.run(ask("say one")).await;
    sleep(Duration::from_secs(1)).await;
    let second = world.run(more(first.conversation(), "say t; err w; say o; exit 3")).await;
    // A command that fails is an answer.
    assert_eq!(second.turn.state, TurnState::Completed);
    let said = world.said(first.conversation()).await;
    let expected = [
        (Role::User, "say one"),
        (Role::Assistant, "one"),
        (Role::User, "say t; err w; say o; exit 3"),
        (Role::Assistant, "two"),
    ];
    assert_eq!(bodies(&said), expected);
    for (pair, done) in said.chunks(2).zip([&first, &second]) {
        assert_eq!((pair[0].id, pair[1].id), (done.turn.prompt_id, done.turn.answer_id));
        assert_eq!((pair[0].turn_id, pair[1].turn_id), (Some(done.turn.id), Some(done.turn.id)));
        assert_eq!((pair[0].usage, pair[1].usage), (None, Some(Usage::default())));
    }
    assert!(said.windows(2).all(|pair| pair[0].created_at <= pair[1].created_at));
    assert_eq!(world.conversation(first.conversation()).await.stats.messages_exchanged, 4);
}

#[tokio::test(start_paused = true)]
async fn m1_a_prompt_that_waited_comes_behind_the_answer_before_it() {
    let world = World::new();
    let first = world.turns.start(ME, ask("sleep 10; say one")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let id = first.conversation.id;
    world.run(TurnAsk { wait: Duration::from_secs(60), ..more(id, "say two") }).await;
    let roles: Vec<Role> = world.said(id).await.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::Assistant]);
}

/// More than the guest keeps: the agent waits for us, and goes on when its output is stored.
#[tokio::test(start_paused = true)]
async fn m1_a_long_answer_is_whole() {
    let world = World::new();
    let done = world.run(ask("lines 200000")).await;
    let expected = lines(200_000);
    assert!(expected.len() > 2 << 20);
    assert_eq!(done.turn.state, TurnState::Completed, "{}", done.error());
    assert!(done.text() == expected, "{} bytes of {}", done.text().len(), expected.len());
    let said = world.said(done.conversation()).await;
    assert!(said[1].body == expected, "{} bytes of {}", said[1].body.len(), expected.len());
    assert_eq!(done.turn.output_offset, expected.len() as u64);
}

/// Every piece of the output ends in the middle of a character: what is stored must be acknowledged all the same,
/// else the agent waits for us and we for it.
#[tokio::test(start_paused = true)]
async fn m1_a_long_answer_does_not_stall_in_the_middle_of_a_character() {
    let world = World::new();
    let done = world.run(ask("faces 600000")).await;
    assert_eq!(done.turn.state, TurnState::Completed, "{}", done.error());
    let expected = faces(600_000);
    assert!(done.text() == expected, "{} bytes of {}", done.text().len(), expected.len());
}

#[tokio::test(start_paused = true)]
async fn m2_the_prompt_is_stored_before_the_agent_sees_it() {
    let world = World::new();
    let conversation = ConversationId::generate();
    let seen: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
    let (stores, log) = (world.stores.clone(), seen.clone());
    world.mock.on_command("/bin/sh", move |_| {
        let page = Page::first(10);
        let stored = stores.messages.list(ME, conversation, Direction::OldestFirst, &page);
        let stored = stored.now_or_never().unwrap().unwrap().items;
        let stats = stores.conversations.get(ME, conversation).now_or_never().unwrap().unwrap().stats;
        let bodies: Vec<String> = stored.into_iter().map(|message| message.body).collect();
        log.lock().unwrap().push((bodies.join(" "), stats.messages_exchanged));
        Script::stdout("ok")
    });
    assert_eq!(world.run(more(conversation, "do it")).await.text(), "ok");
    assert_eq!(*seen.lock().unwrap(), [("do it".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn m2_without_its_stores_nothing_is_started() {
    let (world, trouble) = World::troubled();
    let id = ConversationId::generate();
    trouble.next(Call::Begin, u32::MAX, How::Fails);
    let refused = error(within(world.turns.start(ME, more(id, "say hi"))).await);
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    sleep(Duration::from_secs(60)).await;
    assert!(world.shell.scripts().is_empty() && world.said(id).await.is_empty());
    assert_eq!(world.boxes().await, 0);
    // Trying again is all it takes.
    trouble.heal();
    assert_eq!(world.run(more(id, "say hi")).await.text(), "hi");
    assert_eq!(world.conversation(id).await.stats.messages_exchanged, 2);
}

#[tokio::test(start_paused = true)]
async fn m2_an_answer_is_stored_also_where_the_turn_fails() {
    let mut short = template("short");
    short.agent.timeout_seconds = 5;
    let world = World::of([short]);
    let done = world.run(by("short", "say half; hang")).await;
    assert_eq!(done.turn.state, TurnState::Failed);
    assert!(done.error().contains("timeout"), "{}", done.error());
    assert_eq!(bodies(&world.said(done.conversation()).await)[1], (Role::Assistant, "half"));
    assert_eq!(world.mock.running(done.sandbox()), 0);
    // The next one is none the worse for it.
    assert_eq!(world.run(more(done.conversation(), "say whole")).await.text(), "whole");
}

#[tokio::test(start_paused = true)]
async fn m2_an_answer_is_stored_also_where_nobody_listens() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; sleep 30; say two")).await.unwrap();
    let mut follower = world.turns.follow(ME, begun.turn.id, 0).await.unwrap();
    assert!(follower.next().await.unwrap().is_some());
    drop(follower);
    world.quiet().await;
    let said = world.said(begun.conversation.id).await;
    assert_eq!(bodies(&said)[1], (Role::Assistant, "onetwo"));
    assert_eq!(world.turns_of(begun.conversation.id).await[0].state, TurnState::Completed);
}

#[tokio::test(start_paused = true)]
async fn m2_a_turn_that_said_nothing_says_why() {
    let mut short = template("short");
    short.agent.timeout_seconds = 5;
    let world = World::of([short]);
    let done = world.run(by("short", "hang")).await;
    let said = world.said(done.conversation()).await;
    assert_eq!(said[1].body, format!("[failed: {}]", done.error()));
    // An answer without a word is one too.
    let silent = world.run(ask("exit 0")).await;
    assert_eq!(bodies(&world.said(silent.conversation()).await)[1], (Role::Assistant, ""));
}
