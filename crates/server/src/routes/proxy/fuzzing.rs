//! What a fuzz target does with headers on their way to a preview and back.

use super::headers::{self, About, TOKEN_HEADER};
use axum::http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_SECURITY_POLICY, COOKIE, HOST, SET_COOKIE},
};
use std::net::IpAddr;

const PREFIX: &str = "/sandboxes/01a1e4f6-9f18-7111-a032-183ad9a5faea/ports/8080";

/// Lines `name: value`: as headers of a request and of an answer. Nothing of ours reaches a program, and nothing of a
/// program's holds for the whole origin.
pub fn previews(data: &[u8]) {
    let Some((&flags, lines)) = data.split_first() else { return };
    let about = About {
        prefix: PREFIX.to_owned(),
        port: 8080,
        is_https: flags & 1 != 0,
        remote: (flags & 2 != 0).then(|| IpAddr::from([10, 0, 0, 9])),
        trust_forwarded: flags & 4 != 0,
        is_trusted: flags & 8 != 0,
    };
    let mut sent = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.trim_ascii()), HeaderValue::from_bytes(value))
        {
            sent.append(name, value);
        }
    }
    let _ = headers::is_websocket(&sent);
    for token in headers::cookies(&sent, about.port).unwrap_or_default() {
        assert!(!token.contains(';'));
    }
    to_program(&headers::to_program(sent.clone(), &about), &about);
    to_client(&headers::to_client(sent, &about), &about);
}

fn to_program(headers: &HeaderMap, about: &About) {
    for name in
        ["authorization", TOKEN_HEADER, "connection", "upgrade", "transfer-encoding", "te", "forwarded"]
    {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(headers.get_all(HOST).iter().count(), 1);
    assert_eq!(
        headers.get(HOST).map(HeaderValue::as_bytes),
        Some(format!("localhost:{}", about.port).as_bytes())
    );
    for cookie in headers.get_all(COOKIE).iter().flat_map(|all| all.as_bytes().split(|byte| *byte == b';')) {
        assert!(!cookie.trim_ascii().to_ascii_lowercase().starts_with(b"seawall_"));
    }
    for name in ["x-forwarded-host", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-prefix"] {
        assert!(headers.get_all(name).iter().count() <= 1, "{name}");
    }
    assert!(headers.get("x-forwarded-prefix").is_some_and(|prefix| prefix == PREFIX));
}

fn to_client(headers: &HeaderMap, about: &About) {
    for name in ["connection", "upgrade", "transfer-encoding", "clear-site-data", "strict-transport-security"]
    {
        assert!(!headers.contains_key(name), "{name}");
    }
    for cookie in headers.get_all(SET_COOKIE) {
        let cookie = cookie.as_bytes().to_ascii_lowercase();
        assert!(!cookie.trim_ascii().starts_with(b"seawall_"));
        let name =
            |part: &[u8]| part.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii().to_vec();
        let names: Vec<Vec<u8>> = cookie.split(|byte| *byte == b';').skip(1).map(name).collect();
        assert_eq!(names.iter().filter(|name| *name == b"path").count(), 1, "{cookie:?}");
        assert!(names.iter().all(|name| name != b"domain"), "{cookie:?}");
        assert!(cookie.ends_with(format!("; path={PREFIX}").as_bytes()));
    }
    let sandboxed = |policy: &HeaderValue| policy.as_bytes().starts_with(b"sandbox ");
    assert!(about.is_trusted || headers.get_all(CONTENT_SECURITY_POLICY).iter().any(sandboxed));
}
