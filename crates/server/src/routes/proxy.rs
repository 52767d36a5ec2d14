//! Ports of sandboxes (P7): HTTP and WebSockets to a program that listens in one, and tokens for its port.
//!
//! What answers there is hostile, and it answers under the API's own origin. So nothing of ours gets to it, neither keys
//! nor tokens nor cookies, and what it sends is kept from acting as the API: see [`headers`].

mod forward;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod headers;

use crate::{
    counts::Kind,
    error::{ApiError, ApiResult, Problems},
    extract::{Caller, Json, OptionalJson, Path, Remote, Runner},
    idempotency::Secret,
    in_flight::{InFlight, UNREAD},
    origin,
    state::AppState,
};
use axum::{
    Extension,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode, Uri,
        header::{HOST, SET_COOKIE},
        uri::PathAndQuery,
    },
    response::Response,
    routing::{MethodRouter, any},
};
#[cfg(feature = "fuzzing")]
pub use fuzzing::previews;
use headers::{About, TOKEN};
use seawall_api::{
    AccountId, SandboxId,
    account::KeyScope,
    http::{CreatePortToken, PortToken, Problem},
    sandbox::SandboxState,
};
use seawall_core::keys::Keys;
use serde::Deserialize;
use std::time::Duration;
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouterExt},
    routes,
};

/// Bytes of the memory budget for one request to a port: a head and a piece of a body, both ways.
const PREVIEW: u64 = UNREAD + (128 << 10);
/// How long a token is good, in seconds.
const LIFETIME: u64 = 3600;
const MAX_LIFETIME: u64 = 7 * 24 * 3600;

pub fn router() -> OpenApiRouter<AppState> {
    // The document has those that it can name; any method is passed on.
    OpenApiRouter::default()
        .routes(routes!(proxy_root).map(|_: MethodRouter<AppState>| any(proxy)))
        .route("/sandboxes/{id}/ports/{port}/", any(proxy))
        .routes(routes!(proxy).map(|_: MethodRouter<AppState>| any(proxy)))
        // A program may have a page of that name; only POST is ours.
        .routes(routes!(create_token).map(|ours: MethodRouter<AppState>| ours.fallback(proxy)))
}

/// A port of a sandbox, in a path.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Target {
    id: SandboxId,
    port: u16,
}

impl Target {
    fn check(self) -> ApiResult<Target> {
        match self.port {
            0 => Err(ApiError::invalid("invalid_port", "a port is 1 to 65535")),
            _ => Ok(self),
        }
    }
}

/// Makes a token for one port of one sandbox: for a browser, or for somebody who shall have no key.
#[utoipa::path(post, path = "/sandboxes/{id}/ports/{port}/token", tag = "ports",
    operation_id = "create_port_token",
    security(("key" = ["run"])),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("port" = u16, Path, description = "A port of its loopback"),
    ),
    request_body = Option<CreatePortToken>,
    responses(
        (status = 200, body = PortToken),
        Problems,
    ))]
async fn create_token(
    State(state): State<AppState>,
    Runner(who): Runner,
    Path(target): Path<Target>,
    headers: HeaderMap,
    OptionalJson(ask): OptionalJson<CreatePortToken>,
) -> ApiResult<(Extension<Secret>, Json<PortToken>)> {
    let Target { id, port } = target.check()?;
    let seconds = ask.expires_in_s.unwrap_or(LIFETIME);
    if !(1..=MAX_LIFETIME).contains(&seconds) {
        let detail = format!("`expires_in_s` is 1 to {MAX_LIFETIME}");
        return Err(ApiError::invalid("invalid_lifetime", detail));
    }
    let services = state.services();
    // It must be theirs, and not over.
    if services.sandboxes.get(who.account, id).await?.info.state == SandboxState::Terminated {
        let detail = format!("sandbox {id} was ended for good");
        return Err(ApiError::new(StatusCode::GONE, "gone", detail));
    }
    let life = services.sandboxes.this_life(who.account, id).await?;
    let expires_at = services.clock.now() + Duration::from_secs(seconds);
    let token = services.keys.port_token(who.account, life, port, expires_at);
    let base = base(&state, &headers);
    let url = format!("{base}/sandboxes/{id}/ports/{port}/?{TOKEN}={}", escaped(&token));
    tracing::info!(account = %who.account, sandbox = %id, port, seconds, "port token made");
    Ok((Extension(Secret), Json(PortToken { token, url, expires_at })))
}

/// Passes a request on to a program that listens in the sandbox: any method, and WebSockets. It needs a key with the
/// scope `run`, or a token of this port: `?seawall_token=`, the header `x-seawall-token`, or the cookie that the first of
/// these sets. It starts no sandbox.
#[utoipa::path(method(get, head, post, put, patch, delete, options),
    path = "/sandboxes/{id}/ports/{port}/{*path}", tag = "ports", operation_id = "proxy_port",
    security(("key" = ["run"]), ()),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("port" = u16, Path, description = "A port of its loopback"),
        ("path" = String, Path, description = "Where to in the program, with any query"),
        ("seawall_token" = Option<String>, Query, description = "A token of this port"),
        ("x-seawall-token" = Option<String>, Header, description = "A token of this port"),
    ),
    responses(
        (status = "default", description = "What the program answers."),
        (status = 410, body = Problem, content_type = "application/problem+json", description = "It was ended."),
        (status = 502, body = Problem, content_type = "application/problem+json",
            description = "Nothing listens there."),
        (status = 503, body = Problem, content_type = "application/problem+json",
            description = "It does not run, or not yet."),
    ))]
async fn proxy(
    State(state): State<AppState>,
    caller: Caller,
    Remote(remote): Remote,
    Path(target): Path<Target>,
    place: InFlight,
    request: Request,
) -> ApiResult<Response> {
    let Target { id, port } = target.check()?;
    let given = Given::find(&request, port)?;
    let account = authorized(&state, &caller, target, &given).await?;
    if headers::is_websocket(request.headers()) {
        // A page of a preview has no origin of its own; who shows the token itself was not sent by another page.
        origin::check_preview(&state, request.headers(), given.is_shown())?;
    }
    place.open(&state, account, Kind::Previews, PREVIEW).await?;
    let options = state.options();
    let (prefix, _) = split(request.uri().path());
    let about = About {
        prefix: prefix.to_owned(),
        port,
        is_https: is_https(&state, request.headers()),
        remote,
        trust_forwarded: options.trust_forwarded,
        // Who trusts what runs in sandboxes may let it be a page like any other.
        is_trusted: options.proxy_trusted,
    };
    let io = state.services().sandboxes.port_stream(account, id, port).await?;
    let passed = forward::pass(io, request, &about, place, state.shutdown()).await;
    let mut response = passed.map_err(|error| {
        tracing::debug!(%account, sandbox = %id, port, %error, "a port broke off");
        let detail = format!("port {port} of sandbox {id} hung up, or speaks no HTTP ({error})");
        ApiError::new(StatusCode::BAD_GATEWAY, "port_broken", detail)
    })?;
    let token = match given.query {
        Some(token) => check_token(&state, &token, id, port).await.is_ok().then_some(token),
        None => None,
    };
    if let Some(cookie) = token.and_then(|token| headers::port_cookie(&about, &token)) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// The same, at the program's root.
#[utoipa::path(method(get, head, post, put, patch, delete, options),
    path = "/sandboxes/{id}/ports/{port}", tag = "ports", operation_id = "proxy_port_root",
    security(("key" = ["run"]), ()),
    params(
        ("id" = String, Path, description = "The sandbox's id"),
        ("port" = u16, Path, description = "A port of its loopback"),
        ("seawall_token" = Option<String>, Query, description = "A token of this port"),
        ("x-seawall-token" = Option<String>, Header, description = "A token of this port"),
    ),
    responses(
        (status = "default", description = "What the program answers."),
        (status = 410, body = Problem, content_type = "application/problem+json", description = "It was ended."),
        (status = 502, body = Problem, content_type = "application/problem+json",
            description = "Nothing listens there."),
        (status = 503, body = Problem, content_type = "application/problem+json",
            description = "It does not run, or not yet."),
    ))]
async fn proxy_root(
    state: State<AppState>,
    caller: Caller,
    remote: Remote,
    target: Path<Target>,
    place: InFlight,
    request: Request,
) -> ApiResult<Response> {
    proxy(state, caller, remote, target, place, request).await
}

/// The token of a port that a request has.
#[derive(Debug, Default)]
struct Given {
    query: Option<String>,
    header: Option<String>,
    cookie: Option<String>,
}

impl Given {
    /// A token is written in one way and in one place. Two readers of anything else could read different things, so that it is
    /// refused: a name in other letters or escaped, an escaped token, one that is there twice. A browser sends its cookie with
    /// every request; a token that is shown goes before it.
    fn find(request: &Request, port: u16) -> ApiResult<Given> {
        let query = in_query(request.uri().query().unwrap_or_default())?;
        let header = single(request.headers().get_all(headers::TOKEN_HEADER).iter())?;
        if query.is_some() && header.is_some() {
            return Err(malformed("a token is in the query or in the header, not in both"));
        }
        let cookie = match headers::cookies(request.headers(), port)?.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            _ => return Err(malformed("there are two cookies with a token of this port")),
        };
        Ok(Given { query, header, cookie })
    }

    /// Whether the request itself shows a token, rather than the browser's store of cookies.
    fn is_shown(&self) -> bool {
        self.query.is_some() || self.header.is_some()
    }

    fn token(&self) -> Option<&String> {
        self.query.as_ref().or(self.header.as_ref()).or(self.cookie.as_ref())
    }
}

/// The token in a query, as it is written.
fn in_query(query: &str) -> ApiResult<Option<String>> {
    let mut found = None;
    for part in query.split('&') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        if !is_token_name(name) {
            continue;
        }
        if name != TOKEN || !is_plain(value) || found.replace(value.to_owned()).is_some() {
            return Err(malformed(
                "`seawall_token=` is written like that, once, and with the token as it is",
            ));
        }
    }
    Ok(found)
}

/// Whether some reader of queries would take this name for the token's.
fn is_token_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let mut read = Vec::with_capacity(name.len());
    while let Some(byte) = bytes.next() {
        let escaped = || {
            let digits = [bytes.clone().next()?, bytes.clone().nth(1)?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()
        };
        match (byte == b'%').then(escaped).flatten() {
            Some(escaped) => {
                read.push(escaped);
                bytes.nth(1);
            }
            None => read.push(byte),
        }
    }
    let tame = read.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != b'+' && **byte != 0);
    tame.map(u8::to_ascii_lowercase).eq(TOKEN.bytes())
}

/// Letters, digits and `_`, of which tokens are made.
pub(super) fn is_plain(token: &str) -> bool {
    token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn single<'a>(mut values: impl Iterator<Item = &'a HeaderValue>) -> ApiResult<Option<String>> {
    let (Some(first), more) = (values.next(), values.next()) else { return Ok(None) };
    match first.to_str() {
        Ok(token) if more.is_none() && is_plain(token) => Ok(Some(token.to_owned())),
        _ => Err(malformed("`x-seawall-token` is there once, with the token as it is")),
    }
}

fn malformed(detail: &str) -> ApiError {
    ApiError::invalid("token_malformed", detail)
}

/// Whose sandbox it is, for who has a key or a token that is good for it.
async fn authorized(
    state: &AppState,
    caller: &Caller,
    target: Target,
    given: &Given,
) -> ApiResult<AccountId> {
    let keyed = caller.need(KeyScope::Run);
    let Some(token) = given.token() else {
        return Ok(keyed?.account);
    };
    if let Ok(identity) = keyed {
        return Ok(identity.account);
    }
    check_token(state, token, target.id, target.port).await
}

/// A token is for one life of a sandbox.
async fn check_token(state: &AppState, token: &str, id: SandboxId, port: u16) -> ApiResult<AccountId> {
    let services = state.services();
    let life = match Keys::account_of(token) {
        Some(account) => services.sandboxes.this_life(account, id).await.unwrap_or(id),
        None => id,
    };
    let account = services.keys.check_port_token(token, life, port)?;
    services.keys.check_account(account).await?;
    Ok(account)
}

pub fn is_https(state: &AppState, headers: &HeaderMap) -> bool {
    let options = state.options();
    let told = || headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes() == b"https");
    let public = options.public_url.as_deref().is_some_and(|url| url.starts_with("https:"));
    options.tls.is_some() || public || (options.trust_forwarded && told())
}

/// How callers reach this server.
fn base(state: &AppState, headers: &HeaderMap) -> String {
    if let Some(url) = &state.options().public_url {
        return url.trim_end_matches('/').to_owned();
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let scheme = if is_https(state, headers) { "https" } else { "http" };
    format!("{scheme}://{host}")
}

/// For a query.
fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let written = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(written).collect()
}

/// `/sandboxes/ID/ports/PORT`, and what follows its slash, both as they were written.
fn split(path: &str) -> (&str, &str) {
    match path.match_indices('/').nth(4) {
        Some((at, _)) => (&path[..at], &path[at + 1..]),
        None => (path, ""),
    }
}

/// What the program shall see: its own path, and the query without our token.
fn inside(uri: &Uri) -> Option<Uri> {
    let (_, rest) = split(uri.path());
    let is_theirs = |part: &&str| part.split('=').next() != Some(TOKEN);
    let query: Vec<&str> = uri.query().unwrap_or_default().split('&').filter(is_theirs).collect();
    let whole = match query.iter().all(|part| part.is_empty()) {
        true => format!("/{rest}"),
        false => format!("/{rest}?{}", query.join("&")),
    };
    PathAndQuery::try_from(whole).ok().map(Uri::from)
}

/// None where it can be no header's value.
fn value(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p7_programs_see_their_own_paths() {
        let of = |path: &'static str| inside(&Uri::from_static(path)).unwrap().to_string();
        assert_eq!(of("/sandboxes/a/ports/80"), "/");
        assert_eq!(of("/sandboxes/a/ports/80/"), "/");
        assert_eq!(of("/sandboxes/a/ports/80/x/%2F/y/"), "/x/%2F/y/");
        assert_eq!(of("/sandboxes/a/ports/80//x"), "//x");
        assert_eq!(of("/sandboxes/a/ports/80/x?a=1&b"), "/x?a=1&b");
    }

    #[test]
    fn p7_our_token_does_not_reach_the_program() {
        let of = |path: &'static str| inside(&Uri::from_static(path)).unwrap().to_string();
        assert_eq!(of("/sandboxes/a/ports/80/?seawall_token=t"), "/");
        assert_eq!(
            of("/sandboxes/a/ports/80/x?a=1&seawall_token=t&b=seawall_token"),
            "/x?a=1&b=seawall_token"
        );
        assert_eq!(
            of("/sandboxes/a/ports/80/x?seawall_token&seawall_token=&seawall_tokens=1"),
            "/x?seawall_tokens=1"
        );
    }

    #[test]
    fn p7_a_token_is_read_in_one_spelling_only() {
        let read = |query: &str| in_query(query).map_err(|error| error.code().to_owned());
        let wrong = Err("token_malformed".to_owned());
        assert_eq!(read("a=1&seawall_token=swp_1_2_ab"), Ok(Some("swp_1_2_ab".to_owned())));
        assert_eq!(read("a=seawall_token&seawall_tokens=1&b"), Ok(None));
        for odd in [
            "seawall_token=a&seawall_token=a",
            "seawall_token=a%5Fb",
            "seawall_token=a+b",
            "Seawall_Token=a",
            "SEAWALL_TOKEN=a",
            "%73eawall_token=a",
            "seawall%5ftoken=a",
            "seawall_token%20=a",
            "+seawall_token=a",
            "x=1&seawall_token=a&%53EAWALL_TOKEN=b",
        ] {
            assert_eq!(read(odd), wrong, "{odd}");
        }
        let header = |values: &[&'static str]| {
            let values: Vec<_> = values.iter().map(|value| HeaderValue::from_static(value)).collect();
            single(values.iter()).map_err(|error| error.code().to_owned())
        };
        assert_eq!(header(&[]), Ok(None));
        assert_eq!(header(&["swp_1"]), Ok(Some("swp_1".to_owned())));
        for odd in [&["a", "a"][..], &["a%5f"], &["a, b"], &["\"a\""]] {
            assert_eq!(header(odd), wrong, "{odd:?}");
        }
    }

    #[test]
    fn p7_tokens_are_written_for_a_query() {
        assert_eq!(escaped("aZ9-._~"), "aZ9-._~");
        assert_eq!(escaped("a+b/=&"), "a%2Bb%2F%3D%26");
    }
}
