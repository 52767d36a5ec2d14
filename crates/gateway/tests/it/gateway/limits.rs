//! What an account may not ask for, and what nobody may.

use crate::gateway::{
    client::{Client, MESSAGES, RESPONSES, gateway, with_models},
    upstream::{Step, Upstream},
};
use seawall_api::SandboxId;
use seawall_core::{
    agents::ModelApi::{Anthropic, OpenAi},
    budget::{Budget, BudgetLimits},
    ports::gateway::{Access, Gateway as _},
};
use std::{sync::Arc, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn texts(patterns: &[&str]) -> Vec<String> {
    patterns.iter().map(|pattern| (*pattern).to_owned()).collect()
}

fn with_patterns(allowed: Option<&[&str]>, denied: &[&str]) -> Access {
    let mut access = with_models(Anthropic);
    if let Some(models) = &mut access.models {
        models.allowed = allowed.map(texts);
        models.denied = texts(denied);
    }
    access
}

#[tokio::test]
async fn models_by_pattern() {
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    let gateway = gateway(&upstream.url());
    let claude: &[&str] = &["claude-*"];
    let opus: &[&str] = &["*opus*"];
    let nothing: &[&str] = &[];
    for (allowed, denied, model, excluded_by) in [
        (None, nothing, "anything", None),
        (Some(claude), nothing, "claude-haiku-4", None),
        (Some(claude), nothing, "Claude-haiku-4", Some("`models`")),
        (Some(claude), nothing, "gpt-5", Some("`models`")),
        (Some(nothing), nothing, "claude-haiku-4", Some("`models`")),
        (Some(claude), opus, "claude-opus-4", Some("`models_denied`")),
        (None, opus, "claude-opus-4", Some("`models_denied`")),
        (None, opus, "claude-haiku-4", None),
    ] {
        let mut client = Client::connect(&gateway, &Arc::new(with_patterns(allowed, denied)));
        let body = format!(r#"{{"max_tokens":1,"model":"{model}"}}"#);
        let reply = client.ask(&format!("POST {MESSAGES}"), &body).await;
        let Some(setting) = excluded_by else {
            assert_eq!(reply.status, 200, "{model}");
            upstream.asked().await;
            continue;
        };
        assert_eq!(reply.status, 403, "{model}");
        let json = reply.json();
        assert_eq!(json["error"]["type"], "permission_error");
        let message = json["error"]["message"].as_str().unwrap();
        assert!(message.contains(setting) && message.contains(model), "{message}");
        upstream.expect_none();
    }
}

#[tokio::test]
async fn bodies_without_a_model_are_refused() {
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    let gateway = gateway(&upstream.url());
    let access = Arc::new(with_models(OpenAi));
    for body in ["", "{}", "not json", "[]", r#"{"model":7}"#, r#"{"model":"a","model":"b"}"#] {
        let reply = Client::connect(&gateway, &access).ask(&format!("POST {RESPONSES}"), body).await;
        assert_eq!(reply.status, 400, "{body}");
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
    upstream.expect_none();
    assert_eq!(access.meter.so_far().requests, 0);
}

#[tokio::test]
async fn a_body_that_says_it_is_too_long_is_not_read() {
    let upstream = Upstream::answering("200 OK", "", "{}").await;
    let mut client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(Anthropic)));
    let head = format!("POST {MESSAGES} HTTP/1.1\r\nhost: box\r\ncontent-length: {}\r\n\r\n", (32 << 20) + 1);
    client.write(head.as_bytes()).await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 413);
    assert_eq!(reply.json()["error"]["type"], "request_too_large");
    assert!(reply.body.contains("32 MiB"), "{}", reply.body);
}

#[tokio::test]
async fn a_body_that_never_ends_is_not_kept() {
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    let client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(Anthropic)));
    let (mut reader, mut writer) = tokio::io::split(client.into_connection());
    let head = format!("POST {MESSAGES} HTTP/1.1\r\nhost: box\r\ntransfer-encoding: chunked\r\n\r\n");
    let writing = tokio::spawn(async move {
        writer.write_all(head.as_bytes()).await.unwrap();
        let part = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
        let mut written = 0_usize;
        // Until the gateway has enough.
        while written < 64 << 20 && writer.write_all(&part).await.is_ok() {
            written += 0x10000;
        }
        written
    });
    let mut answer = Vec::new();
    reader.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&answer));
    let written = writing.await.unwrap();
    assert!((32 << 20..36 << 20).contains(&written), "{written}");
    upstream.expect_none();
}

#[tokio::test]
async fn a_long_body_passes() {
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    let mut client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(Anthropic)));
    let body = format!(r#"{{"messages":"{}","model":"m"}}"#, "x".repeat((8 << 20) - 1));
    assert_eq!(client.ask(&format!("POST {MESSAGES}"), &body).await.status, 200);
    assert!(upstream.asked().await.body == body.as_bytes());
}

/// Waits until so many bytes of a budget are free.
async fn until_free(budget: &Budget, bytes: u64) {
    for _ in 0..3000 {
        if budget.free() == bytes {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} bytes are free, not {bytes}", budget.free());
}

#[tokio::test]
async fn k5_bodies_of_all_sandboxes_count_against_their_account() {
    const MIB: u64 = 1 << 20;
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    let gateway = gateway(&upstream.url());
    let budget = Budget::new(BudgetLimits { server: 16 * MIB, account: 4 * MIB });
    gateway.count_in(&budget);
    let access = with_models(Anthropic);
    let head = format!("POST {MESSAGES} HTTP/1.1\r\nhost: box\r\ncontent-length: {}\r\n\r\n", (32 << 20) - 1);
    // Several sandboxes of one account send all but the end of a body, and keep it open.
    let mut open = Vec::new();
    for _ in 0..4 {
        let access = Arc::new(Access { sandbox: SandboxId::generate(), ..access.clone() });
        let mut client = Client::connect(&gateway, &access);
        client.write(head.as_bytes()).await;
        client.write(&vec![b' '; MIB as usize]).await;
        open.push(client);
    }
    until_free(&budget, 12 * MIB).await;
    let one_more = Arc::new(Access { sandbox: SandboxId::generate(), ..access.clone() });
    let reply =
        Client::connect(&gateway, &one_more).ask(&format!("POST {MESSAGES}"), r#"{"model":"m"}"#).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")), "{}", reply.body);
    assert_eq!(reply.header("x-should-retry"), None);
    assert!(reply.body.contains("bodies of this account in flight"), "{}", reply.body);
    upstream.expect_none();
    let other = Arc::new(with_models(Anthropic));
    let reply = Client::connect(&gateway, &other).ask(&format!("POST {MESSAGES}"), r#"{"model":"m"}"#).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    upstream.asked().await;
    for client in open {
        client.hang_up().await;
    }
    until_free(&budget, 16 * MIB).await;
}

#[tokio::test]
async fn k5_a_body_is_counted_until_the_answer_begins() {
    let go_on = Arc::new(tokio::sync::Notify::new());
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_vec();
    let mut upstream = Upstream::start(vec![Step::Wait(go_on.clone()), Step::Send(answer)]).await;
    let gateway = gateway(&upstream.url());
    let budget = Budget::new(BudgetLimits { server: 4 << 20, account: 4 << 20 });
    gateway.count_in(&budget);
    let mut client = Client::connect(&gateway, &Arc::new(with_models(Anthropic)));
    let body = format!(r#"{{"messages":"{}","model":"m"}}"#, "x".repeat(1 << 20));
    client.send(&format!("POST {MESSAGES}"), "", &body).await;
    upstream.asked().await;
    assert_eq!(budget.free(), (4 << 20) - body.len() as u64);
    go_on.notify_one();
    assert_eq!(client.reply().await.status, 200);
    until_free(&budget, 4 << 20).await;
}
