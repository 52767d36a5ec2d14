//! Calls to others' servers.

use crate::gateway::upstream::{Upstream, nowhere};
use seawall_api::ErrorKind;
use seawall_core::{
    Error,
    ports::gateway::{Secret, WebhookCall, Webhooks},
};
use seawall_gateway::HttpWebhooks;

fn call(url: &str) -> WebhookCall {
    WebhookCall {
        url: url.to_owned(),
        body: r#"{"type":"turn.finished"}"#.to_owned(),
        secret: Some(Secret::new("whsec_test")),
        id: "msg_1".to_owned(),
        sent_at: 1_767_225_600,
    }
}

async fn failed(url: &str) -> Error {
    HttpWebhooks::new().unwrap().call(&call(url)).await.unwrap_err()
}

#[tokio::test]
async fn a_call_can_be_checked_by_whoever_gets_it() {
    let mut upstream = Upstream::answering("204 No Content", "", "").await;
    let webhooks = HttpWebhooks::new().unwrap();
    let mut call = call(&format!("{}/hooks/1?x=y", upstream.url()));
    webhooks.call(&call).await.unwrap();
    let asked = upstream.asked().await;
    assert_eq!(asked.line, "POST /hooks/1?x=y HTTP/1.1");
    assert_eq!(asked.body, call.body.as_bytes());
    assert_eq!(asked.all("content-type"), ["application/json"]);
    assert_eq!(asked.all("seawall-id"), ["msg_1"]);
    assert_eq!(asked.all("seawall-timestamp"), ["1767225600"]);
    // Computed by another program.
    let signature = "v1=baf454063cbdcd651aa2b3e572519dd039d3c69f5f5a8e6d1c23bd9e1352bc1b";
    assert_eq!(asked.all("seawall-signature"), [signature]);

    call.secret = None;
    webhooks.call(&call).await.unwrap();
    assert!(upstream.asked().await.all("seawall-signature").is_empty());
}

#[tokio::test]
async fn a_receiver_that_fails_is_tried_again() {
    let body = format!("first line\nsecond line {}", "ä".repeat(500));
    for status in ["500 Internal Server Error", "404 Not Found", "429 Too Many Requests"] {
        let upstream = Upstream::answering(status, "", &body).await;
        let error = failed(&upstream.url()).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{status}");
        let text = error.to_string();
        assert!(text.contains(&format!("answered {}: first line second line ää", &status[..3])), "{text}");
        assert!(text.chars().count() < 250, "{text}");
    }
    let error = failed(&nowhere().await).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable());
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let mut elsewhere = Upstream::answering("200 OK", "", "").await;
    let location = format!("location: {}\r\n", elsewhere.url());
    let upstream = Upstream::answering("307 Temporary Redirect", &location, "").await;
    let error = failed(&upstream.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("redirect"), "{error}");
    elsewhere.expect_none();
}

#[tokio::test]
async fn what_cannot_be_called_is_not_tried_again() {
    for url in ["", "example.com/hook", "ftp://example.com/", "file:///etc/passwd", "unix:/run/docker.sock"] {
        let error = failed(url).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(!error.is_retryable());
    }
    let upstream = Upstream::answering("200 OK", "", "").await;
    let odd = WebhookCall { id: "a\r\nx-evil: 1".to_owned(), ..call(&upstream.url()) };
    let error = HttpWebhooks::new().unwrap().call(&odd).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn secrets_in_addresses_are_not_told() {
    let upstream = Upstream::answering("500 Oops", "", "").await;
    let there = upstream.address;
    for url in [
        format!("http://user:s3cret@{there}/s3cret?token=s3cret"),
        format!("{}/s3cret?token=s3cret", nowhere().await),
        "gopher://s3cret/".to_owned(),
    ] {
        let error = failed(&url).await;
        assert!(!error.chain().contains("s3cret"), "{}", error.chain());
    }
}
