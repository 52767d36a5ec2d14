//! The rules of turns and conversations: templates, one at a time, deletion, older routes, calls that come twice.

use crate::gates::{go, waits_at};
use crate::http_turns::{
    client::{ANY, Followed, auto},
    served::{Served, within},
};
use seawall_api::ConversationId;
use serde_json::{Value, json};

#[test]
fn c1_http_the_template_is_the_requests_the_conversations_the_agents_or_shell() {
    let templates = [("of-agent", ""), ("of-conversation", ""), ("of-request", "")];
    let served = Served::with("[agents]\nhelper = \"of-agent\"\n", &templates);
    let used = |path: &str, body: &Value| {
        let mut view = served.turn_with(path, body);
        view.follow_to_the_end();
        (view.text(), view.id("template"))
    };
    let with = |template: &str| ("hi\n".to_owned(), template.to_owned());
    assert_eq!(used(ANY, &json!({"prompt": "echo hi"})), with("shell"));
    assert_eq!(used(ANY, &json!({"prompt": "echo hi", "agent_id": "helper"})), with("of-agent"));
    assert_eq!(used(ANY, &json!({"prompt": "echo hi", "agent_id": "stranger"})), with("shell"));
    let id = ConversationId::generate().to_string();
    let new = json!({"id": id, "template": "of-conversation", "agent_id": "helper"});
    assert_eq!(served.call("POST", "/conversations", &new).0, 201);
    assert_eq!(served.call("POST", "/conversations", &new).0, 200);
    assert_eq!(used(&auto(&id), &json!({"prompt": "echo hi"})), with("of-conversation"));
    assert_eq!(used(&auto(&id), &json!({"prompt": "echo hi", "template": "of-request"})), with("of-request"));
    assert_eq!(used(&auto(&id), &json!({"prompt": "echo hi"})), with("of-conversation"));
    let conversation = served.get(&format!("/conversations/{id}"));
    assert_eq!(
        (&conversation["template"], &conversation["agent_id"]),
        (&json!("of-conversation"), &json!("helper"))
    );
    // H7.
    let (status, problem) = served.call("POST", ANY, &json!({"prompt": "echo hi", "template": "nope"}));
    let detail = problem["detail"].as_str().unwrap();
    assert!(status == 400 && detail.contains("there are claude-code, codex, github, of-agent"), "{problem}");
}

#[test]
fn c4_http_a_conversation_has_its_totals() {
    let served = Served::new();
    let id = ConversationId::generate().to_string();
    served.done("POST", "/conversations", &json!({"id": id, "organization_id": "org"}));
    let stats = |messages: u64| {
        json!({"messages_exchanged": messages, "total_input_tokens": 0, "total_output_tokens": 0,
            "total_cache_tokens": 0})
    };
    assert_eq!(served.stats(&id), stats(0));
    for turn in 1..=3 {
        served.said(&id, &format!("echo {turn}"));
        assert_eq!(served.stats(&id), stats(2 * turn));
    }
    let roles: Vec<_> =
        served.messages(&id).into_iter().map(|(role, body)| format!("{role} {body}")).collect();
    let expected =
        ["user echo 1", "assistant 1\n", "user echo 2", "assistant 2\n", "user echo 3", "assistant 3\n"];
    assert_eq!(roles, expected);
    let listed = served.items("/conversations?organization_id=org");
    assert_eq!((listed.len(), &listed[0]["stats"]), (1, &stats(6)));
}

#[test]
fn c5_http_a_deleted_conversation_takes_its_sandbox_along_where_that_is_wanted() {
    let served = Served::new();
    for (query, state) in [("", "running"), ("?terminate=true", "terminated")] {
        let mut view = served.turn(ANY, "echo kept > file");
        view.follow_to_the_end();
        let (conversation, sandbox) = (view.id("conversation_id"), view.id("sandbox_id"));
        let deleted = served.call("DELETE", &format!("/conversations/{conversation}{query}"), &Value::Null);
        assert_eq!(deleted, (204, Value::Null));
        for path in
            [format!("/conversations/{conversation}"), view.place(), format!("{}/events", view.place())]
        {
            assert_eq!(served.call("GET", &path, &Value::Null).0, 404, "{path}");
        }
        assert_eq!(served.sandbox(&sandbox)["state"], state);
        let exec =
            served.call("POST", &format!("/sandboxes/{sandbox}/exec"), &json!({"command": "cat file"}));
        assert_eq!(exec.0, if state == "running" { 200 } else { 410 }, "{}", exec.1);
        assert_eq!(served.versions(&sandbox), 1, "the files went too");
    }
}

#[test]
fn c5_http_a_configured_default_terminates_and_a_running_turn_is_left_alone() {
    let served = Served::with("[conversations]\ndelete_terminates_sandbox = true\n", &[]);
    let mut view = served.turn(ANY, &format!("echo said; i=1; {}", waits_at(&[1])));
    view.until_said("said\n");
    let path = format!("/conversations/{}", view.id("conversation_id"));
    assert_eq!(served.call("DELETE", &path, &Value::Null).0, 409);
    go(&served.world, &view.id("sandbox_id"), 1);
    assert_eq!(view.follow_to_the_end(), "completed");
    assert_eq!(served.call("DELETE", &path, &Value::Null).0, 204);
    assert_eq!(served.sandbox(&view.id("sandbox_id"))["state"], "terminated");
}

#[test]
fn c6_http_the_older_route_makes_a_conversation_for_its_sandbox() {
    let served = Served::with("", &[("mine", "description = \"No Claude is needed.\"\n")]);
    let sandbox = served.make_sandbox();
    served.exec(&sandbox, "echo before > file");
    let body = json!({"prompt": "cat file", "template": "mine"});
    let path = format!("/sandboxes/{sandbox}/claude");
    let answer = served.send(&served.ask("POST", &path).json(&body));
    assert_eq!(answer.header("deprecation"), Some("true"));
    let mut view = Followed::of(answer);
    view.follow_to_the_end();
    assert_eq!((view.text(), view.id("template")), ("before\n".to_owned(), "mine".to_owned()));
    let conversation = view.id("conversation_id");
    assert_eq!(served.get(&format!("/conversations/{conversation}"))["sandbox_id"], *sandbox);
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 2);
    assert_eq!(served.said(&conversation, "cat file"), "before\n");
}

#[test]
fn c8_http_a_second_turn_is_refused_or_waits() {
    let served = Served::new();
    let conversation = ConversationId::generate().to_string();
    let first = format!("echo began; i=1; {}; sleep 1; echo first", waits_at(&[1]));
    let mut first = served.turn(&auto(&conversation), &first);
    first.until_said("began\n");
    let second = json!({"prompt": "echo second"});
    let same_sandbox = format!("/conversations/new/sandbox/{}", first.id("sandbox_id"));
    for path in [auto(&conversation), same_sandbox, format!("{}?wait=0.1", auto(&conversation))] {
        let (status, problem) = served.call("POST", &path, &second);
        assert!(status == 409 && problem["detail"].as_str().unwrap().contains("runs"), "{status} {problem}");
    }
    assert_eq!(served.get(&first.place())["state"], "running");
    go(&served.world, &first.id("sandbox_id"), 1);
    let mut waited = served.turn_with(&format!("{}?wait=20", auto(&conversation)), &second);
    assert_eq!(waited.follow_to_the_end(), "completed");
    assert_eq!(waited.text(), "second\n");
    assert_eq!(first.follow_to_the_end(), "completed");
    assert_eq!(first.text(), "began\nfirst\n");
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 4);
}

#[test]
fn k6_http_the_same_call_twice_is_one_turn() {
    let served = Served::new();
    let ask = |prompt: &str| {
        let ask = served.ask("POST", ANY).header("idempotency-key", "one");
        ask.json(&json!({"prompt": prompt}))
    };
    let once = ask("echo ran >> log; cat log; sleep 1");
    let mut first = Followed::of(served.send(&once));
    first.until_said("ran\n");
    // While it runs, and afterwards.
    for _ in 0..2 {
        let answer = served.send(&once);
        assert_eq!(answer.header("idempotent-replayed"), Some("true"));
        let mut again = Followed::of(answer);
        again.follow_to_the_end();
        first.rest();
        assert_eq!(again.seen, first.seen);
    }
    assert_eq!(first.text(), "ran\n");
    let other = served.send(&ask("echo other"));
    assert_eq!(other.status, 409);
    assert_eq!(other.json()["code"], "idempotency_conflict");
    assert_eq!(served.items("/conversations").len(), 1);
    assert_eq!(served.exec(&first.id("sandbox_id"), "cat log"), "ran\n");
}

#[test]
fn k6_http_whoever_hangs_up_before_the_answer_finds_it_again() {
    let served = Served::new();
    for number in 0..5 {
        let ask = served.ask("POST", ANY).header("idempotency-key", format!("call-{number}"));
        let ask = ask.json(&json!({"prompt": "echo ran >> log; cat log"}));
        ask.send_and_leave(&served.address).unwrap();
        let mut answer = served.send(&ask);
        within(60, "the first call is done", || {
            if answer.status == 409 {
                answer = served.send(&ask);
            }
            answer.status != 409
        });
        let mut view = Followed::of(answer);
        view.follow_to_the_end();
        assert_eq!(view.text(), "ran\n");
    }
    let conversations = served.items("/conversations");
    assert_eq!(conversations.len(), 5);
    for conversation in conversations {
        assert_eq!(conversation["stats"]["messages_exchanged"], 2, "{conversation}");
    }
}
