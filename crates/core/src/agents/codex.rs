//! Codex (`codex exec`), as of 0.166.

use super::{
    AGENT_HOME, AgentAsk, AgentCommand, Driver, ModelApi, Parser, SessionPlace,
    claude::{gateway_port, program},
    lines::{Ending, JsonLines, Meaning, Text, is_session, think, tokens, word},
    shell::check_argument,
};
use crate::{Error, Result};
use seawall_api::{conversation::Usage, event::Event};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Codex does not work where its folder is not there, and does not make it.
const START: &str = r#"mkdir -p "$CODEX_HOME" && exec "$0" "$@""#;

#[derive(Debug, Clone, Copy, Default)]
pub struct Codex;

impl Driver for Codex {
    fn name(&self) -> &'static str {
        "codex"
    }

    fn api(&self) -> Option<ModelApi> {
        Some(ModelApi::OpenAi)
    }

    fn program(&self) -> &'static str {
        "codex"
    }

    fn install_hint(&self) -> &'static str {
        "npm install -g @openai/codex"
    }

    fn command(&self, ask: &AgentAsk) -> Result<AgentCommand> {
        let port = gateway_port(self.name(), ask)?;
        let mut args: Vec<String> = ["/bin/sh", "-c", START].map(str::to_owned).into();
        args.extend([program(self.program(), ask), "exec".to_owned()]);
        if ask.session.is_some() {
            args.push("resume".to_owned());
        }
        let fixed = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"];
        args.extend(fixed.map(str::to_owned));
        for (key, value) in settings(port, ask) {
            check_argument(key, &value)?;
            args.extend(["-c".to_owned(), format!("{key}={value}")]);
        }
        if let Some(model) = &ask.model {
            check_argument("the model", model)?;
            args.extend(["-m".to_owned(), model.clone()]);
        }
        if let Some(session) = &ask.session {
            if !is_session(session) {
                return Err(Error::invalid("the session has a name that Codex never gives"));
            }
            args.push(session.clone());
        }
        // The prompt is its stdin.
        args.push("-".to_owned());
        args.extend(ask.args.iter().cloned());
        Ok(AgentCommand { args, env: environment(), stdin: Some(ask.prompt.clone().into_bytes()) })
    }

    fn session_file(&self, session: &str) -> Option<SessionPlace> {
        let (folder, contains) = (format!("{AGENT_HOME}/codex/sessions"), session.to_owned());
        is_session(session).then_some(SessionPlace::Beneath { folder, contains })
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(JsonLines::<Stream>::default())
    }
}

fn environment() -> Vec<(String, String)> {
    let home = ("CODEX_HOME".to_owned(), format!("{AGENT_HOME}/codex"));
    // A word that stands for nothing: the server has the key.
    vec![home, ("OPENAI_API_KEY".to_owned(), "seawall".to_owned())]
}

/// A provider of its own: with the built-in one a login would count, and not this address alone.
fn settings(port: u16, ask: &AgentAsk) -> Vec<(&'static str, String)> {
    let url = format!("http://127.0.0.1:{port}/openai/v1");
    let mut settings = vec![
        ("model_provider", toml("seawall")),
        ("model_providers.seawall.name", toml("seawall")),
        ("model_providers.seawall.base_url", toml(&url)),
        ("model_providers.seawall.wire_api", toml("responses")),
        ("model_providers.seawall.env_key", toml("OPENAI_API_KEY")),
        // What is refused is told after half a minute. It waits for a server that is away as long as it takes.
        ("model_providers.seawall.stream_max_retries", "7".to_owned()),
        // These ask the internet, and where there is none every turn waits five seconds for it.
        ("analytics.enabled", "false".to_owned()),
        ("features.plugins", "false".to_owned()),
    ];
    if let Some(text) = &ask.system_prompt {
        settings.push(("developer_instructions", toml(text)));
    }
    settings
}

/// A text as TOML writes it: as JSON does, but for one character.
fn toml(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(feature = "testing")]
pub(super) fn parser_with_lengths(part: usize, longest: usize) -> Box<dyn Parser> {
    Box::new(JsonLines::<Stream>::with_lengths(part, longest))
}

/// What its lines mean.
#[derive(Debug, Default)]
struct Stream {
    ending: Ending,
    text: Text,
    /// Tools whose call was told.
    called: HashSet<String>,
}

impl Meaning for Stream {
    fn line(&mut self, line: &Value, events: &mut Vec<Event>) {
        let item = line.get("item").unwrap_or(&Value::Null);
        match word(line, "type") {
            "thread.started" if is_session(word(line, "thread_id")) => {
                events.push(Event::AgentSession { session: word(line, "thread_id").to_owned() });
            }
            "item.started" => self.call(item, events),
            "item.completed" => self.completed(item, events),
            "turn.completed" => {
                let usage = line.get("usage").map(of_thread).unwrap_or_default();
                events.push(Event::ThreadUsage { usage });
                self.ending.done();
            }
            "turn.failed" => {
                let error = line.get("error").unwrap_or(&Value::Null);
                self.ending.failed(word(error, "message"), events);
            }
            // Not the end: it also says so before it tries again.
            "error" => self.ending.notice(word(line, "message").to_owned(), events),
            kind => tracing::debug!(kind, "a line of codex is passed over"),
        }
    }

    fn replay(&mut self, event: &Event) {
        self.text.replay(event);
        if let Event::ToolCall { id, .. } = event {
            self.called.insert(id.clone());
        }
    }

    fn ending(&mut self) -> &mut Ending {
        &mut self.ending
    }
}

impl Stream {
    fn completed(&mut self, item: &Value, events: &mut Vec<Event>) {
        match word(item, "type") {
            "agent_message" => self.text.say(word(item, "text"), events),
            "reasoning" => think(word(item, "text"), events),
            "error" => self.ending.notice(word(item, "message").to_owned(), events),
            _ => {
                self.call(item, events);
                self.result(item, events);
            }
        }
    }

    /// Some tools are told only when they are done.
    fn call(&mut self, item: &Value, events: &mut Vec<Event>) {
        let Some((name, input)) = tool(item) else { return };
        let id = word(item, "id").to_owned();
        if self.called.insert(id.clone()) {
            events.push(Event::ToolCall { id, name, input });
        }
    }

    fn result(&mut self, item: &Value, events: &mut Vec<Event>) {
        if tool(item).is_none() {
            return;
        }
        let failed = matches!(word(item, "status"), "failed" | "declined");
        let (output, is_error) = match word(item, "type") {
            "command_execution" => {
                let (output, code) = (item.get("aggregated_output"), item.get("exit_code"));
                let is_error = code.and_then(Value::as_i64).map_or(failed, |code| code != 0);
                (json!({"output": output, "exit_code": code}), is_error)
            }
            "mcp_tool_call" => match item.get("error").filter(|error| !error.is_null()) {
                Some(error) => (error.clone(), true),
                None => (item.get("result").cloned().unwrap_or_default(), failed),
            },
            "web_search" => (json!({"query": item.get("query"), "action": item.get("action")}), failed),
            _ => (json!({"status": item.get("status")}), failed),
        };
        events.push(Event::ToolResult { id: word(item, "id").to_owned(), output, is_error });
    }
}

/// The name and the input of an item that is a tool.
fn tool(item: &Value) -> Option<(String, Value)> {
    let kind = word(item, "type");
    let input = match kind {
        "command_execution" => json!({"command": item.get("command")}),
        "file_change" => json!({"changes": item.get("changes")}),
        "web_search" => json!({"query": item.get("query")}),
        "collab_tool_call" => json!({"tool": item.get("tool"), "prompt": item.get("prompt")}),
        "mcp_tool_call" => {
            let name = format!("mcp__{}__{}", word(item, "server"), word(item, "tool"));
            return Some((name, item.get("arguments").cloned().unwrap_or_default()));
        }
        _ => return None,
    };
    Some((kind.to_owned(), input))
}

/// What the thread used, with all turns before this one: Codex tells nothing else. Its input has what was cached, and
/// its output the reasoning, which the models' API counts as output and Codex hands on.
fn of_thread(usage: &Value) -> Usage {
    let cache = tokens(usage, "cached_input_tokens") + tokens(usage, "cache_write_input_tokens");
    Usage {
        input_tokens: tokens(usage, "input_tokens").saturating_sub(cache),
        output_tokens: tokens(usage, "output_tokens"),
        cache_tokens: cache,
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

    const THREAD: &str = "01a1dddc-04ab-7641-8d4e-a928cc4df416";

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
        let (mut parser, mut events) = (Codex.parser(), Vec::new());
        for line in lines {
            parser.feed(OutputStream::Stdout, format!("{line}\n").as_bytes(), &mut events);
        }
        let (code, reason) = (Some(code), ExitReason::Exited);
        let status =
            ExitStatus { code, signal: None, reason, output_end: 0, truncated: 0, limits: Vec::new() };
        let outcome = parser.finish(&status, &mut events);
        (events, outcome)
    }

    fn done(item: Value) -> Value {
        json!({"type": "item.completed", "item": item})
    }

    #[test]
    fn it_is_told_where_the_model_is_and_the_prompt_comes_by_stdin() {
        let command = Codex.command(&ask()).unwrap();
        let begin = ["/bin/sh", "-c", START, "codex", "exec", "--json"];
        assert_eq!(command.args[..6], begin.map(String::from));
        let settings: Vec<_> = command.args.windows(2).filter(|pair| pair[0] == "-c").collect();
        let url = "model_providers.seawall.base_url=\"http://127.0.0.1:4711/openai/v1\"";
        assert!(settings.iter().any(|pair| pair[1] == url));
        assert_eq!(command.args.last().map(String::as_str), Some("-"));
        assert_eq!(command.stdin.as_deref(), Some(&b"do it"[..]));
        assert!(command.env.contains(&("CODEX_HOME".to_owned(), "/work/.seawall/codex".to_owned())));
        assert!(command.env.contains(&("OPENAI_API_KEY".to_owned(), "seawall".to_owned())));
    }

    #[test]
    fn what_is_asked_for_becomes_options() {
        let asked = AgentAsk {
            session: Some(THREAD.to_owned()),
            model: Some("gpt-5".to_owned()),
            system_prompt: Some("say \"hi\"\n\u{7f}".to_owned()),
            program: Some("/opt/agent".to_owned()),
            args: vec!["--ephemeral".to_owned()],
            ..ask()
        };
        let args = Codex.command(&asked).unwrap().args;
        assert_eq!(args[3..6], ["/opt/agent/codex", "exec", "resume"].map(String::from));
        assert!(args.iter().any(|arg| arg == r#"developer_instructions="say \"hi\"\n\u007f""#));
        let end = ["-m", "gpt-5", THREAD, "-", "--ephemeral"];
        assert_eq!(args[args.len() - 5..], end.map(String::from));
    }

    #[test]
    fn what_cannot_work_is_said_before() {
        let bad = [
            AgentAsk { port: None, ..ask() },
            AgentAsk { session: Some("--last".to_owned()), ..ask() },
            AgentAsk { model: Some("a\0".to_owned()), ..ask() },
            AgentAsk { system_prompt: Some("x".repeat(1 << 18)), ..ask() },
        ];
        for ask in bad {
            assert_eq!(Codex.command(&ask).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn a_session_is_a_file_of_the_workspace() {
        let (folder, contains) = ("/work/.seawall/codex/sessions".to_owned(), THREAD.to_owned());
        assert_eq!(Codex.session_file(THREAD), Some(SessionPlace::Beneath { folder, contains }));
        assert_eq!(Codex.session_file("../.."), None);
    }

    #[test]
    fn m1_a_tool_that_was_never_begun_has_its_call_too() {
        let command = json!({"id": "i", "type": "command_execution", "command": "false", "exit_code": 1,
            "aggregated_output": "no", "status": "failed"});
        let begun = json!({"type": "item.started", "item": {"id": "i", "type": "command_execution",
            "command": "false"}});
        let call = Event::ToolCall {
            id: "i".to_owned(),
            name: "command_execution".to_owned(),
            input: json!({"command": "false"}),
        };
        let output = json!({"output": "no", "exit_code": 1});
        let result = Event::ToolResult { id: "i".to_owned(), output, is_error: true };
        for lines in [vec![done(command.clone())], vec![begun, done(command.clone())]] {
            assert_eq!(read(&lines, 0).0, [call.clone(), result.clone()]);
        }
    }

    #[test]
    fn c4_the_cached_is_no_input_and_reasoning_is_output() {
        let usage = json!({"input_tokens": 2000, "cached_input_tokens": 1400, "cache_write_input_tokens": 100,
            "output_tokens": 100, "reasoning_output_tokens": 10});
        let (events, outcome) = read(&[json!({"type": "turn.completed", "usage": usage})], 0);
        let usage = Usage { input_tokens: 500, output_tokens: 100, cache_tokens: 1500 };
        assert_eq!(events, [Event::ThreadUsage { usage }]);
        assert_eq!(outcome, Outcome { state: TurnState::Completed, error: None });
    }

    #[test]
    fn c4_more_cached_than_there_was_is_no_input() {
        let usage = json!({"input_tokens": 5, "cached_input_tokens": 9, "output_tokens": -1});
        let expected = Usage { input_tokens: 0, output_tokens: 0, cache_tokens: 9 };
        assert_eq!(of_thread(&usage), expected);
    }

    #[test]
    fn a_retry_is_not_the_end() {
        let error = json!({"type": "error", "message": "Reconnecting... waiting for network"});
        let done = json!({"type": "turn.completed", "usage": {}});
        let (events, outcome) = read(&[error.clone(), error.clone(), done], 0);
        assert_eq!((events.len(), outcome.state), (2, TurnState::Completed));
        let failed = json!({"type": "turn.failed", "error": {"message": "bad key"}});
        assert_eq!(read(&[error.clone(), failed], 1).1.error.as_deref(), Some("bad key"));
        let gone = read(&[error], 1).1.error.unwrap();
        assert!(gone.ends_with("complete: Reconnecting... waiting for network"), "{gone}");
    }

    #[test]
    fn what_is_not_known_is_passed_over() {
        let odd = [
            json!({"type": "turn.started"}),
            json!({"type": "item.completed"}),
            json!({"type": "item.updated", "item": {"id": "t", "type": "todo_list", "items": []}}),
            done(json!({"id": "t", "type": "todo_list", "items": []})),
            json!({"type": "thread.started", "thread_id": "-x"}),
            json!(7),
        ];
        let (events, outcome) = read(&odd, 0);
        assert_eq!((events, outcome.state), (Vec::new(), TurnState::Failed));
    }
}
