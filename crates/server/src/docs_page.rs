//! A page that shows `/openapi.json` to people. It is self-contained, and loads nothing from anywhere else.

use axum::{
    http::{
        HeaderName, HeaderValue,
        header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    response::{IntoResponse, Response},
};

const PAGE: &str = include_str!("docs.html");
/// Its own style and script, and the document; nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub fn page() -> Response {
    let headers: [(HeaderName, HeaderValue); 3] = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, PAGE).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_no_network() {
        for foreign in ["http://", "https://", "//cdn", "@import", "innerHTML"] {
            assert!(!PAGE.contains(foreign), "{foreign}");
        }
        assert!(page().headers().contains_key(CONTENT_SECURITY_POLICY));
    }
}
