//! What answers used, wherever they are cut and however they end.

use crate::gateway::{
    client::{Client, MESSAGES, RESPONSES, gateway, usage, with_models},
    upstream::{LAST_CHUNK, Step, Upstream, chunk, chunked, whole},
};
use seawall_api::conversation::Usage;
use seawall_core::{
    agents::ModelApi::{self, Anthropic, OpenAi},
    ports::gateway::Metered,
};
use std::sync::Arc;
use tokio::sync::Notify;

const SSE: &str = "text/event-stream; charset=utf-8";
const CHAT: &str = "/openai/v1/chat/completions";

const MESSAGE_START: &str = concat!(
    "event: message_start\n",
    r#"data: {"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":25,"#,
    r#""cache_creation_input_tokens":7,"cache_read_input_tokens":1000,"output_tokens":1}}}"#,
    "\n\n",
);

const MESSAGE_REST: &str = concat!(
    "event: content_block_delta\n",
    r#"data: {"type":"content_block_delta","delta":{"text":"\n\ndata: {\"usage\":{\"output_tokens\":9}}"}}"#,
    "\n\nevent: message_delta\n",
    r#"data: {"type":"message_delta","delta":{},"usage":{"output_tokens":57}}"#,
    "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

const RESPONSE: &str = concat!(
    "event: response.created\n",
    r#"data: {"type":"response.created","response":{"id":"resp_1","usage":null}}"#,
    "\n\nevent: response.completed\n",
    r#"data: {"type":"response.completed","response":{"id":"resp_1","output":[],"usage":{"#,
    r#""input_tokens":1200,"input_tokens_details":{"cached_tokens":1000},"output_tokens":80,"#,
    r#""output_tokens_details":{"reasoning_tokens":64},"total_tokens":1280},"user":null}}"#,
    "\n\n",
);

const CHAT_STREAM: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n",
    r#"data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":9,"#,
    r#""prompt_tokens_details":{"cached_tokens":20}}}"#,
    "\n\ndata: [DONE]\n\n",
);

fn stream(parts: &[&[u8]]) -> Vec<Step> {
    let mut sent = chunked(SSE);
    for part in parts.iter().filter(|part| !part.is_empty()) {
        sent.extend(chunk(part));
    }
    sent.extend_from_slice(LAST_CHUNK);
    vec![Step::Send(sent)]
}

/// What one request came to, and the body of its answer.
async fn measured(api: ModelApi, path: &str, script: Vec<Step>) -> (Metered, String) {
    let upstream = Upstream::start(script).await;
    let access = Arc::new(with_models(api));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    let reply = client.ask(&format!("POST {path}"), r#"{"model":"m","stream":true}"#).await;
    // It counts before the box knows that the answer is over.
    (access.meter.so_far(), reply.body)
}

fn once(usage: Usage) -> Metered {
    Metered { requests: 1, usage }
}

#[tokio::test]
async fn m3_streams_of_every_kind() {
    let messages = format!("{MESSAGE_START}{MESSAGE_REST}");
    for (api, path, text, expected) in [
        (Anthropic, MESSAGES, messages.as_str(), usage(25, 57, 1007)),
        (OpenAi, RESPONSES, RESPONSE, usage(200, 80, 1000)),
        (OpenAi, CHAT, CHAT_STREAM, usage(30, 9, 20)),
    ] {
        let (metered, body) = measured(api, path, stream(&[text.as_bytes()])).await;
        assert_eq!(metered, once(expected));
        assert_eq!(body, text);
        for size in [1, 3, 64] {
            let parts: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let (metered, body) = measured(api, path, stream(&parts)).await;
            assert_eq!(metered, once(expected), "by {size}");
            assert_eq!(body, text, "by {size}");
        }
    }
}

#[tokio::test]
async fn m3_chunks_that_end_anywhere() {
    let text = RESPONSE.as_bytes();
    for at in (0..text.len()).step_by(5) {
        let (before, after) = text.split_at(at);
        let (metered, body) = measured(OpenAi, RESPONSES, stream(&[before, after])).await;
        assert_eq!(metered, once(usage(200, 80, 1000)), "cut at {at}");
        assert_eq!(body, RESPONSE, "cut at {at}");
    }
}

#[tokio::test]
async fn m3_answers_of_one_piece() {
    let message = r#"{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":6}}"#;
    let response = r#"{"usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":10},
        "output_tokens":6}}"#;
    let chat = r#"{"usage":{"prompt_tokens":30,"completion_tokens":2,"total_tokens":32}}"#;
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"usage"}}"#;
    let counted = "/anthropic/v1/messages/count_tokens";
    for (api, path, status, text, expected) in [
        (Anthropic, MESSAGES, "200 OK", message, usage(3, 6, 4)),
        (OpenAi, RESPONSES, "200 OK", response, usage(20, 6, 10)),
        (OpenAi, CHAT, "200 OK", chat, usage(30, 2, 0)),
        (Anthropic, MESSAGES, "529 Overloaded", error, usage(0, 0, 0)),
        (Anthropic, counted, "200 OK", r#"{"input_tokens":99}"#, usage(0, 0, 0)),
    ] {
        let answer = whole(status, "content-type: application/json\r\n", text);
        let (metered, body) = measured(api, path, vec![Step::Send(answer)]).await;
        assert_eq!(metered, once(expected), "{text}");
        assert_eq!(body, text);
    }
}

#[tokio::test]
async fn the_first_event_arrives_before_the_last_is_made() {
    let go = Arc::new(Notify::new());
    let script = vec![
        Step::Send([chunked(SSE), chunk(MESSAGE_START.as_bytes())].concat()),
        Step::Wait(go.clone()),
        Step::Send([chunk(MESSAGE_REST.as_bytes()), LAST_CHUNK.to_vec()].concat()),
    ];
    let upstream = Upstream::start(script).await;
    let access = Arc::new(with_models(Anthropic));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    client.send(&format!("POST {MESSAGES}"), "", r#"{"model":"m"}"#).await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-type")), (200, Some(SSE)));
    assert_eq!(client.part().await.unwrap().unwrap(), MESSAGE_START.as_bytes());
    // Nothing counts before the end, so that it counts once.
    assert_eq!(access.meter.so_far().usage, Usage::default());
    go.notify_one();
    let mut rest = Vec::new();
    while let Some(part) = client.part().await.unwrap() {
        rest.extend_from_slice(&part);
    }
    assert_eq!(rest, MESSAGE_REST.as_bytes());
    assert_eq!(access.meter.so_far(), once(usage(25, 57, 1007)));
}

#[tokio::test]
async fn m3_what_was_seen_counts_where_the_box_hangs_up() {
    let script = vec![Step::Send([chunked(SSE), chunk(MESSAGE_START.as_bytes())].concat()), Step::Hang];
    let upstream = Upstream::start(script).await;
    let access = Arc::new(with_models(Anthropic));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    client.send(&format!("POST {MESSAGES}"), "", r#"{"model":"m"}"#).await;
    client.head().await;
    client.part().await.unwrap().unwrap();
    client.hang_up().await;
    assert_eq!(access.meter.so_far(), once(usage(25, 1, 1007)));
}

#[tokio::test]
async fn a_box_that_hangs_up_before_the_answer_is_let_go() {
    let mut upstream = Upstream::start(vec![Step::Hang]).await;
    let access = Arc::new(with_models(Anthropic));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    client.send(&format!("POST {MESSAGES}"), "", r#"{"model":"m"}"#).await;
    upstream.asked().await;
    client.hang_up().await;
    assert_eq!(access.meter.so_far(), once(Usage::default()));
}

#[tokio::test]
async fn m3_what_was_seen_counts_where_the_api_breaks_off() {
    let go = Arc::new(Notify::new());
    let sent = [chunked(SSE), chunk(MESSAGE_START.as_bytes())].concat();
    let upstream = Upstream::start(vec![Step::Send(sent), Step::Wait(go.clone())]).await;
    let access = Arc::new(with_models(Anthropic));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    client.send(&format!("POST {MESSAGES}"), "", r#"{"model":"m"}"#).await;
    client.head().await;
    assert_eq!(client.part().await.unwrap().unwrap(), MESSAGE_START.as_bytes());
    go.notify_one();
    // The answer is not made to look whole.
    assert!(client.part().await.is_none());
    client.hang_up().await;
    assert_eq!(access.meter.so_far(), once(usage(25, 1, 1007)));
}

#[tokio::test]
async fn m3_answers_at_the_same_time_add_up() {
    let text = format!("{MESSAGE_START}{MESSAGE_REST}");
    let upstream = Upstream::start(stream(&[text.as_bytes()])).await;
    let access = Arc::new(with_models(Anthropic));
    let gateway = gateway(&upstream.url());
    let asks = (0..20).map(|_| {
        let mut client = Client::connect(&gateway, &access);
        async move { client.ask(&format!("POST {MESSAGES}"), r#"{"model":"m"}"#).await.status }
    });
    assert!(futures::future::join_all(asks).await.into_iter().all(|status| status == 200));
    let expected = Metered { requests: 20, usage: usage(20 * 25, 20 * 57, 20 * 1007) };
    assert_eq!(access.meter.so_far(), expected);
}
