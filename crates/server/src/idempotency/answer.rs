//! What is kept of a call with an `Idempotency-Key`, and how a repeat is answered by it.

use super::{ReplayAs, Secret};
use crate::{
    error::{ApiError, ApiResult, Effect},
    extract::read,
};
use axum::{
    body::{Body, HttpBody},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use seawall_api::account::KeyScope;
use serde::{Deserialize, Serialize};

/// The largest answer that is kept, in bytes.
pub const MAX_ANSWER: u64 = 256 << 10;
/// What an answer takes while it is kept or told again: as it is, as it is stored, and between the two.
pub const COPIES: u64 = 4;

/// The row of a call that was dispatched.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The largest scope of the key that asked first. A key without it is not shown the answer.
    pub scope: Option<KeyScope>,
    pub answer: Answer,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    Whole {
        status: u16,
        content_type: Option<String>,
        /// Base64.
        body: String,
    },
    /// A stream that a GET of this path follows again.
    Stream { path: String },
    /// The call was done, and its answer has more than [`MAX_ANSWER`] bytes.
    TooLarge,
    /// The call was done, and its answer was a secret, or a stream that cannot be followed again.
    NotKept,
    /// Whether the call was done is not known: the server or the sandbox stopped in the midst of it, or it failed there.
    Unknown {
        /// The status of the first answer, where there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
    },
}

impl Stored {
    pub fn unknown() -> Stored {
        Stored { scope: None, answer: Answer::Unknown { status: None } }
    }

    pub fn read(bytes: &[u8]) -> ApiResult<Stored> {
        serde_json::from_slice(bytes).map_err(|error| {
            tracing::error!(%error, "a kept answer cannot be read");
            ApiError::internal("the first answer was kept, and cannot be read")
        })
    }

    pub fn to_bytes(&self) -> Bytes {
        // Strings and numbers are JSON in any case; what is not could not be read again, and is unknown then.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// What becomes of the key of a call that was answered so, and the answer. `None`: the call had no effect, so that the key is free.
/// `fits`: whether there is room for an answer of that many bytes.
pub async fn keep(response: Response, fits: impl Fn(u64) -> bool) -> (Option<Answer>, Response) {
    let status = response.status();
    match effect(&response) {
        Effect::None => return (None, response),
        Effect::Unknown => return (Some(Answer::Unknown { status: Some(status.as_u16()) }), response),
        Effect::Told => {}
    }
    if let Some(ReplayAs(path)) = response.extensions().get::<ReplayAs>() {
        return (Some(Answer::Stream { path: path.clone() }), response);
    }
    if response.extensions().get::<Secret>().is_some() {
        return (Some(Answer::NotKept), response);
    }
    match response.body().size_hint().exact() {
        None => return (Some(Answer::NotKept), response),
        Some(size) if size > MAX_ANSWER || !fits(size) => return (Some(Answer::TooLarge), response),
        Some(_) => {}
    }
    let (parts, body) = response.into_parts();
    match read(body, usize::try_from(MAX_ANSWER).unwrap_or(usize::MAX)).await {
        Ok(body) => {
            let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let answer = Answer::Whole {
                status: status.as_u16(),
                content_type: content_type.map(str::to_owned),
                body: STANDARD.encode(&body),
            };
            (Some(answer), Response::from_parts(parts, Body::from(body)))
        }
        Err(error) => (Some(Answer::NotKept), error.into_response()),
    }
}

/// Answers that are no [`ApiError`] tell what became of their call, unless they are a fault.
fn effect(response: &Response) -> Effect {
    match response.extensions().get::<Effect>() {
        Some(effect) => *effect,
        None if response.status().is_server_error() => Effect::Unknown,
        None => Effect::Told,
    }
}

/// The first answer again.
pub fn whole(status: u16, content_type: Option<String>, body: &str) -> ApiResult<Response> {
    let unreadable = || ApiError::internal("the first answer was kept, and cannot be read");
    let body = STANDARD.decode(body).map_err(|_| unreadable())?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| unreadable())?;
    if let Some(value) = content_type.and_then(|text| HeaderValue::try_from(text).ok()) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    Ok(response)
}

/// 409: nobody can say what became of the call.
pub fn unknown(status: Option<u16>) -> ApiError {
    let why = match status {
        Some(status) => format!("the first call failed with status {status}"),
        None => "the first call was cut off".to_owned(),
    };
    let detail =
        format!("{why}, perhaps after it was done: look whether it was; to do it again, use a new key");
    ApiError::conflict("idempotency_unknown", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Extension;
    use seawall_api::ErrorKind;
    use seawall_core::Error;

    #[tokio::test]
    async fn k6_answers_are_kept_as_they_are() {
        let first = (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], "{\"a\":1}").into_response();
        let (answer, sent) = keep(first, |_| true).await;
        assert_eq!(sent.status(), 201);
        let Some(Answer::Whole { status, content_type, body }) = answer else {
            panic!("it is not kept whole")
        };
        let again = whole(status, content_type, &body).unwrap();
        assert_eq!(
            (again.status(), &again.headers()[CONTENT_TYPE]),
            (sent.status(), &sent.headers()[CONTENT_TYPE])
        );
        let bytes = |response: Response| axum::body::to_bytes(response.into_body(), 100);
        assert_eq!(bytes(again).await.unwrap(), bytes(sent).await.unwrap());
    }

    #[tokio::test]
    async fn k6_what_cannot_be_kept_is_marked() {
        let kept = |response: Response| async move { keep(response, |_| true).await.0.unwrap() };
        let stream = (Extension(ReplayAs("/x".to_owned())), "data").into_response();
        assert_eq!(kept(stream).await, Answer::Stream { path: "/x".to_owned() });
        assert_eq!(kept((Extension(Secret), "key").into_response()).await, Answer::NotKept);
        assert_eq!(kept(vec![0u8; (256 << 10) + 1].into_response()).await, Answer::TooLarge);
        let endless = Body::from_stream(futures::stream::empty::<Result<Bytes, std::io::Error>>());
        assert_eq!(kept(endless.into_response()).await, Answer::NotKept);
    }

    /// A row for each kind of error, by what it says about the call.
    #[tokio::test]
    async fn k6_only_what_surely_had_no_effect_leaves_the_key_free() {
        let free = [
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", ""),
            ApiError::from(Error::conflict("a turn runs").without_effect()),
            ApiError::from(Error::unavailable("later").without_effect()),
            ApiError::from(Error::new(ErrorKind::Denied, "too many").with_code("limit_reached")),
            crate::auth::Outcome::Anonymous.need(KeyScope::Run).unwrap_err(),
        ];
        for error in free {
            assert_eq!(keep(error.clone().into_response(), |_| true).await.0, None, "{error:?}");
        }
        let unknown = [
            ErrorKind::Unavailable,
            ErrorKind::Stopped,
            ErrorKind::Timeout,
            ErrorKind::Internal,
            ErrorKind::Protocol,
        ];
        for kind in unknown {
            let error = ApiError::from(Error::new(kind, "in the midst"));
            let status = Some(error.status().as_u16());
            assert_eq!(
                keep(error.into_response(), |_| true).await.0,
                Some(Answer::Unknown { status }),
                "{kind:?}"
            );
        }
        for kind in [ErrorKind::Conflict, ErrorKind::AlreadyExists, ErrorKind::Denied, ErrorKind::NotFound] {
            let error = ApiError::from(Error::new(kind, "it is so"));
            let kept = keep(error.into_response(), |_| true).await.0;
            assert!(matches!(kept, Some(Answer::Whole { .. })), "{kind:?}: {kept:?}");
        }
        let bare = StatusCode::BAD_GATEWAY.into_response();
        assert_eq!(keep(bare, |_| true).await.0, Some(Answer::Unknown { status: Some(502) }));
    }

    #[test]
    fn k6_answers_of_earlier_versions_are_read() {
        let stored = Stored::read(br#"{"scope":null,"answer":{"kind":"unknown"}}"#).unwrap();
        assert_eq!(stored, Stored::unknown());
        assert_eq!(Stored::read(&stored.to_bytes()).unwrap(), stored);
    }
}
