//! What a request holds for as long as it lasts: its account's place, its connection, bytes of the memory budget, its place
//! among streams or previews, and the watch of its key.
//!
//! One thing ends with all of them: where a key is revoked, what came of it ends here, whatever its handler does.

use crate::{
    counts::{Kind, Ticket},
    error::{ApiError, ApiResult},
    extract::outcome,
    limits::{Slot, is_about_keys},
    pace::{Meter, PacedBody},
    places::Busy,
    state::AppState,
};
use axum::{
    body::{Body, HttpBody},
    extract::{FromRequestParts, Request},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use seawall_api::AccountId;
use seawall_core::{
    budget::{Budget, MEMORY_BUDGET, Reservation},
    keys::KeyWatch,
};
use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::watch, time::sleep};
use tokio_util::task::AbortOnDropHandle;

/// The code of the error of a revoked key.
pub const KEY_REVOKED: &str = "key_revoked";
/// What the server holds for a request of an account besides its bodies: buffers of its connection, heads.
const BASE: u64 = 32 << 10;
/// Bytes of a [`Budget`] that are reserved for an open stream of a turn's events. What it reads of them it reserves as it does.
pub const EVENTS: u64 = 16 << 10;
/// What a wire to a guest holds of one stream whose reader does not read: what is unread there, and a frame.
pub const UNREAD: u64 = (256 << 10) + (128 << 10);
/// The same as [`EVENTS`], of the output of a process: what is unread, and an event of it.
pub const OUTPUT: u64 = UNREAD + (64 << 10);
/// How long a call of a key that was just revoked may take to answer: whoever revokes its own key hears of it.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Answers up to this size are sent whole, also of a key that was just revoked.
const SMALL: u64 = 64 << 10;

/// Cheap to clone: all clones are of one request. Sockets keep one after the answer.
#[derive(Clone, Default)]
pub struct InFlight(Option<Arc<Inner>>);

struct Inner {
    account: Option<AccountId>,
    budget: Budget,
    _slot: Slot,
    connection: Option<Arc<Busy>>,
    key: Option<KeyWatch>,
    /// Set once the account is known. Never for the operator's.
    meter: OnceLock<Meter>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Until the last clone is dropped.
    always: Vec<Reservation>,
    /// The request's body, until the head of the answer.
    body: Option<Reservation>,
    tickets: Vec<Ticket>,
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("account", &self.account()).finish_non_exhaustive()
    }
}

impl Inner {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlight {
    /// Fails where the account's requests hold all of its memory.
    pub fn new(state: &AppState, slot: Slot, request: &Request) -> ApiResult<InFlight> {
        let known = outcome(request.extensions());
        let identity = known.identity();
        let account = identity.map(|identity| identity.account);
        // Keys can be revoked whatever the account's other keys do.
        let counted = account.filter(|_| !is_about_keys(request));
        let mut held = Held::default();
        if counted.is_some() {
            held.always.push(state.budget().try_reserve(account, BASE).ok_or_else(no_memory)?);
        }
        let meter = counted.and_then(|account| state.pace().meter(account));
        Ok(InFlight(Some(Arc::new(Inner {
            account,
            budget: state.budget().clone(),
            _slot: slot,
            connection: request.extensions().get::<Arc<Busy>>().cloned(),
            key: identity.and_then(|identity| state.services().keys.watch(identity)),
            meter: meter.map_or_else(OnceLock::new, OnceLock::from),
            held: Mutex::new(held),
        }))))
    }

    fn account(&self) -> Option<AccountId> {
        self.0.as_ref().and_then(|inner| inner.account)
    }

    /// Reserves bytes for as long as the request lasts.
    pub async fn reserve(&self, account: AccountId, bytes: u64) -> ApiResult<()> {
        let Some(inner) = &self.0 else { return Ok(()) };
        let more = inner.budget.reserve(Some(account), bytes).await?;
        inner.held().always.push(more);
        Ok(())
    }

    /// Counts a stream, a socket or a preview of an account, with bytes for its buffers, for as long as the request lasts. 429
    /// where the account has as many as it may.
    pub async fn open(&self, state: &AppState, account: AccountId, kind: Kind, bytes: u64) -> ApiResult<()> {
        let ticket = state.enter(account, kind).await?;
        self.reserve(account, bytes).await?;
        if let Some(inner) = &self.0 {
            inner.held().tickets.push(ticket);
            // Previews with a token have no key, and their account is known only now.
            if let Some(meter) = state.pace().meter(account)
                && inner.meter.set(meter.clone()).is_ok()
            {
                meter.begin().await;
            }
        }
        Ok(())
    }

    /// Charges the account for the processor time of a handler.
    pub async fn measure<T>(&self, handler: impl Future<Output = T>) -> T {
        match self.meter() {
            Some(meter) => meter.measure(handler).await,
            None => handler.await,
        }
    }

    fn meter(&self) -> Option<&Meter> {
        self.0.as_ref().and_then(|inner| inner.meter.get())
    }

    /// Keeps what the request's body was reserved with, until the head of the answer.
    pub fn keep_body(&self, body: Reservation) {
        if let Some(inner) = &self.0 {
            inner.held().body = Some(body);
        }
    }

    /// What the body was reserved with, for a task that goes on with it.
    pub fn take_body(&self) -> Option<Reservation> {
        self.0.as_ref().and_then(|inner| inner.held().body.take())
    }

    /// Ends when the request's key is not good any more; never without a key.
    pub async fn revoked(&self) {
        match self.0.as_ref().and_then(|inner| inner.key.as_ref()) {
            Some(key) => key.over().await,
            None => std::future::pending().await,
        }
    }

    /// Becomes true when the request's key is not good any more. None without a key.
    pub fn withdrawn(&self) -> Option<watch::Receiver<bool>> {
        self.0.as_ref().and_then(|inner| inner.key.as_ref()).map(KeyWatch::receiver)
    }

    /// Drives a socket to its end, or until the key is revoked and what says so had its moment.
    pub async fn drive(self, socket: impl Future<Output = ()>) {
        tokio::select! {
            () = self.pace(socket) => {}
            () = self.last_words() => {}
        }
    }

    /// Drives a socket to its end, as fast as the processor time of its account allows.
    pub async fn pace(&self, socket: impl Future<Output = ()>) {
        match self.meter() {
            Some(meter) => meter.drive(socket).await,
            None => socket.await,
        }
    }

    async fn last_words(&self) {
        self.revoked().await;
        sleep(LAST_WORDS).await;
    }

    /// The answer of a handler, which holds all of this until its body has been sent.
    pub async fn answer(self, handler: impl Future<Output = Response>) -> Response {
        let handled = async {
            if let Some(meter) = self.meter() {
                meter.begin().await;
            }
            self.measure(handler).await
        };
        let response = tokio::select! {
            biased;
            response = handled => response,
            () = self.last_words() => revoked().into_response(),
        };
        drop(self.take_body());
        let is_small = response.body().size_hint().exact().is_some_and(|size| size <= SMALL);
        let response = match self.meter() {
            Some(meter) if !is_small => response.map(|inner| Body::new(PacedBody::new(inner, meter.clone()))),
            _ => response,
        };
        let watched = self.0.as_ref().is_some_and(|inner| inner.key.is_some()) && !is_small;
        match watched {
            false => hold(response, self),
            true => response.map(|inner| Body::new(Cut::new(inner, self))),
        }
    }
}

fn no_memory() -> ApiError {
    let detail =
        "requests of this account hold all of its memory on the server; wait until some are answered";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, MEMORY_BUDGET, detail).retry_after(1)
}

/// 401, of a key that was good when its request came.
pub fn revoked() -> ApiError {
    ApiError::unauthorized(KEY_REVOKED, "this key is not good any more; make a new one")
}

impl<S: Sync> FromRequestParts<S> for InFlight {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<InFlight, Infallible> {
        Ok(parts.extensions.get::<InFlight>().cloned().unwrap_or_default())
    }
}

/// Keeps something for as long as the body of an answer lasts.
pub fn hold<G: Send + Unpin + 'static>(response: Response, guard: G) -> Response {
    response.map(|inner| Body::new(Guarded { inner, _guard: guard }))
}

struct Guarded<G> {
    inner: Body,
    _guard: G,
}

impl<G: Unpin> HttpBody for Guarded<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A body that breaks off when its key is revoked. A client that takes nothing is hung up on: then nobody asks the body for
/// more.
struct Cut {
    inner: Body,
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: InFlight,
    _hang_up: AbortOnDropHandle<()>,
}

impl Cut {
    fn new(inner: Body, place: InFlight) -> Cut {
        let (polled, watched) = (place.clone(), place.clone());
        let revoked = Box::pin(async move { polled.revoked().await });
        let hang_up = tokio::spawn(async move {
            watched.last_words().await;
            if let Some(connection) = watched.0.as_ref().and_then(|inner| inner.connection.as_ref()) {
                connection.hang_up();
            }
        });
        Cut { inner, revoked, _place: place, _hang_up: AbortOnDropHandle::new(hang_up) }
    }
}

impl HttpBody for Cut {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.revoked.as_mut().poll(cx).is_ready() {
            self.inner = Body::empty();
            return Poll::Ready(Some(Err(axum::Error::new("the key was revoked"))));
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
