//! K11: what is kept long enough goes, what is not stays, and conversations go on.

use crate::turns::world::{ME, Setup, World, all, ask, error, more, template, wanted};
use jiff::SignedDuration;
use seawall_api::{
    ConversationId, ErrorKind, HookRunId, SandboxId,
    conversation::{Role, TurnState},
    sandbox::SandboxState,
};
use seawall_core::{
    ports::store::{Begun, HookRun, Page, Session, SessionScope},
    retention::{Keep, Removed, Retention},
    service::EndSandbox,
};
use std::time::Duration;
use tokio::time::{advance, sleep};

const DAY: Duration = Duration::from_secs(86_400);
const MINUTE: Duration = Duration::from_secs(60);

fn retention(world: &World, keep: Keep) -> Retention {
    Retention::new(&world.services, keep)
}

/// All kinds but the named ones are kept for ever.
fn nothing() -> Keep {
    Keep {
        leases: None,
        events: None,
        hook_runs: None,
        ended_sandboxes: None,
        sessions: None,
        conversations: None,
        messages: None,
        versions: None,
    }
}

async fn round(retention: &Retention) -> Removed {
    retention.round().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn k11_events_go_a_week_after_their_turn_and_the_conversation_goes_on() {
    let world = World::new();
    let old = world.run(ask("say one; say two")).await;
    let (account, id, conversation) = (ME, old.turn.id, old.conversation());
    let retention = retention(&world, Keep::default());
    advance(DAY * 6).await;
    assert_eq!(round(&retention).await.events, 0);
    let new = world.run(more(conversation, "say three")).await;
    advance(DAY * 2).await;
    let removed = round(&retention).await;
    assert_eq!(removed.events, old.turn.events);
    let gone = error(world.turns.follow(account, id, 0).await);
    assert_eq!((gone.kind(), gone.code()), (ErrorKind::Gone, "events_gone"));
    // What was asked and answered is there, and so is the other turn.
    let said = world.said(conversation).await;
    assert_eq!(said.iter().map(|message| message.body.as_str()).nth(1), Some("onetwo"));
    assert_eq!(all(&world.turns, account, new.turn.id, 0).await.len() as u64, new.turn.events + 1);
    assert_eq!(world.stores.turns.get(account, id).await.unwrap(), old.turn);
    let next = world.run(more(conversation, "say four")).await;
    assert_eq!((next.turn.state, next.turn.number), (TurnState::Completed, 3));
    assert_eq!(round(&retention).await, Removed::default());
}

#[tokio::test(start_paused = true)]
async fn k11_what_runs_is_never_removed() {
    let world = World::new();
    let begun = world.turns.start(ME, ask("say one; sleep 3000; say two")).await.unwrap();
    let short = Some(MINUTE * 10);
    let keep =
        Keep { conversations: short, messages: short, events: short, leases: short, ..Keep::default() };
    let retention = retention(&world, keep);
    sleep(MINUTE * 40).await;
    let removed = round(&retention).await;
    assert_eq!((removed.events, removed.conversations, removed.leases), (0, 0, 0));
    let done = world.done(begun).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "onetwo"));
}

#[tokio::test(start_paused = true)]
async fn k11_conversations_messages_and_versions_stay_unless_configured() {
    let world = World::new();
    let done = world.run(ask("say one")).await;
    let id = done.conversation();
    advance(DAY * 40).await;
    round(&retention(&world, Keep::default())).await;
    assert_eq!(world.said(id).await.len(), 2);
    // The messages alone, and of those the old ones.
    let later = world.run(more(id, "say two")).await;
    let messages = retention(&world, Keep { messages: Some(DAY * 9), ..nothing() });
    assert_eq!(round(&messages).await, Removed { messages: 2, ..Removed::default() });
    let said = world.said(id).await;
    assert_eq!(said.iter().map(|message| message.role).collect::<Vec<_>>(), [Role::User, Role::Assistant]);
    assert_eq!(said[0].turn_id, Some(later.turn.id));
    // And the whole conversation, once nobody has talked in it for so long.
    let conversations = retention(&world, Keep { conversations: Some(DAY * 9), ..nothing() });
    advance(DAY * 8).await;
    assert_eq!(round(&conversations).await, Removed::default());
    let other = world.run(ask("say other")).await;
    advance(DAY * 2).await;
    assert_eq!(round(&conversations).await, Removed { conversations: 1, ..Removed::default() });
    let gone = world.stores.conversations.get(ME, id).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert_eq!(world.said(other.conversation()).await.len(), 2);
    // Its sandbox stays: nobody asked for its end.
    assert!(world.row(done.sandbox()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn k11_records_of_ended_sandboxes_go_unless_a_conversation_has_them() {
    let world = World::with(Setup { templates: vec![template("other")], ..Setup::default() });
    let talked = world.run(ask("say one")).await;
    let alone = SandboxId::generate();
    world.service.ensure(&wanted(alone, &template("other"))).await.unwrap();
    let runs = SandboxId::generate();
    world.service.ensure(&wanted(runs, &template("other"))).await.unwrap();
    let how = EndSandbox { sync: false, force: true, volumes: None, delete_versions: false };
    for id in [talked.sandbox(), alone] {
        world.service.end(ME, id, &how).await.unwrap();
    }
    let retention = retention(&world, Keep::default());
    advance(DAY * 29).await;
    assert_eq!(round(&retention).await.sandboxes, 0);
    advance(DAY * 2).await;
    assert_eq!(round(&retention).await.sandboxes, 1);
    assert!(world.row(alone).await.is_none() && world.row(runs).await.is_some());
    assert!(world.is_terminated(talked.sandbox()).await, "its conversation may go on");
    let next = world.run(more(talked.conversation(), "say two")).await;
    assert_eq!((next.turn.state, next.sandbox()), (TurnState::Completed, talked.sandbox()));
    // Ended again, it has its time again; and it goes when its conversation is gone.
    world.service.end(ME, talked.sandbox(), &how).await.unwrap();
    world.turns.delete_conversation(ME, talked.conversation(), false).await.unwrap();
    assert_eq!(round(&retention).await.sandboxes, 0);
    advance(DAY * 31).await;
    assert_eq!(round(&retention).await.sandboxes, 1);
    assert_eq!(world.row(runs).await.unwrap().state, SandboxState::Running);
}

/// More than a round removes at once of one kind is left to the next, and none is forgotten.
#[tokio::test(start_paused = true)]
async fn k11_much_goes_in_batches() {
    let world = World::new();
    let (now, stores) = (world.now(), &world.stores);
    for number in 0..1300_u32 {
        let run = HookRun {
            id: HookRunId::generate(),
            kind: "message".to_owned(),
            name: None,
            template: None,
            conversation_id: None,
            turn_id: None,
            sandbox_id: None,
            began_at: now,
            outcome: None,
        };
        stores.hook_runs.begin(ME, &run).await.unwrap();
        let session = Session {
            account_id: ME,
            scope: SessionScope::Workflow,
            scope_id: number.to_string(),
            sandbox_id: SandboxId::generate(),
            image: None,
            created_at: now,
            last_used_at: now,
        };
        stores.sessions.open(&session).await.unwrap();
        stores.leases.acquire(&format!("l{number}"), "one", Duration::from_secs(1)).await.unwrap();
        let key = number.to_string();
        let hold = Duration::from_secs(60);
        let begun = stores.idempotency.begin(ME, &key, &[1; 32], hold, hold).await.unwrap();
        let Begun::New { receipt } = begun else { panic!("{begun:?}") };
        stores.idempotency.finish(ME, &key, receipt, b"x").await.unwrap();
    }
    advance(DAY * 31).await;
    let removed = round(&retention(&world, Keep::default())).await;
    let counted = (removed.hook_runs, removed.sessions, removed.leases, removed.idempotency_keys);
    assert_eq!(counted, (1300, 1300, 1300, 1300));
    assert!(stores.hook_runs.list(ME, None, &Page::first(1)).await.unwrap().items.is_empty());
}

/// A clock that jumps ahead makes everything look old.
#[tokio::test(start_paused = true)]
async fn k11_a_clock_that_was_set_removes_nothing_for_a_while() {
    for days in [400, -400] {
        let world = World::new();
        let done = world.run(ask("say one")).await;
        let retention = retention(&world, Keep { conversations: Some(DAY * 90), ..Keep::default() });
        assert_eq!(round(&retention).await, Removed::default());
        world.clock.step(SignedDuration::from_hours(days * 24));
        for _ in 0..3 {
            assert_eq!(round(&retention).await, Removed::default(), "{days}");
            sleep(Duration::from_secs(60)).await;
        }
        // Somebody sets it right.
        world.clock.step(SignedDuration::from_hours(-days * 24));
        assert_eq!(round(&retention).await, Removed::default(), "{days}");
        sleep(Duration::from_secs(4000)).await;
        assert_eq!(round(&retention).await, Removed::default(), "{days}");
        assert_eq!(world.said(done.conversation()).await.len(), 2);
        // And time goes on.
        advance(DAY * 8).await;
        assert_eq!(round(&retention).await.events, done.turn.events, "{days}");
    }
}

/// One that cannot be deleted keeps no other.
#[tokio::test(start_paused = true)]
async fn k11_nothing_keeps_the_rest() {
    let world = World::new();
    let first: ConversationId = world.run(ask("say one")).await.conversation();
    let second = world.run(ask("say two")).await.conversation();
    let begun = world.turns.start(ME, more(first, "say three; sleep 3000")).await.unwrap();
    sleep(MINUTE * 40).await;
    let retention = retention(&world, Keep { conversations: Some(MINUTE * 30), ..nothing() });
    assert_eq!(round(&retention).await.conversations, 1);
    assert!(world.stores.conversations.get(ME, second).await.is_err());
    assert!(world.stores.conversations.get(ME, first).await.is_ok());
    assert!(world.turns.cancel(begun.turn.id));
    world.quiet().await;
}
