//! Which conversation, which sandbox, which template: and one turn at a time.

use crate::turns::{
    fakes::Keyless,
    world::{ME, Setup, World, ask, by, error, more, runs, template, wanted},
};
use seawall_api::{
    AccountId, ConversationId, ErrorKind, SandboxId, conversation::TurnState, event::Event,
    sandbox::SandboxState,
};
use seawall_core::{
    budget::{Budget, BudgetLimits},
    ports::{Provider, Volumes},
    service::Wanted,
    templates::{SyncPart, Template},
    turns::{Choice, TurnAsk},
};
use seawall_sync::bucket::{MemoryBucket, SharedBucket};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

fn agents(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(agent, template)| ((*agent).to_owned(), (*template).to_owned())).collect()
}

/// A turn that names its conversation, its template and its agent, or not.
fn named(conversation: Option<ConversationId>, template: Option<&str>, agent: Option<&str>) -> TurnAsk {
    TurnAsk {
        conversation,
        template: template.map(str::to_owned),
        agent_id: agent.map(str::to_owned),
        ..ask("say hi")
    }
}

fn in_sandbox(sandbox: SandboxId, prompt: &str) -> TurnAsk {
    TurnAsk { sandbox: Choice::This(sandbox), ..ask(prompt) }
}

async fn template_of(world: &World, ask: TurnAsk) -> (ConversationId, String) {
    let done = world.run(ask).await;
    assert_eq!(done.turn.state, TurnState::Completed, "{done:?}");
    (done.conversation(), done.turn.template.unwrap())
}

#[tokio::test(start_paused = true)]
async fn c1_the_template_is_the_requests_else_the_conversations_else_the_agents_else_shell() {
    let templates = ["a", "b", "c"].map(template).to_vec();
    let world = World::with(Setup { templates, agents: agents(&[("bot", "c")]), ..Setup::default() });
    let (id, first) = template_of(&world, named(None, Some("a"), Some("bot"))).await;
    assert_eq!(first, "a");
    let later = [(None, None, "a"), (None, Some("bot"), "a"), (Some("b"), None, "b"), (None, None, "a")];
    for (template, agent, expected) in later {
        let (_, found) = template_of(&world, named(Some(id), template, agent)).await;
        assert_eq!(found, expected, "{template:?} {agent:?}");
    }
    let (of_agent, found) = template_of(&world, named(None, None, Some("bot"))).await;
    assert_eq!(found, "c");
    // The agent is the conversation's from now on.
    assert_eq!(template_of(&world, named(Some(of_agent), None, None)).await.1, "c");
    for agent in [None, Some("nobody")] {
        assert_eq!(template_of(&world, named(None, None, agent)).await.1, "shell");
    }
}

#[tokio::test(start_paused = true)]
async fn c1_an_unknown_template_is_an_error_that_says_which_there_are() {
    let world = World::with(Setup { agents: agents(&[("bot", "gone")]), ..Setup::default() });
    for (template, agent, name) in [(Some("nope"), None, "`nope`"), (None, Some("bot"), "`gone`")] {
        let id = ConversationId::generate();
        let refused = error(world.turns.start(ME, named(Some(id), template, agent)).await);
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        let text = refused.to_string();
        assert!(text.contains(name) && text.contains("shell") && text.contains("codex"), "{text}");
        // Nothing was begun.
        assert_eq!(error(world.stores.conversations.get(ME, id).await).kind(), ErrorKind::NotFound);
    }
    let id = world.run(ask("say hi")).await.conversation();
    let refused = error(world.turns.start(ME, named(Some(id), Some("nope"), None)).await);
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!((world.turns_of(id).await.len(), world.said(id).await.len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn c2_the_first_event_has_all_ids() {
    let world = World::new();
    let done = world.run(ask("say hi")).await;
    let first = Event::TurnStarted {
        conversation_id: done.conversation(),
        turn_id: done.turn.id,
        sandbox_id: done.sandbox(),
        prompt_id: done.turn.prompt_id,
        answer_id: done.turn.answer_id,
        template: "shell".to_owned(),
    };
    assert_eq!(done.events[0], (0, first));
}

#[tokio::test(start_paused = true)]
async fn c2_ids_of_the_client_are_created_and_then_resumed() {
    let world = World::new();
    let (conversation, sandbox) = (ConversationId::generate(), SandboxId::generate());
    let asked = |prompt: &str| TurnAsk { conversation: Some(conversation), ..in_sandbox(sandbox, prompt) };
    let first = world.run(asked("say one")).await;
    let second = world.run(asked("say two")).await;
    for (done, said, number) in [(&first, "one", 1), (&second, "two", 2)] {
        assert_eq!((done.conversation(), done.sandbox()), (conversation, sandbox));
        assert_eq!((done.text().as_str(), done.turn.number), (said, number));
    }
    assert_eq!((first.cold(), second.cold()), (Some(true), Some(false)));
    let found = world.conversation(conversation).await;
    assert_eq!((found.sandbox_id, found.stats.messages_exchanged), (Some(sandbox), 4));
    assert_eq!(world.boxes().await, 1);
}

#[tokio::test(start_paused = true)]
async fn c2_auto_is_the_linked_one_or_a_new_one() {
    let world = World::new();
    let first = world.run(ask("say one")).await;
    let again = world.run(more(first.conversation(), "say two")).await;
    assert_eq!(again.sandbox(), first.sandbox());
    let other = world.run(ask("say three")).await;
    assert_ne!(other.conversation(), first.conversation());
    assert_ne!(other.sandbox(), first.sandbox());
    assert_eq!(world.boxes().await, 2);
}

#[tokio::test(start_paused = true)]
async fn c2_another_sandbox_is_a_mismatch_unless_it_is_relinked() {
    let world = World::new();
    let (first, other) = (world.run(ask("say one")).await, SandboxId::generate());
    let id = first.conversation();
    let asked = TurnAsk { conversation: Some(id), ..in_sandbox(other, "say two") };
    let refused = error(world.turns.start(ME, asked.clone()).await);
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("sandbox_mismatch"), "{refused}");
    assert!(refused.to_string().contains(&first.sandbox().to_string()), "{refused}");
    assert_eq!((world.turns_of(id).await.len(), world.boxes().await), (1, 1));
    let relinked = world.run(TurnAsk { sandbox: Choice::Relink(other), ..asked }).await;
    assert_eq!((relinked.sandbox(), relinked.text().as_str()), (other, "two"));
    assert_eq!(world.conversation(id).await.sandbox_id, Some(other));
    // The one before is nobody's, and is there.
    assert_eq!(world.boxes().await, 2);
    assert_eq!(world.run(more(id, "say three")).await.sandbox(), other);
}

#[tokio::test(start_paused = true)]
async fn c2_a_prompt_says_something_and_fits() {
    let world = World::new();
    for (prompt, kind) in [
        (String::new(), ErrorKind::Invalid),
        (" \n\t".to_owned(), ErrorKind::Invalid),
        ("x".repeat((1 << 20) + 1), ErrorKind::TooLarge),
    ] {
        let id = ConversationId::generate();
        assert_eq!(error(world.turns.start(ME, more(id, &prompt)).await).kind(), kind);
        assert_eq!(error(world.stores.conversations.get(ME, id).await).kind(), ErrorKind::NotFound);
    }
    // What a shell takes as one argument.
    let largest = "x".repeat((128 << 10) - 1);
    let begun = world.turns.begin(ME, ask(&largest)).await.unwrap();
    assert_eq!(world.said(begun.conversation.id).await[0].body, largest);
}

#[tokio::test(start_paused = true)]
async fn c3_a_sandbox_that_stopped_or_is_gone_is_resumed() {
    let world = World::new();
    let first = world.run(ask("say one")).await;
    let (id, sandbox) = (first.conversation(), first.sandbox());
    world.put(sandbox, "notes/a.txt", "kept").await;
    world.sandboxes.stop(sandbox, Duration::ZERO).await.unwrap();
    let stopped = world.run(more(id, "say two")).await;
    assert_eq!((stopped.sandbox(), stopped.cold()), (sandbox, Some(false)));
    world.mock.remove(sandbox, Volumes::Keep).await.unwrap();
    let lost = world.run(more(id, "say three")).await;
    assert_eq!((lost.sandbox(), lost.cold(), lost.text().as_str()), (sandbox, Some(true), "three"));
    assert_eq!(world.take(sandbox, "notes/a.txt").await, Ok("kept".to_owned()));
    world.sandboxes.remove(sandbox, Volumes::Delete).await.unwrap();
    let gone = world.run(more(id, "say four")).await;
    assert_eq!((gone.sandbox(), gone.cold(), gone.text().as_str()), (sandbox, Some(true), "four"));
}

#[tokio::test(start_paused = true)]
async fn c7_of_another_account_nothing_is_found() {
    let world = World::new();
    let (done, other) = (world.run(ask("say mine")).await, AccountId::generate());
    let theirs = Wanted { account: other, ..wanted(done.sandbox(), &template("shell")) };
    let refusals = [
        world.turns.start(other, more(done.conversation(), "say theirs")).await.map(drop),
        world.turns.start(other, in_sandbox(done.sandbox(), "say theirs")).await.map(drop),
        world.turns.follow(other, done.turn.id, 0).await.map(drop),
        world.service.ensure(&theirs).await.map(drop),
        world.service.terminate(&theirs, false, true).await,
    ];
    for refused in refusals {
        assert_eq!(error(refused).kind(), ErrorKind::NotFound);
    }
    world.quiet().await;
    assert_eq!(world.shell.scripts(), ["say mine"]);
    assert_eq!(world.sandboxes.get(done.sandbox()).await.unwrap().state, SandboxState::Running);
    assert_eq!(world.turns_of(done.conversation()).await.len(), 1);
}

/// Two accounts ask for one sandbox that is not there yet. It is the first one's; the other's turn, with its hooks and
/// its push, leaves it alone.
#[tokio::test(start_paused = true)]
async fn c7_whoever_comes_second_touches_nothing_of_the_first() {
    let mut hooked = Template { sync: SyncPart::default(), ..template("hooked") };
    hooked.hooks.stream_finish = vec![runs("say finish")];
    let bucket: SharedBucket = Arc::new(MemoryBucket::default());
    let world = World::with(Setup { templates: vec![hooked], bucket: Some(bucket), ..Setup::default() });
    let (sandbox, other) = (SandboxId::generate(), AccountId::generate());
    let asked = TurnAsk { sandbox: Choice::This(sandbox), ..by("hooked", "say theirs") };
    let theirs = world.turns.begin(other, asked).await.unwrap();
    let mine = world.run(in_sandbox(sandbox, "say mine")).await;
    assert_eq!(mine.text(), "mine");
    world.turns.spawn(other, theirs.turn.clone());
    let theirs = world.done(theirs).await;
    assert_eq!(theirs.turn.state, TurnState::Failed, "{theirs:?}");
    assert_eq!(world.shell.scripts(), ["say mine"]);
    let row = world.row(sandbox).await.unwrap();
    assert_eq!((row.account_id, row.unsynced), (ME, None));
}

#[tokio::test(start_paused = true)]
async fn c8_a_second_turn_of_a_conversation_or_a_sandbox_is_a_conflict() {
    let world = World::new();
    let first = world.turns.start(ME, ask("sleep 10; say one")).await.unwrap();
    let beside = in_sandbox(first.turn.sandbox_id.unwrap(), "say two");
    let next = more(first.conversation.id, "say two");
    for second in [&next, &beside] {
        let refused = error(world.turns.start(ME, second.clone()).await);
        assert_eq!(refused.kind(), ErrorKind::Conflict);
    }
    assert_eq!(world.done(first).await.text(), "one");
    for second in [next, beside] {
        assert_eq!(world.run(second).await.text(), "two");
    }
    assert_eq!(world.shell.scripts(), ["sleep 10; say one", "say two", "say two"]);
}

#[tokio::test(start_paused = true)]
async fn c8_a_second_turn_waits_as_long_as_it_said() {
    let world = World::new();
    let began = Instant::now();
    let first = world.turns.start(ME, ask("sleep 10; say one")).await.unwrap();
    let next = more(first.conversation.id, "say two");
    let impatient = TurnAsk { wait: Duration::from_secs(3), ..next.clone() };
    assert_eq!(error(world.turns.start(ME, impatient).await).kind(), ErrorKind::Conflict);
    assert_eq!(began.elapsed().as_secs(), 3);
    let patient = TurnAsk { wait: Duration::from_secs(60), ..next };
    assert_eq!(world.run(patient).await.text(), "two");
    assert_eq!(began.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn c8_whoever_waited_gets_the_sandbox_that_is_linked_by_then() {
    let world = World::new();
    let first = world.turns.start(ME, ask("sleep 10; say one")).await.unwrap();
    let waiting = TurnAsk { wait: Duration::from_secs(60), ..more(first.conversation.id, "say two") };
    let second = world.run(waiting).await;
    assert_eq!(Some(second.sandbox()), first.turn.sandbox_id);
    assert_eq!(world.conversation(first.conversation.id).await.sandbox_id, first.turn.sandbox_id);
    assert_eq!(world.boxes().await, 1);
}

#[tokio::test(start_paused = true)]
async fn c8_a_wait_may_be_of_any_length() {
    let world = World::new();
    let patient = TurnAsk { wait: Duration::MAX, ..ask("say hi") };
    assert_eq!(world.run(patient).await.text(), "hi");
}

#[tokio::test(start_paused = true)]
async fn h7_without_a_model_an_agents_turn_is_not_begun() {
    let keyless = Setup { gateway: Some(Arc::new(Keyless::default())), ..Setup::default() };
    for (setup, said) in [(Setup::default(), "no models"), (keyless, "no key for Anthropic")] {
        let world = World::with(setup);
        let id = ConversationId::generate();
        let asked = TurnAsk { conversation: Some(id), ..by("claude-code", "do it") };
        let refused = error(world.turns.start(ME, asked).await);
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains(said), "{refused}");
        assert_eq!(error(world.stores.conversations.get(ME, id).await).kind(), ErrorKind::NotFound);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(world.boxes().await, 0);
    }
}

#[tokio::test]
async fn k5_the_gateway_reserves_from_the_budget_of_the_server() {
    let gateway = Arc::new(Keyless::default());
    let world = World::with(Setup { gateway: Some(gateway.clone()), ..Setup::default() });
    let budget = Budget::new(BudgetLimits { server: 1000, account: 500 });
    world.turns.count_in(&budget);
    let held = budget.try_reserve(None, 400).unwrap();
    assert_eq!(gateway.budget.get().map(Budget::free), Some(600));
    drop(held);
}
