//! What fuzz targets do with bytes of a box, and with bytes of an API: requests, their heads, and answers.
//!
//! Each function panics where a promise is broken, and returns otherwise. `fuzz/` runs them on whatever libFuzzer
//! makes, and `tests/fuzz.rs` on the corpora that are kept there.

use crate::{
    HttpGateway,
    ask::Ask,
    count::Counter,
    estimate::{Estimate, Limit},
    git, headers, models,
    settings::GatewaySettings,
};
use bytes::Bytes;
use hyper::{
    HeaderMap, Method, Uri,
    header::{HeaderName, HeaderValue},
};
use seawall_api::{AccountId, SandboxId, TurnId, conversation::Usage};
use seawall_core::{
    agents::ModelApi,
    ports::{
        SystemClock,
        gateway::{Access, Gateway as _, GitAccess, ModelAccess, Secret},
    },
    testing::MemoryStore,
    tokens::{TokenLedger, TokenLimits},
};
use serde_json::Value;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// What a request without a bound may have of an answer.
const MOST_OUTPUT: u64 = 32 << 10;
const REPOSITORY: &str = "http://h.example/o/r.git";

fn api(flag: bool) -> ModelApi {
    if flag { ModelApi::OpenAi } else { ModelApi::Anthropic }
}

/// An answer of a model: its tokens are counted the same wherever it is cut, and no count is beyond reason.
///
/// The first byte chooses the API and whether it is a stream of events, the second where it is cut.
pub fn answers(data: &[u8]) {
    let [flags, cut, answer @ ..] = data else { return };
    let content_type = if flags & 2 == 0 { "application/json" } else { "text/event-stream; charset=utf-8" };
    let count = |parts: &[&[u8]]| {
        let mut counter = Counter::new(api(flags & 1 != 0), Some(content_type));
        let (mut last, mut whole) = (Usage::default(), false);
        for part in parts {
            counter.feed(part);
            let now = counter.usage();
            // Output only grows. Input of OpenAI can become cache.
            assert!(now.output_tokens >= last.output_tokens && counter.is_whole() >= whole);
            (last, whole) = (now, counter.is_whole());
        }
        assert!(last == last.capped());
        (last, whole)
    };
    let whole = count(&[answer]);
    let (before, after) = answer.split_at(usize::from(*cut).min(answer.len()));
    assert_eq!(count(&[before, after]), whole, "cut at {cut}");
    assert_eq!(count(&answer.chunks(1).collect::<Vec<_>>()), whole, "in single bytes");
}

/// The body of a request: what is let through is what an API reads too, and a bound that is added changes nothing
/// else.
pub fn asks(data: &[u8]) {
    let Ok(ask) = Ask::parse(data) else { return };
    assert!((1..=200).contains(&ask.model.len()) && ask.model.bytes().all(|byte| byte.is_ascii_graphic()));
    // What is nested too deeply for this reader may be for others too.
    let Ok(body) = serde_json::from_slice::<Value>(data) else { return };
    assert_eq!(body["model"], ask.model.as_str());
    for (limit, field) in [
        (Limit::Messages, "max_tokens"),
        (Limit::Responses, "max_output_tokens"),
        (Limit::Chat, "max_completion_tokens"),
    ] {
        let Ok(estimate) = Estimate::new(data, &ask, limit) else { continue };
        let (least, most) = estimate.wanted(MOST_OUTPUT);
        assert!(least <= most && estimate.input <= least);
        for reserved in [least, least + (most - least) / 2, most] {
            let output = estimate.output(reserved, MOST_OUTPUT);
            assert!(estimate.input.saturating_add(output) <= reserved, "{output} of {reserved}");
            let bounded = estimate.bounded_body(Bytes::copy_from_slice(data), &ask, output);
            let Ok(again) = Ask::parse(&bounded) else { panic!("a body that was bounded cannot be read") };
            assert_eq!(again.model, ask.model);
            let Ok(mut sent) = serde_json::from_slice::<Value>(&bounded) else { panic!("it is no JSON") };
            let bound = sent[field].as_u64().or(sent["max_tokens"].as_u64());
            assert!(bound.is_some(), "it has no bound");
            // Beside the bound nothing has changed.
            let mut before = body.clone();
            for value in [&mut sent, &mut before] {
                value.as_object_mut().into_iter().for_each(|fields| drop(fields.remove(field)));
            }
            assert_eq!(sent, before);
        }
    }
}

/// A head: whatever a box sends over a connection is answered with a refusal, and nothing is reached but what is in
/// the table.
pub fn heads(data: &[u8]) {
    let Some((&flags, connection)) = data.split_first() else { return };
    let api = api(flags & 1 != 0);
    let text = String::from_utf8_lossy(connection);
    let mut lines = text.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    if let (Ok(method), Ok(uri)) =
        (first.next().unwrap_or_default().parse::<Method>(), first.next().unwrap_or_default().parse::<Uri>())
    {
        reached(api, flags & 2 != 0, &method, &uri);
    }
    let mut sent = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.trim().as_bytes()), HeaderValue::from_str(value.trim()))
        {
            sent.append(name, value);
        }
    }
    passed(&sent);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()
    else {
        return;
    };
    let answer = runtime.block_on(serve(connection, api, flags & 2 != 0));
    // What was no request gets no answer, and the first one a refusal: there is no key, and no such repository.
    let answer = answer.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&answer);
    // The minor version is the one of the request.
    let refused = answer.starts_with(b"HTTP/1.") && matches!(answer.get(8..10), Some(b" 4" | b" 5"));
    assert!(answer.is_empty() || refused, "{}", answer.escape_ascii());
    assert!(!String::from_utf8_lossy(answer).contains("ghs_secret"));
}

fn reached(api: ModelApi, may_push: bool, method: &Method, uri: &Uri) {
    const MODELS: [(&str, &str); 6] = [
        ("POST", "/anthropic/v1/messages"),
        ("POST", "/anthropic/v1/messages/count_tokens"),
        ("GET", "/anthropic/v1/models"),
        ("POST", "/openai/v1/responses"),
        ("POST", "/openai/v1/chat/completions"),
        ("GET", "/openai/v1/models"),
    ];
    if models::reached(api, method, uri) {
        let path = uri.path();
        let one = path.strip_prefix("/anthropic/v1/models/").filter(|model| !model.is_empty());
        let known = MODELS.contains(&(method.as_str(), path));
        let tame =
            |model: &str| !model.contains(['/', '%', '?', '\\']) && !model.trim_matches('.').is_empty();
        assert!(known || (method == Method::GET && one.is_some_and(tame)), "{method} {uri}");
    }
    let git = GitAccess { url: REPOSITORY.to_owned(), token: None, may_push };
    if let Some(url) = git::reached(&git, method, uri) {
        let rest = url.strip_prefix(REPOSITORY).unwrap_or("nowhere");
        let push = ["/info/refs?service=git-receive-pack", "/git-receive-pack"].contains(&rest);
        let fetch = ["/info/refs?service=git-upload-pack", "/git-upload-pack"].contains(&rest);
        assert!(fetch || (push && may_push), "{uri} leads to {url}");
        assert!(uri.path().starts_with("/git/h.example/o/r"), "{uri}");
    }
}

/// No header passes that is a credential, is of one connection, or is for somebody in between.
fn passed(sent: &HeaderMap) {
    for passed in [headers::to_models(sent), headers::to_git(sent)] {
        for name in passed.keys().map(HeaderName::as_str) {
            let bad = [
                "authorization",
                "cookie",
                "host",
                "connection",
                "transfer-encoding",
                "content-length",
                "te",
            ];
            let odd = [
                "forward",
                "original",
                "rewrite",
                "override",
                "proxy",
                "x-api",
                "real-ip",
                "key",
                "organization",
            ];
            assert!(!bad.contains(&name) && !odd.iter().any(|part| name.contains(part)), "{name}");
        }
        assert_eq!(passed.get_all("accept-encoding").iter().count(), 1);
    }
    for passed in [headers::from_models(sent), headers::from_git(sent)] {
        assert!(
            ["set-cookie", "location", "transfer-encoding"].iter().all(|name| !passed.contains_key(*name))
        );
    }
}

/// What the gateway says to a box that sends these bytes and hangs up.
async fn serve(bytes: &[u8], api: ModelApi, has_git: bool) -> Vec<u8> {
    // Without a key nothing goes out.
    let Ok(gateway) = HttpGateway::new(GatewaySettings::default()) else { return Vec::new() };
    let ledger = TokenLedger::new(Arc::new(MemoryStore::new()), Arc::new(SystemClock));
    let (account, turn) = (AccountId::generate(), TurnId::generate());
    let limits = TokenLimits { per_day: Some(1000), per_month: None };
    let Ok(tokens) = ledger.turn(account, turn, limits) else { return Vec::new() };
    let token = Some(Secret::new("ghs_secret"));
    // Nobody listens there.
    let git = GitAccess { url: "http://127.0.0.1:9/o/r.git".to_owned(), token, may_push: false };
    let access = Access {
        account,
        sandbox: SandboxId::generate(),
        conversation: None,
        turn: Some(turn),
        models: Some(ModelAccess { api, allowed: None, denied: Vec::new(), tokens }),
        git: has_git.then_some(git),
        meter: Arc::default(),
    };
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let written = async {
        // The gateway may have hung up.
        let _ = near.write_all(bytes).await;
        let _ = near.shutdown().await;
        let mut answer = Vec::new();
        let _ = near.read_to_end(&mut answer).await;
        answer
    };
    tokio::join!(written, gateway.serve(Box::new(far), Arc::new(access))).0
}
