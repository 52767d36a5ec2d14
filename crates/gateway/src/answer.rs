//! Answers of our own: refusals, in the words that whoever asked understands.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER},
};
use seawall_core::{agents::ModelApi, tokens::LimitReached};
use serde_json::json;
use std::error::Error as StdError;

pub type BoxError = Box<dyn StdError + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, BoxError>;
pub type Answer = Response<Body>;

/// Why a request was not answered by whom it was for.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
    /// Whether the same request may succeed later.
    passes: bool,
    limit: Option<LimitReached>,
}

/// How errors look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Anthropic,
    OpenAi,
    /// A line, as git shows it.
    Text,
}

impl Refusal {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into(), passes: false, limit: None }
    }

    /// Of something that may pass.
    pub fn passing(status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal { passes: true, ..Refusal::new(status, message) }
    }

    /// Of a request that does not fit a limit of its account. One that waits for requests in flight may fit later.
    pub fn limit(reached: LimitReached) -> Refusal {
        let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, reached.to_string());
        Refusal { passes: reached.may_pass(), limit: Some(reached), ..refusal }
    }

    pub fn into_answer(self, shape: Shape) -> Answer {
        let text = shape.text(&self);
        let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
        let mut answer = Response::new(body.boxed_unsync());
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, shape.content_type());
        if self.passes && (self.limit.is_some() || self.status == StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
        if shape != Shape::Text && !self.passes {
            // The SDKs of both APIs read it, and else repeat what cannot succeed.
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        }
        answer
    }
}

impl Shape {
    pub fn of(api: ModelApi) -> Shape {
        match api {
            ModelApi::Anthropic => Shape::Anthropic,
            ModelApi::OpenAi => Shape::OpenAi,
        }
    }

    fn content_type(self) -> HeaderValue {
        match self {
            Shape::Anthropic | Shape::OpenAi => HeaderValue::from_static("application/json"),
            Shape::Text => HeaderValue::from_static("text/plain; charset=utf-8"),
        }
    }

    fn text(self, refusal: &Refusal) -> String {
        let Refusal { status, message, passes, limit } = refusal;
        let mut error = match self {
            Shape::Anthropic => json!({ "type": anthropic_type(*status), "message": message }),
            Shape::OpenAi => {
                let (kind, code) = openai_type(*status, *passes);
                json!({ "message": message, "type": kind, "param": null, "code": code })
            }
            Shape::Text => return format!("{message}\n"),
        };
        if let (Some(limit), Some(error)) = (limit, error.as_object_mut()) {
            error.insert("limit".to_owned(), limit.limit.into());
            error.insert("value".to_owned(), limit.value.into());
            error.insert("used".to_owned(), limit.used.into());
            error.insert("reserved".to_owned(), limit.reserved.into());
        }
        match self {
            Shape::Anthropic => json!({ "type": "error", "error": error }).to_string(),
            _ => json!({ "error": error }).to_string(),
        }
    }
}

fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        504 => "timeout_error",
        _ => "api_error",
    }
}

/// The type and the code. A quota that is used up is told apart from haste: clients do not wait for it.
fn openai_type(status: StatusCode, passes: bool) -> (&'static str, Option<&'static str>) {
    match status.as_u16() {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        403 => ("invalid_request_error", Some("permission_denied")),
        429 if passes => ("tokens", Some("rate_limit_exceeded")),
        429 => ("insufficient_quota", Some("insufficient_quota")),
        400..=499 => ("invalid_request_error", None),
        _ => ("server_error", None),
    }
}
