//! What a client sees of a turn: its stream, also after a hang-up.

use crate::gates::go;
use crate::http_turns::{
    client::{ANY, Followed, auto},
    served::{Served, counting, numbers, within},
};
use seawall_api::{ConversationId, SandboxId};
use serde_json::json;

#[test]
fn c2_http_a_prompt_streams_its_answer() {
    let served = Served::new();
    let answer = served.send(&served.ask("POST", ANY).json(&json!({"prompt": "echo hello; exit 3"})));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert!(answer.header("x-request-id").is_some());
    let mut view = Followed::of(answer);
    // That events have numbers from 0 on and no names is what whoever reads them sees to.
    view.follow_to_the_end();
    assert_eq!(view.text(), "hello\n");
    let turn = served.get(&view.place());
    let ids = [("id", "turn_id"), ("conversation_id", "conversation_id"), ("sandbox_id", "sandbox_id")];
    for (field, name) in ids.into_iter().chain([("prompt_id", "prompt_id"), ("answer_id", "answer_id")]) {
        assert_eq!(turn[field], view.id(name), "{field}");
    }
    assert_eq!(turn["events"], view.seen.len() - 1, "all but the last, which is made from the turn");
    let conversation = view.id("conversation_id");
    let messages = served.items(&format!("/conversations/{conversation}/messages"));
    let found: Vec<_> = messages.iter().map(|message| message["id"].clone()).collect();
    assert_eq!(found, [view.id("prompt_id"), view.id("answer_id")]);
    assert_eq!(view.all("sandbox_ready").len(), 1);
    assert_eq!(view.all("agent_ended")[0]["exit_code"], 3);
}

#[test]
fn m4_http_the_last_event_has_the_usage_and_the_totals() {
    let served = Served::new();
    let conversation = ConversationId::generate().to_string();
    for messages in [2, 4] {
        let mut view = served.turn(&auto(&conversation), "echo said");
        let stats = json!({"messages_exchanged": messages, "total_input_tokens": 0, "total_output_tokens": 0,
            "total_cache_tokens": 0});
        let ended = json!({"type": "turn_ended", "state": "completed", "stats": stats,
            "usage": {"input_tokens": 0, "output_tokens": 0, "cache_tokens": 0}});
        view.follow_to_the_end();
        assert_eq!(*view.ended(), ended);
        // C4.
        assert_eq!(served.stats(&conversation), stats);
    }
}

#[test]
fn c2_http_ids_may_be_the_clients_own() {
    let served = Served::new();
    let (conversation, sandbox) = (ConversationId::generate().to_string(), SandboxId::generate().to_string());
    let path = format!("/conversations/{conversation}/sandbox/{sandbox}");
    let mut made = served.turn(&path, "echo kept > file");
    made.follow_to_the_end();
    assert_eq!((made.id("conversation_id"), made.id("sandbox_id")), (conversation.clone(), sandbox.clone()));
    assert_eq!(made.all("sandbox_ready")[0]["cold"], true);
    assert_eq!(served.get(&format!("/conversations/{conversation}"))["sandbox_id"], *sandbox);
    let mut resumed = served.turn(&path, "cat file");
    resumed.follow_to_the_end();
    assert_eq!(resumed.text(), "kept\n");
    assert_eq!(resumed.all("sandbox_ready")[0]["cold"], false);
    // The older name, and the linked sandbox without its id.
    let mut singular = served.turn(&format!("/conversation/{conversation}/sandbox/auto"), "cat file");
    singular.follow_to_the_end();
    assert_eq!((singular.text(), singular.id("sandbox_id")), ("kept\n".to_owned(), sandbox));
    assert_eq!(served.items(&format!("/conversations/{conversation}/turns")).len(), 3);
}

#[test]
fn c2_http_another_sandbox_is_a_mismatch_unless_relinked() {
    let served = Served::new();
    let conversation = ConversationId::generate().to_string();
    served.said(&conversation, "true");
    let other = SandboxId::generate().to_string();
    let path = format!("/conversations/{conversation}/sandbox/{other}");
    let (status, problem) = served.call("POST", &path, &json!({"prompt": "true"}));
    assert_eq!((status, &problem["code"]), (409, &json!("sandbox_mismatch")), "{problem}");
    let mut view = served.turn(&format!("{path}?relink=true"), "echo here");
    view.follow_to_the_end();
    assert_eq!((view.text(), view.id("sandbox_id")), ("here\n".to_owned(), other.clone()));
    assert_eq!(served.get(&format!("/conversations/{conversation}"))["sandbox_id"], *other);
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 4, "what was refused was counted");
}

#[test]
fn h6_http_a_hang_up_ends_only_the_view() {
    let served = Served::new();
    let mut view = served.turn(ANY, &counting(150, &[10]));
    view.until_said("\n10\n");
    view.hang_up();
    go(&served.world, &view.id("sandbox_id"), 10);
    let place = view.place();
    within(60, "the turn ends by itself", || served.get(&place)["state"] == "completed");
    assert_eq!(served.messages(&view.id("conversation_id"))[1].1, numbers(150));
    view.come_back(&served);
    view.follow_to_the_end();
    assert_eq!(view.text(), numbers(150));
    // Who comes later sees the same.
    let mut later = served.follow(&place);
    later.follow_to_the_end();
    assert_eq!(later.seen, view.seen);
}

#[test]
fn h6_http_a_client_that_hangs_up_again_and_again_misses_nothing() {
    let served = Served::new();
    let mut view = served.turn(ANY, &counting(200, &[10, 60, 110, 160]));
    for number in [10, 60, 110, 160] {
        view.until_said(&format!("\n{number}\n"));
        view.hang_up();
        go(&served.world, &view.id("sandbox_id"), number);
        view.come_back(&served);
    }
    view.follow_to_the_end();
    assert_eq!(view.text(), numbers(200));
    assert_eq!(served.stats(&view.id("conversation_id"))["messages_exchanged"], 2);
}
