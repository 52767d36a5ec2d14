//! Who calls. The layer looks at the key, or at the process at the local socket, and refuses no request: extractors do, so
//! that public routes stay public.
//!
//! 1. A key that is sent decides, also at the local socket and also where it is wrong.
//! 2. A process at the local socket that the kernel reports as the server's user or root is the operator.
//! 3. An operator that names an account in `seawall-account` acts for that account.

use crate::{
    error::{ApiError, ApiResult},
    local::Peer,
    request_id::route,
    state::AppState,
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header::AUTHORIZATION},
    middleware::Next,
    response::Response,
};
use seawall_api::{
    ErrorKind,
    account::{KeyScope, LocalPeer},
    http::ACCOUNT_HEADER,
};
use seawall_core::{Error, keys::Identity};
use std::{sync::Arc, time::Duration};

/// A store that takes longer for a key is taken to be away.
const PATIENCE: Duration = Duration::from_secs(10);

/// These answer without any store, also while it is away.
const PUBLIC: [&str; 4] = ["/health", "/ready", "/openapi.json", "/docs"];

/// What became of a request's key.
#[derive(Debug, Clone, Default)]
pub enum Outcome {
    /// There was none.
    #[default]
    Anonymous,
    Known(Identity),
    /// It was wrong, or could not be looked at.
    Refused(Arc<Error>),
}

impl Outcome {
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Outcome::Known(identity) => Some(identity),
            _ => None,
        }
    }

    /// 401 without a good key, 403 where it lacks the scope. Handlers ask before they do anything.
    pub fn need(&self, scope: KeyScope) -> ApiResult<Identity> {
        self.checked(scope).map_err(ApiError::nothing_done)
    }

    fn checked(&self, scope: KeyScope) -> ApiResult<Identity> {
        match self {
            Outcome::Known(identity) if identity.may(scope) => Ok(identity.clone()),
            Outcome::Known(_) => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "scope_missing",
                format!("this needs a key with the scope `{scope}`, and yours has not got it"),
            )),
            // The key is good; its account is not.
            Outcome::Refused(error) if error.code() == "account_suspended" => Err(ApiError::of(error)),
            // The caller is known, and may not act for that account.
            Outcome::Refused(error) if error.code() == "operator_only" => {
                Err(ApiError::new(StatusCode::FORBIDDEN, "operator_only", error.to_string()))
            }
            Outcome::Refused(error) if error.kind() == ErrorKind::Denied => {
                Err(ApiError::unauthorized(error.code(), error.to_string()))
            }
            Outcome::Refused(error) => Err(ApiError::of(error)),
            Outcome::Anonymous => Err(ApiError::unauthorized(
                "key_missing",
                "this needs a key: send it as `Authorization: Bearer <key>`",
            )),
        }
    }
}

const ACCOUNT: HeaderName = HeaderName::from_static(ACCOUNT_HEADER);

/// The layer: puts an [`Outcome`] into the request's extensions.
pub async fn authenticate(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let asked = !PUBLIC.contains(&route(request.extensions()));
    let outcome = match asked {
        true => {
            let peer = request.extensions().get::<Peer>().and_then(Peer::operator);
            identify(&state, request.headers().clone(), peer).await
        }
        false => Outcome::Anonymous,
    };
    if let Some(identity) = outcome.identity() {
        tracing::Span::current().record("account", tracing::field::display(identity.account));
    }
    request.extensions_mut().insert(outcome);
    next.run(request).await
}

async fn identify(state: &AppState, headers: HeaderMap, peer: Option<LocalPeer>) -> Outcome {
    let secret = bearer(&headers).map(str::to_owned);
    let found = match (secret, peer) {
        (Some(secret), _) => verify(state, &secret).await,
        (None, Some(peer)) if !headers.contains_key(AUTHORIZATION) => Outcome::Known(Identity::of_peer(peer)),
        _ => return Outcome::Anonymous,
    };
    let (Outcome::Known(identity), Some(named)) = (&found, headers.get(ACCOUNT)) else { return found };
    let named = named.as_bytes().to_owned();
    match tokio::time::timeout(PATIENCE, acting(state, identity, &named)).await {
        Ok(Ok(identity)) => Outcome::Known(identity),
        Ok(Err(error)) => Outcome::Refused(Arc::new(error)),
        Err(_) => Outcome::Refused(Arc::new(away("accounts"))),
    }
}

/// The operator, acting for the account of a name or id.
async fn acting(state: &AppState, identity: &Identity, named: &[u8]) -> Result<Identity, Error> {
    if !identity.is_operator() {
        let message =
            "only an operator may act for an account: leave `--account` out, or use a key of that account";
        return Err(Error::new(ErrorKind::Denied, message).with_code("operator_only"));
    }
    let named = String::from_utf8_lossy(named);
    let account = state.services().find_account(&named).await?;
    Ok(identity.acting_for(account))
}

async fn verify(state: &AppState, secret: &str) -> Outcome {
    let verified = tokio::time::timeout(PATIENCE, state.services().keys.verify(secret)).await;
    match verified {
        Ok(Ok(identity)) => Outcome::Known(identity),
        Ok(Err(error)) => Outcome::Refused(Arc::new(error)),
        Err(_) => Outcome::Refused(Arc::new(away("keys"))),
    }
}

fn away(what: &str) -> Error {
    Error::unavailable(format!("{what} cannot be looked at now: the store does not answer; try again"))
}

/// The secret of `Authorization: Bearer`. Another scheme is none of ours.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    let secret = secret.trim();
    let tame = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && tame).then_some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use seawall_api::{AccountId, KeyId};

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        headers
    }

    fn known(scopes: &[KeyScope]) -> Outcome {
        let scopes = scopes.iter().copied().collect();
        Outcome::Known(Identity::of_key(AccountId::LOCAL, KeyId::generate(), scopes))
    }

    fn refusal(outcome: &Outcome, scope: KeyScope) -> (u16, String) {
        let error = outcome.need(scope).unwrap_err();
        (error.status().as_u16(), error.code().to_owned())
    }

    #[test]
    fn k1_bearers_are_read_and_nothing_else_is() {
        for good in ["Bearer sw_abc", "bearer sw_abc", "BEARER   sw_abc "] {
            assert_eq!(bearer(&with(good)), Some("sw_abc"), "{good}");
        }
        for bad in ["", "Bearer", "Bearer ", "Basic dTpw", "sw_abc", "Bearer a b"] {
            assert_eq!(bearer(&with(bad)), None, "{bad}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn k2_larger_scopes_include_smaller_ones() {
        let admin = known(&[KeyScope::Admin]);
        assert!(admin.need(KeyScope::Read).is_ok() && admin.need(KeyScope::Admin).is_ok());
        let run = known(&[KeyScope::Run]);
        assert!(run.need(KeyScope::Read).is_ok() && run.need(KeyScope::Run).is_ok());
        assert_eq!(refusal(&run, KeyScope::Admin), (403, "scope_missing".to_owned()));
        assert_eq!(refusal(&known(&[]), KeyScope::Read), (403, "scope_missing".to_owned()));
    }

    #[test]
    fn k3_no_key_and_a_wrong_key_are_told_apart() {
        assert_eq!(refusal(&Outcome::Anonymous, KeyScope::Read), (401, "key_missing".to_owned()));
        let wrong = Error::new(ErrorKind::Denied, "no such key").with_code("key_unknown");
        let wrong = Outcome::Refused(Arc::new(wrong));
        assert_eq!(refusal(&wrong, KeyScope::Read), (401, "key_unknown".to_owned()));
        let away = Outcome::Refused(Arc::new(Error::unavailable("away")));
        assert_eq!(refusal(&away, KeyScope::Read), (503, "unavailable".to_owned()));
    }
}
