//! What handlers take. Ours, because every refusal is application/problem+json with a code.

use crate::{
    auth::Outcome,
    error::{ApiError, ApiResult},
    in_flight::InFlight,
    local::Peer,
    state::AppState,
};
use axum::{
    body::{Body, HttpBody as _},
    extract::{
        FromRequest, FromRequestParts, Request,
        path::ErrorKind as PathError,
        rejection::{PathRejection, QueryRejection},
    },
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use seawall_api::account::KeyScope;
use seawall_core::{
    budget::{Reservation, json_weight},
    keys::Identity,
    ports::store::{Cursor, Page},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{convert::Infallible, net::IpAddr};
use utoipa::IntoParams;

/// Rows of a page where nobody says how many.
const PAGE: u32 = 100;

/// A body, asked or answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json<T>(pub T);

/// A body that may be left out.
#[derive(Debug, Clone, Copy, Default)]
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AppState> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> ApiResult<Json<T>> {
        let (parts, body) = request.into_parts();
        if !is_json(&parts.headers) {
            return Err(no_json());
        }
        let body = Reserved::read(&parts.extensions, state, body, state.options().body_limit).await?;
        body.parse().await.map(Json)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<AppState> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> ApiResult<OptionalJson<T>> {
        let (parts, body) = request.into_parts();
        let body = Reserved::read(&parts.extensions, state, body, state.options().body_limit).await?;
        if body.bytes.is_empty() {
            return Ok(OptionalJson(T::default()));
        }
        if !is_json(&parts.headers) {
            return Err(no_json());
        }
        body.parse().await.map(OptionalJson)
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => {
                ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
            }
            Err(error) => {
                tracing::error!(%error, "an answer is no JSON");
                ApiError::internal("the answer cannot be written as JSON; this is a bug").into_response()
            }
        }
    }
}

/// All of a request's body, with bytes of the memory budget that were reserved before they were read.
#[derive(Debug)]
pub struct Reserved {
    pub bytes: Bytes,
    room: Reservation,
    place: InFlight,
}

impl Reserved {
    /// Reads a body of up to `limit` bytes. 429 `memory_budget` where the account's bodies in flight take all of its part.
    pub async fn read(
        extensions: &Extensions,
        state: &AppState,
        body: Body,
        limit: usize,
    ) -> ApiResult<Reserved> {
        let place = extensions.get::<InFlight>().cloned().unwrap_or_default();
        let account = outcome(extensions).identity().map(|identity| identity.account);
        // A layer before may have read it already.
        let mut room = place.take_body().unwrap_or_else(|| state.budget().open(account));
        let bytes = read_within(body, limit, Some(&mut room)).await?;
        Ok(Reserved { bytes, room, place })
    }

    /// The body as JSON. What it takes in memory is reserved until the request is answered.
    async fn parse<T: DeserializeOwned>(mut self) -> ApiResult<T> {
        let weight = json_weight(&self.bytes);
        self.room.grow(weight.saturating_sub(self.room.bytes())).await?;
        let parsed = parse(&self.bytes);
        self.place.keep_body(self.room);
        parsed
    }

    /// The bytes. They stay reserved until the request is answered.
    pub fn keep(self) -> Bytes {
        self.place.keep_body(self.room);
        self.bytes
    }
}

/// All of a body of ours, up to a limit.
pub async fn read(body: Body, limit: usize) -> ApiResult<Bytes> {
    read_within(body, limit, None).await
}

async fn read_within(mut body: Body, limit: usize, mut room: Option<&mut Reservation>) -> ApiResult<Bytes> {
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(too_large(limit));
    }
    if let Some(room) = room.as_deref_mut() {
        room.grow(announced.saturating_sub(room.bytes())).await?;
    }
    let (mut first, mut all) = (None, BytesMut::new());
    while let Some(frame) = body.frame().await {
        let broken = |error| ApiError::invalid("body_broken", format!("the body broke off: {error}"));
        // Trailers say nothing here.
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        let length = first.as_ref().map_or(0, Bytes::len) + all.len() + data.len();
        if length > limit {
            return Err(too_large(limit));
        }
        if let Some(room) = room.as_deref_mut() {
            room.grow((length as u64).saturating_sub(room.bytes())).await?;
        }
        // Mostly there is one part, which need not be copied.
        match first.take() {
            None if all.is_empty() => first = Some(data),
            Some(before) => {
                all.extend_from_slice(&before);
                all.extend_from_slice(&data);
            }
            None => all.extend_from_slice(&data),
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

fn too_large(limit: usize) -> ApiError {
    let detail = format!("the body has more than {limit} bytes, which is the limit here");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
}

/// `application/json`, or something that is a kind of it.
pub fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn no_json() -> ApiError {
    let detail = "send JSON, and say so with `Content-Type: application/json`";
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail).nothing_done()
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    let invalid = |detail: &str| ApiError::invalid("invalid_body", detail).nothing_done();
    if bytes.is_empty() {
        return Err(invalid("the body is empty: this call needs JSON"));
    }
    // Serde takes a list for an object whose fields are all optional.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(invalid("the body is not a JSON object"));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| invalid(&format!("the body is not what was expected: {error}")))
}

/// What stands behind the question mark.
#[derive(Debug, Clone, Copy, Default)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> ApiResult<Query<T>> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|axum::extract::Query(value)| Query(value)).map_err(|error: QueryRejection| {
            ApiError::invalid("invalid_query", format!("the query is wrong: {}", error.body_text()))
                .nothing_done()
        })
    }
}

/// The parts of a path that vary.
#[derive(Debug, Clone, Copy, Default)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<AppState> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> ApiResult<Path<T>> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(value)| Path(value))
            .map_err(path_refusal)
            .map_err(ApiError::nothing_done)
    }
}

fn path_refusal(rejection: PathRejection) -> ApiError {
    let PathRejection::FailedToDeserializePathParams(failed) = rejection else {
        return ApiError::internal("the path was not taken apart; this is a bug");
    };
    match failed.into_kind() {
        // Ids are the only parts that have a rule of their own.
        PathError::DeserializeError { key, value, message } => {
            ApiError::invalid("invalid_id", format!("`{value}` cannot be the {key} of anything: {message}"))
        }
        PathError::Message(message) => ApiError::invalid("invalid_id", message),
        wrong @ (PathError::WrongNumberOfParameters { .. } | PathError::UnsupportedType { .. }) => {
            tracing::error!(error = %wrong, "a handler takes its path apart wrongly");
            ApiError::internal("the path was not taken apart; this is a bug")
        }
        other => ApiError::invalid("invalid_path", format!("the path is wrong: {other}")),
    }
}

/// Who calls, if anybody known does. It refuses nobody by itself.
#[derive(Debug, Clone, Default)]
pub struct Caller(Outcome);

impl Caller {
    /// 401 without a good key, 403 where it lacks the scope.
    pub fn need(&self, scope: KeyScope) -> ApiResult<Identity> {
        self.0.need(scope)
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Infallible> {
        Ok(Caller(outcome(&parts.extensions)))
    }
}

/// What the layer found out.
pub fn outcome(extensions: &Extensions) -> Outcome {
    extensions.get::<Outcome>().cloned().unwrap_or_default()
}

macro_rules! scoped {
    ($(#[$doc:meta])* $name:ident, $scope:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name(pub Identity);

        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<$name> {
                outcome(&parts.extensions).need($scope).map($name)
            }
        }
    };
}

scoped!(
    /// A caller who may look.
    Reader,
    KeyScope::Read
);
scoped!(
    /// A caller who may run things.
    Runner,
    KeyScope::Run
);
scoped!(
    /// A caller who may see to accounts and keys.
    Admin,
    KeyScope::Admin
);

/// The address that calls. None: it is not known, e.g. in tests without a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote(pub Option<IpAddr>);

impl FromRequestParts<AppState> for Remote {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Remote, Infallible> {
        Ok(remote(&parts.headers, &parts.extensions, state.options().trust_forwarded))
    }
}

/// The peer's, or what a proxy that is trusted says.
pub fn remote(headers: &HeaderMap, extensions: &Extensions, trust_forwarded: bool) -> Remote {
    let forwarded = || {
        let value = headers.get_all("x-forwarded-for").iter().next_back()?.to_str().ok()?;
        value.rsplit(',').next()?.trim().parse::<IpAddr>().ok()
    };
    let peer = || match extensions.get::<Peer>()? {
        Peer::Remote(address) => Some(address.ip()),
        Peer::Local(_) => None,
    };
    Remote(trust_forwarded.then(forwarded).flatten().or_else(peer))
}

/// Of a list that can be asked for in parts, and in no other way.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Of a page: 1 to 1000, 100 unless said.
    pub limit: Option<u32>,
    /// What the last page gave as `next`.
    pub after: Option<String>,
}

/// Which part of a list was asked for.
pub fn page(limit: Option<u32>, after: Option<&str>) -> ApiResult<Page> {
    let after = after.map(str::parse::<Cursor>).transpose()?;
    let page = Page { limit: limit.unwrap_or(PAGE), after };
    page.check()?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        headers
    }

    #[test]
    fn json_says_that_it_is_json() {
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"] {
            assert!(is_json(&headers("content-type", good)), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "", "json"] {
            assert!(!is_json(&headers("content-type", bad)), "{bad}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn bodies_have_a_limit() {
        assert_eq!(read(Body::from("12345"), 5).await.unwrap(), "12345");
        let error = read(Body::from("123456"), 5).await.unwrap_err();
        assert_eq!((error.status().as_u16(), error.code()), (413, "body_too_large"));
        assert_eq!(parse::<u32>(b"").unwrap_err().code(), "invalid_body");
        assert_eq!(parse::<u32>(b"1 2").unwrap_err().code(), "invalid_body");
    }

    #[test]
    fn a_forwarded_address_counts_only_where_it_is_trusted() {
        let mut extensions = Extensions::new();
        extensions.insert(Peer::Remote(([10, 0, 0, 1], 4000).into()));
        let headers = headers("x-forwarded-for", "1.1.1.1, 2.2.2.2");
        let text = |trust| remote(&headers, &extensions, trust).0.map(|address| address.to_string());
        assert_eq!(text(true).as_deref(), Some("2.2.2.2"));
        assert_eq!(text(false).as_deref(), Some("10.0.0.1"));
        assert_eq!(remote(&headers, &Extensions::new(), false), Remote(None));
    }

    #[test]
    fn pages_are_checked() {
        assert_eq!(page(None, None).unwrap(), Page::first(PAGE));
        assert_eq!(page(Some(0), None).unwrap_err().status(), StatusCode::BAD_REQUEST);
        assert_eq!(page(None, Some("x")).unwrap_err().status(), StatusCode::BAD_REQUEST);
    }
}
