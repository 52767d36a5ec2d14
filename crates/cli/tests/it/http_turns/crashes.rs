//! The server dies, or the box, or both; or the server is asked to go.

use crate::gates::{go, workspace};
use crate::http_turns::{
    client::{ANY, Followed, auto},
    served::{Served, counting, kill, numbers, within},
};
use serde_json::json;

/// Lines with a file each; after some of them it goes on for longer than anybody waits.
const SLOW: &str =
    "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > f$i; echo $i; if [ $i = 5 ]; then sleep 600; fi; done";

/// Every byte of the answer is there, once, and so is what was counted.
fn is_whole(served: &Served, view: &Followed, text: &str) {
    assert_eq!(view.text(), text);
    let ended = view.ended();
    assert_eq!(ended["state"], "completed", "{ended}");
    assert_eq!(ended["usage"], json!({"input_tokens": 0, "output_tokens": 0, "cache_tokens": 0}));
    assert_eq!(ended["stats"]["messages_exchanged"], 2);
    let turn = served.get(&view.place());
    assert_eq!((&turn["output_offset"], &turn["number"]), (&json!(text.len()), &json!(1)));
    let conversation = view.id("conversation_id");
    assert_eq!(served.messages(&conversation)[1].1, text);
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 2);
    assert!(served.world.ok(["db", "check"]).starts_with("all agrees"));
}

#[test]
fn m2_http_a_killed_server_goes_on_where_it_was() {
    let mut served = Served::new();
    let mut view = served.turn(ANY, &counting(300, &[30, 150]));
    for number in [30, 150] {
        view.until_said(&format!("\n{number}\n"));
        served.kill();
        go(&served.world, &view.id("sandbox_id"), number);
        assert!(!view.rest(), "a turn ended without a server: {:?}", view.seen.last());
        served.start();
        view.come_back(&served);
    }
    view.follow_to_the_end();
    is_whole(&served, &view, &numbers(300));
    assert_eq!(view.all("agent_started").len(), 1, "the command was run again");
}

/// The whole of the turn happens while there is no server.
#[test]
fn m2_http_what_a_box_says_while_there_is_no_server_is_not_lost() {
    let mut served = Served::new();
    let mut view = served.turn(ANY, &format!("{}; touch done", counting(100, &[5])));
    view.until_said("\n5\n");
    served.kill();
    let sandbox = view.id("sandbox_id");
    go(&served.world, &sandbox, 5);
    within(60, "the command ends", || workspace(&served.world, &sandbox).join("done").exists());
    served.start();
    view.rest();
    view.come_back(&served);
    view.follow_to_the_end();
    is_whole(&served, &view, &numbers(100));
}

#[test]
fn c3_http_with_the_box_gone_too_a_turn_is_interrupted_and_its_files_are_saved() {
    let mut served = Served::new();
    let mut view = served.turn(ANY, SLOW);
    view.until_said("3\n");
    let sandbox = view.id("sandbox_id");
    let guest = served.guest(&sandbox);
    served.kill_with(&[&guest]);
    assert!(!view.rest());
    served.start();
    view.come_back(&served);
    assert_eq!(view.follow_to_the_end(), "interrupted", "{:?}", view.seen);
    let said = view.text();
    assert!(numbers(10).starts_with(&said) && said.starts_with("1\n2\n3\n"), "{said}");
    assert_eq!(served.messages(&view.id("conversation_id"))[1].1, said);
    assert_eq!((view.all("workspace_pushed").len(), served.versions(&sandbox)), (1, 1));
    // From the bucket: what is here goes.
    served.done(
        "DELETE",
        &format!("/sandboxes/{sandbox}?sync=false&force=true&volumes=delete"),
        &json!(null),
    );
    assert_eq!(served.said(&view.id("conversation_id"), "cat f1 f2 f3"), "1\n2\n3\n");
}

#[test]
fn h6_http_a_sandbox_killed_in_mid_stream_interrupts_the_turn() {
    let served = Served::new();
    let mut view = served.turn(ANY, SLOW);
    view.until_said("3\n");
    kill("-9", &[&served.guest(&view.id("sandbox_id"))]);
    assert_eq!(view.follow_to_the_end(), "interrupted", "{:?}", view.seen);
    let said = view.text();
    assert!(numbers(10).starts_with(&said) && said.starts_with("1\n2\n3\n"), "{said}");
    let conversation = view.id("conversation_id");
    let mut next = served.turn(&auto(&conversation), "cat f1 f2 f3");
    next.follow_to_the_end();
    assert_eq!(next.text(), "1\n2\n3\n");
    assert_eq!(next.id("sandbox_id"), view.id("sandbox_id"));
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 4);
}

/// With time enough the turn ends before the server; without, the next server ends it.
#[test]
fn m2_http_a_server_that_is_asked_to_go_down_loses_nothing() {
    for grace in [20, 0] {
        let mut served = Served::with(&format!("[server]\nshutdown_grace_seconds = {grace}\n"), &[]);
        let mut view = served.turn(ANY, &counting(150, &[20]));
        view.until_said("\n20\n");
        served.terminate();
        go(&served.world, &view.id("sandbox_id"), 20);
        assert!(!view.rest(), "the stream went on: {:?}", view.seen.last());
        if grace > 0 {
            let told = view.comments().last().cloned().unwrap_or_default();
            assert!(told.contains("come back with Last-Event-ID"), "{told}");
        }
        assert!(served.wait().success());
        served.start();
        if grace > 0 {
            assert_eq!(served.get(&view.place())["state"], "completed", "the turn was not waited for");
        }
        view.come_back(&served);
        view.follow_to_the_end();
        is_whole(&served, &view, &numbers(150));
    }
}
