//! Whose pages may open WebSockets. Browsers ask nobody before they do, and send the cookies that they have.

use crate::{
    error::{ApiError, ApiResult},
    routes::is_https,
    state::AppState,
};
use axum::http::{
    HeaderMap, StatusCode, Uri,
    header::{HOST, ORIGIN},
};

/// Lets a socket pass that was opened by a page of this server, by one of an origin in `cors_origins`, or by no page at all.
pub fn check(state: &AppState, headers: &HeaderMap) -> ApiResult<()> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let (Some(origin), more) = (origins.next(), origins.next()) else { return Ok(()) };
    let is_good = more.is_none() && origin.to_str().is_ok_and(|origin| is_allowed(state, headers, origin));
    if is_good { Ok(()) } else { Err(refused()) }
}

/// As [`check`], of a socket to a port. A page of a preview is no page of this server's: its origin is `null`, as is that of
/// many others. It passes where the request itself shows the token.
pub fn check_preview(state: &AppState, headers: &HeaderMap, is_shown: bool) -> ApiResult<()> {
    let is_null = headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes() == b"null");
    match is_null && is_shown && headers.get_all(ORIGIN).iter().count() == 1 {
        true => Ok(()),
        false => check(state, headers),
    }
}

fn refused() -> ApiError {
    let detail = "pages of this origin may not open WebSockets here; the operator can allow it by `server.cors_origins`";
    ApiError::new(StatusCode::FORBIDDEN, "origin_denied", detail)
}

fn is_allowed(state: &AppState, headers: &HeaderMap, origin: &str) -> bool {
    let options = state.options();
    let listed = |known: &String| known == "*" || known.eq_ignore_ascii_case(origin);
    if options.cors_origins.iter().any(listed) {
        return true;
    }
    let Some(page) = place(origin) else { return false };
    if let Some(url) = &options.public_url {
        return place(url).is_some_and(|own| own == page);
    }
    let scheme = if is_https(state, headers) { "https" } else { "http" };
    let forwarded = headers.get("x-forwarded-host").filter(|_| options.trust_forwarded);
    let host = forwarded.or_else(|| headers.get(HOST)).and_then(|host| host.to_str().ok());
    host.and_then(|host| place(&format!("{scheme}://{host}"))).is_some_and(|own| own == page)
}

/// Scheme, host and port of an address. None where it has none.
fn place(url: &str) -> Option<(String, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = match (uri.port_u16(), scheme.as_str()) {
        (Some(port), _) => port,
        (None, "https") => 443,
        (None, "http") => 80,
        _ => return None,
    };
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_compared_by_scheme_host_and_port() {
        assert_eq!(place("http://Here:80"), place("http://here"));
        assert_eq!(place("https://here:443/x"), place("HTTPS://HERE"));
        assert_ne!(place("http://here"), place("https://here"));
        assert_ne!(place("http://here"), place("http://here.evil"));
        for none in ["null", "", "file:///x", "here"] {
            assert_eq!(place(none), None, "{none}");
        }
    }
}
