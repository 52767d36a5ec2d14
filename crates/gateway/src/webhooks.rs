//! Calls to others' servers: signed, not redirected, and soon over.

use crate::{settings::is_web, upstream};
use async_trait::async_trait;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::CONTENT_TYPE;
use reqwest::{Client, Request, Response, Url};
use seawall_api::ErrorKind;
use seawall_core::{
    Error, Result,
    ports::gateway::{Secret, WebhookCall, Webhooks},
};
use sha2::Sha256;
use std::{fmt::Write as _, time::Duration};

/// From connecting to the end of the answer.
const LONGEST: Duration = Duration::from_secs(10);
/// How much of an answer is told.
const TOLD: usize = 200;

#[derive(Debug, Clone)]
pub struct HttpWebhooks {
    client: Client,
}

impl HttpWebhooks {
    pub fn new() -> Result<HttpWebhooks> {
        Ok(HttpWebhooks { client: upstream::client()? })
    }

    fn request(&self, url: Url, call: &WebhookCall) -> Result<Request> {
        let mut request = self
            .client
            .post(url)
            .timeout(LONGEST)
            .header(CONTENT_TYPE, "application/json")
            .header("seawall-id", &call.id)
            .header("seawall-timestamp", call.sent_at.to_string());
        if let Some(secret) = &call.secret {
            request = request.header("seawall-signature", signature(secret, call)?);
        }
        let unfit = |error: reqwest::Error| {
            Error::invalid("this call cannot be made: its id is no header").with_source(error.without_url())
        };
        request.body(call.body.clone()).build().map_err(unfit)
    }
}

#[async_trait]
impl Webhooks for HttpWebhooks {
    async fn call(&self, call: &WebhookCall) -> Result<()> {
        let url = address(&call.url)?;
        let place = url.origin().ascii_serialization();
        let request = self.request(url, call)?;
        let response = self.client.execute(request).await.map_err(|error| failure(&place, error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let number = status.as_u16();
        if status.is_redirection() {
            let message = format!("{place} answered {number}, a redirect, which is not followed");
            return Err(Error::unavailable(message));
        }
        let told = beginning(response).await;
        Err(Error::unavailable(format!("{place} answered {number}: {told}")))
    }
}

fn address(text: &str) -> Result<Url> {
    // Without the text and the cause: an address may have a secret in it.
    Url::parse(text.trim()).ok().filter(is_web).ok_or_else(|| {
        Error::invalid("the address of this webhook is none: it must begin with http:// or https://")
    })
}

fn failure(place: &str, error: reqwest::Error) -> Error {
    let (kind, what) = match error.is_timeout() {
        true => (ErrorKind::Timeout, "did not answer in time"),
        false => (ErrorKind::Unavailable, "cannot be reached"),
    };
    Error::new(kind, format!("{place} {what}")).with_source(error.without_url())
}

/// `v1=` and the HMAC-SHA256 of `id.timestamp.body`, in hex.
fn signature(secret: &Secret, call: &WebhookCall) -> Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes())
        .map_err(|_| Error::internal("no signature can be made with this webhook's secret"))?;
    mac.update(format!("{}.{}.", call.id, call.sent_at).as_bytes());
    mac.update(call.body.as_bytes());
    let mut text = String::from("v1=");
    for byte in mac.finalize().into_bytes() {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The beginning of an answer, on one line.
async fn beginning(mut response: Response) -> String {
    let mut bytes = Vec::new();
    // A character has up to four bytes.
    while bytes.len() < 4 * TOLD {
        match response.chunk().await {
            Ok(Some(part)) => bytes.extend_from_slice(&part),
            Ok(None) | Err(_) => break,
        }
    }
    let one_line = |letter: char| if letter.is_control() { ' ' } else { letter };
    String::from_utf8_lossy(&bytes).chars().take(TOLD).map(one_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_that_others_compute_too() {
        let call = WebhookCall {
            url: "https://example.com/hook".into(),
            body: r#"{"type":"turn.finished"}"#.into(),
            secret: Some(Secret::new("whsec_test")),
            id: "msg_1".into(),
            sent_at: 1_767_225_600,
        };
        // printf '%s' 'msg_1.1767225600.{"type":"turn.finished"}' | openssl dgst -sha256 -hmac whsec_test
        assert_eq!(
            signature(call.secret.as_ref().unwrap(), &call).unwrap(),
            "v1=baf454063cbdcd651aa2b3e572519dd039d3c69f5f5a8e6d1c23bd9e1352bc1b"
        );
    }

    #[test]
    fn addresses() {
        for text in ["https://example.com/x?token=1", "http://127.0.0.1:8080", " https://h/x\n"] {
            assert!(address(text).is_ok(), "{text}");
        }
        for text in
            ["", "example.com/hook", "ftp://h/s3cret", "file:///etc/passwd", "javascript:s3cret", "https://"]
        {
            let error = address(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(!error.chain().contains("s3cret"), "{}", error.chain());
        }
    }
}
