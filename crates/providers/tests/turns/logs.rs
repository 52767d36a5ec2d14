//! O2: what the log tells of a turn.

use crate::world::{World, ask, more};
use seawall_api::conversation::TurnState;
use std::{
    cell::RefCell,
    fmt::{self, Write as _},
};
use tracing::{Metadata, field, span};

thread_local! {
    /// What is logged by a test, a line each. None: nobody wants to know.
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// For the whole process: whether a line is wanted is remembered for all of its threads.
struct Log;

struct Fields(String);

impl field::Visit for Fields {
    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("seawall")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        LINES.with_borrow_mut(|lines| {
            let Some(lines) = lines else { return };
            let mut fields = Fields(event.metadata().level().to_string());
            event.record(&mut fields);
            lines.push(fields.0);
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The one line with all of these words.
fn line<'a>(lines: &'a [String], words: &[&str]) -> &'a str {
    let found = lines.iter().find(|line| words.iter().all(|word| line.contains(word)));
    found.unwrap_or_else(|| panic!("no line has {words:?}: {lines:#?}"))
}

#[tokio::test]
async fn o2_the_log_tells_of_hooks_syncs_tokens_state_files_messages_and_failures() {
    tracing::subscriber::set_global_default(Log).unwrap();
    let world = World::new("local", Vec::new());
    LINES.set(Some(Vec::new()));
    let done = world.run(ask("echo one > a; echo done")).await;
    let lines = LINES.take().unwrap();
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
    LINES.set(Some(Vec::new()));
    let failed = world.run(more(done.conversation(), "echo two > b")).await;
    assert_eq!(failed.turn.state, TurnState::Completed, "{failed:?}");
    let lines = LINES.take().unwrap();
    world.bucket.take_away(false);
    line(&lines, &["ERROR", "could not be synced", "a test took the bucket away", &sandbox]);
    line(&lines, &["ERROR", "a hook failed", "stream_finish", "a test took the bucket away", &conversation]);
    world.end().await;
}
