//! Whose pages may call. What goes to a port of a sandbox has rules of its own, and is left alone.

use crate::{
    limits::is_proxy,
    request_id::{self, route},
};
use axum::{
    extract::{Request, State},
    http::{
        HeaderName, HeaderValue, Method,
        header::{CONTENT_RANGE, ETAG, RETRY_AFTER},
    },
    middleware::Next,
    response::Response,
};
use seawall_core::{Error, Result};
use std::time::Duration;
use tower::{Layer, ServiceExt};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// How long a browser need not ask again.
const MAX_AGE: Duration = Duration::from_secs(3600);
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// None: nobody's. No credentials of browsers are allowed: keys are sent by the page itself.
pub fn rules(origins: &[String]) -> Result<Option<CorsLayer>> {
    if origins.is_empty() {
        return Ok(None);
    }
    let methods = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let layer = CorsLayer::new()
        .allow_origin(allowed(origins)?)
        .allow_methods(methods)
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([request_id::HEADER, RETRY_AFTER, REPLAYED, ETAG, CONTENT_RANGE])
        .max_age(MAX_AGE);
    Ok(Some(layer))
}

fn allowed(origins: &[String]) -> Result<AllowOrigin> {
    if origins.iter().any(|origin| origin == "*") {
        return Ok(AllowOrigin::any());
    }
    let checked = origins.iter().map(|origin| {
        let sane = origin.starts_with("https://") || origin.starts_with("http://");
        match HeaderValue::from_str(origin) {
            Ok(value) if sane && !origin.ends_with('/') => Ok(value),
            _ => Err(Error::invalid(format!(
                "`{origin}` is no origin for CORS: it must be like https://app.example.com, without a path, or `*`"
            ))),
        }
    });
    Ok(AllowOrigin::list(checked.collect::<Result<Vec<_>>>()?))
}

/// The layer.
pub async fn share(State(rules): State<CorsLayer>, request: Request, next: Next) -> Response {
    if is_proxy(route(request.extensions())) {
        return next.run(request).await;
    }
    match rules.layer(next).oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_checked() {
        let ok = |origins: &[&str]| {
            let origins: Vec<String> = origins.iter().map(|&origin| origin.to_owned()).collect();
            rules(&origins).map(|layer| layer.is_some()).map_err(|error| error.to_string())
        };
        assert_eq!(ok(&[]), Ok(false));
        assert_eq!(ok(&["*"]), Ok(true));
        assert_eq!(ok(&["https://app.example.com", "http://localhost:3000"]), Ok(true));
        for bad in ["app.example.com", "https://app.example.com/", ""] {
            assert!(ok(&[bad]).is_err(), "{bad}");
        }
    }
}
