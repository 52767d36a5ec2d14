//! What the events of a turn come to: the answer, its tool calls, its usage, and how far the turn is.
//!
//! All of it is a fold over the stored events, so that whoever takes a turn up again knows what the one before knew.

use seawall_api::{
    conversation::{ToolCall, ToolStatus, TurnState, Usage},
    event::Event,
};
use std::collections::BTreeMap;

/// Of a body that an agent prints without end.
const MAX_BODY: usize = 16 << 20;
const CUT: &str = "\n[the rest of the answer is in the turn's events]";

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    pub body: String,
    pub tool_calls: Vec<ToolCall>,
    pub session: Option<String>,
    /// Whether the sandbox was ready.
    pub ready: bool,
    /// The agent's program was about to be started, in a guest of this boot.
    pub started: Option<Started>,
    pub ended: Option<(TurnState, Option<String>)>,
    /// Whether the files were pushed, or that was given up.
    pub pushed: bool,
    /// What the agent's thread had used when this turn began, as far as turns were charged for it.
    pub base: Usage,
    /// What the turn's requests to models used, as the gateway counted.
    passed: Usage,
    thread: Option<Usage>,
    total: Option<Usage>,
    messages: BTreeMap<String, Usage>,
    cut: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Started {
    pub port: Option<u16>,
    pub boot: String,
}

impl Answer {
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::SandboxReady { .. } => self.ready = true,
            Event::AgentStarted { port, boot, .. } => {
                self.started = Some(Started { port: *port, boot: boot.clone() });
            }
            // The first counts: what continues it has the same name.
            Event::AgentSession { session } => {
                self.session.get_or_insert_with(|| session.clone());
            }
            Event::Text { text, .. } => self.add(text),
            Event::ToolCall { id, name, input } => {
                let (id, name, input) = (id.clone(), name.clone(), input.clone());
                let (output, error, status) = (None, None, ToolStatus::Pending);
                self.tool_calls.push(ToolCall { id, name, input, output, status, error });
            }
            Event::ToolResult { id, output, is_error } => self.result(id, output, *is_error),
            Event::Usage { message: None, usage } => self.total = Some(*usage),
            Event::Usage { message: Some(id), usage } => drop(self.messages.insert(id.clone(), *usage)),
            Event::ThreadUsage { usage } => self.thread = Some(*usage),
            Event::GatewayUsage { usage } => self.passed = larger(&self.passed, usage),
            Event::AgentEnded { state, error, .. } => self.ended = Some((*state, error.clone())),
            Event::WorkspacePushed { .. } | Event::WorkspaceUnsynced { .. } => self.pushed = true,
            _ => {}
        }
    }

    fn add(&mut self, text: &str) {
        if self.cut {
            return;
        }
        self.body.push_str(text);
        if self.body.len() > MAX_BODY {
            let end = (0..=MAX_BODY).rev().find(|at| self.body.is_char_boundary(*at)).unwrap_or(0);
            self.body.truncate(end);
            self.body.push_str(CUT);
            self.cut = true;
        }
    }

    fn result(&mut self, id: &str, output: &serde_json::Value, is_error: bool) {
        let Some(call) = self.tool_calls.iter_mut().rev().find(|call| call.id == id) else { return };
        call.status = if is_error { ToolStatus::Failed } else { ToolStatus::Succeeded };
        if is_error {
            call.error = Some(output.as_str().map_or_else(|| output.to_string(), str::to_owned));
        }
        call.output = Some(output.clone());
    }

    /// What the turn used: of each kind the larger of what the agent told and what passed the gateway. An agent that
    /// tells nothing, or too little, is counted all the same. True where the agent ended before it told its total.
    pub fn usage(&self) -> (Usage, bool) {
        let total = self.thread.map(|thread| minus(&thread, &self.base)).or(self.total);
        let sum = || self.messages.values().fold(Usage::default(), |sum, usage| plus(&sum, usage));
        let usage = larger(&total.unwrap_or_else(sum), &self.passed);
        (usage, total.is_none() && usage != Usage::default())
    }

    /// What passed the gateway, as far as it is stored.
    pub fn passed(&self) -> Usage {
        self.passed
    }

    /// What the agent's thread has used in all, where it tells.
    pub fn thread(&self) -> Option<Usage> {
        self.thread
    }
}

pub fn plus(a: &Usage, b: &Usage) -> Usage {
    Usage {
        input_tokens: a.input_tokens.saturating_add(b.input_tokens),
        output_tokens: a.output_tokens.saturating_add(b.output_tokens),
        cache_tokens: a.cache_tokens.saturating_add(b.cache_tokens),
    }
}

/// The larger of each kind.
fn larger(a: &Usage, b: &Usage) -> Usage {
    Usage {
        input_tokens: a.input_tokens.max(b.input_tokens),
        output_tokens: a.output_tokens.max(b.output_tokens),
        cache_tokens: a.cache_tokens.max(b.cache_tokens),
    }
}

fn minus(a: &Usage, b: &Usage) -> Usage {
    Usage {
        input_tokens: a.input_tokens.saturating_sub(b.input_tokens),
        output_tokens: a.output_tokens.saturating_sub(b.output_tokens),
        cache_tokens: a.cache_tokens.saturating_sub(b.cache_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn usage(input: u64, output: u64, cache: u64) -> Usage {
        Usage { input_tokens: input, output_tokens: output, cache_tokens: cache }
    }

    fn fold(events: &[Event]) -> Answer {
        let mut answer = Answer::default();
        events.iter().for_each(|event| answer.apply(event));
        answer
    }

    #[test]
    fn m3_a_message_counts_once_and_the_total_counts_instead() {
        let of = |id: &str, usage| Event::Usage { message: Some(id.into()), usage };
        let seen = fold(&[of("a", usage(10, 1, 5)), of("a", usage(10, 1, 5)), of("b", usage(1, 1, 1))]);
        assert_eq!(seen.usage(), (usage(11, 2, 6), true));
        let told = fold(&[of("a", usage(10, 1, 5)), Event::Usage { message: None, usage: usage(7, 8, 9) }]);
        assert_eq!(told.usage(), (usage(7, 8, 9), false));
        assert_eq!(fold(&[]).usage(), (Usage::default(), false));
    }

    #[test]
    fn m3_what_passed_counts_where_the_agent_told_less() {
        let of = |id: &str, usage| Event::Usage { message: Some(id.into()), usage };
        let passed = |usage| Event::GatewayUsage { usage };
        let total = |usage| Event::Usage { message: None, usage };
        for (events, expected) in [
            // Each is of all requests so far.
            (vec![passed(usage(1, 2, 3)), passed(usage(4, 4, 4))], (usage(4, 4, 4), true)),
            (
                vec![of("a", usage(10, 1, 5)), of("b", usage(1, 1, 1)), passed(usage(20, 1, 3))],
                (usage(20, 2, 6), true),
            ),
            // An agent that says zero.
            (vec![passed(usage(20, 1, 3)), total(usage(0, 0, 0))], (usage(20, 1, 3), false)),
            (vec![total(usage(7, 8, 9)), passed(usage(7, 8, 9))], (usage(7, 8, 9), false)),
            (
                vec![Event::ThreadUsage { usage: usage(0, 0, 0) }, passed(usage(2, 0, 1))],
                (usage(2, 0, 1), false),
            ),
            // The name of a message changes nothing.
            (vec![of("gateway", usage(1, 1, 1)), passed(usage(2, 2, 2))], (usage(2, 2, 2), true)),
        ] {
            assert_eq!(fold(&events).usage(), expected, "{events:?}");
        }
    }

    #[test]
    fn m3_a_threads_total_is_that_of_this_turn_only_without_what_was_before() {
        let mut answer = fold(&[Event::ThreadUsage { usage: usage(100, 50, 20) }]);
        answer.base = usage(60, 50, 30);
        assert_eq!(answer.usage(), (usage(40, 0, 0), false));
    }

    #[test]
    fn m1_tool_calls_have_what_came_of_them() {
        let call = |id: &str| Event::ToolCall { id: id.into(), name: "Bash".into(), input: json!({"c": 1}) };
        let result = |id: &str, is_error| Event::ToolResult { id: id.into(), output: json!("out"), is_error };
        let answer = fold(&[
            call("1"),
            call("2"),
            call("3"),
            result("2", true),
            result("1", false),
            result("9", false),
        ]);
        let statuses: Vec<_> = answer.tool_calls.iter().map(|call| call.status).collect();
        assert_eq!(statuses, [ToolStatus::Succeeded, ToolStatus::Failed, ToolStatus::Pending]);
        assert_eq!(answer.tool_calls[1].error.as_deref(), Some("out"));
    }

    #[test]
    fn an_answer_without_end_is_cut_between_characters() {
        let piece = Event::Text { text: "ä".repeat(1 << 20), stderr: false };
        let answer = fold(&vec![piece; 20]);
        assert!(answer.body.len() <= MAX_BODY + CUT.len() && answer.body.ends_with(CUT));
    }
}
