//! Cold starts: they run whenever a sandbox is made, and where one fails nothing is left of it.

use crate::turns::{
    fakes::Own,
    world::{ME, Setup, World, all, ask, by, error, more, runs, template, wanted},
};
use futures::FutureExt;
use seawall_api::{
    ConversationId, ErrorKind, SandboxId,
    conversation::{Role, TurnState},
    sandbox::SandboxState,
};
use seawall_core::{
    Error,
    hooks::HookKind,
    ports::{Provider, Volumes},
    templates::{GitPart, HookPart, Template},
    testing::Op,
    turns::{Choice, TurnAsk},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::time::sleep;

fn cold(part: HookPart) -> Template {
    let mut cold = template("cold");
    cold.hooks.cold_start = vec![part];
    cold
}

/// Nothing is there of a sandbox: no box, no row, no link.
async fn assert_gone(world: &World, conversation: ConversationId, sandbox: SandboxId) {
    assert_eq!(world.boxes().await, 0);
    assert!(world.row(sandbox).await.is_none());
    assert_eq!(world.conversation(conversation).await.sandbox_id, None);
    assert_eq!(error(world.sandboxes.get(sandbox).await).kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn h2_a_failed_cold_start_leaves_nothing_but_the_prompt_and_the_reason() {
    let world = World::of([cold(runs("err no room; exit 3"))]);
    let done = world.run(by("cold", "say hi")).await;
    assert_eq!(done.turn.state, TurnState::Failed);
    for word in ["cold_start", "`cold`", "exited with 3", "no room"] {
        assert!(done.error().contains(word), "{word}: {}", done.error());
    }
    assert_gone(&world, done.conversation(), done.sandbox()).await;
    assert_eq!((done.cold(), world.shell.times("say hi")), (None, 0));
    let said = world.said(done.conversation()).await;
    let said: Vec<_> = said.iter().map(|message| (message.role, message.body.as_str())).collect();
    assert_eq!(said[0], (Role::User, "say hi"));
    assert!(said[1].0 == Role::Assistant && said[1].1.contains("no room"), "{said:?}");
    // H6: also then.
    let kinds: Vec<String> = world.hook_runs(done.sandbox()).await.into_iter().map(|run| run.kind).collect();
    assert!(kinds.iter().any(|kind| kind == "stream_finish"), "{kinds:?}");
}

#[tokio::test(start_paused = true)]
async fn h2_a_cold_start_that_hangs_fails() {
    let world = World::of([cold(HookPart { timeout_seconds: 5, ..runs("hang") })]);
    let done = world.run(by("cold", "say hi")).await;
    assert_eq!(done.turn.state, TurnState::Failed);
    assert!(done.error().contains("timeout"), "{}", done.error());
    assert_gone(&world, done.conversation(), done.sandbox()).await;
}

#[tokio::test(start_paused = true)]
async fn h2_after_a_failed_cold_start_the_next_turn_tries_again() {
    let failures = Arc::new(AtomicU32::new(1));
    let own = Own::hook(HookKind::ColdStart, move || {
        let fails = failures.swap(0, Ordering::Relaxed) > 0;
        async move { if fails { Err(Error::unavailable("a mirror is down")) } else { Ok(()) } }.boxed()
    });
    let world = World::with(Setup { own: vec![own], ..Setup::default() });
    let failed = world.run(ask("say one")).await;
    assert!(failed.error().contains("a mirror is down"), "{}", failed.error());
    assert_gone(&world, failed.conversation(), failed.sandbox()).await;
    let next = world.run(more(failed.conversation(), "say two")).await;
    assert_eq!((next.cold(), next.text().as_str()), (Some(true), "two"));
    let bodies: Vec<String> =
        world.said(next.conversation()).await.into_iter().map(|message| message.body).collect();
    assert_eq!((bodies[0].as_str(), bodies[2].as_str(), bodies[3].as_str()), ("say one", "say two", "two"));
}

#[tokio::test(start_paused = true)]
async fn h2_a_box_that_cannot_be_made_fails_the_turn_and_leaves_nothing() {
    let world = World::new();
    world.faults.fail(Op::Create, 1, ErrorKind::LimitUnenforceable);
    let done = world.run(ask("say hi")).await;
    assert_eq!(done.turn.state, TurnState::Failed);
    assert!(done.error().contains("Create"), "{}", done.error());
    assert_gone(&world, done.conversation(), done.sandbox()).await;
    assert_eq!(world.said(done.conversation()).await[0].body, "say hi");
}

#[tokio::test(start_paused = true)]
async fn h2_a_sandbox_that_is_made_again_starts_cold_again() {
    let world = World::of([cold(runs("say ready"))]);
    let first = world.run(by("cold", "say one")).await;
    let id = first.conversation();
    world.run(more(id, "say two")).await;
    world.sandboxes.stop(first.sandbox(), Duration::ZERO).await.unwrap();
    world.run(more(id, "say three")).await;
    assert_eq!(world.shell.times("say ready"), 1);
    world.mock.remove(first.sandbox(), Volumes::Keep).await.unwrap();
    assert_eq!(world.run(more(id, "say four")).await.cold(), Some(true));
    assert_eq!(world.shell.times("say ready"), 2);
}

/// The box was made and could not be started: whoever starts it later starts it cold.
#[tokio::test(start_paused = true)]
async fn h2_a_cold_start_runs_also_where_the_first_start_failed() {
    let world = World::of([cold(runs("say ready"))]);
    world.faults.fail(Op::Start, 1, ErrorKind::Unavailable);
    let failed = world.run(by("cold", "say one")).await;
    assert_eq!(failed.turn.state, TurnState::Failed);
    let asked = TurnAsk { sandbox: Choice::This(failed.sandbox()), ..more(failed.conversation(), "say two") };
    assert_eq!(world.run(asked).await.text(), "two");
    assert_eq!(world.shell.scripts(), ["say ready", "say two"]);
}

/// The server dies while the hook runs. The box is there, was never ready, and the hook goes on in it.
#[tokio::test(start_paused = true)]
async fn h2_a_cold_start_that_a_crash_cut_short_is_gone_on_with() {
    let cold = cold(runs("sleep 30; say ready"));
    let world = World::of([cold.clone()]);
    let wanted = wanted(SandboxId::generate(), &cold);
    let (service, what) = (world.service.clone(), wanted.clone());
    let dying = tokio::spawn(async move { service.ensure(&what).await });
    sleep(Duration::from_secs(10)).await;
    dying.abort();
    let ready = world.another().service.ensure(&wanted).await.unwrap();
    // Not beside itself.
    assert_eq!((ready.cold, world.shell.times("sleep 30; say ready")), (true, 1));
    assert_eq!(world.mock.running(wanted.sandbox), 0);
    assert_eq!(world.sandboxes.get(wanted.sandbox).await.unwrap().state, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn h7_a_repositorys_token_that_is_missing_is_named() {
    let mut cloned = template("cloned");
    cloned.git = Some(GitPart {
        repo: "https://github.com/somebody/something".to_owned(),
        token_env: Some("SEAWALL_NO_SUCH_TOKEN".to_owned()),
        ..GitPart::default()
    });
    let world = World::of([cloned]);
    let begun = world.turns.start(ME, by("cloned", "say hi")).await;
    let said = match begun {
        Ok(begun) => world.done(begun).await.error().to_owned(),
        Err(refused) => refused.chain(),
    };
    assert!(said.contains("SEAWALL_NO_SUCH_TOKEN"), "{said}");
    assert_eq!(world.shell.times("say hi"), 0);
}

/// As where nobody died.
#[tokio::test(start_paused = true)]
async fn h2_a_cold_start_that_fails_for_whoever_took_it_up_leaves_nothing_either() {
    let part = HookPart { timeout_seconds: 600, ..runs("sleep 100; exit 3") };
    let (world, trouble) = World::troubled_with(Setup { templates: vec![cold(part)], ..Setup::default() });
    let begun = world.turns.start(ME, by("cold", "say hi")).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    trouble.freeze();
    sleep(Duration::from_secs(60)).await;
    let other = world.elsewhere("two");
    assert_eq!(other.turns.take_up().await.unwrap(), 1);
    let seen = all(&other.turns, ME, begun.turn.id, 0).await;
    let turn = &world.turns_of(begun.conversation.id).await[0];
    assert_eq!(turn.state, TurnState::Failed, "{seen:?}");
    assert_eq!(world.boxes().await, 0);
    assert!(world.row(begun.turn.sandbox_id.unwrap()).await.is_none());
}
