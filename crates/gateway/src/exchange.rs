//! One request of a box and its answer: what is logged of it, and what it used.

use crate::{
    answer::{Answer, Body, BoxError, Refusal, Shape},
    count::Counter,
    upstream,
};
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::{HeaderMap, Response, body::Frame};
use seawall_api::conversation::Usage;
use seawall_core::{
    ports::{gateway::Access, store::all_tokens},
    tokens::Reservation,
};
use std::sync::Arc;
use tokio::time::{Instant, timeout};
use tracing::field::display;

/// Lives until the answer has passed, or the box hung up. Then it is logged, and what it used is added to the
/// meter and charged: once, whichever way it ends.
#[derive(Debug)]
pub struct Exchange {
    pub access: Arc<Access>,
    /// Where to, from a table: nothing of what the box wrote.
    route: &'static str,
    pub model: Option<String>,
    began: Instant,
    /// None: the box hung up before there was an answer.
    status: Option<u16>,
    refusal: Option<String>,
    /// Why the answer is not whole.
    broken: Option<&'static str>,
    counter: Option<Counter>,
    pledge: Option<Pledge>,
}

/// Tokens that are reserved for the request.
#[derive(Debug)]
struct Pledge {
    reservation: Reservation,
    /// The most that its answers may have.
    output: u64,
    /// Whether the API may have worked on it.
    sent: bool,
}

impl Pledge {
    /// What the request costs. An answer that tells all that it used costs that. One that broke off costs all that it
    /// could have used, because what the API did after that is not known; of an account without limits, what was seen.
    fn cost(&self, counter: Option<&Counter>) -> u64 {
        if !self.sent {
            return 0;
        }
        let told = counter.map(Counter::usage).unwrap_or_default();
        let (is_whole, is_limited) = (counter.is_some_and(Counter::is_whole), self.reservation.tokens() > 0);
        if is_whole || !is_limited {
            return all_tokens(&told);
        }
        match told.input_tokens.saturating_add(told.cache_tokens) {
            0 => self.reservation.tokens(),
            input => input.saturating_add(self.output.max(told.output_tokens)),
        }
    }
}

impl Exchange {
    pub fn new(access: Arc<Access>, route: &'static str) -> Exchange {
        Exchange {
            access,
            route,
            model: None,
            began: Instant::now(),
            status: None,
            refusal: None,
            broken: None,
            counter: None,
            pledge: None,
        }
    }

    /// Tokens are reserved, of which all answers together may use `output`.
    pub fn pledge(&mut self, reservation: Reservation, output: u64) {
        self.pledge = Some(Pledge { reservation, output, sent: false });
    }

    /// Whether the API may work on the request, from now on.
    pub fn sent(&mut self, sent: bool) {
        if let Some(pledge) = &mut self.pledge {
            pledge.sent = sent;
        }
    }

    pub fn refuse(mut self, refusal: Refusal, shape: Shape) -> Answer {
        self.status = Some(refusal.status.as_u16());
        self.refusal = Some(refusal.message.clone());
        refusal.into_answer(shape)
    }

    /// Passes an answer on as it comes.
    pub fn pass(
        mut self,
        response: reqwest::Response,
        headers: HeaderMap,
        counter: Option<Counter>,
    ) -> Answer {
        let status = response.status();
        self.status = Some(status.as_u16());
        self.counter = counter;
        let mut answer = Response::new(self.body(response));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        answer
    }

    fn body(self, response: reqwest::Response) -> Body {
        let parts = stream::unfold(Some((response, self)), |state| async move {
            let (mut response, mut exchange) = state?;
            let part = exchange.next(&mut response).await?;
            let rest = part.is_ok().then_some((response, exchange));
            Some((part.map(Frame::data), rest))
        });
        StreamBody::new(parts).boxed_unsync()
    }

    async fn next(&mut self, response: &mut reqwest::Response) -> Option<Result<Bytes, BoxError>> {
        match timeout(upstream::IDLE, response.chunk()).await {
            Ok(Ok(Some(part))) => {
                if let Some(counter) = &mut self.counter {
                    counter.feed(&part);
                }
                Some(Ok(part))
            }
            Ok(Ok(None)) => None,
            Ok(Err(error)) => {
                self.broken = Some("the other side broke off");
                Some(Err(error.without_url().into()))
            }
            Err(late) => {
                self.broken = Some("the other side was silent for too long");
                Some(Err(late.into()))
            }
        }
    }

    fn log(&self, usage: &Usage) {
        let Access { account, sandbox, .. } = &*self.access;
        let conversation = self.access.conversation.map(display);
        let turn = self.access.turn.map(display);
        let (route, model, status) = (self.route, self.model.as_deref(), self.status);
        let duration_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Some(reason) = &self.refusal {
            tracing::warn!(
                %sandbox, %account, conversation, turn, route, model, status, duration_ms, ?reason,
                "a request of a sandbox was refused"
            );
            return;
        }
        let Usage { input_tokens, output_tokens, cache_tokens } = *usage;
        let (broken, hung_up) = (self.broken, status.is_none());
        tracing::info!(
            %sandbox, %account, conversation, turn, route, model, status, duration_ms, input_tokens,
            output_tokens, cache_tokens, broken, hung_up, "a request of a sandbox"
        );
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let usage = self.counter.as_ref().map(Counter::usage).unwrap_or_default();
        if usage != Usage::default() {
            self.access.meter.add(&usage);
        }
        if let Some(mut pledge) = self.pledge.take() {
            let cost = pledge.cost(self.counter.as_ref());
            pledge.reservation.charge(cost);
        }
        self.log(&usage);
    }
}
