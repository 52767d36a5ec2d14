//! Token budgets: what is reserved before a request, and what is charged after it.

use crate::gateway::{
    client::{Budget, Client, MESSAGES, RESPONSES, Reply, gateway, with_budget},
    upstream::{LAST_CHUNK, Step, Upstream, chunk, chunked, nowhere, whole},
};
use futures::future::join_all;
use seawall_api::AccountId;
use seawall_core::{
    agents::ModelApi::{self, Anthropic, OpenAi},
    ports::gateway::Access,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

const CHAT: &str = "/openai/v1/chat/completions";
const JSON: &str = "content-type: application/json\r\n";

/// An answer of 100 tokens.
const MESSAGE: &str = r#"{"usage":{"input_tokens":20,"cache_read_input_tokens":10,"cache_creation_input_tokens":10,"output_tokens":60}}"#;

/// 32 bytes, so 16 tokens, and 84 of an answer: 100.
const ASK: &str = r#"{"model":"m-1","max_tokens": 84}"#;

const START: &str = concat!(
    "event: message_start\n",
    r#"data: {"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}"#,
    "\n\n",
);
const END: &str = concat!(
    "event: message_delta\n",
    r#"data: {"type":"message_delta","delta":{},"usage":{"output_tokens":5}}"#,
    "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

fn answering(body: &str) -> Vec<Step> {
    vec![Step::Send(whole("200 OK", JSON, body))]
}

/// Answers only when told to.
fn held(go: &Arc<Notify>, body: &str) -> Vec<Step> {
    let mut steps = vec![Step::Wait(go.clone())];
    steps.extend(answering(body));
    steps
}

struct Account {
    budget: Budget,
    id: AccountId,
}

impl Account {
    fn new(per_day: u64) -> Account {
        Account { budget: Budget::new(Some(per_day)), id: AccountId::generate() }
    }

    /// A new turn of the account.
    fn turn(&self, api: ModelApi) -> Arc<Access> {
        Arc::new(with_budget(api, &self.budget, self.id))
    }

    async fn charged(&self) -> u64 {
        self.budget.charged(self.id).await
    }

    /// One request of a turn that is over then.
    async fn ask(&self, upstream: &Upstream, api: ModelApi, path: &str, body: &str) -> Reply {
        let access = self.turn(api);
        let mut client = Client::connect(&gateway(&upstream.url()), &access);
        let reply = client.ask(&format!("POST {path}"), body).await;
        client.hang_up().await;
        access.models.as_ref().unwrap().tokens.close().await.unwrap();
        reply
    }
}

fn count(replies: &[Reply], status: u16) -> usize {
    replies.iter().filter(|reply| reply.status == status).count()
}

/// 20 turns at the same time, and 10 requests of one at the same time: the day's budget holds. The answers are all
/// in flight at once, so that none is charged before the last was asked.
#[tokio::test]
async fn k8_turns_and_requests_in_parallel_never_use_more_than_a_day_has() {
    for turns in [20, 1] {
        let account = Account::new(550);
        let go = Arc::new(Notify::new());
        let mut upstream = Upstream::start(held(&go, MESSAGE)).await;
        let gateway = gateway(&upstream.url());
        let all: Vec<_> = (0..turns).map(|_| account.turn(Anthropic)).collect();
        let asks: Vec<_> = all
            .iter()
            .cycle()
            .take(20)
            .map(|access| {
                let mut client = Client::connect(&gateway, access);
                tokio::spawn(async move { client.ask(&format!("POST {MESSAGES}"), ASK).await })
            })
            .collect();
        for _ in 0..5 {
            upstream.asked().await;
        }
        // All others are refused while these five wait.
        while asks.iter().filter(|ask| ask.is_finished()).count() < 15 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        upstream.expect_none();
        assert_eq!(account.charged().await, 500);
        for _ in 0..5 {
            go.notify_one();
        }
        let replies: Vec<Reply> = join_all(asks).await.into_iter().map(Result::unwrap).collect();
        assert_eq!((count(&replies, 200), count(&replies, 429)), (5, 15), "{turns} turns");
        assert_eq!(account.charged().await, 500);
        let used: u64 = all.iter().map(|access| access.meter.so_far().usage.output_tokens).sum();
        assert_eq!(used, 300);
        // Of another account nothing is taken.
        let other = Account { budget: account.budget, id: AccountId::generate() };
        go.notify_one();
        assert_eq!(other.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 200);
    }
}

#[tokio::test]
async fn k8_a_refusal_tells_the_limit_its_value_and_what_is_used() {
    let upstream = Upstream::start(answering(MESSAGE)).await;
    for (api, path, kind, code) in [
        (Anthropic, MESSAGES, "rate_limit_error", None),
        (OpenAi, CHAT, "insufficient_quota", Some("insufficient_quota")),
    ] {
        let account = Account::new(150);
        account.ask(&upstream, Anthropic, MESSAGES, ASK).await;
        let reply = account.ask(&upstream, api, path, ASK).await;
        assert_eq!((reply.status, reply.header("x-should-retry")), (429, Some("false")));
        let error = &reply.json()["error"];
        assert_eq!((error["type"].as_str(), error["code"].as_str()), (Some(kind), code), "{error}");
        assert_eq!(error["limit"], "tokens_per_day");
        assert_eq!((error["value"].as_u64(), error["used"].as_u64()), (Some(150), Some(100)));
        let message = error["message"].as_str().unwrap();
        for part in ["`tokens_per_day` is 150", "100 are used", "may need 100", "midnight UTC"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// What requests in flight have reserved may come back: a client may try again.
#[tokio::test]
async fn a_request_that_waits_for_others_is_told_to_try_again() {
    let go = Arc::new(Notify::new());
    let mut upstream = Upstream::start(held(&go, MESSAGE)).await;
    let account = Account::new(150);
    let gateway = gateway(&upstream.url());
    let mut first = Client::connect(&gateway, &account.turn(Anthropic));
    first.send(&format!("POST {MESSAGES}"), "", ASK).await;
    upstream.asked().await;
    for (api, path, code) in [(Anthropic, MESSAGES, None), (OpenAi, CHAT, Some("rate_limit_exceeded"))] {
        let reply = account.ask(&upstream, api, path, ASK).await;
        assert_eq!((reply.status, reply.header("retry-after")), (429, Some("5")));
        assert_eq!(reply.header("x-should-retry"), None);
        let error = &reply.json()["error"];
        assert_eq!((error["code"].as_str(), error["reserved"].as_u64()), (code, Some(100)), "{error}");
    }
    go.notify_one();
    assert_eq!(first.reply().await.status, 200);
}

/// What was not used comes back when the answer has passed.
#[tokio::test]
async fn what_an_answer_did_not_use_is_given_back() {
    let upstream = Upstream::start(answering(r#"{"usage":{"input_tokens":3,"output_tokens":7}}"#)).await;
    let account = Account::new(120);
    for times in 1..=3 {
        assert_eq!(account.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 200);
        assert_eq!(account.charged().await, 10 * times);
    }
    assert_eq!(account.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 429, "30 and 100 are too many");
}

/// An answer that used more than was reserved is charged in full, and nothing goes out after it.
#[tokio::test]
async fn more_than_was_reserved_is_charged_too() {
    let mut upstream =
        Upstream::start(answering(r#"{"usage":{"input_tokens":900,"output_tokens":7}}"#)).await;
    let account = Account::new(500);
    assert_eq!(account.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 200);
    upstream.asked().await;
    assert_eq!(account.charged().await, 907);
    assert_eq!(account.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 429);
    upstream.expect_none();
}

#[tokio::test]
async fn what_costs_nothing_takes_nothing() {
    let account = Account::new(150);
    let free = [
        ("POST /anthropic/v1/messages/count_tokens", "200 OK", r#"{"input_tokens":9999}"#),
        ("GET /anthropic/v1/models", "200 OK", r#"{"usage":{"input_tokens":9999}}"#),
        // Refused by the API.
        ("POST /anthropic/v1/messages", "400 Bad Request", "{}"),
        ("POST /anthropic/v1/messages", "529 Overloaded", "{}"),
        ("POST /anthropic/v1/messages", "401 Unauthorized", "{}"),
        ("POST /anthropic/v1/messages", "302 Found", "{}"),
    ];
    for (line, status, body) in free {
        let upstream = Upstream::answering(status, JSON, body).await;
        let mut client = Client::connect(&gateway(&upstream.url()), &account.turn(Anthropic));
        let body = if line.starts_with("GET") { "" } else { ASK };
        client.ask(line, body).await;
        assert_eq!(account.charged().await, 0, "{line} {status}");
    }
    // Never sent.
    let mut client = Client::connect(&gateway(&nowhere().await), &account.turn(Anthropic));
    assert_eq!(client.ask(&format!("POST {MESSAGES}"), ASK).await.status, 502);
    assert_eq!(account.charged().await, 0);
    // A used-up budget refuses none of what is free.
    let used_up = Account::new(0);
    let upstream = Upstream::answering("200 OK", JSON, r#"{"input_tokens":9}"#).await;
    let counted = used_up.ask(&upstream, Anthropic, "/anthropic/v1/messages/count_tokens", ASK).await;
    assert_eq!(counted.status, 200);
    assert_eq!(used_up.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 429);
}

/// What the API does for an answer that is not read to its end is not known.
#[tokio::test]
async fn k8_an_answer_that_breaks_off_costs_what_it_could_have_used() {
    let start = [chunked("text/event-stream"), chunk(START.as_bytes())].concat();
    let before_head = vec![Step::Hang];
    let silent = vec![Step::Send(chunked("text/event-stream")), Step::Hang];
    let begun = vec![Step::Send(start.clone()), Step::Hang];
    let ended = vec![Step::Send([start, chunk(END.as_bytes())].concat()), Step::Hang];
    for (script, parts, charged) in [
        (before_head, None, 100),
        (silent, Some(0), 100),
        // Its input is known.
        (begun, Some(1), 25 + 84),
        // All that matters was told: clients do not wait for the end of the body.
        (ended, Some(2), 25 + 5),
    ] {
        let mut upstream = Upstream::start(script).await;
        let account = Account::new(1000);
        // As its turn does, until all is charged.
        let access = account.turn(Anthropic);
        let mut client = Client::connect(&gateway(&upstream.url()), &access);
        client.send(&format!("POST {MESSAGES}"), "", ASK).await;
        upstream.asked().await;
        if let Some(parts) = parts {
            client.head().await;
            for _ in 0..parts {
                client.part().await.unwrap().unwrap();
            }
        }
        client.hang_up().await;
        assert_eq!(account.charged().await, charged);
    }
    // An answer that tells nothing costs the same.
    let upstream = Upstream::start(answering(r#"{"content":[]}"#)).await;
    let account = Account::new(1000);
    assert_eq!(account.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 200);
    assert_eq!(account.charged().await, 100);
    // Also a stream that ends before it tells.
    let cut = [chunked("text/event-stream"), chunk(START.as_bytes()), LAST_CHUNK.to_vec()].concat();
    let upstream = Upstream::start(vec![Step::Send(cut)]).await;
    assert_eq!(account.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 200);
    assert_eq!(account.charged().await, 100 + 25 + 84);
}

/// Codex names no bound: it gets one that fits what is left.
#[tokio::test]
async fn k8_a_request_without_a_bound_gets_one() {
    let body = r#"{"model":"m-1","input":"hello"}"#;
    let input = body.len() as u64 / 2 + 1;
    for (per_day, bound) in [(1_000_000, 32 << 10), (100, 100 - input)] {
        let mut upstream =
            Upstream::start(answering(r#"{"usage":{"input_tokens":2,"output_tokens":3}}"#)).await;
        let account = Account::new(per_day);
        assert_eq!(account.ask(&upstream, OpenAi, RESPONSES, body).await.status, 200);
        let asked = upstream.asked().await;
        let json: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
        assert_eq!(json["max_output_tokens"], bound);
        assert_eq!((json["model"].as_str(), json["input"].as_str()), (Some("m-1"), Some("hello")));
        assert_eq!(asked.all("content-length"), [asked.body.len().to_string()]);
        assert_eq!(account.charged().await, 5);
    }
    // Nothing is left for an answer.
    let upstream = Upstream::start(answering("{}")).await;
    assert_eq!(Account::new(input).ask(&upstream, OpenAi, RESPONSES, body).await.status, 429);
    // Without a limit a request passes as it is, and is counted.
    let mut upstream = Upstream::start(answering(r#"{"usage":{"input_tokens":2,"output_tokens":3}}"#)).await;
    let account = Account { budget: Budget::new(None), id: AccountId::generate() };
    assert_eq!(account.ask(&upstream, OpenAi, RESPONSES, body).await.status, 200);
    assert_eq!(upstream.asked().await.body, body.as_bytes());
    assert_eq!(account.charged().await, 5);
}

/// Answers of one request are many: each may have as much as the request says.
#[tokio::test]
async fn every_answer_of_a_request_is_reserved() {
    let mut upstream = Upstream::start(answering("{}")).await;
    let body = r#"{"model":"m","max_completion_tokens":50,"n":20}"#;
    assert_eq!(Account::new(1000).ask(&upstream, OpenAi, CHAT, body).await.status, 429);
    upstream.expect_none();
    assert_eq!(Account::new(1100).ask(&upstream, OpenAi, CHAT, body).await.status, 200);
}

/// Input that the API fetches cannot be estimated: one such request at a time, where a budget is small.
#[tokio::test]
async fn requests_that_cannot_be_estimated_reserve_all_that_is_left() {
    let go = Arc::new(Notify::new());
    let mut upstream = Upstream::start(held(&go, MESSAGE)).await;
    let account = Account::new(1000);
    let body = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":"https://x/big.pdf"}}]}]}"#;
    let mut first = Client::connect(&gateway(&upstream.url()), &account.turn(Anthropic));
    first.send(&format!("POST {MESSAGES}"), "", body).await;
    upstream.asked().await;
    assert_eq!(account.charged().await, 1000);
    assert_eq!(account.ask(&upstream, Anthropic, MESSAGES, ASK).await.status, 429);
    go.notify_one();
    assert_eq!(first.reply().await.status, 200);
    assert_eq!(account.charged().await, 100);
}
