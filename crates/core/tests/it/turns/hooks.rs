//! Hooks: when each kind runs, with what, in which order, and what its failure means.

use crate::turns::{
    fakes::Own,
    world::{Done, ME, Setup, World, ask, by, error, more, runs, template, wanted},
};
use futures::FutureExt;
use seawall_api::{ErrorKind, SandboxId, conversation::TurnState, event::Event, sandbox::SandboxState};
use seawall_core::{
    hooks::{HookKind, Moment},
    service::Wanted,
    templates::{HookPart, SyncPart, Template, When},
    testing::Log,
    turns::TurnAsk,
};
use seawall_sync::bucket::{MemoryBucket, SharedBucket};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// A hook of each kind.
fn all_kinds(script: &str) -> Template {
    let mut all = template("all");
    all.hooks.cold_start = vec![runs("say cold")];
    all.hooks.message = vec![runs(&format!("say message; {script}"))];
    all.hooks.stream_finish = vec![runs(&format!("say finish; {script}"))];
    all.hooks.terminate = vec![runs(&format!("say end; {script}"))];
    all
}

fn expected(pairs: &[(&str, String)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn h1_each_kind_runs_with_its_context() {
    let all = all_kinds("exit 0");
    let world = World::of([all.clone()]);
    let first = world.run(by("all", "say one")).await;
    let second = world.run(more(first.conversation(), "say two")).await;
    let ending = Wanted { conversation: Some(first.conversation()), ..wanted(first.sandbox(), &all) };
    world.service.terminate(&ending, false, false).await.unwrap();
    let context = |kind: &str, done: Option<&Done>, state: Option<&str>| {
        let mut pairs = vec![
            ("SEAWALL_HOOK", kind.to_owned()),
            ("SEAWALL_SANDBOX", first.sandbox().to_string()),
            ("SEAWALL_TEMPLATE", "all".to_owned()),
            ("SEAWALL_CONVERSATION", first.conversation().to_string()),
        ];
        pairs.extend(done.map(|done| ("SEAWALL_TURN", done.turn.id.to_string())));
        pairs.extend(state.map(|state| ("SEAWALL_TURN_STATE", state.to_owned())));
        expected(&pairs)
    };
    let of = |script: &str| {
        let mut env = world.shell.of(script).pop().unwrap().env;
        // V6: a file of its own for each run.
        assert!(env.remove("SEAWALL_METADATA").is_some() && env.remove("SEAWALL_USAGE").is_some());
        env
    };
    assert_eq!(of("say cold"), context("cold_start", Some(&first), None));
    assert_eq!(of("say message; exit 0"), context("message", Some(&second), None));
    assert_eq!(of("say finish; exit 0"), context("stream_finish", Some(&second), Some("completed")));
    assert_eq!(of("say end; exit 0"), context("terminate", None, None));
    // Cold starts run when a sandbox is made, and stream finishes with every turn.
    assert_eq!((world.shell.times("say cold"), world.shell.times("say finish; exit 0")), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn h1_a_sandbox_without_a_conversation_has_hooks_too() {
    let all = all_kinds("exit 0");
    let world = World::of([all.clone()]);
    let id = SandboxId::generate();
    world.service.ensure(&wanted(id, &all)).await.unwrap();
    world.service.terminate(&wanted(id, &all), false, false).await.unwrap();
    assert_eq!(world.shell.scripts(), ["say cold", "say end; exit 0"]);
    for ran in world.shell.ran() {
        assert!(!ran.env.contains_key("SEAWALL_CONVERSATION") && !ran.env.contains_key("SEAWALL_TURN"));
        assert!(!ran.env.contains_key("SEAWALL_USAGE"), "nobody's totals");
    }
}

/// Its sandbox is made for it: there is none when the message comes.
#[tokio::test(start_paused = true)]
async fn h1_a_message_hook_runs_with_the_first_message_too() {
    let world = World::of([all_kinds("exit 0")]);
    world.run(by("all", "say one")).await;
    assert_eq!(world.shell.times("say message; exit 0"), 1);
}

#[tokio::test(start_paused = true)]
async fn h2_failures_of_the_others_fail_nothing() {
    let all = all_kinds("err no room; exit 3");
    let world = World::of([all.clone()]);
    let first = world.run(by("all", "say one")).await;
    let second = world.run(more(first.conversation(), "say two")).await;
    for done in [&first, &second] {
        assert_eq!((done.turn.state, done.error()), (TurnState::Completed, ""));
    }
    let id = first.sandbox();
    world.service.terminate(&wanted(id, &all), false, false).await.unwrap();
    assert_eq!(world.boxes().await, 0);
    for kind in ["message", "stream_finish", "terminate"] {
        let runs = world.hook_runs(id).await;
        let last = runs.iter().rfind(|run| run.kind == kind).unwrap();
        let error = last.outcome.as_ref().unwrap().error.as_ref().unwrap();
        assert!(error.contains("no room") && error.contains('3'), "{kind}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn h2_a_hook_that_hangs_is_ended_and_the_turn_goes_on() {
    let mut slow = template("slow");
    slow.hooks.stream_finish = vec![HookPart { timeout_seconds: 5, ..runs("hang") }];
    let world = World::of([slow]);
    let began = Instant::now();
    let done = world.run(by("slow", "say hi")).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, "hi"));
    assert_eq!(began.elapsed().as_secs(), 5);
    assert_eq!(world.mock.running(done.sandbox()), 0);
    let runs = world.hook_runs(done.sandbox()).await;
    let error = runs.last().unwrap().outcome.as_ref().unwrap().error.clone().unwrap();
    assert!(error.contains("timeout"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn h2_a_hook_in_rust_that_hangs_is_left_behind() {
    let own = vec![Own::hook(HookKind::StreamFinish, || std::future::pending().boxed())];
    let world = World::with(Setup { own, ..Setup::default() });
    let began = Instant::now();
    let done = world.run(ask("say hi")).await;
    assert_eq!(done.turn.state, TurnState::Completed);
    assert_eq!(began.elapsed().as_secs(), 60);
    let runs = world.hook_runs(done.sandbox()).await;
    let error = runs.last().unwrap().outcome.as_ref().unwrap().error.clone().unwrap();
    assert!(error.contains("60 s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn h2_a_template_may_make_a_hook_critical() {
    let mut strict = template("strict");
    strict.hooks.terminate = vec![HookPart { critical: true, ..runs("err not yet; exit 1") }];
    let world = World::of([strict.clone()]);
    let id = SandboxId::generate();
    world.service.ensure(&wanted(id, &strict)).await.unwrap();
    let refused = error(world.service.terminate(&wanted(id, &strict), false, false).await);
    assert_eq!(refused.kind(), ErrorKind::ExecFailed);
    let text = refused.chain();
    assert!(["terminate", "strict", "not yet"].iter().all(|word| text.contains(word)), "{text}");
    assert_eq!(world.sandboxes.get(id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn h2_a_critical_stream_finish_fails_its_turn_and_no_other() {
    let mut strict = template("strict");
    strict.hooks.stream_finish = vec![HookPart { critical: true, ..runs("err not yet; exit 1") }];
    let world = World::of([strict]);
    let begun = world.turns.start(ME, by("strict", "say hi")).await.unwrap();
    world.quiet().await;
    let id = begun.conversation.id;
    let turn = &world.turns_of(id).await[0];
    assert_eq!(turn.state, TurnState::Failed, "{:?}", turn.error);
    assert!(turn.error.as_ref().unwrap().contains("not yet"), "{:?}", turn.error);
    assert_eq!(world.said(id).await[1].body, "hi");
    let next = TurnAsk { template: Some("shell".to_owned()), ..more(id, "say more") };
    assert_eq!(world.run(next).await.text(), "more");
}

#[tokio::test(start_paused = true)]
async fn h2_a_critical_message_hook_fails_its_turn_and_no_other() {
    let mut strict = template("strict");
    strict.hooks.message = vec![HookPart { critical: true, ..runs("err not that; exit 1") }];
    let world = World::of([strict]);
    let id = world.run(ask("say hi")).await.conversation();
    let strict = TurnAsk { template: Some("strict".to_owned()), ..more(id, "say forbidden") };
    // Whether it is refused at once or fails later: nobody is left waiting for it, and the agent never sees it.
    let _ = world.turns.start(ME, strict).await;
    world.quiet().await;
    assert!(world.turns_of(id).await.iter().all(|turn| turn.state != TurnState::Running));
    assert_eq!(world.shell.times("say forbidden"), 0);
    assert_eq!(world.run(more(id, "say more")).await.text(), "more");
}

/// What ran, in its order, with a default that says so.
async fn order(whens: &[(When, &str)]) -> Vec<String> {
    let mut wrapped = template("wrapped");
    let part = |(when, script): &(When, &str)| HookPart { when: *when, ..runs(script) };
    wrapped.hooks.stream_finish = whens.iter().map(part).collect();
    let world = World::of([wrapped.clone()]);
    let wanted = wanted(SandboxId::generate(), &wrapped);
    world.service.ensure(&wanted).await.unwrap();
    let (default, own) = (world.shell.clone(), world.shell.clone());
    let hooks = world.hooks.clone().with(Own::hook(HookKind::StreamFinish, move || {
        own.note("own");
        async { Ok(()) }.boxed()
    }));
    let moment =
        Moment::StreamFinish { state: TurnState::Completed, answer: None, usage: Default::default() };
    let default = async move {
        default.note("default");
        Ok(())
    };
    hooks.run(&wanted.context(), &moment, Some(default.boxed())).await.unwrap();
    world.shell.scripts()
}

#[tokio::test(start_paused = true)]
async fn h3_a_template_wraps_the_default_or_takes_its_place() {
    assert_eq!(order(&[]).await, ["default", "own"]);
    let wrapped = order(&[(When::After, "say after"), (When::Before, "say before")]).await;
    assert_eq!(wrapped, ["say before", "default", "own", "say after"]);
    let instead =
        order(&[(When::Instead, "say instead"), (When::After, "say after"), (When::Before, "say before")]);
    assert_eq!(instead.await, ["say before", "own", "say instead", "say after"]);
}

#[tokio::test(start_paused = true)]
async fn h4_terminate_runs_before_the_box_stops_and_without_hooks_nothing_is_missing() {
    let mut last = template("last");
    last.hooks.terminate = vec![runs("say last words")];
    let world = World::of([last.clone()]);
    for template in [last, template("none")] {
        let id = SandboxId::generate();
        world.service.ensure(&wanted(id, &template)).await.unwrap();
        world.service.terminate(&wanted(id, &template), true, false).await.unwrap();
        assert!(world.is_terminated(id).await);
    }
    // It ran in the box, so the box was there.
    assert_eq!(world.shell.scripts(), ["say last words"]);
    assert_eq!(world.boxes().await, 0);
}

#[tokio::test(start_paused = true)]
async fn h6_stream_finish_runs_after_success_error_and_cancel() {
    let mut short = template("short");
    short.agent.timeout_seconds = 5;
    short.hooks.stream_finish = vec![runs("say finish")];
    let world = World::of([short]);
    world.run(by("short", "say ok")).await;
    world.run(by("short", "say half; hang")).await;
    let begun = world.turns.start(ME, by("short", "say half; hang")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(world.turns.cancel(begun.turn.id));
    world.done(begun).await;
    let finished = world.shell.of("say finish");
    let states: Vec<&str> = finished.iter().map(|ran| ran.env["SEAWALL_TURN_STATE"].as_str()).collect();
    assert_eq!(states, ["completed", "failed", "cancelled"]);
}

/// The mock's guest knows no sync, so that every push fails.
#[tokio::test(start_paused = true)]
async fn h8_a_failed_push_leaves_the_turn_successful_and_the_sandbox_marked() {
    let kept = Template { sync: SyncPart::default(), ..template("kept") };
    let bucket: SharedBucket = Arc::new(MemoryBucket::default());
    let world = World::with(Setup { templates: vec![kept], bucket: Some(bucket), ..Setup::default() });
    let done = world.run(by("kept", "say hi")).await;
    assert_eq!((done.turn.state, done.error()), (TurnState::Completed, ""));
    let unsynced = |event: &(u64, Event)| matches!(event.1, Event::WorkspaceUnsynced { .. });
    assert_eq!(done.events.iter().filter(|event| unsynced(event)).count(), 1, "{:?}", done.events);
    let id = done.sandbox();
    assert!(world.row(id).await.unwrap().unsynced.is_some());
    assert_eq!(error(world.sandboxes.stop(id, Duration::ZERO).await).kind(), ErrorKind::Conflict);
    // Work goes on.
    assert_eq!(world.run(more(done.conversation(), "say more")).await.text(), "more");
}

#[tokio::test(start_paused = true)]
async fn h5_runs_are_recorded() {
    let all = all_kinds("exit 0");
    let world = World::of([all.clone()]);
    let done = world.run(by("all", "say one")).await;
    let runs = world.hook_runs(done.sandbox()).await;
    for (kind, count) in [("cold_start", 2), ("stream_finish", 2)] {
        let of_kind: Vec<_> = runs.iter().filter(|run| run.kind == kind).collect();
        // The default and the template's own.
        assert_eq!(of_kind.len(), count, "{kind}: {runs:?}");
        for run in of_kind {
            assert_eq!(run.template.as_deref(), Some("all"));
            assert_eq!(run.conversation_id, Some(done.conversation()));
            let outcome = run.outcome.as_ref().unwrap();
            assert!(outcome.error.is_none() && outcome.ended_at >= run.began_at, "{run:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h5_runs_and_failures_are_logged_with_their_context() {
    Log::listen();
    let world = World::of([all_kinds("err no room; exit 3")]);
    let done = world.run(by("all", "say one")).await;
    let lines = Log::take();
    let about = [done.sandbox().to_string(), done.conversation().to_string(), "all".to_owned()];
    let ran: Vec<_> = lines.iter().filter(|line| line.contains("hook ran")).collect();
    for kind in ["cold_start", "message", "stream_finish"] {
        let line = ran.iter().find(|line| line.contains(&format!("hook={kind:?}"))).unwrap();
        assert!(line.starts_with("INFO") && line.contains("duration_ms="), "{line}");
        assert!(about.iter().all(|word| line.contains(word)), "{line}");
    }
    let finish = |line: &&String| line.contains("a hook failed") && line.contains("hook=\"stream_finish\"");
    let failed = lines.iter().find(finish).unwrap();
    assert!(failed.starts_with("ERROR") && failed.contains("no room"), "{failed}");
    assert!(about.iter().all(|word| failed.contains(word)), "{failed}");
}
