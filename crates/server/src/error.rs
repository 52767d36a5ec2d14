//! Errors as callers see them: application/problem+json, with a code for programs and the request's id for the log.
//!
//! What is our own fault, or that of somebody behind us, is told without its causes: those are in the log. Paths of this
//! machine are told to the account `local` alone.

use crate::{extract::outcome, request_id::REQUEST_ID};
use axum::{
    extract::Request,
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::FutureExt;
use seawall_api::{AccountId, ErrorKind, account::LimitUse, http::Problem};
use seawall_core::{Error, budget::MEMORY_BUDGET, host_paths::redact};
use std::{any::Any, collections::BTreeMap, panic::AssertUnwindSafe};
use utoipa::{
    IntoResponses,
    openapi::{self, RefOr},
};

/// What every operation may answer instead: for the document.
#[derive(Debug, Clone, Copy)]
pub struct Problems;

impl IntoResponses for Problems {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let content =
            openapi::ContentBuilder::new().schema(Some(openapi::Ref::from_schema_name("Problem"))).build();
        let response = openapi::ResponseBuilder::new().content("application/problem+json", content).build();
        ["4XX", "5XX"].map(|status| (status.to_owned(), response.clone().into())).into()
    }
}

pub type ApiResult<T> = Result<T, ApiError>;

/// An answer that is an error.
#[derive(Debug, Clone)]
pub struct ApiError(Box<Inner>);

// Boxed: results carry it through every handler.
#[derive(Debug, Clone)]
struct Inner {
    status: StatusCode,
    code: &'static str,
    detail: String,
    /// The same with its causes, for the server's own user.
    causes: Option<String>,
    retryable: bool,
    effect: Effect,
    headers: Vec<(HeaderName, HeaderValue)>,
    limit: Option<LimitUse>,
}

/// What an error says about its call. It is in the extensions of the answer, for the layer of `Idempotency-Key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call changed nothing, for sure: it may be made again.
    None,
    /// The answer tells what became of the call.
    Told,
    /// The call may have been done, wholly or in part.
    Unknown,
}

impl Effect {
    /// Of an error of which no more is known. A fault of ours comes at any point of a call.
    fn of(status: StatusCode) -> Effect {
        match status {
            StatusCode::TOO_MANY_REQUESTS => Effect::None,
            status if status.is_server_error() => Effect::Unknown,
            _ => Effect::Told,
        }
    }
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> ApiError {
        let retryable = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
        );
        let (detail, effect, headers) = (detail.into(), Effect::of(status), Vec::new());
        let causes = None;
        ApiError(Box::new(Inner { status, code, detail, causes, retryable, effect, headers, limit: None }))
    }

    pub fn invalid(code: &'static str, detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub fn not_found(code: &'static str, detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, code, detail)
    }

    pub fn conflict(code: &'static str, detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, code, detail)
    }

    pub fn internal(detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::Internal.as_str(), detail)
    }

    /// 401, with what to do.
    pub fn unauthorized(code: &'static str, detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, code, detail)
            .header(axum::http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// One more header of the answer.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> ApiError {
        self.0.headers.push((name, value));
        self
    }

    /// When to come again. It may succeed then.
    pub fn retry_after(mut self, seconds: u64) -> ApiError {
        self.0.retryable = true;
        self.header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// States that the call changed nothing. Only for refusals that come before the first change.
    pub fn nothing_done(mut self) -> ApiError {
        self.0.effect = Effect::None;
        self
    }

    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    #[cfg(test)]
    pub fn code(&self) -> &str {
        self.0.code
    }

    /// As `From`, of an error that somebody else needs too.
    pub fn of(error: &Error) -> ApiError {
        let status = status_of(error);
        let detail = match status.is_server_error() {
            true => error.to_string(),
            false => error.chain(),
        };
        match status {
            StatusCode::INTERNAL_SERVER_ERROR => tracing::error!(error = error.chain(), "a request failed"),
            status if status.is_server_error() => {
                tracing::warn!(error = error.chain(), code = error.code(), "a request failed");
            }
            _ => tracing::debug!(error = error.chain(), code = error.code(), "a request was refused"),
        }
        let mut answer = ApiError::new(status, error.code(), detail);
        answer.0.causes = status.is_server_error().then(|| error.chain());
        answer.0.retryable |= error.is_retryable();
        answer.0.limit = error.limit().cloned();
        if error.had_no_effect() || matches!(error.code(), "limit_reached" | MEMORY_BUDGET) {
            answer.0.effect = Effect::None;
        } else if error.kind() == ErrorKind::Stopped {
            // The sandbox was stopped, perhaps in the midst of the call.
            answer.0.effect = Effect::Unknown;
        }
        match status {
            StatusCode::SERVICE_UNAVAILABLE => answer.retry_after(1),
            StatusCode::TOO_MANY_REQUESTS if error.is_retryable() => answer.retry_after(1),
            _ => answer,
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        ApiError::of(&error)
    }
}

fn status_of(error: &Error) -> StatusCode {
    // A sandbox that does not run is a conflict for who wants to change it, and away for who wants to talk to it.
    if matches!(error.code(), "waking" | "not_running") {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    // An account at a limit may ask again once it has ended something.
    if matches!(error.code(), "limit_reached" | MEMORY_BUDGET) {
        return StatusCode::TOO_MANY_REQUESTS;
    }
    match error.kind() {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Gone => StatusCode::GONE,
        ErrorKind::Stopped | ErrorKind::Conflict | ErrorKind::AlreadyExists => StatusCode::CONFLICT,
        ErrorKind::ExecFailed | ErrorKind::LimitUnenforceable => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Protocol => StatusCode::BAD_GATEWAY,
        ErrorKind::Unsupported => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Inner { status, code, detail, causes, retryable, effect, headers, limit } = *self.0;
        let detail = match CALLER.try_with(|caller| *caller) {
            Ok(Some(Reader::HostUser)) => causes.unwrap_or(detail),
            Ok(Some(Reader::Account(AccountId::LOCAL))) => detail,
            _ => redact(&detail).into_owned(),
        };
        if status == StatusCode::TOO_MANY_REQUESTS {
            ::metrics::counter!("http_requests_refused_total", "reason" => code).increment(1);
        }
        let problem = Problem {
            type_: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail,
            request_id: request_id(),
            retryable,
            limit,
            nothing_done: effect == Effect::None,
        };
        // Strings and numbers are JSON in any case.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        response.extensions_mut().insert(effect);
        let map = response.headers_mut();
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        map.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in headers {
            map.insert(name, value);
        }
        response
    }
}

tokio::task_local! {
    /// The reader of the answer that this task produces.
    static CALLER: Option<Reader>;
}

/// The reader of an error, which decides how much it contains.
#[derive(Debug, Clone, Copy)]
enum Reader {
    /// The server's own user on this machine, who can read its log.
    HostUser,
    Account(AccountId),
}

/// The innermost layer: an error says as much as its caller may know.
pub async fn know_caller(request: Request, next: Next) -> Response {
    let caller = outcome(request.extensions()).identity().map(|identity| match identity.is_host_user() {
        true => Reader::HostUser,
        false => Reader::Account(identity.account),
    });
    CALLER.scope(caller, next.run(request)).await
}

/// Of the request that this task works for; empty where it works for none.
pub fn request_id() -> String {
    REQUEST_ID.try_with(String::clone).unwrap_or_default()
}

/// What is not there at all.
pub async fn no_such_route() -> ApiError {
    ApiError::not_found("no_such_route", "there is no such path here; /docs lists what there is")
        .nothing_done()
}

/// What is there, for other methods.
pub async fn no_such_method() -> ApiError {
    let detail = "this path does not take this method; the Allow header says which it takes";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail).nothing_done()
}

/// A bug in one handler is that request's 500, and nobody else's.
pub async fn catch_panics(request: Request, next: Next) -> Response {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            tracing::error!(panic = told_by(&*panic), "a handler panicked");
            ApiError::internal("the server has a bug here; its log tells of it under the request's id")
                .into_response()
        }
    }
}

fn told_by(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        return text;
    }
    panic.downcast_ref::<String>().map_or("it did not say why", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;

    async fn problem(error: ApiError) -> (Response<()>, Problem) {
        let (parts, body) = error.into_response().into_parts();
        let bytes = to_bytes(body, 1 << 16).await.unwrap();
        (Response::from_parts(parts, ()), serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn p9_every_kind_has_its_status() {
        let statuses: Vec<u16> = ErrorKind::ALL
            .into_iter()
            .map(|kind| ApiError::from(Error::new(kind, "no")).status().as_u16())
            .collect();
        assert_eq!(statuses, [404, 410, 409, 422, 503, 403, 409, 400, 422, 409, 504, 413, 502, 422, 500]);
    }

    #[tokio::test]
    async fn p9_problems_say_what_happened_and_not_why_inside() {
        let hidden = || Error::new(ErrorKind::Internal, "the store failed").with_source("SQL of ours");
        let (head, body) = problem(hidden().into()).await;
        assert_eq!(head.headers()["content-type"], "application/problem+json");
        assert_eq!((body.status, body.code.as_str()), (500, "internal"));
        assert_eq!(body.detail, "the store failed");
        let told = CALLER.scope(Some(Reader::HostUser), problem(hidden().into())).await.1;
        assert_eq!(told.detail, "the store failed: SQL of ours", "the server's user can read its log anyway");
        let told = Error::invalid("the name is wrong").with_source("it has a slash");
        assert_eq!(problem(told.into()).await.1.detail, "the name is wrong: it has a slash");
    }

    #[tokio::test]
    async fn p7_who_wakes_is_to_be_asked_again() {
        for (kind, code) in [(ErrorKind::Unavailable, "waking"), (ErrorKind::Stopped, "not_running")] {
            let (head, body) = problem(Error::new(kind, "wait").with_code(code).into()).await;
            assert_eq!((body.status, body.code.as_str(), body.retryable), (503, code, true));
            assert_eq!(head.headers()["retry-after"], "1");
        }
    }

    #[tokio::test]
    async fn paths_of_this_machine_are_told_to_the_operator_alone() {
        seawall_core::host_paths::hide(std::path::Path::new("/srv/hidden-of-errors"));
        let error =
            || ApiError::from(Error::invalid("cannot read").with_source("/srv/hidden-of-errors/box.json"));
        for (caller, detail) in [
            (Some(Reader::Account(AccountId::LOCAL)), "cannot read: /srv/hidden-of-errors/box.json"),
            (Some(Reader::Account(AccountId::generate())), "cannot read: [server path]"),
            (None, "cannot read: [server path]"),
        ] {
            assert_eq!(CALLER.scope(caller, problem(error())).await.1.detail, detail);
        }
        assert_eq!(problem(error()).await.1.detail, "cannot read: [server path]");
    }

    #[tokio::test]
    async fn the_request_id_is_in_the_body() {
        let told = REQUEST_ID.scope("abc".to_owned(), problem(ApiError::invalid("x", "y"))).await;
        assert_eq!(told.1.request_id, "abc");
        assert_eq!(request_id(), "");
    }
}
