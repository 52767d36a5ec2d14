//! A repeated call with the same `Idempotency-Key` gets the first answer, and is not done again.
//!
//! Calls with a key run on a task of their own: whoever hangs up and comes back finds what became of it. Answers that
//! mean that nothing was done leave the key free.

use crate::{
    auth::Outcome,
    error::{ApiError, ApiResult, request_id},
    extract::{is_json, outcome, read},
    limits::{InFlight, is_proxy, time_for, too_late},
    request_id::{REQUEST_ID, route},
    state::AppState,
};
use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{ConnectInfo, Request, State},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header::CONTENT_TYPE},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use seawall_api::{AccountId, ErrorKind, account::KeyScope};
use seawall_core::{keys::Identity, ports::store::Begun};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{fmt, net::SocketAddr, time::Duration};
use tower::ServiceExt;
use tracing::Instrument;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const MAX_KEY: usize = 255;
/// Of an answer that is kept.
const MAX_ANSWER: u64 = 1 << 20;

/// In an answer's extensions: it is a stream, and a repeat is answered by a GET of this path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayAs(pub String);

/// In an answer's extensions: it has a secret in it that is stored nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Secret;

/// What is kept.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    /// The largest of the key that asked first. Who has not got it is not shown the answer.
    scope: Option<KeyScope>,
    answer: Answer,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Answer {
    Whole {
        status: u16,
        content_type: Option<String>,
        /// Base64.
        body: String,
    },
    Stream {
        path: String,
    },
    TooLarge,
    /// A secret, or a stream that nobody can follow again.
    NotKept,
    /// The server was killed while it did the call.
    Unknown,
}

/// What is kept of calls in the midst of which a server was killed.
pub fn cut_off() -> Vec<u8> {
    let stored = Stored { scope: None, answer: Answer::Unknown };
    // Plain data: it is JSON.
    serde_json::to_vec(&stored).unwrap_or_default()
}

/// What the layer needs.
#[derive(Clone)]
pub struct Replays {
    state: AppState,
    /// Without layers: for streams that are followed again.
    routes: Router,
}

impl Replays {
    pub fn new(state: AppState, routes: Router) -> Replays {
        Replays { state, routes }
    }
}

impl fmt::Debug for Replays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replays").finish_non_exhaustive()
    }
}

/// The layer.
pub async fn once(State(replays): State<Replays>, request: Request, next: Next) -> Response {
    let asked = Asked::of(&request);
    let asked = match asked {
        Ok(Some(asked)) => asked,
        Ok(None) => return next.run(request).await,
        Err(error) => return error.into_response(),
    };
    replays.answer(asked, request, next).await.unwrap_or_else(IntoResponse::into_response)
}

/// What a key stands for.
enum Taken {
    New(Claim),
    Running,
    Done(Bytes),
}

/// Who asks for one answer, under which key.
struct Asked {
    key: String,
    identity: Identity,
    method: Method,
    route: String,
}

impl Asked {
    /// None: nothing to do with keys. Who is not known is refused behind this.
    fn of(request: &Request) -> ApiResult<Option<Asked>> {
        let route = route(request.extensions());
        if !is_mutating(request.method()) || is_proxy(route) {
            return Ok(None);
        }
        // Files that are put stream, and putting the same twice is putting it once.
        let streams = route.ends_with("/content") || !is_json(request.headers());
        if request.method() == Method::PUT && streams {
            return Ok(None);
        }
        let (Some(key), Outcome::Known(identity)) =
            (key_of(request.headers())?, outcome(request.extensions()))
        else {
            return Ok(None);
        };
        let (method, route) = (request.method().clone(), route.to_owned());
        Ok(Some(Asked { key, identity, method, route }))
    }
}

pub fn is_mutating(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method)
}

fn key_of(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get(KEY) else { return Ok(None) };
    let tame = |byte: &u8| byte.is_ascii_graphic();
    match value.to_str() {
        Ok(key) if (1..=MAX_KEY).contains(&key.len()) && value.as_bytes().iter().all(tame) => {
            Ok(Some(key.to_owned()))
        }
        _ => Err(ApiError::invalid(
            "invalid_idempotency_key",
            format!("an Idempotency-Key has 1 to {MAX_KEY} visible ASCII characters; a UUID is a good one"),
        )),
    }
}

/// What a key stands for. No part can be taken for another: the first three have no line breaks.
fn hash(method: &Method, uri: &Uri, body: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in [method.as_str(), uri.path(), uri.query().unwrap_or_default()] {
        hasher.update(part.as_bytes());
        hasher.update(b"\n");
    }
    hasher.update(body);
    hasher.finalize().into()
}

impl Replays {
    async fn answer(&self, asked: Asked, request: Request, next: Next) -> ApiResult<Response> {
        let (parts, body) = request.into_parts();
        let body = read(body, self.state.options().body_limit).await?;
        let hash = hash(&parts.method, &parts.uri, &body);
        let time = time_for(self.state.options(), &asked.method, &asked.route);
        let identity = asked.identity.clone();
        // On a task of its own: whoever hangs up while the key is taken must not leave it taken.
        let replays = self.clone();
        let taking = async move { replays.take(asked, &hash, time).await };
        let taken = tokio::spawn(REQUEST_ID.scope(request_id(), taking).in_current_span()).await;
        match taken.map_err(|_| ApiError::internal("the call was cut off: the server goes down"))?? {
            Taken::New(claim) => {
                let request = Request::from_parts(parts, Body::from(body));
                Ok(run(claim, request, next, time).await)
            }
            Taken::Running => Err(ApiError::conflict(
                "idempotency_running",
                "the first call with this Idempotency-Key is not done yet; send it again in a moment",
            )
            .retry_after(1)),
            Taken::Done(stored) => self.replay(&identity, &stored, &parts.extensions).await,
        }
    }

    async fn take(&self, asked: Asked, hash: &[u8; 32], time: Duration) -> ApiResult<Taken> {
        Ok(match self.begin(&asked, hash, time).await? {
            Begun::New { receipt } => Taken::New(Claim::new(self.state.clone(), &asked, receipt)),
            Begun::Running => Taken::Running,
            Begun::Done(stored) => Taken::Done(stored),
        })
    }

    async fn begin(&self, asked: &Asked, hash: &[u8; 32], time: Duration) -> ApiResult<Begun> {
        let options = self.state.options();
        // A little more than the call itself may take: who is at it then is dead.
        let hold = time.saturating_add(Duration::from_secs(10)).min(options.idempotency_hold);
        let keys = &self.state.services().stores.idempotency;
        let begun =
            keys.begin(asked.identity.account, &asked.key, hash, hold, options.idempotency_keep).await;
        begun.map_err(|error| match error.kind() {
            ErrorKind::Conflict => ApiError::conflict(
                "idempotency_conflict",
                "this Idempotency-Key was used for another call; use a new one for every new call",
            ),
            _ => error.into(),
        })
    }

    async fn replay(&self, who: &Identity, stored: &Bytes, extensions: &Extensions) -> ApiResult<Response> {
        let stored: Stored = serde_json::from_slice(stored).map_err(|error| {
            tracing::error!(%error, "a kept answer cannot be read");
            ApiError::internal("the first answer was kept, and cannot be read")
        })?;
        if stored.scope.is_some_and(|scope| !who.may(scope)) {
            let detail =
                "the first call with this Idempotency-Key was made by a key with more scopes than yours";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "scope_missing", detail));
        }
        let mut response = match stored.answer {
            Answer::Whole { status, content_type, body } => whole(status, content_type, &body)?,
            Answer::Stream { path } => self.follow(&path, extensions).await?,
            Answer::TooLarge => {
                let detail = "the call was done; its answer was too large to be kept for repeats";
                return Err(ApiError::conflict("idempotency_too_large", detail));
            }
            Answer::Unknown => {
                let detail = "the server was cut off while it did this call: look whether it was done; to do it again, use a new key";
                return Err(ApiError::conflict("idempotency_unknown", detail));
            }
            Answer::NotKept => {
                let detail =
                    "the call was done; its answer was a secret or a stream, and is not kept for repeats";
                return Err(ApiError::conflict("idempotency_not_replayable", detail));
            }
        };
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        Ok(response)
    }

    /// A GET in the name of the same caller.
    async fn follow(&self, path: &str, extensions: &Extensions) -> ApiResult<Response> {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() =
            path.parse().map_err(|_| ApiError::internal("the first answer cannot be followed"))?;
        let passed = request.extensions_mut();
        passed.insert(outcome(extensions));
        passed.insert(extensions.get::<InFlight>().cloned().unwrap_or_default());
        if let Some(peer) = extensions.get::<ConnectInfo<SocketAddr>>() {
            passed.insert(*peer);
        }
        match self.routes.clone().oneshot(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }
}

fn whole(status: u16, content_type: Option<String>, body: &str) -> ApiResult<Response> {
    let unreadable = || ApiError::internal("the first answer was kept, and cannot be read");
    let body = STANDARD.decode(body).map_err(|_| unreadable())?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| unreadable())?;
    if let Some(value) = content_type.and_then(|text| HeaderValue::try_from(text).ok()) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    Ok(response)
}

/// Does the call, whether or not its caller waits for it.
async fn run(claim: Claim, request: Request, next: Next, time: Duration) -> Response {
    let work = async move {
        let response = match tokio::time::timeout(time, next.run(request)).await {
            Ok(response) => response,
            Err(_) => too_late(time).into_response(),
        };
        claim.settle(response).await
    };
    let task = tokio::spawn(REQUEST_ID.scope(request_id(), work).in_current_span());
    match task.await {
        Ok(response) => response,
        // For the layer that catches panics: the claim has given up the key on its way.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => ApiError::internal("the call was cut off: the server goes down").into_response(),
    }
}

/// A key that is this call's. Dropped unsettled, it gives the key up.
struct Claim {
    state: AppState,
    account: AccountId,
    key: String,
    receipt: u64,
    scope: Option<KeyScope>,
    settled: bool,
}

impl Claim {
    fn new(state: AppState, asked: &Asked, receipt: u64) -> Claim {
        let Asked { key, identity, .. } = asked;
        let (account, scope) = (identity.account, identity.scopes.iter().max().copied());
        Claim { state, account, key: key.clone(), receipt, scope, settled: false }
    }

    /// Keeps what can be kept.
    async fn settle(mut self, response: Response) -> Response {
        self.settled = true;
        let keys = &self.state.services().stores.idempotency;
        if was_not_done(response.status()) {
            let abandoned = keys.abandon(self.account, &self.key, self.receipt).await;
            tell(abandoned, "an idempotency key could not be given up");
            return response;
        }
        let (answer, response) = keep(response).await;
        match serde_json::to_vec(&Stored { scope: self.scope, answer }) {
            Ok(bytes) => {
                let finished = keys.finish(self.account, &self.key, self.receipt, &bytes).await;
                tell(finished, "an answer could not be kept for repeats");
            }
            Err(error) => tracing::error!(%error, "an answer is no JSON"),
        }
        response
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.settled {
            return;
        }
        let (state, account, receipt) = (self.state.clone(), self.account, self.receipt);
        let key = std::mem::take(&mut self.key);
        runtime.spawn(async move {
            let abandoned = state.services().stores.idempotency.abandon(account, &key, receipt).await;
            tell(abandoned, "an idempotency key could not be given up");
        });
    }
}

/// The call itself has its answer in any case.
fn tell(result: seawall_core::Result<()>, what: &str) {
    if let Err(error) = result {
        tracing::warn!(error = error.chain(), "{what}");
    }
}

/// Our faults, and refusals that say nothing about the call itself: the same may succeed later.
fn was_not_done(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 401 | 403 | 409 | 425 | 429)
}

/// What to keep of an answer, and the answer.
async fn keep(response: Response) -> (Answer, Response) {
    if let Some(ReplayAs(path)) = response.extensions().get::<ReplayAs>() {
        return (Answer::Stream { path: path.clone() }, response);
    }
    if response.extensions().get::<Secret>().is_some() {
        return (Answer::NotKept, response);
    }
    match response.body().size_hint().exact() {
        None => return (Answer::NotKept, response),
        Some(size) if size > MAX_ANSWER => return (Answer::TooLarge, response),
        Some(_) => {}
    }
    let (parts, body) = response.into_parts();
    let limit = usize::try_from(MAX_ANSWER).unwrap_or(usize::MAX);
    match read(body, limit).await {
        Ok(body) => {
            let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let answer = Answer::Whole {
                status: parts.status.as_u16(),
                content_type: content_type.map(str::to_owned),
                body: STANDARD.encode(&body),
            };
            (answer, Response::from_parts(parts, Body::from(body)))
        }
        Err(error) => (Answer::NotKept, error.into_response()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Extension;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn k6_the_hash_is_of_everything_that_was_asked() {
        let all = [
            hash(&Method::POST, &uri("/a"), b"{}"),
            hash(&Method::PUT, &uri("/a"), b"{}"),
            hash(&Method::POST, &uri("/b"), b"{}"),
            hash(&Method::POST, &uri("/a?b"), b"{}"),
            hash(&Method::POST, &uri("/a"), b"{ }"),
            hash(&Method::POST, &uri("/a"), b""),
        ];
        for (number, one) in all.iter().enumerate() {
            assert!(!all[number + 1..].contains(one), "{number}");
        }
        assert_eq!(all[0], hash(&Method::POST, &uri("/a"), b"{}"));
    }

    #[test]
    fn k6_keys_are_checked() {
        let key = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(KEY, HeaderValue::from_str(text).unwrap());
            key_of(&headers).map_err(|error| error.code().to_owned())
        };
        let bad = Err("invalid_idempotency_key".to_owned());
        assert_eq!(key("a-1"), Ok(Some("a-1".to_owned())));
        assert_eq!(key(&"x".repeat(255)).map(|key| key.is_some()), Ok(true));
        for text in ["", "a b", &"x".repeat(256)] {
            assert_eq!(key(text), bad, "{text}");
        }
        assert_eq!(key_of(&HeaderMap::new()).unwrap(), None);
    }

    #[tokio::test]
    async fn k6_answers_are_kept_as_they_are() {
        let first = (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], "{\"a\":1}").into_response();
        let (answer, sent) = keep(first).await;
        assert_eq!(sent.status(), 201);
        let Answer::Whole { status, content_type, body } = answer else { panic!("it is not kept whole") };
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
        let kept = |response: Response| async move { keep(response).await.0 };
        let stream = (Extension(ReplayAs("/x".to_owned())), "data").into_response();
        assert_eq!(kept(stream).await, Answer::Stream { path: "/x".to_owned() });
        assert_eq!(kept((Extension(Secret), "key").into_response()).await, Answer::NotKept);
        assert_eq!(kept(vec![0u8; (1 << 20) + 1].into_response()).await, Answer::TooLarge);
        let unknown = Body::from_stream(futures::stream::empty::<Result<Bytes, std::io::Error>>());
        assert_eq!(kept(unknown.into_response()).await, Answer::NotKept);
        assert!(was_not_done(StatusCode::BAD_GATEWAY) && was_not_done(StatusCode::CONFLICT));
        assert!(!was_not_done(StatusCode::OK) && !was_not_done(StatusCode::BAD_REQUEST));
    }
}
