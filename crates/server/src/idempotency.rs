//! A repeated call with the same `Idempotency-Key` gets the first answer, and is not done again (K6).
//!
//! Calls with a key run on a task of their own, so that a caller that hangs up and comes back finds the outcome. While a call runs,
//! its hold on the key is renewed ([`holds`]), whatever the call's length. Once it is dispatched to its handler, its outcome is
//! kept or is unknown ([`answer`]): only an error that says for sure that nothing was done leaves the key free.

mod answer;
mod holds;

use crate::{
    auth::Outcome as Authenticated,
    error::{ApiError, ApiResult, request_id},
    extract::{Reserved, is_json, outcome},
    in_flight::InFlight,
    limits::{is_proxy, time_for, too_late},
    local::Peer,
    request_id::{REQUEST_ID, route},
    state::AppState,
};
use answer::{Answer, COPIES, MAX_ANSWER, Stored};
use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{Request, State},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri},
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use holds::{Claim, Holds, Outcome, Taken};
use seawall_api::ErrorKind;
use seawall_core::keys::Identity;
use sha2::{Digest, Sha256};
use std::{fmt, time::Duration};
use tower::ServiceExt;
use tracing::Instrument;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const MAX_KEY: usize = 255;

/// In an answer's extensions: it is a stream, and a repeat is answered by a GET of this path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayAs(pub String);

/// In an answer's extensions: it has a secret in it that is stored nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Secret;

/// The answer to repeats of calls that a killed server did not finish.
pub fn cut_off() -> Vec<u8> {
    Stored::unknown().to_bytes().into()
}

/// What the layer needs.
#[derive(Clone)]
pub struct Replays {
    state: AppState,
    /// Without layers: for streams that are followed again.
    routes: Router,
    holds: Holds,
}

impl Replays {
    pub fn new(state: AppState, routes: Router) -> Replays {
        let (store, options) = (state.services().stores.idempotency.clone(), state.options());
        let holds = Holds::new(store, options.idempotency_hold, options.idempotency_keep);
        Replays { state, routes, holds }
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
        let (Some(key), Authenticated::Known(identity)) =
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
        let limit = self.state.options().body_limit;
        let body = Reserved::read(&parts.extensions, &self.state, body, limit).await?.keep();
        let hash = hash(&parts.method, &parts.uri, &body);
        let time = time_for(self.state.options(), &asked.method, &asked.route);
        let identity = asked.identity.clone();
        self.state.kept().admit(&self.state, identity.account).await?;
        let room = self.state.budget().reserve(Some(identity.account), MAX_ANSWER * COPIES).await?;
        // On a task of its own: a caller that hangs up while the key is taken must not leave it taken.
        let replays = self.clone();
        let taking = async move { replays.take(asked, &hash).await };
        let taken = tokio::spawn(REQUEST_ID.scope(request_id(), taking).in_current_span()).await;
        match taken.map_err(|_| ApiError::internal("the call was cut off: the server goes down"))?? {
            Taken::New(claim) => {
                drop(room);
                let request = Request::from_parts(parts, Body::from(body));
                Ok(run(self.state.clone(), claim, identity, request, next, time).await)
            }
            Taken::Running => Err(ApiError::conflict(
                "idempotency_running",
                "the first call with this Idempotency-Key is not done yet; send it again in a moment",
            )
            .retry_after(1)),
            Taken::Done(stored) => self.replay(&identity, &stored, &parts.extensions).await,
        }
    }

    async fn take(&self, asked: Asked, hash: &[u8; 32]) -> ApiResult<Taken> {
        let taken = self.holds.take((asked.identity.account, asked.key), hash).await;
        taken.map_err(|error| match error.kind() {
            ErrorKind::Conflict => ApiError::conflict(
                "idempotency_conflict",
                "this Idempotency-Key was used for another call; use a new one for every new call",
            ),
            // The call is not dispatched.
            _ => ApiError::from(error).nothing_done(),
        })
    }

    async fn replay(&self, who: &Identity, stored: &Bytes, extensions: &Extensions) -> ApiResult<Response> {
        let stored = Stored::read(stored)?;
        if stored.scope.is_some_and(|scope| !who.may(scope)) {
            let detail =
                "the first call with this Idempotency-Key was made by a key with more scopes than yours";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "scope_missing", detail));
        }
        let mut response = match stored.answer {
            Answer::Whole { status, content_type, body } => answer::whole(status, content_type, &body)?,
            Answer::Stream { path } => self.follow(&path, extensions).await?,
            Answer::TooLarge => {
                let detail = "the call was done; its answer was too large to be kept for repeats";
                return Err(ApiError::conflict("idempotency_too_large", detail));
            }
            Answer::Unknown { status } => return Err(answer::unknown(status)),
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
        if let Some(peer) = extensions.get::<Peer>() {
            passed.insert(*peer);
        }
        match self.routes.clone().oneshot(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }
}

/// Runs the call, also where its caller hangs up.
async fn run(
    state: AppState,
    mut claim: Claim,
    who: Identity,
    request: Request,
    next: Next,
    time: Duration,
) -> Response {
    let (account, scope) = (who.account, who.scopes.iter().max().copied());
    // The call counts among those in flight for as long as it runs.
    let place = request.extensions().get::<InFlight>().cloned().unwrap_or_default();
    let counted = place.clone();
    let work = async move {
        let _place = place;
        claim.dispatch();
        let response = match tokio::time::timeout(time, next.run(request)).await {
            Ok(response) => response,
            Err(_) => too_late(time).into_response(),
        };
        let size = response.body().size_hint().exact().unwrap_or(0).min(MAX_ANSWER);
        let room = state.budget().try_reserve(Some(account), size * COPIES);
        let fits = |size: u64| room.is_some() && state.kept().fits(account, size * 4 / 3);
        let (kept, response) = answer::keep(response, fits).await;
        let outcome = match kept {
            Some(answer) => Outcome::Stored(Stored { scope, answer }.to_bytes()),
            None => Outcome::Nothing,
        };
        claim.settle(outcome).await;
        response
    };
    let work = async move { counted.measure(work).await };
    let task = tokio::spawn(REQUEST_ID.scope(request_id(), work).in_current_span());
    match task.await {
        Ok(response) => response,
        // For the layer that catches panics: the claim has said that the outcome is unknown.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => ApiError::internal("the call was cut off: the server goes down").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
