//! The way to others' servers: one kind of client, and how long anything may take.

use crate::answer::Refusal;
use hyper::StatusCode;
use reqwest::{Client, RequestBuilder, Response, redirect::Policy};
use seawall_core::{Error, Result};
use std::{
    error::Error as StdError,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

const CONNECT: Duration = Duration::from_secs(10);
/// From the last byte that went out to the first that comes back. Models think.
const FIRST_BYTE: Duration = Duration::from_secs(600);
/// Between two parts of a body.
pub const IDLE: Duration = Duration::from_secs(300);

pub fn client() -> Result<Client> {
    Client::builder()
        .connect_timeout(CONNECT)
        // A key must not travel.
        .redirect(Policy::none())
        .referer(false)
        // A connection for each request: on a shared one, a box that does not read would hold up all others.
        .http1_only()
        // Bodies pass as they are, whatever another crate turns on.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .build()
        .map_err(|error| {
            let message =
                "the HTTP client cannot be set up; are the system's certificates (ca-certificates) there?";
            Error::internal(message).with_source(error)
        })
}

/// When a request's body last moved: a long upload is no silence.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<Instant>>);

impl Activity {
    pub fn begin() -> Activity {
        Activity(Arc::new(Mutex::new(Instant::now())))
    }

    pub fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when nothing moved for so long.
    async fn silence(&self, longest: Duration) {
        loop {
            let until = self.last() + longest;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// A request that got no answer.
#[derive(Debug)]
pub struct Unanswered {
    pub refusal: Refusal,
    /// Whether the other side may have done what was asked all the same.
    pub may_be_done: bool,
}

impl From<Unanswered> for Refusal {
    fn from(unanswered: Unanswered) -> Refusal {
        unanswered.refusal
    }
}

/// Sends it, and waits for the head of the answer. `who` is asked, for people.
pub async fn send(request: RequestBuilder, who: &str, activity: &Activity) -> Result<Response, Unanswered> {
    let sent = tokio::select! {
        sent = request.send() => sent,
        () = activity.silence(FIRST_BYTE) => {
            let message = format!("{who} did not answer within {} minutes", FIRST_BYTE.as_secs() / 60);
            let refusal = Refusal::passing(StatusCode::GATEWAY_TIMEOUT, message);
            return Err(Unanswered { refusal, may_be_done: true });
        }
    };
    let response = sent.map_err(|error| {
        let may_be_done = !error.is_connect();
        Unanswered { refusal: unreachable(who, error), may_be_done }
    })?;
    let status = response.status();
    if status.is_redirection() {
        let message = format!("{who} answered with a redirect ({}), which is not followed", status.as_u16());
        let refusal = Refusal::new(StatusCode::BAD_GATEWAY, message);
        return Err(Unanswered { refusal, may_be_done: false });
    }
    Ok(response)
}

/// The cause is for the operator: it may tell of addresses.
fn unreachable(who: &str, error: reqwest::Error) -> Refusal {
    let what = match error.is_connect() {
        true => "cannot be reached",
        false => "broke off before it answered",
    };
    tracing::warn!(upstream = who, error = %chain(&error.without_url()), "an upstream {what}");
    Refusal::passing(StatusCode::BAD_GATEWAY, format!("{who} {what}; the server's log says why"))
}

/// An error with its causes.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (**error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
