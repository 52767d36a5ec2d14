//! Every request has an id: in its answer, in the body of its error, and on every line of the log about it.

use axum::{
    extract::{MatchedPath, Request},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use seawall_api::MessageId;
use std::time::Instant;
use tracing::Instrument;

tokio::task_local! {
    /// Of the request that a task works for.
    pub static REQUEST_ID: String;
}

pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Longer ones are not worth their place in a log.
const MAX_LENGTH: usize = 128;

/// The outermost layer.
pub async fn identify(request: Request, next: Next) -> Response {
    let id = named(request.headers()).unwrap_or_else(fresh);
    let span = tracing::info_span!(
        "request",
        request_id = %id,
        method = %request.method(),
        route = route(request.extensions()),
        account = tracing::field::Empty,
    );
    let begun = Instant::now();
    let value = HeaderValue::from_str(&id);
    let work = async move {
        let response = REQUEST_ID.scope(id, next.run(request)).await;
        let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(status = response.status().as_u16(), elapsed_ms, "answered");
        response
    };
    let mut response = work.instrument(span).await;
    if let Ok(value) = value {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// The route that was found, e.g. `/sandboxes/{id}`; `none` where there is none.
pub fn route(extensions: &Extensions) -> &str {
    extensions.get::<MatchedPath>().map_or("none", MatchedPath::as_str)
}

/// The caller's own, where it is sane.
fn named(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(HEADER)?.to_str().ok()?;
    is_sane(id).then(|| id.to_owned())
}

fn is_sane(id: &str) -> bool {
    let tame =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/' | b'=');
    (1..=MAX_LENGTH).contains(&id.len()) && id.bytes().all(tame)
}

/// Any of our ids will do: they are unique, and sort by time.
fn fresh() -> String {
    MessageId::generate().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sane_ids_are_taken() {
        for good in ["a", "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e", "Root=1:2/3.4_5", &"x".repeat(128)] {
            assert!(is_sane(good), "{good}");
        }
        for bad in ["", " ", "a b", "a\tb", "ä", "<script>", "a\"b", &"x".repeat(129)] {
            assert!(!is_sane(bad), "{bad}");
        }
    }

    #[test]
    fn who_names_none_gets_one() {
        let mut headers = HeaderMap::new();
        assert_eq!(named(&headers), None);
        headers.insert(HEADER, HeaderValue::from_static("mine-1"));
        assert_eq!(named(&headers).as_deref(), Some("mine-1"));
        assert!(is_sane(&fresh()) && fresh() != fresh());
    }
}
