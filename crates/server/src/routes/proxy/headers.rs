//! Headers on their way to a program in a sandbox, and on their way back.
//!
//! Previews are served under the API's own origin. A page of a sandbox that could act as that origin could read what
//! other pages of it keep, answer for them, and use what the browser has for it. So its documents are sandboxed, as an
//! origin of their own, and what a server can set for a whole origin or host is taken away.

use super::{is_plain, value};
use crate::error::{ApiError, ApiResult};
use axum::http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONNECTION, CONTENT_SECURITY_POLICY, COOKIE, FORWARDED, HOST, REFERER, SET_COOKIE, UPGRADE},
};
use std::net::IpAddr;

/// The parameter of a query that is a token.
pub(super) const TOKEN: &str = "seawall_token";
pub(super) const TOKEN_HEADER: &str = "x-seawall-token";
/// Cookies that begin with it are ours.
const OURS: &[u8] = b"seawall_";

/// Of one connection, not of the message (RFC 9110, 7.6.1).
const HOPS: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Keys of ours; and what was between the client and this server.
const NOT_INSIDE: [&str; 3] = ["authorization", TOKEN_HEADER, "expect"];
/// What would hold for our whole origin, ask people for secrets in its name, or have a proxy before us send something else.
const NOT_OUTSIDE: [&str; 22] = [
    "alt-svc",
    "clear-site-data",
    "edge-control",
    "nel",
    "public-key-pins",
    "refresh",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "strict-transport-security",
    "surrogate-control",
    "surrogate-key",
    "www-authenticate",
    "x-archive-files",
    "x-lighttpd-send-file",
    "x-lighttpd-send-tempfile",
    "x-litespeed-location",
    "x-litespeed-cache-control",
    "x-original-url",
    "x-reproxy-url",
    "x-rewrite-url",
    "x-varnish",
];
/// Beginnings of names by which a program tells a proxy to send a file or another page in its place: nginx, Apache, lighttpd,
/// Caddy, Perlbal, LiteSpeed.
const NOT_OUTSIDE_BEGINNINGS: [&str; 4] = ["x-accel-", "x-sendfile", "x-reproxy-", "x-lsadc-"];

/// Without `allow-same-origin`: scripts run, and are not ours.
const SANDBOX: &str = "sandbox allow-scripts allow-forms allow-popups allow-modals";

/// What has to be known of a request that is passed on.
#[derive(Debug, Clone)]
pub(super) struct About {
    /// `/sandboxes/ID/ports/PORT`, as it was written.
    pub prefix: String,
    pub port: u16,
    /// As the client sees it.
    pub is_https: bool,
    pub remote: Option<IpAddr>,
    /// What a proxy before us says is believed.
    pub trust_forwarded: bool,
    /// Its pages may be pages of our origin.
    pub is_trusted: bool,
}

/// As the program shall see them.
pub(super) fn to_program(mut headers: HeaderMap, about: &About) -> HeaderMap {
    strip_hops(&mut headers);
    for name in NOT_INSIDE {
        headers.remove(name);
    }
    // Pages that came with a token in their address tell it to whatever they load.
    if headers.get(REFERER).is_some_and(|referer| contains(referer.as_bytes(), TOKEN.as_bytes())) {
        headers.remove(REFERER);
    }
    drop_our_cookies(&mut headers);
    tell_who(&mut headers, about);
    headers
}

fn tell_who(headers: &mut HeaderMap, about: &About) {
    // Names of servers that a program does not know it refuses mostly; this one it knows.
    let named = headers.remove(HOST);
    if let Some(known) = value(&format!("localhost:{}", about.port)) {
        headers.insert(HOST, known);
    }
    let before = |name: &str| headers.get(name).filter(|_| about.trust_forwarded).cloned();
    let (host, addresses) = (before("x-forwarded-host").or(named), before("x-forwarded-for"));
    let addresses = match (addresses.as_ref().and_then(|all| all.to_str().ok()), about.remote) {
        // The last of them is the remote one.
        (Some(all), _) => Some(all.to_owned()),
        (None, remote) => remote.map(|address| address.to_string()),
    };
    headers.remove(FORWARDED);
    let told = [
        ("x-forwarded-host", host),
        ("x-forwarded-for", addresses.and_then(|all| value(&all))),
        ("x-forwarded-proto", Some(HeaderValue::from_static(if about.is_https { "https" } else { "http" }))),
        ("x-forwarded-prefix", value(&about.prefix)),
    ];
    for (name, what) in told {
        match what {
            Some(what) => drop(headers.insert(name, what)),
            None => drop(headers.remove(name)),
        }
    }
}

/// As the client shall see them.
pub(super) fn to_client(mut headers: HeaderMap, about: &About) -> HeaderMap {
    strip_hops(&mut headers);
    for name in NOT_OUTSIDE {
        headers.remove(name);
    }
    let to_proxies: Vec<HeaderName> = headers
        .keys()
        .filter(|name| NOT_OUTSIDE_BEGINNINGS.iter().any(|start| name.as_str().starts_with(start)))
        .cloned()
        .collect();
    for name in to_proxies {
        headers.remove(name);
    }
    let cookies: Vec<HeaderValue> =
        headers.get_all(SET_COOKIE).iter().filter_map(|cookie| confined(cookie, &about.prefix)).collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies {
        headers.append(SET_COOKIE, cookie);
    }
    if !about.is_trusted {
        // Beside the program's own: all of them hold.
        headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    }
    headers
}

/// Whether a request, or an answer, is for a WebSocket.
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    let is = |value: &[u8], wanted: &str| value.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes());
    let mut connection =
        headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    connection.any(|part| is(part, "upgrade"))
        && headers.get(UPGRADE).is_some_and(|value| is(value.as_bytes(), "websocket"))
}

/// Asks for a WebSocket, or grants it, on this connection.
pub(super) fn set_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Takes away what is of one connection, with what the connection itself names so.
fn strip_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOPS {
        headers.remove(name);
    }
}

/// Cookies of ours are none of its business.
fn drop_our_cookies(headers: &mut HeaderMap) {
    let theirs: Vec<Vec<u8>> = headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b';'))
        .map(<[u8]>::trim_ascii)
        .filter(|cookie| !cookie.is_empty() && !is_ours(cookie))
        .map(<[u8]>::to_vec)
        .collect();
    headers.remove(COOKIE);
    if let Ok(all) = HeaderValue::from_bytes(&theirs.join(&b"; "[..]))
        && !all.is_empty()
    {
        headers.insert(COOKIE, all);
    }
}

fn is_ours(name: &[u8]) -> bool {
    name.get(..OURS.len()).is_some_and(|start| start.eq_ignore_ascii_case(OURS))
}

/// The tokens in cookies of this port. Names of cookies are not escaped, and their letters count.
pub(super) fn cookies(headers: &HeaderMap, port: u16) -> ApiResult<Vec<String>> {
    let wanted = format!("seawall_{port}");
    let mut found = Vec::new();
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    for cookie in all.flat_map(|value| value.split(';')) {
        let (name, value) = cookie.split_once('=').unwrap_or((cookie, ""));
        if name.trim() != wanted {
            continue;
        }
        if !is_plain(value.trim()) {
            let detail = format!("the cookie `{wanted}` holds a token, as it is");
            return Err(ApiError::invalid("token_malformed", detail));
        }
        found.push(value.trim().to_owned());
    }
    Ok(found)
}

/// What makes a browser send the token from now on, to this port alone.
pub(super) fn port_cookie(about: &About, token: &str) -> Option<HeaderValue> {
    // What a sandboxed page loads is from another site to a browser, and there is no `None` without TLS.
    let site = match (about.is_https, about.is_trusted) {
        (true, false) => "SameSite=None; Secure",
        (true, true) => "SameSite=Lax; Secure",
        (false, _) => "SameSite=Lax",
    };
    value(&format!("seawall_{}={token}; Path={}; HttpOnly; {site}", about.port, about.prefix))
}

/// A cookie of the program's that comes back to it alone. None: it would pass for one of ours.
fn confined(cookie: &HeaderValue, prefix: &str) -> Option<HeaderValue> {
    let mut parts = cookie.as_bytes().split(|byte| *byte == b';');
    let pair = parts.next()?;
    let (name, _) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
    let name = name.trim_ascii();
    // One without a name is sent back as its value, which may look like any cookie.
    if name.is_empty() || is_ours(name) {
        return None;
    }
    let mut kept = pair.to_vec();
    for part in parts {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        if !name.eq_ignore_ascii_case(b"path") && !name.eq_ignore_ascii_case(b"domain") {
            kept.push(b';');
            kept.extend_from_slice(part);
        }
    }
    kept.extend_from_slice(b"; Path=");
    kept.extend_from_slice(prefix.as_bytes());
    HeaderValue::from_bytes(&kept).ok()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        About {
            prefix: "/sandboxes/a/ports/80".to_owned(),
            port: 80,
            is_https: false,
            remote: Some(IpAddr::from([10, 0, 0, 9])),
            trust_forwarded: false,
            is_trusted: false,
        }
    }

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn all(headers: &HeaderMap, name: &str) -> Vec<String> {
        headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn p7_nothing_of_ours_reaches_a_program() {
        let sent = map(&[
            ("authorization", "Bearer sw_secret"),
            ("x-seawall-token", "t"),
            ("cookie", "a=1; seawall_80=t; Seawall_81=u"),
            ("cookie", "b=2"),
            ("referer", "http://here/sandboxes/a/ports/80/?seawall_token=t"),
            ("accept", "*/*"),
        ]);
        let seen = to_program(sent, &about());
        for gone in ["authorization", "x-seawall-token", "referer"] {
            assert_eq!(all(&seen, gone), [""; 0], "{gone}");
        }
        assert_eq!(all(&seen, "cookie"), ["a=1; b=2"]);
        assert_eq!(all(&seen, "accept"), ["*/*"]);
        let alone = to_program(map(&[("cookie", "seawall_80=t"), ("referer", "http://here/")]), &about());
        assert_eq!((all(&alone, "cookie").len(), all(&alone, "referer").len()), (0, 1));
    }

    #[test]
    fn p7_what_is_of_one_connection_stays_there() {
        let sent = map(&[
            ("connection", "keep-alive, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-theirs", "2"),
        ]);
        let seen = to_program(sent.clone(), &about());
        for gone in ["connection", "x-mine", "keep-alive", "te", "transfer-encoding", "upgrade"] {
            assert!(!seen.contains_key(gone), "{gone}");
        }
        assert_eq!(all(&seen, "x-theirs"), ["2"]);
        assert!(!to_client(sent, &about()).contains_key("x-mine"));
    }

    #[test]
    fn p7_programs_are_told_who_asks() {
        let sent = [("host", "here:8080"), ("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=1.1.1.1")];
        let seen = to_program(map(&sent), &about());
        assert_eq!(all(&seen, "host"), ["localhost:80"]);
        assert_eq!(all(&seen, "x-forwarded-host"), ["here:8080"]);
        assert_eq!(all(&seen, "x-forwarded-for"), ["10.0.0.9"]);
        assert_eq!(all(&seen, "x-forwarded-proto"), ["http"]);
        assert_eq!(all(&seen, "x-forwarded-prefix"), ["/sandboxes/a/ports/80"]);
        assert!(!seen.contains_key("forwarded"));
        let believing = About { trust_forwarded: true, is_https: true, ..about() };
        let seen = to_program(map(&sent), &believing);
        assert_eq!(
            (all(&seen, "x-forwarded-for"), all(&seen, "x-forwarded-proto")),
            (vec!["1.1.1.1".to_owned()], vec!["https".to_owned()])
        );
    }

    #[test]
    fn p7_a_preview_does_not_act_as_our_origin() {
        let said = map(&[
            ("content-security-policy", "default-src 'self'"),
            ("clear-site-data", "\"*\""),
            ("service-worker-allowed", "/"),
            ("strict-transport-security", "max-age=1"),
            ("content-type", "text/html"),
        ]);
        let seen = to_client(said.clone(), &about());
        assert_eq!(all(&seen, "content-security-policy"), ["default-src 'self'", SANDBOX]);
        for gone in ["clear-site-data", "service-worker-allowed", "strict-transport-security"] {
            assert!(!seen.contains_key(gone), "{gone}");
        }
        assert_eq!(all(&seen, "content-type"), ["text/html"]);
        let trusted = About { is_trusted: true, ..about() };
        assert_eq!(all(&to_client(said, &trusted), "content-security-policy"), ["default-src 'self'"]);
    }

    #[test]
    fn p7_a_preview_tells_no_proxy_what_to_send() {
        let said = [
            "x-accel-redirect",
            "x-accel-buffering",
            "x-accel-expires",
            "x-sendfile",
            "x-sendfile-type",
            "x-lighttpd-send-file",
            "x-lighttpd-send-tempfile",
            "x-archive-files",
            "x-litespeed-location",
            "x-reproxy-url",
            "x-reproxy-file",
            "x-rewrite-url",
            "surrogate-control",
        ];
        let pairs: Vec<_> = said.iter().map(|name| (*name, "/internal/secret")).collect();
        let seen = to_client(map(&pairs), &about());
        for gone in said {
            assert!(!seen.contains_key(gone), "{gone}");
        }
        assert!(to_client(map(&[("x-own", "1")]), &about()).contains_key("x-own"));
    }

    #[test]
    fn p7_cookies_of_programs_are_theirs_alone() {
        let said = map(&[
            ("set-cookie", "session=1; Path=/; Domain=here; HttpOnly"),
            ("set-cookie", "plain=a=b"),
            ("set-cookie", "seawall_80=stolen"),
            ("set-cookie", " SEAWALL_80 =stolen"),
            ("set-cookie", "=seawall_80=stolen"),
            ("set-cookie", "seawall_80"),
        ]);
        let expected =
            ["session=1; HttpOnly; Path=/sandboxes/a/ports/80", "plain=a=b; Path=/sandboxes/a/ports/80"];
        assert_eq!(all(&to_client(said, &about()), "set-cookie"), expected);
    }

    #[test]
    fn p7_a_token_comes_back_in_its_cookie() {
        let cookie_of = |about: About| port_cookie(&about, "t").unwrap().to_str().unwrap().to_owned();
        let plain = "seawall_80=t; Path=/sandboxes/a/ports/80; HttpOnly; SameSite=";
        assert_eq!(cookie_of(about()), format!("{plain}Lax"));
        assert_eq!(cookie_of(About { is_https: true, ..about() }), format!("{plain}None; Secure"));
        let sent = map(&[("cookie", "a=1; seawall_8080=u"), ("cookie", "seawall_80=t")]);
        assert_eq!(
            (cookies(&sent, 80).unwrap(), cookies(&sent, 81).unwrap()),
            (vec!["t".to_owned()], vec![])
        );
        let twice = map(&[("cookie", "seawall_80=t; seawall_80=u; Seawall_80=v")]);
        assert_eq!(cookies(&twice, 80).unwrap(), ["t", "u"]);
        assert!(cookies(&map(&[("cookie", "seawall_80=%74")]), 80).is_err());
    }

    #[test]
    fn p7_websockets_are_known_by_their_headers() {
        assert!(is_websocket(&map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")])));
        assert!(!is_websocket(&map(&[("connection", "upgrade"), ("upgrade", "h2c")])));
        assert!(!is_websocket(&map(&[("upgrade", "websocket")])));
    }
}
