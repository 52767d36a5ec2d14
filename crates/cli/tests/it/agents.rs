//! Turns with the real programs, Claude Code and Codex, in native sandboxes without a network, against a stand-in for
//! the models' APIs (`standin/models.py`). Without the programs the tests are skipped by name.

use crate::{docker, world};

use crate::world::{World, stderr, stdout};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

const KEY: &str = "sk-test-6b1f3c0e9d";

/// The stand-in, ended with the test.
struct StandIn {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl StandIn {
    fn start(script: &Value) -> StandIn {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("script.json"), script.to_string()).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin/models.py");
        let mut child = Command::new("python3")
            .arg(program)
            .env("STANDIN_KEY", KEY)
            .env("STANDIN_LOG", folder.path().join("log"))
            .env("STANDIN_SCRIPT", folder.path().join("script.json"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        StandIn { child, port: line.trim().parse().unwrap(), folder }
    }

    /// What it was asked, in order.
    fn log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder with an agent's program. None: the test is skipped, and says so.
fn program(test: &str, agent: &str) -> Option<PathBuf> {
    let found = std::env::var_os("SEAWALL_TEST_AGENTS").map(|folder| PathBuf::from(folder).join(agent));
    if let Some(folder) = found.filter(|folder| folder.join(agent).is_file()) {
        return Some(folder);
    }
    let required = std::env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all");
    assert!(!required, "SEAWALL_TEST_AGENTS names no folder with {agent}: see scripts/agents");
    eprintln!("skipped agents::{test}: no {agent}: SEAWALL_TEST_AGENTS is not set (`make test` installs it)");
    None
}

struct Agent {
    world: World,
    models: StandIn,
    template: &'static str,
    conversation: String,
}

impl Agent {
    fn new(template: &'static str, folder: &Path, script: &Value) -> Agent {
        Agent::in_world(World::new(), template, folder, script)
    }

    /// An agent in a world that may have settings already.
    fn in_world(world: World, template: &'static str, folder: &Path, script: &Value) -> Agent {
        let models = StandIn::start(script);
        let file = world.data().join("seawall.toml");
        let before = std::fs::read_to_string(&file).unwrap_or_default();
        let url = format!("http://127.0.0.1:{}", models.port);
        let name = if template == "codex" { "openai" } else { "anthropic" };
        let settings = format!(
            "{before}[models.{name}]\nbase_url = \"{url}\"\nkey = \"{KEY}\"\n[programs]\n{template} = \"{}\"\n",
            folder.display()
        );
        std::fs::write(file, settings).unwrap();
        let conversation = seawall_api::ConversationId::generate().to_string();
        Agent { world, models, template, conversation }
    }

    fn chat(&self, prompt: &str) -> Output {
        let args = ["--json", "chat", "-c", &self.conversation, "-t", self.template, prompt];
        self.world.seawall(args)
    }

    fn events(&self, prompt: &str) -> Vec<Value> {
        let output = self.chat(prompt);
        let log = std::fs::read_to_string(self.world.data().join("server.log")).unwrap_or_default();
        assert!(output.status.success(), "{}\n{}\n{log}", stdout(&output), stderr(&output));
        events(&output)
    }

    fn conversation(&self) -> Value {
        let all = self.world.json(["conversations", "--json"]);
        let found = all["items"].as_array().unwrap().iter().find(|each| each["id"] == *self.conversation);
        found.unwrap().clone()
    }

    fn sandbox(&self) -> String {
        self.conversation()["sandbox_id"].as_str().unwrap().to_owned()
    }

    fn sh(&self, command: &str) -> String {
        self.world.ok(["exec", "--user", "root", &self.sandbox(), "--", "sh", "-c", command])
    }
}

fn events(output: &Output) -> Vec<Value> {
    let lines = stdout(output);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(line["id"], number, "events are numbered without gaps");
    }
    lines.into_iter().map(|line| line["event"].clone()).collect()
}

fn of<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

fn text(events: &[Value]) -> String {
    of(events, "text").iter().map(|event| event["text"].as_str().unwrap()).collect()
}

/// A turn with a tool call, the sandbox destroyed, the next turn in a new one.
fn a_turn_a_new_sandbox_and_the_next(agent: &Agent, uses: [(u64, u64, u64); 2]) {
    let first = agent.events("make a file");
    assert_eq!(first[0]["type"], "turn_started");
    assert_eq!(first[0]["conversation_id"], *agent.conversation);
    assert_eq!(text(&first), "I made it.");
    assert_eq!((of(&first, "tool_call").len(), of(&first, "tool_result").len()), (1, 1));
    assert_eq!(of(&first, "workspace_pushed").len(), 1, "{first:?}");
    let ended = first.last().unwrap();
    let usage = |(input, output, cache): (u64, u64, u64)| json!({"input_tokens": input, "output_tokens": output, "cache_tokens": cache});
    assert_eq!((&ended["type"], &ended["state"]), (&json!("turn_ended"), &json!("completed")));
    assert_eq!(ended["usage"], usage(uses[0]));
    assert_eq!(agent.sh("cat /work/made.txt"), "made-by-agent\n");
    the_key_is_nowhere(agent);
    let session = of(&first, "agent_session")[0]["session"].clone();

    agent.world.ok(["rm", "-f", "--volumes", &agent.sandbox()]);
    let second = agent.events("is it there?");
    assert_eq!(text(&second), "It is there.");
    assert_eq!(of(&second, "sandbox_ready")[0]["cold"], true);
    assert_eq!(of(&second, "agent_session")[0]["session"], session, "another session was begun");
    assert_eq!(second.last().unwrap()["usage"], usage(uses[1]));
    assert_eq!(agent.sh("cat /work/made.txt"), "made-by-agent\n");
    stats_and_messages(agent, uses);
}

fn stats_and_messages(agent: &Agent, uses: [(u64, u64, u64); 2]) {
    let sum = |part: fn(&(u64, u64, u64)) -> u64| uses.iter().map(part).sum::<u64>();
    let stats = &agent.conversation()["stats"];
    assert_eq!(
        *stats,
        json!({"messages_exchanged": 4, "total_input_tokens": sum(|use_| use_.0), "total_output_tokens": sum(|use_| use_.1),
            "total_cache_tokens": sum(|use_| use_.2)})
    );
    let messages = agent.world.json(["messages", "--json", &agent.conversation]);
    let messages = messages["items"].as_array().unwrap();
    let said: Vec<(&str, &str)> = messages
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["body"].as_str().unwrap()))
        .collect();
    let expected = [
        ("user", "make a file"),
        ("assistant", "I made it."),
        ("user", "is it there?"),
        ("assistant", "It is there."),
    ];
    assert_eq!(said, expected);
    let calls = messages[1]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["status"]), (1, &json!("succeeded")));
    // The models saw the key, and nothing else did.
    let log = agent.models.log();
    assert!(log.len() >= 3, "{} requests", log.len());
    let key = |request: &Value| request["headers"].to_string().contains(KEY);
    assert!(log.iter().all(key), "a request without the server's key");
}

/// In no environment, in no process, in no file of the box.
fn the_key_is_nowhere(agent: &Agent) {
    let look = format!(
        "grep -la '{KEY}' /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -v /$$/ | grep -v /self/; \
         grep -rla '{KEY}' /work /home /root /tmp /etc /run /var 2>/dev/null; true"
    );
    // The command that looks has the key as an argument: it is told from the others by its own number.
    let found = agent.sh(&look);
    let others: Vec<&str> = found.lines().filter(|line| !line.starts_with("/proc/")).collect();
    assert_eq!(others, Vec::<&str>::new());
    let seen = agent.sh("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'");
    assert!(!seen.contains(KEY), "the key is in an environment");
}

fn slow_words() -> Value {
    json!((0..12).map(|number| format!("word{number} ")).collect::<Vec<_>>())
}

#[test]
fn o3_and_m3_a_turn_of_claude_code_outlives_its_sandbox() {
    let Some(folder) = program("o3_and_m3_a_turn_of_claude_code_outlives_its_sandbox", "claude") else {
        return;
    };
    let script = json!([
        {"command": "echo made-by-agent > /work/made.txt",
            "usage": {"input_tokens": 100, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 20}},
        {"text": "I made it.", "usage": {"input_tokens": 200, "cache_read_input_tokens": 50, "output_tokens": 7}},
        {"text": "It is there.", "usage": {"input_tokens": 300, "cache_read_input_tokens": 60, "output_tokens": 8}},
    ]);
    let agent = Agent::new("claude-code", &folder, &script);
    a_turn_a_new_sandbox_and_the_next(&agent, [(300, 27, 65), (300, 8, 60)]);
}

#[test]
fn p2_a_turn_of_claude_code_runs_in_a_container() {
    let test = "p2_a_turn_of_claude_code_runs_in_a_container";
    let (Some(folder), Some(world)) = (program(test, "claude"), docker::world(test)) else { return };
    let script = json!([
        {"command": "echo made-by-agent > /work/made.txt",
            "usage": {"input_tokens": 100, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 20}},
        {"text": "I made it.", "usage": {"input_tokens": 200, "cache_read_input_tokens": 50, "output_tokens": 7}},
        {"text": "It is there.", "usage": {"input_tokens": 300, "cache_read_input_tokens": 60, "output_tokens": 8}},
    ]);
    let agent = Agent::in_world(world, "claude-code", &folder, &script);
    a_turn_a_new_sandbox_and_the_next(&agent, [(300, 27, 65), (300, 8, 60)]);
}

#[test]
fn m3_a_turn_of_codex_outlives_its_sandbox() {
    let Some(folder) = program("m3_a_turn_of_codex_outlives_its_sandbox", "codex") else { return };
    let script = json!([
        {"command": "echo made-by-agent > /work/made.txt",
            "usage": {"input_tokens": 100, "cached_tokens": 10, "output_tokens": 20, "reasoning_tokens": 5}},
        {"text": "I made it.", "usage": {"input_tokens": 200, "cached_tokens": 50, "output_tokens": 7}},
        {"text": "It is there.", "usage": {"input_tokens": 300, "cached_tokens": 60, "output_tokens": 8}},
    ]);
    let agent = Agent::new("codex", &folder, &script);
    a_turn_a_new_sandbox_and_the_next(&agent, [(240, 27, 60), (240, 8, 60)]);
}

/// The server is killed while the tool runs. The next one takes the turn up again, and it ends with every byte and exact usage.
#[test]
fn m2_a_killed_server_loses_nothing_of_claude_codes_answer() {
    let test = "m2_a_killed_server_loses_nothing_of_claude_codes_answer";
    let Some(folder) = program(test, "claude") else { return };
    let usage = json!({"input_tokens": 1000, "cache_read_input_tokens": 3, "output_tokens": 40});
    let script = json!([
        {"command": "until [ -e /work/go ]; do sleep 0.1; done; echo gone", "usage": usage},
        {"slow_text": slow_words(), "pause": 0.05, "usage": usage},
    ]);
    let agent = Agent::new("claude-code", &folder, &script);
    let args = ["--json", "chat", "-c", &agent.conversation, "-t", agent.template, "count"];
    let view = agent.world.command().args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    world::eventually("the agent uses its tool", || {
        let last = agent.world.seawall(["inspect", &agent.sandbox_if_any()]);
        stdout(&last).contains("claude") && agent.models.log().len() == 1
    })
    .unwrap();
    agent.world.kill_server();
    // Any command takes it up. The tool ends only now, so the server was killed while it ran.
    agent.world.ok(["ls"]);
    agent.sh("touch /work/go");
    let output = view.wait_with_output().unwrap();
    let log = std::fs::read_to_string(agent.world.data().join("server.log")).unwrap();
    assert!(output.status.success(), "{}\n{log}", stdout(&output));
    let events = events(&output);
    let said: String = (0..12).map(|number| format!("word{number} ")).collect();
    assert_eq!(text(&events).trim_end(), said.trim_end());
    let ended = events.last().unwrap();
    let usage = json!({"input_tokens": 2000, "output_tokens": 80, "cache_tokens": 6});
    assert_eq!(ended["usage"], usage, "{}\n{log}", json!(agent.models.log()));
    assert_eq!(ended["stats"]["messages_exchanged"], 2);
}

impl Agent {
    fn sandbox_if_any(&self) -> String {
        let all = self.world.json(["conversations", "--json"]);
        let found = all["items"].as_array().unwrap().first().cloned().unwrap_or_default();
        found["sandbox_id"].as_str().unwrap_or("none").to_owned()
    }
}
