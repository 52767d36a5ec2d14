//! What reaches the model APIs, and what comes back.

use crate::gateway::{
    client::{
        ANTHROPIC_KEY, Client, MESSAGES, OPENAI_KEY, RESPONSES, Reply, access, gateway, with_git, with_models,
    },
    upstream::{Upstream, nowhere},
};
use seawall_api::ErrorKind;
use seawall_core::{
    agents::ModelApi::{self, Anthropic, OpenAi},
    ports::gateway::{Access, Gateway},
};
use seawall_gateway::{GatewaySettings, HttpGateway};
use std::sync::Arc;

/// What a box might say to be somebody else, or to confuse whoever reads it.
const TRICKS: &str = "authorization: Bearer of-the-box\r\nx-api-key: of-the-box\r\napi-key: of-the-box\r\n\
    cookie: of-the-box\r\nproxy-authorization: Basic of-the-box\r\nx-forwarded-for: of-the-box\r\n\
    x-forwarded-host: of-the-box\r\nforwarded: of-the-box\r\naccept-encoding: gzip\r\nx-hop: of-the-box\r\n\
    connection: keep-alive, x-hop\r\nkeep-alive: of-the-box\r\nte: trailers\r\nopenai-organization: of-the-box\r\n\
    x-original-url: /v1/of-the-box\r\nx-rewrite-url: /v1/of-the-box\r\nx-http-method-override: of-the-box\r\n\
    x-host: of-the-box\r\nx-real-ip: of-the-box\r\nidempotency-key: of-the-box\r\nx-unknown: of-the-box\r\n";

async fn ask(base_url: &str, access: Access, line: &str, body: &str) -> Reply {
    Client::connect(&gateway(base_url), &Arc::new(access)).ask(line, body).await
}

fn assert_no_key(reply: &Reply) {
    let whole = format!("{reply:?}");
    assert!(!whole.contains("very-secret") && !whole.contains("ghs_"), "{whole}");
}

/// The message of an error, in the API's own shape.
fn message(api: ModelApi, reply: &Reply) -> String {
    let json = reply.json();
    match api {
        Anthropic => assert_eq!(json["type"], "error", "{json}"),
        OpenAi => assert!(json["error"].get("code").is_some(), "{json}"),
    }
    assert!(json["error"]["type"].is_string(), "{json}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_no_key(reply);
    json["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn requests_pass_with_our_key_alone() {
    let body = r#"{"model":"some-model","messages":[]}"#;
    let bearer = format!("Bearer {OPENAI_KEY}");
    for (api, line, header, key) in [
        (Anthropic, "POST /anthropic/v1/messages?beta=true", "x-api-key", ANTHROPIC_KEY),
        (Anthropic, "POST /anthropic/v1/messages/count_tokens", "x-api-key", ANTHROPIC_KEY),
        (OpenAi, "POST /openai/v1/responses", "authorization", bearer.as_str()),
        (OpenAi, "POST /openai/v1/chat/completions", "authorization", bearer.as_str()),
    ] {
        let mut upstream = Upstream::answering("200 OK", "", "{}").await;
        let mut client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(api)));
        let headers = format!("{TRICKS}anthropic-version: 2023-06-01\r\nuser-agent: agent/1\r\n");
        client.send(line, &headers, body).await;
        assert_eq!(client.reply().await.status, 200, "{line}");

        let asked = upstream.asked().await;
        let path = line.replace("/anthropic", "").replace("/openai", "");
        assert_eq!(asked.line, format!("{path} HTTP/1.1"));
        assert_eq!(asked.all(header), [key], "{line}");
        assert_eq!(asked.all("host"), [upstream.address.to_string()]);
        assert_eq!(asked.all("accept-encoding"), ["identity"]);
        assert_eq!(asked.all("anthropic-version"), ["2023-06-01"]);
        assert_eq!(asked.all("user-agent"), ["agent/1"]);
        assert_eq!(asked.all("content-length"), [body.len().to_string()]);
        assert_eq!(asked.body, body.as_bytes());
        let all = format!("{:?}", asked.headers);
        assert!(!all.contains("of-the-box") && !all.contains("x-hop"), "{all}");
    }
}

#[tokio::test]
async fn models_can_be_listed() {
    for (api, path) in [
        (Anthropic, "/anthropic/v1/models?limit=1000"),
        (Anthropic, "/anthropic/v1/models/claude-opus-4-1"),
        (OpenAi, "/openai/v1/models"),
    ] {
        let mut upstream = Upstream::answering("200 OK", "", "[]").await;
        let mut client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(api)));
        // The body of a GET goes nowhere, and nothing says that it does.
        client.send(&format!("GET {path}"), "", "smuggled").await;
        assert_eq!(client.reply().await.body, "[]");
        let asked = upstream.asked().await;
        let path = path.replace("/anthropic", "").replace("/openai", "");
        assert_eq!(asked.line, format!("GET {path} HTTP/1.1"));
        assert!(asked.body.is_empty() && asked.all("content-length").is_empty(), "{asked:?}");
    }
}

#[tokio::test]
async fn answers_pass_without_what_is_not_for_boxes() {
    let headers = "content-type: application/json\r\nset-cookie: session=1\r\nrequest-id: req_1\r\n\
                   retry-after: 7\r\nanthropic-organization-id: org\r\nx-ratelimit-remaining-tokens: 5\r\n";
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let upstream = Upstream::answering("529 Site Overloaded", headers, body).await;
    let reply =
        ask(&upstream.url(), with_models(Anthropic), &format!("POST {MESSAGES}"), r#"{"model":"m"}"#).await;
    assert_eq!((reply.status, reply.body.as_str()), (529, body));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("request-id"), Some("req_1"));
    assert_eq!(reply.header("retry-after"), Some("7"));
    assert_eq!(reply.header("x-ratelimit-remaining-tokens"), Some("5"));
    assert_eq!(reply.header("set-cookie"), None);
    assert_eq!(reply.header("anthropic-organization-id"), None);
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    let access = Arc::new(with_models(Anthropic));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    for _ in 0..5 {
        assert_eq!(client.ask(&format!("POST {MESSAGES}"), r#"{"model":"m"}"#).await.status, 200);
        upstream.asked().await;
        assert_eq!(client.ask("GET /", "").await.status, 404);
    }
    client.hang_up().await;
    assert_eq!(access.meter.so_far().requests, 5);
}

#[tokio::test]
async fn only_what_is_in_the_table_is_reached() {
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    for (api, line, offered) in [
        (Anthropic, "GET /anthropic/v1/messages", "POST /v1/messages"),
        (Anthropic, "POST /anthropic/v1/messages/batches", "POST /v1/messages"),
        (Anthropic, "POST /anthropic/v1/messages/../files", "POST /v1/messages"),
        (Anthropic, "POST /anthropic/v1//messages", "POST /v1/messages"),
        (Anthropic, "POST /anthropic/v1/%6dessages", "POST /v1/messages"),
        (Anthropic, "DELETE /anthropic/v1/models", "GET /v1/models"),
        (Anthropic, "HEAD /anthropic/", "GET /v1/models"),
        (OpenAi, "POST /openai/v1/embeddings", "POST /v1/responses"),
        (OpenAi, "GET /openai/v1/responses/resp_1", "POST /v1/responses"),
        (OpenAi, "POST /openai/v1/messages", "POST /v1/chat/completions"),
    ] {
        let mut client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(api)));
        client.send(line, "", "").await;
        if line.starts_with("HEAD") {
            assert_eq!(client.head().await.status, 404);
            continue;
        }
        let reply = client.reply().await;
        assert_eq!(reply.status, 404, "{line}");
        assert!(message(api, &reply).contains(offered), "{line}: {}", reply.body);
    }
    upstream.expect_none();
}

#[tokio::test]
async fn everything_else_is_told_what_this_is() {
    let upstream = Upstream::answering("200 OK", "", "{}").await;
    for line in
        ["GET /", "GET /metrics", "POST /v1/messages", "GET //anthropic/v1/models", "GET /anthropicx/v1"]
    {
        let reply = ask(&upstream.url(), with_models(Anthropic), line, "").await;
        assert_eq!(reply.status, 404, "{line}");
        assert!(reply.body.starts_with("seawall: this port leads to /anthropic"), "{}", reply.body);
    }
}

#[tokio::test]
async fn an_api_is_for_sandboxes_that_may_use_it() {
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    let git = with_git(&upstream);
    for (api, path, access) in [
        (Anthropic, MESSAGES, access()),
        (Anthropic, MESSAGES, git),
        (Anthropic, MESSAGES, with_models(OpenAi)),
        (OpenAi, RESPONSES, with_models(Anthropic)),
    ] {
        let reply = ask(&upstream.url(), access, &format!("POST {path}"), r#"{"model":"m"}"#).await;
        assert_eq!(reply.status, 403);
        assert!(message(api, &reply).contains("may not use"), "{}", reply.body);
    }
    upstream.expect_none();
}

#[tokio::test]
async fn a_missing_key_is_told_with_what_to_do() {
    let gateway = HttpGateway::new(GatewaySettings::default()).unwrap();
    for (api, path, words) in [
        (Anthropic, MESSAGES, "set ANTHROPIC_API_KEY or [models.anthropic] key in seawall.toml"),
        (OpenAi, RESPONSES, "set OPENAI_API_KEY or [models.openai] key in seawall.toml"),
    ] {
        let mut client = Client::connect(&gateway, &Arc::new(with_models(api)));
        let reply = client.ask(&format!("POST {path}"), r#"{"model":"m"}"#).await;
        assert_eq!(reply.status, 503);
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        assert!(message(api, &reply).contains(words), "{}", reply.body);
        let error = gateway.check(api).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn an_own_server_may_need_no_key() {
    let mut upstream = Upstream::answering("200 OK", "", "{}").await;
    let mut settings = GatewaySettings::default();
    settings.openai.base_url = format!("{}/proxy/v1/", upstream.url());
    let gateway = HttpGateway::new(settings).unwrap();
    gateway.check(OpenAi).unwrap();
    let mut client = Client::connect(&gateway, &Arc::new(with_models(OpenAi)));
    client.send(&format!("POST {RESPONSES}"), TRICKS, r#"{"model":"m"}"#).await;
    assert_eq!(client.reply().await.status, 200);
    let asked = upstream.asked().await;
    assert_eq!(asked.line, "POST /proxy/v1/responses HTTP/1.1");
    assert!(asked.all("authorization").is_empty());
}

#[tokio::test]
async fn an_api_that_is_down_is_a_clear_error() {
    let reply =
        ask(&nowhere().await, with_models(Anthropic), &format!("POST {MESSAGES}"), r#"{"model":"m"}"#).await;
    assert_eq!(reply.status, 502);
    assert!(message(Anthropic, &reply).contains("Anthropic cannot be reached"), "{}", reply.body);
    // It may be up again soon.
    assert_eq!(reply.header("x-should-retry"), None);

    let silent = Upstream::start(Vec::new()).await;
    let reply =
        ask(&silent.url(), with_models(OpenAi), &format!("POST {RESPONSES}"), r#"{"model":"m"}"#).await;
    assert_eq!(reply.status, 502);
    assert!(message(OpenAi, &reply).contains("OpenAI broke off"), "{}", reply.body);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let mut elsewhere = Upstream::answering("200 OK", "", "{}").await;
    for status in ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"] {
        let location = format!("location: {}/v1/messages\r\n", elsewhere.url());
        let upstream = Upstream::answering(status, &location, "").await;
        let line = format!("POST {MESSAGES}");
        let reply = ask(&upstream.url(), with_models(Anthropic), &line, r#"{"model":"m"}"#).await;
        assert_eq!(reply.status, 502, "{status}");
        assert!(message(Anthropic, &reply).contains("redirect"), "{}", reply.body);
        assert_eq!(reply.header("location"), None);
    }
    elsewhere.expect_none();
}

#[tokio::test]
async fn an_api_that_quotes_our_key_is_not_passed_on() {
    let quoting = format!(r#"{{"error":{{"message":"Incorrect API key provided: {OPENAI_KEY}."}}}}"#);
    let upstream = Upstream::answering("401 Unauthorized", "", &quoting).await;
    for (api, path) in [(Anthropic, MESSAGES), (OpenAi, RESPONSES)] {
        let reply = ask(&upstream.url(), with_models(api), &format!("POST {path}"), r#"{"model":"m"}"#).await;
        assert_eq!(reply.status, 401);
        assert!(message(api, &reply).contains("does not take the server's key"), "{}", reply.body);
    }
}

#[tokio::test]
async fn what_cannot_be_counted_is_not_passed_on() {
    let upstream = Upstream::answering("200 OK", "content-encoding: gzip\r\n", "??").await;
    let reply =
        ask(&upstream.url(), with_models(OpenAi), &format!("POST {RESPONSES}"), r#"{"model":"m"}"#).await;
    assert_eq!(reply.status, 502);
    assert!(message(OpenAi, &reply).contains("compressed"), "{}", reply.body);
}
