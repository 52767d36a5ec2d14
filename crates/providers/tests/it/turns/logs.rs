//! O2: what the log tells of a turn.

use crate::turns::world::{World, ask, more};
use seawall_api::conversation::TurnState;
use seawall_core::testing::Log;

/// The one line with all of these words.
fn line<'a>(lines: &'a [String], words: &[&str]) -> &'a str {
    let found = lines.iter().find(|line| words.iter().all(|word| line.contains(word)));
    found.unwrap_or_else(|| panic!("no line has {words:?}: {lines:#?}"))
}

#[tokio::test]
async fn o2_the_log_tells_of_hooks_syncs_tokens_state_files_messages_and_failures() {
    let world = World::new("local", Vec::new());
    Log::listen();
    let done = world.run(ask("echo one > a; echo done")).await;
    let lines = Log::take();
    let (conversation, sandbox) = (done.conversation().to_string(), done.sandbox().to_string());
    for hook in ["cold_start", "message", "stream_finish"] {
        line(&lines, &["INFO", "hook ran", hook, "duration_ms=", &conversation, &sandbox]);
    }
    line(&lines, &["INFO", "workspace synced", "uploaded=1", "bytes=", "duration_ms=", &sandbox]);
    line(
        &lines,
        &["INFO", "turn ended", "input_tokens=0", "total_output_tokens=0", "messages=2", &conversation],
    );
    for message in [done.turn.prompt_id, done.turn.answer_id] {
        line(&lines, &["INFO", "message stored", &format!("key={message}"), &conversation]);
    }
    // In the workspace, and in the bucket.
    line(&lines, &["DEBUG", "state file read", "path=\".sandbox-state\"", "bytes=", &sandbox]);
    line(&lines, &["DEBUG", "state file written", "path=\".sandbox-state\"", "bytes=", &sandbox]);
    line(&lines, &["DEBUG", "state file written", &format!("{:013}/.sandbox-state", done.pushed().unwrap())]);

    world.bucket.take_away(true);
    Log::listen();
    let failed = world.run(more(done.conversation(), "echo two > b")).await;
    assert_eq!(failed.turn.state, TurnState::Completed, "{failed:?}");
    let lines = Log::take();
    world.bucket.take_away(false);
    line(&lines, &["ERROR", "could not be synced", "a test took the bucket away", &sandbox]);
    line(&lines, &["ERROR", "a hook failed", "stream_finish", "a test took the bucket away", &conversation]);
    world.end().await;
}
