//! Claude Code (`claude -p`), as of 2.1.

use super::{
    AGENT_HOME, AgentAsk, AgentCommand, Driver, ModelApi, Parser, SessionPlace,
    lines::{Ending, JsonLines, Meaning, Text, is_session, think, tokens, word},
    shell::check_argument,
};
use crate::{Error, Result};
use seawall_api::{conversation::Usage, event::Event};
use serde_json::Value;
use std::collections::HashSet;

/// Pauses grow from half a second on: these come to 35 seconds, in which a server is back, and after which a key that
/// is refused (which is tried again too) is told.
const RETRIES: &str = "6";

#[derive(Debug, Clone, Copy, Default)]
pub struct ClaudeCode;

impl Driver for ClaudeCode {
    fn name(&self) -> &'static str {
        "claude-code"
    }

    fn api(&self) -> Option<ModelApi> {
        Some(ModelApi::Anthropic)
    }

    fn program(&self) -> &'static str {
        "claude"
    }

    fn install_hint(&self) -> &'static str {
        "npm install -g @anthropic-ai/claude-code"
    }

    /// The prompt is its stdin. It waits three seconds for the first byte of it, and not longer.
    fn command(&self, ask: &AgentAsk) -> Result<AgentCommand> {
        let port = gateway_port(self.name(), ask)?;
        let mut args = vec![program(self.program(), ask)];
        let fixed = ["-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"];
        args.extend(fixed.map(str::to_owned));
        if let Some(session) = &ask.session {
            if !is_session(session) {
                return Err(Error::invalid("the session has a name that Claude Code never gives"));
            }
            args.extend(["--resume".to_owned(), session.clone()]);
        }
        for (option, value) in [("--model", &ask.model), ("--append-system-prompt", &ask.system_prompt)] {
            if let Some(value) = value {
                check_argument(option, value)?;
                args.extend([option.to_owned(), value.clone()]);
            }
        }
        args.extend(ask.args.iter().cloned());
        Ok(AgentCommand { args, env: environment(port), stdin: Some(ask.prompt.clone().into_bytes()) })
    }

    /// It names the folder after the one that it runs in, which is /work.
    fn session_file(&self, session: &str) -> Option<SessionPlace> {
        let file = || SessionPlace::File(format!("{AGENT_HOME}/claude/projects/-work/{session}.jsonl"));
        is_session(session).then(file)
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(JsonLines::<Stream>::default())
    }
}

fn environment(port: u16) -> Vec<(String, String)> {
    let url = format!("http://127.0.0.1:{port}/anthropic");
    let home = format!("{AGENT_HOME}/claude");
    let env = [
        ("ANTHROPIC_BASE_URL", url.as_str()),
        // A word that stands for nothing: the server has the key.
        ("ANTHROPIC_API_KEY", "seawall"),
        ("CLAUDE_CONFIG_DIR", home.as_str()),
        // Else it refuses to work as root without asking.
        ("IS_SANDBOX", "1"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        // They would keep a turn from ending, up to ten minutes after its answer.
        ("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1"),
        ("CLAUDE_CODE_MAX_RETRIES", RETRIES),
    ];
    env.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Where the program is, as the box names it.
pub(super) fn program(name: &str, ask: &AgentAsk) -> String {
    match &ask.program {
        Some(folder) => format!("{}/{name}", folder.trim_end_matches('/')),
        None => name.to_owned(),
    }
}

pub(super) fn gateway_port(agent: &str, ask: &AgentAsk) -> Result<u16> {
    let text = || format!("{agent} needs a model: the template has to let it reach the server's gateway");
    ask.port.ok_or_else(|| Error::invalid(text()))
}

#[cfg(feature = "testing")]
pub(super) fn parser_with_lengths(part: usize, longest: usize) -> Box<dyn Parser> {
    Box::new(JsonLines::<Stream>::with_lengths(part, longest))
}

/// What its lines mean. `type` can be anywhere in them, and types that are not known appear.
#[derive(Debug, Default)]
struct Stream {
    ending: Ending,
    text: Text,
    /// Messages whose usage was told: every block of one repeats it.
    counted: HashSet<String>,
    /// What the results so far told: one run can have several, each with its own.
    total: Usage,
}

impl Meaning for Stream {
    fn line(&mut self, line: &Value, events: &mut Vec<Event>) {
        match (word(line, "type"), word(line, "subtype")) {
            ("system", "init") if is_session(word(line, "session_id")) => {
                events.push(Event::AgentSession { session: word(line, "session_id").to_owned() });
            }
            ("system", "api_retry") => self.ending.notice(retry(line), events),
            ("assistant" | "user", _) => self.message(line, events),
            ("result", subtype) => self.result(line, subtype, events),
            (kind, subtype) => tracing::debug!(kind, subtype, "a line of claude is passed over"),
        }
    }

    fn replay(&mut self, event: &Event) {
        self.text.replay(event);
        match event {
            Event::Usage { message: Some(id), .. } => {
                self.counted.insert(id.clone());
            }
            Event::Usage { message: None, usage } => self.total = *usage,
            _ => {}
        }
    }

    fn ending(&mut self) -> &mut Ending {
        &mut self.ending
    }
}

impl Stream {
    fn message(&mut self, line: &Value, events: &mut Vec<Event>) {
        let Some(message) = line.get("message") else { return };
        let assistant = word(line, "type") == "assistant";
        if assistant {
            self.count(message, events);
        }
        // What its helpers say is said to it, and not to whoever asked.
        let helper = line.get("parent_tool_use_id").is_some_and(|id| !id.is_null());
        for block in message.get("content").and_then(Value::as_array).into_iter().flatten() {
            match word(block, "type") {
                "text" if assistant && helper => think(word(block, "text"), events),
                "text" if assistant => self.text.say(word(block, "text"), events),
                "thinking" => think(word(block, "thinking"), events),
                "tool_use" | "server_tool_use" | "mcp_tool_use" => events.push(tool_call(block)),
                kind if kind.ends_with("tool_result") => events.push(tool_result(block)),
                _ => {}
            }
        }
    }

    /// What the message began with, for turns that end before their result.
    fn count(&mut self, message: &Value, events: &mut Vec<Event>) {
        let (id, usage) = (word(message, "id"), message.get("usage").map(of_message).unwrap_or_default());
        if id.is_empty() || usage == Usage::default() || self.counted.contains(id) {
            return;
        }
        self.counted.insert(id.to_owned());
        events.push(Event::Usage { message: Some(id.to_owned()), usage });
    }

    fn result(&mut self, line: &Value, subtype: &str, events: &mut Vec<Event>) {
        // `usage` leaves out the agent's helpers, and `modelUsage` counts the turns before this one too.
        let used = match line.get("model_usage_since_last_result").and_then(Value::as_object) {
            Some(models) => models.values().map(of_model).fold(Usage::default(), plus),
            None => line.get("usage").map(of_message).unwrap_or_default(),
        };
        self.total = plus(self.total, used);
        events.push(Event::Usage { message: None, usage: self.total });
        let is_error = line.get("is_error").and_then(Value::as_bool).unwrap_or_default();
        if is_error || subtype != "success" {
            self.ending.failed(&why(line, subtype), events);
        } else {
            self.ending.done();
        }
    }
}

fn why(result: &Value, subtype: &str) -> String {
    let errors = result.get("errors").and_then(Value::as_array).into_iter().flatten();
    let errors: Vec<_> = errors.filter_map(Value::as_str).collect();
    match (errors.is_empty(), word(result, "result")) {
        (false, _) => errors.join("; "),
        (true, "") => format!("the agent ended with `{subtype}`"),
        (true, text) => text.to_owned(),
    }
}

fn retry(line: &Value) -> String {
    let number = |key: &str| line.get(key).and_then(Value::as_u64);
    let status = number("error_status").map(|status| format!("{status} ")).unwrap_or_default();
    let (error, most) = (word(line, "error"), number("max_retries").unwrap_or_default());
    let attempt = number("attempt").unwrap_or_default();
    format!("a request to the model failed ({status}{error}), and is tried again: {attempt} of {most}")
}

fn tool_call(block: &Value) -> Event {
    let (id, name) = (word(block, "id").to_owned(), word(block, "name").to_owned());
    Event::ToolCall { id, name, input: block.get("input").cloned().unwrap_or_default() }
}

/// Its content is a text or blocks.
fn tool_result(block: &Value) -> Event {
    Event::ToolResult {
        id: word(block, "tool_use_id").to_owned(),
        output: block.get("content").cloned().unwrap_or_default(),
        is_error: block.get("is_error").and_then(Value::as_bool).unwrap_or_default(),
    }
}

/// Its input is what was not cached, and its output has the thinking.
fn of_message(usage: &Value) -> Usage {
    Usage {
        input_tokens: tokens(usage, "input_tokens"),
        output_tokens: tokens(usage, "output_tokens"),
        cache_tokens: tokens(usage, "cache_creation_input_tokens") + tokens(usage, "cache_read_input_tokens"),
    }
    .capped()
}

fn of_model(usage: &Value) -> Usage {
    Usage {
        input_tokens: tokens(usage, "inputTokens"),
        output_tokens: tokens(usage, "outputTokens"),
        cache_tokens: tokens(usage, "cacheCreationInputTokens") + tokens(usage, "cacheReadInputTokens"),
    }
    .capped()
}

fn plus(a: Usage, b: Usage) -> Usage {
    // Each is far from the largest number.
    Usage {
        input_tokens: a.input_tokens + b.input_tokens,
        output_tokens: a.output_tokens + b.output_tokens,
        cache_tokens: a.cache_tokens + b.cache_tokens,
    }
    .capped()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::Outcome;
    use seawall_api::{
        ErrorKind,
        conversation::TurnState,
        exec::{ExitReason, ExitStatus, OutputStream},
    };
    use serde_json::json;

    fn ask() -> AgentAsk {
        AgentAsk {
            prompt: "do it".to_owned(),
            session: None,
            model: None,
            system_prompt: None,
            port: Some(4711),
            program: None,
            args: Vec::new(),
        }
    }

    fn read(lines: &[Value], code: i32) -> (Vec<Event>, Outcome) {
        let (mut parser, mut events) = (ClaudeCode.parser(), Vec::new());
        for line in lines {
            parser.feed(OutputStream::Stdout, format!("{line}\n").as_bytes(), &mut events);
        }
        let reason = ExitReason::Exited;
        let status = ExitStatus {
            code: Some(code),
            signal: None,
            reason,
            output_end: 0,
            truncated: 0,
            limits: Vec::new(),
        };
        let outcome = parser.finish(&status, &mut events);
        (events, outcome)
    }

    fn usage(input: u64, output: u64, cache: u64) -> Usage {
        Usage { input_tokens: input, output_tokens: output, cache_tokens: cache }
    }

    #[test]
    fn the_prompt_is_given_by_stdin_and_the_key_stands_for_nothing() {
        let command = ClaudeCode.command(&ask()).unwrap();
        let expected =
            ["claude", "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"];
        assert_eq!(command.args, expected);
        assert_eq!(command.stdin.as_deref(), Some(&b"do it"[..]));
        let env =
            |name: &str| command.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!(env("ANTHROPIC_BASE_URL"), Some("http://127.0.0.1:4711/anthropic"));
        assert_eq!(env("ANTHROPIC_API_KEY"), Some("seawall"));
        assert_eq!(env("CLAUDE_CONFIG_DIR"), Some("/work/.seawall/claude"));
        assert_eq!(env("HOME"), None);
    }

    #[test]
    fn what_is_asked_for_becomes_options() {
        let asked = AgentAsk {
            session: Some("44f3bfc1-32eb-49c7-87d7-e36ac21554db".to_owned()),
            model: Some("claude-opus-5-5".to_owned()),
            system_prompt: Some("-be brief".to_owned()),
            program: Some("/opt/agent/".to_owned()),
            args: vec!["--max-turns".to_owned(), "3".to_owned()],
            ..ask()
        };
        let args = ClaudeCode.command(&asked).unwrap().args;
        assert_eq!(args[0], "/opt/agent/claude");
        let resume = ["--resume", "44f3bfc1-32eb-49c7-87d7-e36ac21554db"];
        let rest = ["--model", "claude-opus-5-5", "--append-system-prompt", "-be brief", "--max-turns", "3"];
        assert_eq!((&args[6..8], &args[8..]), (&resume.map(String::from)[..], &rest.map(String::from)[..]));
    }

    #[test]
    fn what_cannot_work_is_said_before() {
        let bad = [
            AgentAsk { port: None, ..ask() },
            AgentAsk { session: Some("--help".to_owned()), ..ask() },
            AgentAsk { model: Some("a\0".to_owned()), ..ask() },
            AgentAsk { system_prompt: Some("x".repeat(1 << 18)), ..ask() },
        ];
        for ask in bad {
            assert_eq!(ClaudeCode.command(&ask).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn a_session_is_a_file_of_the_workspace() {
        let file = "/work/.seawall/claude/projects/-work/a-1.jsonl".to_owned();
        assert_eq!(ClaudeCode.session_file("a-1"), Some(SessionPlace::File(file)));
        assert_eq!(ClaudeCode.session_file("../../etc/passwd"), None);
    }

    #[test]
    fn m3_a_message_counts_once_and_results_add_up() {
        let message = |id: &str| {
            let usage = json!({"input_tokens": 3, "cache_read_input_tokens": 5, "output_tokens": 1});
            json!({"message": {"id": id, "content": [], "usage": usage}, "type": "assistant"})
        };
        let result = |input: u64| {
            let models = json!({"a": {"inputTokens": input, "outputTokens": 2}, "b": {"inputTokens": 1}});
            json!({"usage": {"input_tokens": 1}, "model_usage_since_last_result": models, "modelUsage": {"a":
                {"inputTokens": 9999}}, "subtype": "success", "type": "result"})
        };
        let (events, outcome) = read(&[message("x"), message("x"), message("y"), result(10), result(20)], 0);
        let of = |id: &str| Event::Usage { message: Some(id.to_owned()), usage: usage(3, 1, 5) };
        let total = |usage| Event::Usage { message: None, usage };
        assert_eq!(events, [of("x"), of("y"), total(usage(11, 2, 0)), total(usage(32, 4, 0))]);
        assert_eq!(outcome.state, TurnState::Completed);
    }

    #[test]
    fn m3_an_older_result_tells_by_its_usage() {
        let told = json!({"input_tokens": 7, "cache_creation_input_tokens": 1, "cache_read_input_tokens": 2,
            "output_tokens": -4});
        let (events, _) = read(&[json!({"type": "result", "subtype": "success", "usage": told})], 0);
        assert_eq!(events, [Event::Usage { message: None, usage: usage(7, 0, 3) }]);
    }

    #[test]
    fn what_helpers_say_is_no_part_of_the_answer() {
        let text = |text: &str, parent: Value| {
            let content = json!([{"type": "text", "text": text}]);
            json!({"type": "assistant", "message": {"content": content}, "parent_tool_use_id": parent})
        };
        let (events, _) =
            read(&[text("one", Value::Null), text("two", json!("t")), text("three", Value::Null)], 0);
        let said = |text: &str| Event::Text { text: text.to_owned(), stderr: false };
        assert_eq!(events, [said("one"), Event::Thinking { text: "two".to_owned() }, said("\n\nthree")]);
    }

    #[test]
    fn what_is_not_known_is_passed_over() {
        let odd = [
            json!({"type": "rate_limit_event"}),
            json!({"type": "system", "subtype": "status"}),
            json!({"type": "system", "subtype": "init", "session_id": "../x"}),
            json!({"type": "assistant"}),
            json!({"type": "assistant", "message": {"content": "text", "usage": null, "id": 7}}),
            json!({"type": "user", "message": {"content": [1, {"type": "text", "text": "prompt"}]}}),
            json!([1, 2]),
            json!(null),
        ];
        let (events, outcome) = read(&odd, 0);
        assert_eq!((events, outcome.state), (Vec::new(), TurnState::Failed));
    }

    #[test]
    fn a_failure_says_why() {
        let result = |subtype: &str, rest: Value| {
            let mut line = json!({"type": "result", "subtype": subtype, "is_error": true});
            line["result"] = rest["result"].clone();
            line["errors"] = rest["errors"].clone();
            read(&[line], 1).1.error.unwrap()
        };
        assert_eq!(result("error_max_turns", json!({"errors": ["too many", "really"]})), "too many; really");
        assert_eq!(result("success", json!({"result": "Invalid API key"})), "Invalid API key");
        assert_eq!(result("error_x", json!({})), "the agent ended with `error_x`");
    }
}
