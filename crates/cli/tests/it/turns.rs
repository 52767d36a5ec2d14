//! Turns from end to end on the real binary, with the template `shell`: what is kept, whatever dies.

use crate::gates::{go, waits_at};
use crate::world::{World, eventually, is_alive, kill_9, stderr, stdout};
use serde_json::{Value, json};
use std::process::{Child, Output, Stdio};

struct Chat {
    world: World,
    conversation: String,
}

impl Chat {
    fn new() -> Chat {
        Chat { world: World::new(), conversation: seawall_api::ConversationId::generate().to_string() }
    }

    fn say(&self, prompt: &str) -> Output {
        self.world.seawall(["chat", "-c", &self.conversation, prompt])
    }

    /// The answer of a turn that completes.
    fn answer(&self, prompt: &str) -> String {
        let output = self.say(prompt);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    }

    fn begin(&self, prompt: &str) -> Child {
        let args = ["--json", "chat", "-c", &self.conversation, prompt];
        self.world.command().args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn info(&self) -> Value {
        let all = self.world.json(["conversations", "--json"]);
        let all = all["items"].as_array().unwrap().clone();
        all.into_iter().find(|each| each["id"] == *self.conversation).unwrap_or_default()
    }

    fn sandbox(&self) -> String {
        self.info()["sandbox_id"].as_str().unwrap().to_owned()
    }

    fn messages(&self) -> Vec<(String, String)> {
        let found = self.world.json(["messages", "--json", &self.conversation]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        found["items"].as_array().unwrap().iter().map(|m| (text(&m["role"]), text(&m["body"]))).collect()
    }

    /// Waits until a file is in the workspace.
    fn reached(&self, file: &str) {
        eventually(file, || {
            let sandbox = self.info()["sandbox_id"].as_str().unwrap_or("none").to_owned();
            self.world
                .seawall(["exec", &sandbox, "--", "test", "-e", &format!("/work/{file}")])
                .status
                .success()
        })
        .unwrap();
    }
}

fn events(child: Child) -> Vec<Value> {
    let output = child.wait_with_output().unwrap();
    stdout(&output)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone())
        .collect()
}

fn text(events: &[Value]) -> String {
    let texts = events.iter().filter(|event| event["type"] == "text");
    texts.map(|event| event["text"].as_str().unwrap()).collect()
}

/// Eight lines, each with a file; at these it waits.
fn slow(stops: &[u32]) -> String {
    format!("for i in 1 2 3 4 5 6 7 8; do echo line $i; echo $i > f$i; {}; done", waits_at(stops))
}

fn slow_lines(count: usize) -> String {
    (1..=count).map(|number| format!("line {number}\n")).collect()
}

#[test]
fn c3_a_conversation_outlives_its_sandbox() {
    let chat = Chat::new();
    assert_eq!(
        chat.answer("echo hello > greeting; mkdir -p deep/er; echo x > deep/er/file; ls"),
        "deep\ngreeting\n"
    );
    let sandbox = chat.sandbox();
    chat.world.ok(["rm", "-f", "--volumes", &sandbox]);
    assert!(chat.world.is_empty());
    assert_eq!(chat.answer("cat greeting deep/er/file"), "hello\nx\n");
    assert_eq!(chat.sandbox(), sandbox, "the sandbox keeps its name");
    let said = chat.messages();
    let roles: Vec<&str> = said.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(chat.info()["stats"]["messages_exchanged"], 4);
}

#[test]
fn s6_a_turn_makes_a_version() {
    let chat = Chat::new();
    chat.answer("echo one > a");
    chat.answer("echo two > b");
    chat.answer("true");
    let versions = chat.world.json(["versions", "--json", &chat.sandbox()]);
    let versions = versions["items"].as_array().unwrap();
    assert_eq!(versions.len(), 2, "{versions:?}");
    let prefix = chat.world.data().join("bucket/docs/local").join(chat.sandbox());
    for version in versions {
        let folder = version["version"].as_i64().unwrap().to_string();
        assert_eq!(folder.len(), 13);
        assert!(prefix.join(folder).join(".sandbox-state").is_file());
    }
}

#[test]
fn h6_a_hang_up_ends_only_the_view() {
    let chat = Chat::new();
    let mut view = chat.begin(&slow(&[3]));
    chat.reached("f3");
    view.kill().unwrap();
    view.wait().unwrap();
    go(&chat.world, &chat.sandbox(), 3);
    eventually("the turn ends by itself", || chat.messages().len() == 2).unwrap();
    assert_eq!(chat.messages()[1].1, slow_lines(8));
    // Who comes later sees all of it.
    assert_eq!(stdout(&chat.world.seawall(["chat", "-c", &chat.conversation])), slow_lines(8));
}

#[test]
fn m2_a_killed_server_goes_on_where_it_was() {
    let chat = Chat::new();
    let view = chat.begin(&slow(&[3]));
    chat.reached("f3");
    chat.world.kill_server();
    // The next server takes it up.
    chat.world.ok(["ls"]);
    go(&chat.world, &chat.sandbox(), 3);
    let seen = events(view);
    assert_eq!(text(&seen), slow_lines(8));
    let ended = seen.last().unwrap();
    assert_eq!((&ended["type"], &ended["state"]), (&json!("turn_ended"), &json!("completed")));
    assert_eq!(chat.messages()[1].1, slow_lines(8));
    assert_eq!(chat.info()["stats"]["messages_exchanged"], 2);
}

#[test]
fn m2_killed_again_and_again_it_still_ends_once() {
    let chat = Chat::new();
    let view = chat.begin(&slow(&[2, 4, 6]));
    for number in [2, 4, 6] {
        chat.reached(&format!("f{number}"));
        chat.world.kill_server();
        go(&chat.world, &chat.sandbox(), number);
    }
    eventually("it ends", || {
        chat.world.ok(["ls"]);
        chat.messages().len() == 2
    })
    .unwrap();
    assert_eq!(text(&events(view)), slow_lines(8));
    assert_eq!(chat.info()["stats"]["messages_exchanged"], 2);
}

#[test]
fn c3_with_the_box_gone_a_turn_is_interrupted_and_its_files_are_saved() {
    let chat = Chat::new();
    let view = chat.begin(&slow(&[3]));
    chat.reached("f3");
    let guest = chat.world.guest(&chat.sandbox());
    // Together, so that no server sees the box go.
    let server = chat.world.server_pid().unwrap().to_string();
    kill_9(&[&server, &guest]);
    eventually("both are gone", || !is_alive(&server) && !is_alive(&guest)).unwrap();
    chat.world.ok(["ls"]);
    let seen = events(view);
    let ended = seen.last().unwrap();
    assert_eq!((&ended["type"], &ended["state"]), (&json!("turn_ended"), &json!("interrupted")), "{seen:?}");
    let said = text(&seen);
    assert!(slow_lines(8).starts_with(&said) && said.starts_with("line 1\nline 2\n"), "{said}");
    assert_eq!(chat.messages()[1].1, said);
    assert_eq!(chat.answer("cat f1 f2 f3"), "1\n2\n3\n");
}

#[test]
fn h6_a_sandbox_killed_in_mid_stream_interrupts_the_turn() {
    let chat = Chat::new();
    let view = chat.begin(&slow(&[3]));
    chat.reached("f3");
    let guest = chat.world.guest(&chat.sandbox());
    kill_9(&[&guest]);
    let seen = events(view);
    let ended = seen.last().unwrap();
    assert_eq!((&ended["type"], &ended["state"]), (&json!("turn_ended"), &json!("interrupted")), "{seen:?}");
    assert!(text(&seen).starts_with("line 1\nline 2\n"));
    assert_eq!(chat.answer("cat f1 f2"), "1\n2\n");
}

#[test]
fn c8_a_second_turn_is_refused_or_waits() {
    let chat = Chat::new();
    let view = chat.begin(&format!("touch began; i=1; {}; sleep 1; echo first", waits_at(&[1])));
    chat.reached("began");
    let refused = chat.say("echo second");
    assert!(!refused.status.success() && stderr(&refused).contains("runs"), "{}", stderr(&refused));
    go(&chat.world, &chat.sandbox(), 1);
    let waited = chat.world.ok(["chat", "-c", &chat.conversation, "--wait", "20s", "echo second"]);
    assert_eq!(waited, "second\n");
    assert_eq!(text(&events(view)), "first\n");
    assert_eq!(chat.info()["stats"]["messages_exchanged"], 4);
}

#[test]
fn h6_a_cancelled_turn_keeps_what_it_did() {
    let chat = Chat::new();
    let view = chat.begin("echo kept > file; echo said; touch began; sleep 60");
    chat.reached("began");
    chat.world.ok(["chat", "-c", &chat.conversation, "--cancel"]);
    let seen = events(view);
    assert_eq!(seen.last().unwrap()["state"], "cancelled");
    assert_eq!(chat.messages()[1].1, "said\n");
    assert!(seen.iter().any(|event| event["type"] == "workspace_pushed"), "{seen:?}");
}

#[test]
fn c2_another_sandbox_is_a_mismatch_unless_relinked() {
    let chat = Chat::new();
    chat.answer("true");
    let other = seawall_api::SandboxId::generate().to_string();
    let args = ["chat", "-c", &chat.conversation, "--sandbox", &other];
    let refused = chat.world.seawall(args.iter().copied().chain(["true"]));
    assert!(stderr(&refused).contains("sandbox_mismatch"), "{}", stderr(&refused));
    chat.world.ok(args.iter().copied().chain(["--relink", "true"]));
    assert_eq!(chat.sandbox(), other);
}

#[test]
fn h8_a_bucket_that_is_down_fails_no_turn() {
    let chat = Chat::new();
    chat.answer("echo one > a");
    // The way to the bucket is a file.
    std::fs::rename(chat.world.data().join("bucket"), chat.world.data().join("away")).unwrap();
    std::fs::write(chat.world.data().join("bucket"), "").unwrap();
    assert_eq!(chat.answer("echo two > b; echo said"), "said\n");
    let sandbox = chat.sandbox();
    let refused = chat.world.seawall(["stop", &sandbox]);
    let said = stderr(&refused);
    assert!(!refused.status.success() && said.contains("not in its bucket"), "{said}");
    std::fs::remove_file(chat.world.data().join("bucket")).unwrap();
    std::fs::rename(chat.world.data().join("away"), chat.world.data().join("bucket")).unwrap();
    chat.answer("true");
    chat.world.ok(["stop", &sandbox]);
    chat.world.ok(["rm", "-f", "--volumes", &sandbox]);
    assert_eq!(chat.answer("cat a b"), "one\ntwo\n");
}

/// The folder of the bucket is a mount that is away for a turn, so that another one is made in its place.
#[test]
fn s4_a_bucket_that_was_another_for_a_turn_loses_nothing() {
    let chat = Chat::new();
    chat.answer("echo one > a");
    let (bucket, away) = (chat.world.data().join("bucket"), chat.world.data().join("away"));
    std::fs::rename(&bucket, &away).unwrap();
    chat.answer("echo two > b");
    std::fs::remove_dir_all(&bucket).unwrap();
    std::fs::rename(&away, &bucket).unwrap();
    chat.answer("echo three > c");
    let sandbox = chat.sandbox();
    assert!(chat.world.ok(["verify", &sandbox]).starts_with("all is whole"));
    chat.world.ok(["rm", "-f", "--volumes", &sandbox]);
    assert_eq!(chat.answer("cat a b c"), "one\ntwo\nthree\n");
}

#[test]
fn h2_a_cold_start_that_fails_leaves_nothing() {
    for (settings, template, said) in [
        ("[sync]\nbucket = \"s3://nowhere\"\n", "", "credentials"),
        ("", "[[hooks.cold_start]]\nrun = \"exit 7\"\n", "exited with 7"),
        ("", "[[hooks.cold_start]]\nrun = \"sleep 60\"\ntimeout_seconds = 1\n", "timeout"),
    ] {
        let chat = Chat::new();
        std::fs::create_dir(chat.world.data().join("templates")).unwrap();
        std::fs::write(chat.world.data().join("templates/mine.toml"), template).unwrap();
        std::fs::write(chat.world.data().join("seawall.toml"), settings).unwrap();
        let mut command = chat.world.command();
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"] {
            command.env_remove(name);
        }
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", chat.world.data());
        let output =
            command.args(["chat", "-c", &chat.conversation, "-t", "mine", "echo hello"]).output().unwrap();
        assert!(!output.status.success(), "{}", stdout(&output));
        assert!(stderr(&output).contains(said), "{said}: {}", stderr(&output));
        assert!(chat.world.is_empty(), "a sandbox is left");
        assert_eq!(chat.world.ok(["volumes", "ls", "-q"]), "", "a volume is left");
        assert_eq!(chat.info()["sandbox_id"], Value::Null, "a sandbox is linked that is not there");
        assert_eq!(chat.messages()[0].1, "echo hello", "the prompt is kept");
    }
}

#[test]
fn h7_an_unknown_template_is_a_clear_error() {
    let chat = Chat::new();
    let refused = chat.world.seawall(["chat", "-c", &chat.conversation, "-t", "nope", "hi"]);
    assert!(stderr(&refused).contains("there are claude-code, codex, github, shell"), "{}", stderr(&refused));
    assert!(chat.info().is_null() || chat.info()["stats"]["messages_exchanged"] == 0);
    let listed = chat.world.ok(["templates"]);
    assert!(listed.contains("shell") && listed.contains("codex"));
}

#[test]
fn s12_a_template_names_a_volume_that_sandboxes_share() {
    let (chat, other) = (Chat::new(), seawall_api::ConversationId::generate().to_string());
    std::fs::create_dir(chat.world.data().join("templates")).unwrap();
    std::fs::write(chat.world.data().join("templates/team.toml"), "[sync]\nvolume = \"team\"\n").unwrap();
    let say =
        |conversation: &str, prompt: &str| chat.world.ok(["chat", "-c", conversation, "-t", "team", prompt]);
    assert_eq!(say(&chat.conversation, "echo one > a"), "");
    assert_eq!(say(&other, "cat a; echo two > b"), "one\n");
    assert_eq!(say(&chat.conversation, "cat b"), "two\n");
    let listed = chat.world.json(["volumes", "--json"]);
    assert_eq!(
        (&listed["items"][0]["name"], &listed["items"][0]["in_use"]),
        (&json!("local.team"), &json!(true)),
        "{listed}"
    );
    let refused = chat.world.seawall(["volumes", "rm", "local.team"]);
    assert!(stderr(&refused).contains("uses the volume"), "{}", stderr(&refused));
    // One history, whichever of them asks.
    let sandboxes: Vec<String> = chat.world.ok(["ls", "-q"]).lines().map(str::to_owned).collect();
    let versions = |id: &String| chat.world.json(["versions", "--json", id]);
    assert_eq!(versions(&sandboxes[0]), versions(&sandboxes[1]));
    chat.world.ok(["rm", "-f", "--volumes", &sandboxes[0]]);
    assert_eq!(chat.world.ok(["exec", &sandboxes[1], "--", "cat", "/work/a"]), "one\n");
    chat.world.ok(["rm", "-f", "--volumes", &sandboxes[1]]);
    assert_eq!(chat.world.json(["volumes", "--json"])["items"], json!([]));
    assert_eq!(say(&other, "cat a b"), "one\ntwo\n");
}

#[test]
fn h1_hooks_of_a_template_run_in_the_sandbox() {
    let chat = Chat::new();
    std::fs::create_dir(chat.world.data().join("templates")).unwrap();
    let template = "[[hooks.cold_start]]\nrun = \"echo cold $SEAWALL_SANDBOX >> hooks\"\n\
        [[hooks.stream_finish]]\nrun = \"echo finish $SEAWALL_TURN_STATE >> hooks\"\nwhen = \"before\"\n\
        [[hooks.stream_finish]]\nrun = \"exit 1\"\n";
    std::fs::write(chat.world.data().join("templates/mine.toml"), template).unwrap();
    let answer = chat.world.ok(["chat", "-c", &chat.conversation, "-t", "mine", "cat hooks"]);
    assert_eq!(answer, format!("cold {}\n", chat.sandbox()));
    assert_eq!(chat.answer("cat hooks"), format!("cold {}\nfinish completed\n", chat.sandbox()));
    // H5: what became of them.
    let failed = || {
        let listed = chat.world.json(["hooks", "--json", &chat.sandbox()]);
        let runs = listed["items"].as_array().unwrap().clone();
        runs.into_iter().filter(|run| run.get("error").is_some()).collect::<Vec<_>>()
    };
    eventually("both runs of the one that fails", || failed().len() == 2).unwrap();
    assert!(
        failed().iter().all(|run| run["name"] == "exit 1" && run["turn_id"].is_string()),
        "{:?}",
        failed()
    );
    let shown = chat.world.ok(["hooks", &chat.sandbox()]);
    let line = shown.lines().find(|line| line.contains("exit 1")).unwrap();
    assert!(line.contains("stream_finish") && line.contains("failed: the command exited with 1"), "{shown}");
    let unknown = chat.world.seawall(["hooks", &seawall_api::SandboxId::generate().to_string()]);
    assert_eq!(unknown.status.code(), Some(1), "{}", stderr(&unknown));
}

/// A variable that is empty, mostly: the last answer must not be taken for one to it.
#[test]
fn c2_an_empty_prompt_is_refused() {
    let chat = Chat::new();
    assert_eq!(chat.answer("echo hi"), "hi\n");
    let refused = chat.say("");
    assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(2), ""));
    assert!(stderr(&refused).contains("the prompt is empty"), "{}", stderr(&refused));
    // Without one it is a look.
    assert_eq!(chat.world.ok(["chat", "-c", &chat.conversation]), "hi\n");
}

/// A template whose file is gone keeps nobody from removing its sandboxes.
#[test]
fn v2_a_sandbox_whose_template_is_gone_can_be_removed() {
    let chat = Chat::new();
    let file = chat.world.data().join("templates/mine.toml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "").unwrap();
    chat.world.ok(["chat", "-c", &chat.conversation, "-t", "mine", "echo 1 > f"]);
    let sandbox = chat.sandbox();
    std::fs::remove_file(&file).unwrap();
    chat.world.ok(["server", "restart"]);
    let refused = chat.world.seawall(["sync", &sandbox]);
    assert!(stderr(&refused).contains("bring its file back"), "{}", stderr(&refused));
    chat.world.ok(["rm", "-f", "--volumes", &sandbox]);
    assert_eq!(chat.world.json(["volumes", "--json"])["items"], json!([]));
    assert_eq!(chat.world.ok(["ls", "-q"]), "");
}

mod alone {
    use super::*;

    /// What was begun before the crash is waited for, and nothing runs beside it.
    #[test]
    fn h2_a_hook_that_outlives_its_server_runs_once() {
        let chat = Chat::new();
        std::fs::create_dir(chat.world.data().join("templates")).unwrap();
        let template = format!(
            "[[hooks.cold_start]]\nrun = \"i=1; echo begun >> cold; {wait}; echo ended >> cold\"\n\
            [[hooks.stream_finish]]\nrun = \"\"\"i=2; echo finish >> cold; {wait}\n\
            echo '{{\\\"input_tokens\\\": 7}}' > $SEAWALL_USAGE\"\"\"\n",
            wait = waits_at(&[1, 2])
        );
        std::fs::write(chat.world.data().join("templates/mine.toml"), template).unwrap();
        let args = ["--json", "chat", "-c", &chat.conversation, "-t", "mine", "cat cold"];
        let child =
            chat.world.command().args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        for (number, line) in [(1, "begun"), (2, "finish")] {
            let volumes = chat.world.data().join("native/volumes");
            eventually(line, || {
                let folders = std::fs::read_dir(&volumes).into_iter().flatten().flatten();
                let mut files =
                    folders.map(|folder| std::fs::read_to_string(folder.path().join("work/cold")));
                files.any(|file| file.is_ok_and(|text| text.lines().last() == Some(line)))
            })
            .unwrap();
            chat.world.kill_server();
            // The next server takes it up.
            chat.world.ok(["conversations"]);
            // A conversation has no sandbox before its cold start is over.
            let sandbox = std::fs::read_dir(&volumes).unwrap().flatten().next().unwrap().file_name();
            go(&chat.world, &sandbox.to_string_lossy(), number);
        }
        assert_eq!(text(&events(child)), "begun\nended\n");
        assert_eq!(chat.answer("cat cold"), "begun\nended\nfinish\n");
        // Counted once, and once for the turn that just ended.
        let log = std::fs::read_to_string(chat.world.data().join("server.log")).unwrap_or_default();
        assert_eq!(chat.info()["stats"]["total_input_tokens"], 14, "{log}");
    }
}
