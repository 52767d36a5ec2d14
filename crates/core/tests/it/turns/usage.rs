//! What turns used, counted once.
//!
//! No model answers here: the events of agents are stored as a crash would leave them, and the turn is taken up.

use crate::turns::world::{Left, ME, Setup, World, all, ask, more, template, wanted};
use async_trait::async_trait;
use seawall_api::{
    ConversationId, SandboxId, TurnId,
    conversation::{Stats, ToolStatus, Turn, TurnState, Usage},
    event::Event,
};
use seawall_core::{
    Result,
    hooks::{Hook, HookContext, HookKind, Moment},
    service::Wanted,
};
use serde_json::json;
use std::sync::Arc;

fn usage(input_tokens: u64, output_tokens: u64, cache_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, cache_tokens }
}

fn stats(messages_exchanged: u64, usage: Usage) -> Stats {
    Stats { messages_exchanged, ..Stats::default().plus(&usage) }
}

fn of_message(id: &str, usage: Usage) -> Event {
    Event::Usage { message: Some(id.to_owned()), usage }
}

fn said(text: &str) -> Event {
    Event::Text { text: text.to_owned(), stderr: false }
}

fn ended() -> Event {
    Event::AgentEnded { state: TurnState::Completed, error: None, exit_code: Some(0) }
}

/// A turn whose agent has ended, and whose server died before it said so.
async fn left(world: &World, conversation: ConversationId, template: &str, mut events: Vec<Event>) -> Turn {
    events.push(ended());
    let left = Left { conversation, sandbox: SandboxId::generate(), template, prompt: "do it" };
    world.left(&left, &events).await
}

#[tokio::test(start_paused = true)]
async fn m3_what_a_turn_used_is_counted_once() {
    let world = World::new();
    let conversation = ConversationId::generate();
    let events = vec![
        of_message("a", usage(10, 1, 5)),
        of_message("a", usage(10, 1, 5)),
        said("hi"),
        Event::Usage { message: None, usage: usage(100, 20, 3) },
    ];
    let turn = left(&world, conversation, "claude-code", events).await;
    let other = world.another();
    let (mine, theirs) = tokio::join!(world.turns.take_up(), other.turns.take_up());
    assert!(mine.unwrap() + theirs.unwrap() > 0);
    let seen = all(&other.turns, ME, turn.id, 0).await;
    world.quiet().await;
    assert_eq!(world.turns.take_up().await.unwrap() + other.turns.take_up().await.unwrap(), 0);
    let last = Event::TurnEnded {
        state: TurnState::Completed,
        error: None,
        usage: usage(100, 20, 3),
        estimate: false,
        stats: stats(2, usage(100, 20, 3)),
    };
    assert_eq!(seen.last().unwrap().1, last);
    assert_eq!(world.conversation(conversation).await.stats, stats(2, usage(100, 20, 3)));
    let answer = &world.said(conversation).await[1];
    assert_eq!((answer.body.as_str(), answer.usage), ("hi", Some(usage(100, 20, 3))));
    assert_eq!(world.turns_of(conversation).await[0].usage, Some(usage(100, 20, 3)));
}

#[tokio::test(start_paused = true)]
async fn m3_a_turn_that_did_not_tell_its_total_used_at_least_what_was_seen() {
    let world = World::new();
    let conversation = ConversationId::generate();
    let first = vec![of_message("a", usage(10, 1, 5)), of_message("b", usage(1, 1, 1))];
    let turn = left(&world, conversation, "claude-code", first).await;
    world.turns.take_up().await.unwrap();
    let seen = all(&world.turns, ME, turn.id, 0).await;
    let Some((_, Event::TurnEnded { usage: used, estimate, .. })) = seen.last() else {
        panic!("{seen:?}");
    };
    assert_eq!((*used, *estimate), (usage(11, 2, 6), true));
    world.quiet().await;
    // M4: the totals of the next turn's last event are of both.
    let second = vec![Event::Usage { message: None, usage: usage(100, 10, 1) }];
    let turn = left(&world, conversation, "claude-code", second).await;
    world.turns.take_up().await.unwrap();
    let seen = all(&world.turns, ME, turn.id, 0).await;
    let Some((_, Event::TurnEnded { stats: totals, usage: used, .. })) = seen.last() else {
        panic!("{seen:?}");
    };
    assert_eq!((*used, *totals), (usage(100, 10, 1), stats(4, usage(111, 12, 7))));
}

/// An agent that tells the total of its thread, and a server that dies between the agent's end and the turn's: what the
/// turns before used is not counted again.
#[tokio::test(start_paused = true)]
async fn m3_a_threads_total_counts_once_also_after_a_crash() {
    let world = World::new();
    let conversation = ConversationId::generate();
    let session = || Event::AgentSession { session: "01a1dddc-04ab-7641-8d4e-a928cc4df416".to_owned() };
    for (told, used) in [(usage(100, 10, 50), usage(100, 10, 50)), (usage(150, 15, 80), usage(50, 5, 30))] {
        let events = vec![session(), said("hi"), Event::ThreadUsage { usage: told }];
        let turn = left(&world, conversation, "codex", events).await;
        world.turns.take_up().await.unwrap();
        all(&world.turns, ME, turn.id, 0).await;
        world.quiet().await;
        assert_eq!(world.turns_of(conversation).await[0].usage, Some(used));
    }
    assert_eq!(world.conversation(conversation).await.stats, stats(4, usage(150, 15, 80)));
}

/// A turn of a thread that was killed is charged what passed the gateway. The next one tells the total of the thread,
/// with what the killed one used, and is charged what is new; and one that tells zero, what passed.
#[tokio::test(start_paused = true)]
async fn m3_a_killed_turn_of_a_thread_counts_once() {
    let world = World::new();
    let conversation = ConversationId::generate();
    let session = || Event::AgentSession { session: "01a1dddc-04ab-7641-8d4e-a928cc4df416".to_owned() };
    let passed = |usage| Event::GatewayUsage { usage };
    let told = |usage| Event::ThreadUsage { usage };
    for (events, used) in [
        (vec![session(), passed(usage(100, 10, 50))], usage(100, 10, 50)),
        (vec![session(), passed(usage(1, 1, 1)), passed(usage(20, 2, 3))], usage(20, 2, 3)),
        (vec![session(), passed(usage(30, 3, 27)), told(usage(150, 15, 80))], usage(30, 3, 27)),
        (vec![session(), passed(usage(5, 5, 5)), told(usage(0, 0, 0))], usage(5, 5, 5)),
    ] {
        let turn = left(&world, conversation, "codex", events).await;
        world.turns.take_up().await.unwrap();
        all(&world.turns, ME, turn.id, 0).await;
        world.quiet().await;
        assert_eq!(world.turns_of(conversation).await[0].usage, Some(used));
    }
    assert_eq!(world.conversation(conversation).await.stats, stats(8, usage(155, 20, 85)));
}

/// An agent that tells less than passed the gateway, in its messages or in its total.
#[tokio::test(start_paused = true)]
async fn m3_what_passed_the_gateway_counts_where_the_agent_tells_less() {
    let world = World::new();
    let passed = |usage| Event::GatewayUsage { usage };
    for (events, expected) in [
        (
            vec![passed(usage(100, 20, 3)), Event::Usage { message: None, usage: usage(0, 0, 0) }],
            (usage(100, 20, 3), false),
        ),
        (vec![of_message("a", usage(10, 1, 5)), passed(usage(9, 4, 5))], (usage(10, 4, 5), true)),
        (vec![passed(usage(9, 4, 5))], (usage(9, 4, 5), true)),
    ] {
        let turn = left(&world, ConversationId::generate(), "claude-code", events).await;
        world.turns.take_up().await.unwrap();
        let seen = all(&world.turns, ME, turn.id, 0).await;
        let Some((_, Event::TurnEnded { usage: used, estimate, .. })) = seen.last() else {
            panic!("{seen:?}")
        };
        assert_eq!((*used, *estimate), expected);
        world.quiet().await;
    }
    // The ledger has all of it.
    let totals = world.turns.ledger().totals(ME).await.unwrap();
    assert_eq!((totals.day, totals.month), (123 + 19 + 18, 123 + 19 + 18));
}

#[tokio::test(start_paused = true)]
async fn m1_tool_calls_are_stored_with_what_came_of_them() {
    let world = World::new();
    let conversation = ConversationId::generate();
    let call = |id: &str| Event::ToolCall { id: id.into(), name: "Bash".into(), input: json!({"c": id}) };
    let result = |id: &str, is_error| Event::ToolResult { id: id.into(), output: json!("out"), is_error };
    let events = vec![call("1"), call("2"), call("3"), result("2", true), result("1", false), said("done")];
    let turn = left(&world, conversation, "claude-code", events).await;
    world.turns.take_up().await.unwrap();
    all(&world.turns, ME, turn.id, 0).await;
    world.quiet().await;
    let answer = &world.said(conversation).await[1];
    assert_eq!((answer.id, answer.body.as_str()), (turn.answer_id, "done"));
    let calls: Vec<_> = answer.tool_calls.iter().map(|call| (call.id.as_str(), call.status)).collect();
    let expected = [("1", ToolStatus::Succeeded), ("2", ToolStatus::Failed), ("3", ToolStatus::Pending)];
    assert_eq!(calls, expected);
    assert_eq!(answer.tool_calls[1].error.as_deref(), Some("out"));
    assert_eq!(answer.tool_calls[0].name, "Bash");
    assert_eq!(answer.tool_calls[0].input, json!({"c": "1"}));
}

#[tokio::test(start_paused = true)]
async fn m4_the_last_event_has_the_turns_usage_and_the_totals() {
    let world = World::new();
    let done = world.run(ask("say hi")).await;
    let last = Event::TurnEnded {
        state: TurnState::Completed,
        error: None,
        usage: Usage::default(),
        estimate: false,
        stats: stats(2, Usage::default()),
    };
    assert_eq!(done.events.last().unwrap(), &(done.turn.events, last));
    assert_eq!(done.turn.usage, Some(Usage::default()));
}

/// A hook that asks a model of its own.
struct Asking(HookKind, &'static str, Usage);

#[async_trait]
impl Hook for Asking {
    fn kind(&self) -> HookKind {
        self.0
    }

    fn name(&self) -> &str {
        self.1
    }

    async fn run(&self, _context: &HookContext, _moment: &Moment) -> Result<()> {
        Ok(())
    }

    fn usage(&self, _context: &HookContext, _moment: &Moment) -> Usage {
        self.2
    }
}

/// One of each kind, and a second at the end of a stream.
fn asking() -> Vec<Arc<dyn Hook>> {
    vec![
        Arc::new(Asking(HookKind::ColdStart, "one", usage(1, 0, 0))),
        Arc::new(Asking(HookKind::Message, "one", usage(10, 0, 0))),
        Arc::new(Asking(HookKind::StreamFinish, "one", usage(100, 0, 0))),
        Arc::new(Asking(HookKind::StreamFinish, "two", usage(0, 5, 0))),
        Arc::new(Asking(HookKind::Terminate, "one", usage(1000, 0, 7))),
    ]
}

#[tokio::test(start_paused = true)]
async fn v6_what_hooks_use_is_among_the_totals() {
    let world = World::with(Setup { own: asking(), ..Setup::default() });
    let first = world.run(ask("say one")).await;
    let Some((_, Event::TurnEnded { usage: of_turn, stats: totals, .. })) = first.events.last() else {
        panic!("{:?}", first.events);
    };
    // The turn's own is what its agent used.
    assert_eq!((*of_turn, *totals), (Usage::default(), stats(2, usage(111, 5, 0))));
    let second = world.run(more(first.conversation(), "say two")).await;
    assert_eq!(world.conversation(first.conversation()).await.stats, stats(4, usage(221, 10, 0)));
    let ending =
        Wanted { conversation: Some(first.conversation()), ..wanted(second.sandbox(), &template("shell")) };
    world.service.terminate(&ending, false, false).await.unwrap();
    assert_eq!(world.conversation(first.conversation()).await.stats, stats(4, usage(1221, 10, 7)));
    let row = world.row(second.sandbox()).await.unwrap();
    assert_eq!(
        (&row.metadata["total_input_tokens"], &row.metadata["total_cache_tokens"]),
        (&json!(1221), &json!(7))
    );
}

/// After a crash hooks may run again.
#[tokio::test(start_paused = true)]
async fn v6_a_hook_of_a_turn_counts_once_however_often_it_runs() {
    let world = World::with(Setup { own: asking(), ..Setup::default() });
    let id = world.run(ask("say one")).await.conversation();
    let before = world.conversation(id).await.stats;
    let finish = Moment::StreamFinish { state: TurnState::Completed, answer: None, usage: Usage::default() };
    let [one, two] = [TurnId::generate(), TurnId::generate()];
    for (turn, times) in [(Some(one), 1), (Some(one), 1), (Some(two), 2), (None, 3), (None, 4)] {
        let context = Wanted {
            conversation: Some(id),
            turn,
            ..wanted(world.conversation(id).await.sandbox_id.unwrap(), &template("shell"))
        };
        world.hooks.run(&context.context(), &finish, None).await.unwrap();
        let expected = before.plus(&usage(100 * times, 5 * times, 0));
        assert_eq!(world.conversation(id).await.stats, expected, "{turn:?}");
    }
}

/// Without a conversation there are no totals to change.
#[tokio::test(start_paused = true)]
async fn v6_hooks_of_a_sandbox_alone_change_no_totals() {
    let world = World::with(Setup { own: asking(), ..Setup::default() });
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    world.service.ensure(&wanted).await.unwrap();
    let row = world.row(wanted.sandbox).await.unwrap();
    assert!(!row.metadata.keys().any(|key| key.starts_with("total_")), "{:?}", row.metadata);
}
