//! Webhooks of templates: by the outbox, until they have arrived.

use crate::turns::world::{World, by, error, template, wanted};
use seawall_api::{ErrorKind, conversation::TurnState};
use seawall_core::{
    delivery::{Courier, Round},
    templates::{HookPart, Templates},
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;

const URL: &str = "https://hooks.example/turns";

fn calls() -> HookPart {
    HookPart { webhook: Some(URL.to_owned()), ..HookPart::default() }
}

fn called(world: &World) -> Vec<Value> {
    let calls = world.webhooks.calls.lock().unwrap();
    calls.iter().map(|call| serde_json::from_str(&call.body).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn h1_a_webhook_is_told_what_its_kind_is_about() {
    let mut told = template("told");
    told.hooks.message = vec![calls()];
    told.hooks.stream_finish = vec![calls()];
    let world = World::of([told]);
    let done = world.run(by("told", "say hi")).await;
    let called = called(&world);
    let kinds: Vec<&str> = called.iter().map(|body| body["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "stream_finish"]);
    for body in &called {
        assert_eq!(body["template"], "told");
        assert_eq!(body["sandbox_id"], json!(done.sandbox()));
        assert_eq!(body["conversation_id"], json!(done.conversation()));
        assert_eq!(body["turn_id"], json!(done.turn.id));
    }
    assert_eq!(called[0]["message"]["body"], "say hi");
    assert_eq!(called[1]["state"], "completed");
    assert_eq!(called[1]["answer"]["body"], "hi");
    let used = json!({"input_tokens": 0, "output_tokens": 0, "cache_tokens": 0});
    assert_eq!(called[1]["usage"], used);
    let calls = world.webhooks.calls.lock().unwrap();
    assert!(calls.iter().all(|call| call.url == URL && call.secret.is_none()));
    assert_ne!(calls[0].id, calls[1].id);
}

#[tokio::test(start_paused = true)]
async fn h2_a_webhook_that_fails_is_called_again_until_it_does_not() {
    let mut told = template("told");
    told.hooks.stream_finish = vec![calls()];
    let world = World::of([told]);
    *world.webhooks.failures.lock().unwrap() = 2;
    let done = world.run(by("told", "say hi")).await;
    // The turn does not wait for it, and its failure is not the turn's.
    assert_eq!((done.turn.state, done.error()), (TurnState::Completed, ""));
    assert_eq!(called(&world).len(), 1);
    // Not before its time, and each time later.
    assert_eq!(world.courier.round().await.unwrap(), Round::default());
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(world.courier.round().await.unwrap(), Round { delivered: 0, failed: 1 });
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(world.courier.round().await.unwrap(), Round::default());
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(world.courier.round().await.unwrap(), Round { delivered: 1, failed: 0 });
    assert_eq!(world.stores.outbox.waiting().await.unwrap().0, 0);
    let calls = world.webhooks.calls.lock().unwrap();
    assert_eq!(calls.len(), 3);
    // So that a receiver can tell a repetition.
    assert!(calls.iter().all(|call| call.id == calls[0].id && call.body == calls[0].body));
}

#[tokio::test(start_paused = true)]
async fn h2_a_webhook_outlives_its_server() {
    let mut told = template("told");
    told.hooks.terminate = vec![calls()];
    let world = World::of([told.clone()]);
    let done = world.run(by("told", "say hi")).await;
    let ending = wanted(done.sandbox(), &told);
    world.service.terminate(&ending, false, false).await.unwrap();
    assert_eq!((called(&world).len(), world.stores.outbox.waiting().await.unwrap().0), (0, 1));
    assert_eq!(world.elsewhere("two").courier.round().await.unwrap(), Round { delivered: 1, failed: 0 });
    assert_eq!(called(&world)[0]["type"], "terminate");
    assert_eq!(called(&world)[0]["reason"], "terminated");
}

/// Without anybody who calls, and without its key, it waits.
#[tokio::test(start_paused = true)]
async fn h2_a_webhook_without_its_key_is_not_called() {
    // One that is not set, and one that cargo sets to nothing.
    assert_eq!(std::env::var(EMPTY).as_deref(), Ok(""));
    for variable in ["SEAWALL_NO_SUCH_KEY", EMPTY] {
        without_a_key(variable).await;
    }
}

const EMPTY: &str = "CARGO_PKG_LICENSE_FILE";

async fn without_a_key(variable: &str) {
    let mut signed = template("signed");
    let part = HookPart { secret_env: Some(variable.to_owned()), ..calls() };
    signed.hooks.stream_finish = vec![part];
    let world = World::of([signed]);
    assert_eq!(world.run(by("signed", "say hi")).await.turn.state, TurnState::Completed);
    assert!(called(&world).is_empty());
    sleep(Duration::from_secs(10)).await;
    let mute = Courier::new(world.stores.outbox.clone(), world.stores.messages.clone());
    assert_eq!(mute.round().await.unwrap(), Round { delivered: 0, failed: 1 });
    assert_eq!(world.stores.outbox.waiting().await.unwrap().0, 1);
}

#[test]
fn h1_a_webhook_is_an_address_and_nothing_else() {
    let mut templates = Templates::default();
    let odd = [
        HookPart { webhook: Some("ftp://x".to_owned()), ..HookPart::default() },
        HookPart { run: Some("true".to_owned()), ..calls() },
        HookPart::default(),
        HookPart { timeout_seconds: 0, ..calls() },
    ];
    for part in odd {
        let mut wrong = template("wrong");
        wrong.hooks.message = vec![part];
        let refused = error(templates.add(wrong));
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains("hooks.message"), "{refused}");
    }
}
