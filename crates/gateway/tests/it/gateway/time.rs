//! Nobody is waited for without an end. Time is held once the request is there, and then runs by itself.

use crate::gateway::{
    client::{Client, MESSAGES, gateway, usage, with_models},
    upstream::{Step, Upstream, chunk, chunked},
};
use seawall_core::agents::ModelApi::Anthropic;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

const A_DAY: Duration = Duration::from_secs(86_400);
const EVENT: &[u8] = b"data: {\"usage\":{\"input_tokens\":4,\"output_tokens\":5}}\n\n";

#[tokio::test]
async fn an_api_that_never_answers() {
    let mut upstream = Upstream::start(vec![Step::Hang]).await;
    let mut client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(Anthropic)));
    client.patience = A_DAY;
    client.send(&format!("POST {MESSAGES}"), "", r#"{"model":"m"}"#).await;
    upstream.asked().await;
    tokio::time::pause();
    let began = Instant::now();
    let reply = client.reply().await;
    assert_eq!(reply.status, 504);
    assert_eq!(reply.json()["error"]["message"], "Anthropic did not answer within 10 minutes");
    assert!((595..605).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_api_that_falls_silent() {
    let script = vec![Step::Send([chunked("text/event-stream"), chunk(EVENT)].concat()), Step::Hang];
    let upstream = Upstream::start(script).await;
    let access = Arc::new(with_models(Anthropic));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    client.patience = A_DAY;
    client.send(&format!("POST {MESSAGES}"), "", r#"{"model":"m"}"#).await;
    client.head().await;
    assert_eq!(client.part().await.unwrap().unwrap(), EVENT);
    tokio::time::pause();
    let began = Instant::now();
    assert!(client.part().await.is_none());
    assert!((295..305).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    client.hang_up().await;
    assert_eq!(access.meter.so_far().usage, usage(4, 5, 0));
}

#[tokio::test]
async fn a_box_that_never_ends_its_request() {
    let upstream = Upstream::start(vec![Step::Hang]).await;
    let mut client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(Anthropic)));
    client.patience = A_DAY;
    let head = format!("POST {MESSAGES} HTTP/1.1\r\nhost: box\r\ncontent-length: 100\r\n\r\n{{");
    client.write(head.as_bytes()).await;
    tokio::time::pause();
    assert_eq!(client.reply().await.status, 408);
}

/// A byte now and then keeps no body for longer than its time.
#[tokio::test]
async fn k5_a_box_that_sends_its_request_slowly() {
    let upstream = Upstream::start(vec![Step::Hang]).await;
    let client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_models(Anthropic)));
    let (mut reader, mut writer) = tokio::io::split(client.into_connection());
    tokio::time::pause();
    let began = Instant::now();
    let head = format!("POST {MESSAGES} HTTP/1.1\r\nhost: box\r\ncontent-length: 1000\r\n\r\n");
    let writing = tokio::spawn(async move {
        writer.write_all(head.as_bytes()).await.unwrap();
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    });
    let mut answer = [0; 12];
    reader.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert!((295..305).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    writing.abort();
}
