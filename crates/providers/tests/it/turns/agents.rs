//! An agent with a recorded stream in the place of its program: what it used, what it did, what it continues.

use crate::turns::world::{World, ask, more, template};
use seawall_api::{
    SandboxId,
    conversation::{Stats, ToolStatus, TurnState, Usage},
    event::Event,
};
use seawall_core::{
    templates::{AgentPart, SyncPart, Template},
    turns::TurnAsk,
};
use std::collections::BTreeMap;

const STREAM: &str = include_str!("../../../../core/tests/fixtures/agent-streams/claude-tool.jsonl");
const SESSION: &str = "6b475886-50a9-44c8-9dfa-a43692391c46";
const SAID: &str = "I will run a command. \n\nAll done. ";
const USED: Usage = Usage { input_tokens: 22, output_tokens: 99, cache_tokens: 7110 };

/// Notes what it was asked, and says what was recorded.
const PROGRAM: &str = r#"#!/bin/sh
echo "$@" >> /work/args
cat >> /work/prompts
mkdir -p "$CLAUDE_CONFIG_DIR/projects/-work"
: > "$CLAUDE_CONFIG_DIR/projects/-work/6b475886-50a9-44c8-9dfa-a43692391c46.jsonl"
cat /work/stream.jsonl
"#;

fn off() -> SyncPart {
    SyncPart { enabled: false, ..SyncPart::default() }
}

/// Claude Code, found by its name in the workspace.
fn standin() -> Template {
    let path = "/work/bin:/usr/local/bin:/usr/bin:/bin".to_owned();
    let agent = AgentPart {
        driver: "claude-code".to_owned(),
        env: BTreeMap::from([("PATH".to_owned(), path)]),
        ..AgentPart::default()
    };
    Template { agent, sync: off(), ..template("standin") }
}

async fn install(world: &World, id: SandboxId) {
    world.put(id, "bin/claude", 0o755, PROGRAM).await;
    world.put(id, "stream.jsonl", 0o644, STREAM).await;
}

#[tokio::test]
async fn m3_an_agents_usage_and_tools_are_stored_counted_once_and_told_last() {
    let plain = Template { sync: off(), ..template("shell") };
    let world = World::new("native", vec![plain, standin()]);
    let first = world.run(ask("echo made")).await;
    assert_eq!((first.turn.state, first.text().as_str()), (TurnState::Completed, "made\n"), "{first:?}");
    let (id, sandbox) = (first.conversation(), first.sandbox());
    install(&world, sandbox).await;
    for number in 1..=2 {
        let asked = TurnAsk { template: Some("standin".to_owned()), ..more(id, "do it; ") };
        let done = world.run(asked).await;
        assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, SAID), "{done:?}");
        let totals = Stats {
            messages_exchanged: 2 + 2 * number,
            total_input_tokens: 22 * number,
            total_output_tokens: 99 * number,
            total_cache_tokens: 7110 * number,
        };
        let Some(Event::TurnEnded { usage, estimate, stats, .. }) = done.events.last() else {
            panic!("{done:?}");
        };
        assert_eq!((*usage, *estimate, *stats), (USED, false, totals));
        let answer = world.said(id).await.pop().unwrap();
        assert_eq!((answer.id, answer.body.as_str()), (done.turn.answer_id, SAID));
        assert_eq!(answer.usage, Some(USED));
        let tools: Vec<_> = answer.tool_calls.iter().map(|call| (call.name.as_str(), call.status)).collect();
        assert_eq!(tools, [("Bash", ToolStatus::Succeeded)]);
    }
    assert_eq!(world.sh(sandbox, "cat prompts").await, "do it; do it; ");
    // The second continues what the first began.
    let args = world.sh(sandbox, "cat args").await;
    let resumes: Vec<bool> = args.lines().map(|line| line.contains(&format!("--resume {SESSION}"))).collect();
    assert_eq!(resumes, [false, true], "{args}");
    world.end().await;
}

/// The box is gone, and with it the agent's session: it begins anew instead of failing.
#[tokio::test]
async fn c3_an_agent_whose_session_is_gone_begins_anew() {
    let plain = Template { sync: off(), ..template("shell") };
    let world = World::new("native", vec![plain, standin()]);
    let first = world.run(ask("echo made")).await;
    let (id, sandbox) = (first.conversation(), first.sandbox());
    install(&world, sandbox).await;
    let asked = || TurnAsk { template: Some("standin".to_owned()), ..more(id, "do it") };
    world.run(asked()).await;
    world.sh(sandbox, "rm -r .seawall").await;
    let done = world.run(asked()).await;
    assert_eq!((done.turn.state, done.text().as_str()), (TurnState::Completed, SAID), "{done:?}");
    assert!(!world.sh(sandbox, "cat args").await.contains("--resume"));
    world.end().await;
}

/// Asks its model three times, and is killed before it told of any.
const KILLED: &str = r#"#!/bin/bash
cat > /dev/null
port=${ANTHROPIC_BASE_URL##*:}
for i in 1 2 3; do
    (exec 3<> "/dev/tcp/127.0.0.1/${port%%/*}" && cat <&3)
done
kill -9 $$
"#;

#[tokio::test]
async fn m3_an_agent_that_was_killed_counts_what_passed_through_the_server() {
    let plain = Template { sync: off(), ..template("shell") };
    let world = World::new("native", vec![plain, standin()]);
    let first = world.run(ask("echo made")).await;
    world.put(first.sandbox(), "bin/claude", 0o755, KILLED).await;
    let asked = TurnAsk { template: Some("standin".to_owned()), ..more(first.conversation(), "do it") };
    let done = world.run(asked).await;
    assert_eq!(done.turn.state, TurnState::Failed, "{done:?}");
    let Some(Event::TurnEnded { usage, estimate, stats, .. }) = done.events.last() else {
        panic!("{done:?}")
    };
    let used = Usage { input_tokens: 30, output_tokens: 6, cache_tokens: 3 };
    assert_eq!((*usage, *estimate, stats.total_input_tokens), (used, true, 30), "{done:?}");
    world.end().await;
}
