//! The model APIs: what of them may be asked, and how it is passed on.

use crate::{
    answer::{Answer, Refusal, Shape},
    ask::Ask,
    body,
    count::Counter,
    estimate::{Estimate, Limit},
    exchange::Exchange,
    gateway::{Inner, beneath},
    headers,
    settings::{name, word},
    upstream::{self, Activity},
};
use bytes::Bytes;
use hyper::{
    Method, Request, StatusCode,
    body::{Body as _, Incoming},
    header::CONTENT_ENCODING,
    http::request::Parts,
};
use seawall_core::{
    agents::ModelApi,
    ports::gateway::{Access, ModelAccess},
    tokens::TokenRefusal,
};
use std::sync::Arc;

/// What may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Messages,
    CountTokens,
    Responses,
    Chat,
    /// Which models there are, of either API.
    Models(ModelApi),
}

pub async fn answer(
    gateway: &Inner,
    access: Arc<Access>,
    api: ModelApi,
    request: Request<Incoming>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let route = Route::find(api, &parts);
    let mut exchange = Exchange::new(access, route.map_or(word(api), Route::name));
    match forward(gateway, &mut exchange, api, route, parts, body).await {
        Ok(response) => {
            let counter = Counter::new(api, headers::content_type(response.headers()));
            let passed = headers::from_models(response.headers());
            exchange.pass(response, passed, Some(counter))
        }
        Err(refusal) => exchange.refuse(refusal, Shape::of(api)),
    }
}

async fn forward(
    gateway: &Inner,
    exchange: &mut Exchange,
    api: ModelApi,
    route: Option<Route>,
    parts: Parts,
    body: Incoming,
) -> Result<reqwest::Response, Refusal> {
    let access = exchange.access.clone();
    let models = access.models.as_ref().filter(|models| models.api == api);
    let models = models.ok_or_else(|| not_for_this_sandbox(api))?;
    let route = route.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, offered(api)))?;
    let target = gateway.target(api);
    let mut headers = headers::to_models(&parts.headers);
    target.sign(&mut headers)?;
    let url = target.url(path(api, &parts), parts.uri.query())?;
    let mut request = gateway.client.request(parts.method, url).headers(headers);
    // Kept until the head of the answer is there: by then the body is gone.
    let mut room = None;
    if route.asks() {
        let mut entered = gateway.rooms.enter(access.sandbox, access.account, body.size_hint().exact()).await;
        let body = body::read(body, &mut entered).await?;
        let body = permitted(exchange, models, route, body, target.most_output()).await?;
        // The body alone is left of what was reserved for reading it.
        entered.shrink_to(body.len() as u64);
        request = request.body(body);
        room = Some(entered);
    }
    access.meter.request();
    exchange.sent(true);
    let sent = upstream::send(request, name(api), &Activity::begin()).await;
    drop(room);
    // What the API refuses costs nothing.
    exchange.sent(match &sent {
        Ok(response) => response.status().is_success(),
        Err(unanswered) => unanswered.may_be_done,
    });
    readable(api, sent?)
}

/// The body of a request that the account may make, with tokens reserved for it.
async fn permitted(
    exchange: &mut Exchange,
    models: &ModelAccess,
    route: Route,
    body: Bytes,
    most_output: u64,
) -> Result<Bytes, Refusal> {
    let ask = Ask::parse(&body)?;
    exchange.model = Some(ask.model.clone());
    ask.check_model(models)?;
    let Some(limit) = route.limit() else { return Ok(body) };
    if models.tokens.limits().is_unlimited() {
        exchange.pledge(models.tokens.reserve(0, 0).await.map_err(not_reserved)?, 0);
        return Ok(body);
    }
    ask.check_counted(route == Route::Chat)?;
    let estimate = Estimate::new(&body, &ask, limit)?;
    let (least, most) = estimate.wanted(most_output);
    let reservation = models.tokens.reserve(least, most).await.map_err(not_reserved)?;
    let output = estimate.output(reservation.tokens(), most_output);
    exchange.pledge(reservation, output);
    Ok(estimate.bounded_body(body, &ask, output))
}

fn not_reserved(refusal: TokenRefusal) -> Refusal {
    match refusal {
        TokenRefusal::Limit(reached) => Refusal::limit(reached),
        TokenRefusal::Unavailable(error) => {
            tracing::warn!(error = %error.chain(), "no tokens can be reserved");
            let message = "the server cannot reserve tokens for this request now; the server's log says why";
            Refusal::passing(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }
}

/// An answer that may go to the box, and can be counted.
fn readable(api: ModelApi, response: reqwest::Response) -> Result<reqwest::Response, Refusal> {
    let name = name(api);
    // What it says of a key that it does not take may quote the key.
    if response.status() == StatusCode::UNAUTHORIZED {
        let message = format!(
            "{name} does not take the server's key: its operator must check it ([models.{}] key)",
            word(api)
        );
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, message));
    }
    let encoding = headers::text(response.headers(), CONTENT_ENCODING).unwrap_or("identity");
    if !encoding.eq_ignore_ascii_case("identity") {
        let message = format!("{name} answered with a compressed body, though none was asked for");
        return Err(Refusal::new(StatusCode::BAD_GATEWAY, message));
    }
    Ok(response)
}

fn path(api: ModelApi, parts: &Parts) -> &str {
    let prefix = match api {
        ModelApi::Anthropic => "/anthropic",
        ModelApi::OpenAi => "/openai",
    };
    beneath(parts.uri.path(), prefix).unwrap_or("/")
}

/// Whether a request would go to an API.
#[cfg(feature = "fuzzing")]
pub fn reached(api: ModelApi, method: &Method, uri: &hyper::Uri) -> bool {
    let request = Request::builder().method(method).uri(uri).body(());
    request.is_ok_and(|request| Route::find(api, &request.into_parts().0).is_some())
}

impl Route {
    fn find(api: ModelApi, parts: &Parts) -> Option<Route> {
        let (get, post) = (parts.method == Method::GET, parts.method == Method::POST);
        match (api, path(api, parts)) {
            (ModelApi::Anthropic, "/v1/messages") if post => Some(Route::Messages),
            (ModelApi::Anthropic, "/v1/messages/count_tokens") if post => Some(Route::CountTokens),
            (ModelApi::OpenAi, "/v1/responses") if post => Some(Route::Responses),
            (ModelApi::OpenAi, "/v1/chat/completions") if post => Some(Route::Chat),
            (_, "/v1/models") if get => Some(Route::Models(api)),
            (ModelApi::Anthropic, path) if get => {
                let model = path.strip_prefix("/v1/models/")?;
                is_name(model).then_some(Route::Models(api))
            }
            _ => None,
        }
    }

    /// Where the bound of an answer is. `None` where an answer costs no tokens.
    fn limit(self) -> Option<Limit> {
        match self {
            Route::Messages => Some(Limit::Messages),
            Route::Responses => Some(Limit::Responses),
            Route::Chat => Some(Limit::Chat),
            Route::CountTokens | Route::Models(_) => None,
        }
    }

    /// Whether it asks for a model.
    fn asks(self) -> bool {
        !matches!(self, Route::Models(_))
    }

    fn name(self) -> &'static str {
        match self {
            Route::Messages => "anthropic/v1/messages",
            Route::CountTokens => "anthropic/v1/messages/count_tokens",
            Route::Responses => "openai/v1/responses",
            Route::Chat => "openai/v1/chat/completions",
            Route::Models(ModelApi::Anthropic) => "anthropic/v1/models",
            Route::Models(ModelApi::OpenAi) => "openai/v1/models",
        }
    }
}

/// One part of a path that nobody reads as something else.
fn is_name(part: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    !part.is_empty() && part.bytes().all(fits) && !part.bytes().all(|byte| byte == b'.')
}

fn offered(api: ModelApi) -> &'static str {
    match api {
        ModelApi::Anthropic => {
            "of this API, sandboxes may use POST /v1/messages, POST /v1/messages/count_tokens and \
             GET /v1/models"
        }
        ModelApi::OpenAi => {
            "of this API, sandboxes may use POST /v1/responses, POST /v1/chat/completions and \
             GET /v1/models"
        }
    }
}

fn not_for_this_sandbox(api: ModelApi) -> Refusal {
    let message = format!("this sandbox may not use {}: the agent of its template does not", name(api));
    Refusal::new(StatusCode::FORBIDDEN, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(api: ModelApi, method: &str, uri: &str) -> Option<&'static str> {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        Route::find(api, &request.into_parts().0).map(Route::name)
    }

    #[test]
    fn what_of_the_apis_may_be_asked() {
        for (uri, method, expected) in [
            ("/anthropic/v1/messages", "POST", Some("anthropic/v1/messages")),
            ("/anthropic/v1/messages?beta=true", "POST", Some("anthropic/v1/messages")),
            ("/anthropic/v1/messages/count_tokens", "POST", Some("anthropic/v1/messages/count_tokens")),
            ("/anthropic/v1/models", "GET", Some("anthropic/v1/models")),
            ("/anthropic/v1/models/claude-opus-4-1", "GET", Some("anthropic/v1/models")),
            ("/openai/v1/responses", "POST", Some("openai/v1/responses")),
            ("/openai/v1/chat/completions", "POST", Some("openai/v1/chat/completions")),
            ("/openai/v1/models", "GET", Some("openai/v1/models")),
            ("/anthropic/v1/messages", "GET", None),
            ("/anthropic/v1/messages", "PUT", None),
            ("/anthropic/v1/messages/", "POST", None),
            ("/anthropic//v1/messages", "POST", None),
            ("/anthropic/v1/messages/batches", "POST", None),
            ("/anthropic/v1/models", "DELETE", None),
            ("/anthropic/v1/models/", "GET", None),
            ("/anthropic/v1/models/..", "GET", None),
            ("/anthropic/v1/models/.%2e/messages", "GET", None),
            ("/anthropic/v1/models/a/b", "GET", None),
            ("/anthropic/v1/models/../organizations", "GET", None),
            ("/anthropic/v1/organizations/api_keys", "GET", None),
            ("/anthropic/v1/files", "POST", None),
            ("/openai/v1/files", "GET", None),
            ("/openai/v1/models/gpt-5", "GET", None),
            ("/openai/v1/responses/resp_1", "GET", None),
            ("/openai/v1/messages", "POST", None),
            ("/openai/v1/organization/admin_api_keys", "GET", None),
        ] {
            let api = match uri.starts_with("/openai") {
                true => ModelApi::OpenAi,
                false => ModelApi::Anthropic,
            };
            assert_eq!(found(api, method, uri), expected, "{method} {uri}");
        }
    }
}
