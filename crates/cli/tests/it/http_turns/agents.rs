//! Claude Code over HTTP, in a native sandbox without a network, against a stand-in for its model's API. Without the
//! program the test is skipped by name.

use crate::gates::go;
use crate::http_turns::served::{Served, skip};
use seawall_api::ConversationId;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

const KEY: &str = "sk-test-6b1f3c0e9d";

/// The stand-in, ended with the test.
struct StandIn {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl StandIn {
    fn start(script: &Value) -> StandIn {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("script.json"), script.to_string()).unwrap();
        let mut child = Command::new("python3")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin/models.py"))
            .env("STANDIN_KEY", KEY)
            .env("STANDIN_LOG", folder.path().join("log"))
            .env("STANDIN_SCRIPT", folder.path().join("script.json"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        StandIn { child, port: line.trim().parse().unwrap(), _folder: folder }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder with the program. None: the test is skipped, and says so.
fn claude(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SEAWALL_TEST_AGENTS").map(|folder| PathBuf::from(folder).join("claude"));
    let found = folder.filter(|folder| folder.join("claude").is_file());
    if found.is_none() {
        skip(test, "no claude: SEAWALL_TEST_AGENTS is not set (`make test` installs it)");
    }
    found
}

/// Killed while the agent uses its tool, so that the model's next answer goes through the next server.
#[test]
fn m2_http_a_killed_server_loses_nothing_of_claude_codes_answer() {
    let Some(folder) = claude("m2_http_a_killed_server_loses_nothing_of_claude_codes_answer") else { return };
    let usage = json!({"input_tokens": 1000, "cache_read_input_tokens": 3, "output_tokens": 40});
    let words: Vec<String> = (0..12).map(|number| format!("word{number} ")).collect();
    let models = StandIn::start(&json!([
        {"command": "until [ -e /work/go1 ]; do sleep 0.1; done; echo made > /work/made.txt", "usage": usage},
        {"slow_text": words, "pause": 0.05, "usage": usage},
    ]));
    let settings = format!(
        "[models.anthropic]\nbase_url = \"http://127.0.0.1:{}\"\nkey = \"{KEY}\"\n[programs]\nclaude-code = \"{}\"\n",
        models.port,
        folder.display()
    );
    let mut served = Served::with(&settings, &[]);
    let conversation = ConversationId::generate().to_string();
    let path = format!("/conversations/{conversation}/sandbox/auto");
    let mut view = served.turn_with(&path, &json!({"prompt": "count", "template": "claude-code"}));
    view.until_seen("tool_call");
    served.kill();
    assert!(!view.rest(), "{:?}", view.seen);
    served.start();
    go(&served.world, &view.id("sandbox_id"), 1);
    view.come_back(&served);
    let used = json!({"input_tokens": 2000, "output_tokens": 80, "cache_tokens": 6});
    view.follow_to_the_end();
    let ended = view.ended();
    assert_eq!((&ended["state"], &ended["usage"]), (&json!("completed"), &used), "{ended}");
    assert_eq!(view.text().trim_end(), words.concat().trim_end());
    assert_eq!((view.all("tool_call").len(), view.all("tool_result").len()), (1, 1));
    let stats = json!({"messages_exchanged": 2, "total_input_tokens": 2000, "total_output_tokens": 80,
        "total_cache_tokens": 6});
    assert_eq!((&ended["stats"], &served.stats(&conversation)), (&stats, &stats));
    assert_eq!(served.exec(&view.id("sandbox_id"), "cat made.txt"), "made\n");
    assert_eq!(view.all("workspace_pushed").len(), 1);
}
