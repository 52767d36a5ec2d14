//! Server-sent events: what every stream of this server looks like.
//!
//! A stream costs its reader and a timer. It has no task and no buffer of its own: the next event is fetched when the
//! connection has room for it.

use crate::{error::request_id, state::AppState};
use axum::{
    http::{HeaderName, HeaderValue, header::CACHE_CONTROL},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use seawall_api::AccountId;
use seawall_core::{Result, turns::Followed};
use serde::Serialize;
use std::{convert::Infallible, time::Duration};
use tokio_util::sync::CancellationToken;

/// Proxies close what is silent for longer, mostly after 30 s or 60 s.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const GOES_DOWN: &str = "the server goes down; come back with Last-Event-ID";
const BROKE_OFF: &str = "the stream broke off; come back with Last-Event-ID";
/// Proxies that are nginx would hold events back.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Events with their numbers, as an answer. An error ends it: whoever comes back with the last number misses nothing.
pub fn answer<T, S>(state: &AppState, events: S) -> Response
where
    T: Serialize + Send + 'static,
    S: Stream<Item = Result<(u64, T)>> + Send + 'static,
{
    streamed(state.shutdown().clone(), events)
}

/// A turn's events as an answer. A hang-up drops the reader, and cancels nothing.
pub fn follow(state: &AppState, account: AccountId, followed: Followed) -> Response {
    let followed = followed.within(state.budget().open(Some(account)));
    let events = stream::unfold(followed, |mut followed| async move {
        let told = followed.next().await.transpose()?;
        Some((told, followed))
    });
    answer(state, events)
}

fn streamed<T, S>(shutdown: CancellationToken, events: S) -> Response
where
    T: Serialize + Send + 'static,
    S: Stream<Item = Result<(u64, T)>> + Send + 'static,
{
    // The request id is known here, and not where the body is polled.
    let open = Open { events: events.boxed(), shutdown, request: request_id() };
    let lines = stream::unfold(Some(open), |open| async move {
        let mut open = open?;
        let (line, goes_on) = open.next().await?;
        Some((Ok::<_, Infallible>(line), goes_on.then_some(open)))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    let mut response = Sse::new(lines).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    response
}

/// A stream that has not ended.
struct Open<T> {
    events: BoxStream<'static, Result<(u64, T)>>,
    shutdown: CancellationToken,
    request: String,
}

impl<T: Serialize> Open<T> {
    /// What comes next, and whether anything comes after it. None: all was told.
    async fn next(&mut self) -> Option<(Event, bool)> {
        let told = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return Some((Event::default().comment(GOES_DOWN), false)),
            told = self.events.next() => told?,
        };
        let why = match told {
            Ok((number, event)) => match Event::default().id(number.to_string()).json_data(&event) {
                Ok(line) => return Some((line, true)),
                Err(error) => error.to_string(),
            },
            Err(error) => error.chain(),
        };
        tracing::warn!(request_id = self.request, error = why, "a stream broke off");
        Some((Event::default().comment(BROKE_OFF), false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::Error;
    use serde_json::{Value, json};

    type Told = Result<(u64, Value)>;

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn told(count: u64) -> impl Stream<Item = Told> + Send + 'static {
        stream::iter((0..count).map(|number| Ok((number, json!({"n": number})))))
    }

    #[tokio::test]
    async fn c2_events_have_ids_and_no_names() {
        let response = streamed(CancellationToken::new(), told(2));
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "text/event-stream");
        assert_eq!((header("cache-control"), header("x-accel-buffering")), ("no-store".into(), "no".into()));
        assert_eq!(text(response).await, "id: 0\ndata: {\"n\":0}\n\nid: 1\ndata: {\"n\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn c2_a_silent_stream_is_kept_alive_and_ends_when_the_server_goes_down() {
        let shutdown = CancellationToken::new();
        let response = streamed(shutdown.clone(), told(1).chain(stream::pending()));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(40)).await;
            shutdown.cancel();
        });
        let expected =
            format!("id: 0\ndata: {{\"n\":0}}\n\n: keep-alive\n\n: keep-alive\n\n: {GOES_DOWN}\n\n");
        assert_eq!(text(response).await, expected);
    }

    #[tokio::test]
    async fn c2_an_error_ends_the_stream() {
        let broken = stream::iter([Err(Error::unavailable("the database is away"))]);
        let response = streamed(CancellationToken::new(), told(1).chain(broken).chain(told(1)));
        assert_eq!(text(response).await, format!("id: 0\ndata: {{\"n\":0}}\n\n: {BROKE_OFF}\n\n"));
    }
}
