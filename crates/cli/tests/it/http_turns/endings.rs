//! How sandboxes and turns end: because somebody asks, because their time is over, and with what is kept of them.

use crate::http_turns::{
    client::{ANY, auto},
    served::{Served, within},
};
use crate::world::is_alive;
use seawall_api::ConversationId;
use serde_json::{Value, json};

const IDLE: &str = "[sandboxes]\nidle_timeout = \"2s\"\n";

/// Between rounds of the server there are ten seconds, between tries to push five or more.
const ROUNDS: u64 = 90;

#[test]
fn c3_http_a_sandbox_that_was_ended_is_gone_until_the_next_turn_makes_it_anew() {
    let served = Served::new();
    let conversation = ConversationId::generate().to_string();
    let mut view = served.turn(&auto(&conversation), "mkdir -p deep/er; echo x > deep/er/file; echo hi > a");
    view.follow_to_the_end();
    let sandbox = view.id("sandbox_id");
    let ended = served.done("DELETE", &format!("/sandboxes/{sandbox}"), &Value::Null);
    assert_eq!((&ended["state"], &ended["reason"]), (&json!("terminated"), &json!("terminated")));
    // Again is fine.
    served.done("DELETE", &format!("/sandboxes/{sandbox}"), &Value::Null);
    assert!(served.world.is_empty() && served.world.ok(["volumes", "ls", "-q"]).is_empty());
    let (status, problem) =
        served.call("POST", &format!("/sandboxes/{sandbox}/exec"), &json!({"command": "true"}));
    assert_eq!((status, &problem["code"]), (410, &json!("gone")), "{problem}");
    let mut next = served.turn(&auto(&conversation), "cat a deep/er/file");
    next.follow_to_the_end();
    assert_eq!((next.text(), next.id("sandbox_id")), ("hi\nx\n".to_owned(), sandbox.clone()));
    assert_eq!(next.all("sandbox_ready")[0]["cold"], true);
    assert_eq!(served.exec(&sandbox, "cat a"), "hi\n");
}

#[test]
fn h6_http_a_cancelled_turn_keeps_what_it_did() {
    let served = Served::new();
    let mut view = served.turn(ANY, "echo kept > file; echo said; sleep 60");
    view.until_said("said\n");
    let path = format!("{}/cancel", view.place());
    assert_eq!(
        served.done("POST", &path, &Value::Null),
        json!({"turn_id": view.id("turn_id"), "cancelled": true})
    );
    assert_eq!(view.follow_to_the_end(), "cancelled");
    assert_eq!(view.all("workspace_pushed").len(), 1, "{:?}", view.seen);
    let conversation = view.id("conversation_id");
    assert_eq!(served.messages(&conversation)[1].1, "said\n");
    assert_eq!(served.done("POST", &path, &Value::Null)["cancelled"], false);
    assert_eq!(served.said(&conversation, "cat file"), "kept\n");
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 4);
}

#[test]
fn h8_http_a_bucket_that_is_down_fails_no_turn_and_gets_everything_when_it_is_back() {
    let served = Served::new();
    let conversation = ConversationId::generate().to_string();
    served.said(&conversation, "echo one > a");
    // The way to the bucket is a file.
    let (bucket, away) = (served.world.data().join("bucket"), served.world.data().join("away"));
    std::fs::rename(&bucket, &away).unwrap();
    std::fs::write(&bucket, "").unwrap();
    let mut view = served.turn(&auto(&conversation), "echo two > b; echo said");
    assert_eq!(view.follow_to_the_end(), "completed");
    assert_eq!(
        (view.text().as_str(), view.all("workspace_unsynced").len()),
        ("said\n", 1),
        "{:?}",
        view.seen
    );
    let sandbox = view.id("sandbox_id");
    assert!(served.sandbox(&sandbox)["unsynced"].is_string());
    let (status, problem) = served.call("POST", &format!("/sandboxes/{sandbox}/stop"), &Value::Null);
    assert_eq!(status, 409, "what is not saved was stopped: {problem}");
    std::fs::remove_file(&bucket).unwrap();
    std::fs::rename(&away, &bucket).unwrap();
    // Nobody asks for it.
    within(ROUNDS, "the server pushes", || served.sandbox(&sandbox)["unsynced"].is_null());
    assert_eq!(served.versions(&sandbox), 2);
    served.done("DELETE", &format!("/sandboxes/{sandbox}?sync=false&volumes=delete"), &Value::Null);
    assert_eq!(served.said(&conversation, "cat a b"), "one\ntwo\n");
}

#[test]
fn t5_http_an_idle_sandbox_is_saved_stopped_and_revived() {
    let served = Served::with(IDLE, &[]);
    let mut view = served.turn(ANY, "echo kept > file");
    view.follow_to_the_end();
    let sandbox = view.id("sandbox_id");
    // After the turn, so that only the server can save it.
    served.exec(&sandbox, "echo later > more");
    assert_eq!(served.versions(&sandbox), 1);
    within(ROUNDS, "it is stopped", || served.ended_by(&sandbox, "idle"));
    assert_eq!(served.versions(&sandbox), 2);
    assert_eq!(served.exec(&sandbox, "cat file more"), "kept\nlater\n");
    assert_eq!(served.said(&view.id("conversation_id"), "cat more"), "later\n");
}

#[test]
fn t5_http_a_sandbox_whose_lifetime_is_over_is_saved_stopped_and_revived() {
    let served = Served::with("[sandboxes]\nmax_lifetime = \"4s\"\n", &[]);
    let sandbox = served.make_sandbox();
    served.exec(&sandbox, "echo kept > file");
    within(60, "it is stopped", || served.ended_by(&sandbox, "max_lifetime"));
    within(ROUNDS, "its files are saved", || served.versions(&sandbox) == 1);
    // It ran for that.
    within(60, "it is stopped again", || served.ended_by(&sandbox, "max_lifetime"));
    assert_eq!(served.exec(&sandbox, "cat file"), "kept\n");
}

#[test]
fn t5_http_without_a_server_a_box_ends_by_itself_and_the_next_server_saves_its_files() {
    let mut served = Served::with(IDLE, &[]);
    let sandbox = served.make_sandbox();
    served.exec(&sandbox, "echo kept > file");
    let guest = served.guest(&sandbox);
    served.kill();
    // Its guest relies on the server for half a minute.
    within(90, "the box ends by itself", || !is_alive(&guest));
    served.start();
    within(ROUNDS, "its files are saved", || served.versions(&sandbox) == 1);
    within(60, "it is stopped again", || served.ended_by(&sandbox, "idle"));
    assert_eq!(served.exec(&sandbox, "cat file"), "kept\n");
}

/// Through the command line too, which asks the server.
#[test]
fn k8_http_versions_are_their_owners_to_delete_and_the_next_turn_begins_anew() {
    let served = Served::new();
    let mut view = served.turn(ANY, "truncate -s 100M image; echo one > a");
    view.follow_to_the_end();
    let (sandbox, conversation) = (view.id("sandbox_id"), view.id("conversation_id"));
    for number in 2..=4 {
        served.said(&conversation, &format!("echo {number} > a"));
    }
    assert_eq!(served.versions(&sandbox), 4);
    let server = format!("http://{}", served.address);
    let seawall = |words: &[&str]| {
        let asked = ["--server", &server, "--key", &served.key];
        served.world.ok(asked.iter().chain(words).copied().collect::<Vec<_>>())
    };
    assert!(seawall(&["versions", "rm", &sandbox, "1"]).starts_with("3 versions stay, 1 went"));
    assert!(seawall(&["prune", &sandbox, "--keep", "1"]).starts_with("1 versions stay, 2 went"));
    let folder = served.world.data().join("bucket/docs/local").join(&sandbox);
    let stored = || -> u64 {
        let all = walk(&folder);
        all.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum()
    };
    assert!((1000..100_000).contains(&stored()), "{} bytes", stored());
    seawall(&["rm", "-f", "--volumes", "--versions", &sandbox]);
    assert_eq!((served.versions(&sandbox), walk(&folder).len()), (0, 1), "{:?}", walk(&folder));
    // Its conversation goes on, with no files.
    assert_eq!(served.said(&conversation, "ls; echo five > b"), "");
    assert_eq!(served.versions(&sandbox), 1);
    // And once more, after the end.
    served.done("DELETE", &format!("/sandboxes/{sandbox}"), &Value::Null);
    assert_eq!(served.versions(&sandbox), 1);
    served.done("DELETE", &format!("/sandboxes/{sandbox}?versions=delete"), &Value::Null);
    assert_eq!((served.versions(&sandbox), walk(&folder).len()), (0, 1));
}

/// All files beneath a folder.
fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(walk(&path)),
            false => found.push(path),
        }
    }
    found
}
