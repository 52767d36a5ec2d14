//! What one caller may take from the others: requests in a second, requests in flight, and time.
//!
//! A caller is an account; who has none is the address it calls from. Each has a bucket of tokens that fills with time.

use crate::{
    error::ApiError,
    extract::{outcome, remote},
    in_flight::InFlight,
    options::Options,
    request_id::route,
    state::AppState,
};
use axum::{
    extract::{Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use seawall_api::{AccountId, account::KeyScope};
use seawall_core::shares::as_caller;
use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Callers that are remembered. Those beyond share one place.
const MAX_CALLERS: usize = 65_536;
/// How often the forgotten are looked for, at the most.
const SWEEP: Duration = Duration::from_secs(1);
/// Whoever watches the server is answered in any case.
const UNLIMITED: [&str; 2] = ["/health", "/ready"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    /// The server's own user at the local socket. Apart from the programs with keys of its account.
    HostUser,
    Account(AccountId),
    /// Whoever manages the keys of an account. Apart from its other requests, so that a key which was stolen and floods the
    /// server can still be revoked.
    Keys(AccountId),
    Address(IpAddr),
    /// Who is not known, and who comes when too many are.
    Others,
}

impl Who {
    fn of(request: &Request, trust_forwarded: bool) -> Who {
        let (headers, extensions) = (request.headers(), request.extensions());
        match (outcome(extensions).identity(), remote(headers, extensions, trust_forwarded).0) {
            (Some(identity), _) if identity.is_host_user() => Who::HostUser,
            (Some(identity), _) if is_about_keys(request) => Who::Keys(identity.account),
            (Some(identity), _) => Who::Account(identity.account),
            (None, Some(address)) => Who::Address(network(address)),
            (None, None) => Who::Others,
        }
    }
}

/// Whether a request with an admin key lists, makes or revokes keys of its account.
pub fn is_about_keys(request: &Request) -> bool {
    let is_admin = outcome(request.extensions()).identity().is_some_and(|who| who.may(KeyScope::Admin));
    let route = route(request.extensions());
    is_admin && (route == "/keys" || route.starts_with("/keys/"))
}

/// Of IPv6 everybody has a whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// Why not now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too many in a second. The next is welcome after this.
    Rate(Duration),
    /// Too many in flight.
    Crowded,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, detail, seconds) = match self {
            Refusal::Rate(wait) => {
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                ("rate_limited", "too many requests in a second; slow down and send it again", seconds.max(1))
            }
            Refusal::Crowded => (
                "too_many_requests",
                "too many requests and streams are open at once; close some, or wait until some are answered",
                1,
            ),
        };
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, code, detail).retry_after(seconds).into_response()
    }
}

/// Tokens that grow back.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn fill(&mut self, now: Instant, rate: f64, burst: f64) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * rate).min(burst);
        self.at = self.at.max(now);
    }

    /// One token; else how long it takes until there is one.
    fn take(&mut self, now: Instant, rate: f64, burst: f64) -> Result<(), Duration> {
        self.fill(now, rate, burst);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / rate))
    }
}

#[derive(Debug)]
struct Caller {
    bucket: Bucket,
    running: usize,
}

#[derive(Debug)]
struct Callers {
    all: HashMap<Who, Caller>,
    swept: Option<Instant>,
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Limiter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// 0: no limit.
    rate: f64,
    burst: f64,
    /// 0: no limit.
    concurrency: usize,
    callers: Mutex<Callers>,
}

impl Limiter {
    pub fn new(options: &Options) -> Limiter {
        Limiter(Arc::new(Shared {
            rate: f64::from(options.rate),
            // Less than one would let nobody in, ever.
            burst: f64::from(options.burst.max(1)),
            concurrency: options.concurrency,
            callers: Mutex::new(Callers { all: HashMap::new(), swept: None }),
        }))
    }

    /// A place for one request, until it is dropped.
    pub fn enter(&self, who: Who, now: Instant) -> Result<Slot, Refusal> {
        let Shared { rate, burst, concurrency, .. } = *self.0;
        let mut callers = self.0.lock();
        let who = callers.place(who, now, rate, burst);
        let fresh = || Caller { bucket: Bucket { tokens: burst, at: now }, running: 0 };
        let caller = callers.all.entry(who).or_insert_with(fresh);
        if rate > 0.0 {
            caller.bucket.take(now, rate, burst).map_err(Refusal::Rate)?;
        }
        if concurrency > 0 && caller.running >= concurrency {
            return Err(Refusal::Crowded);
        }
        caller.running += 1;
        drop(callers);
        Ok(Slot { shared: self.0.clone(), who })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Callers {
    /// Where a caller is counted. Those with a full bucket and nothing in flight make room: they are as if never seen.
    fn place(&mut self, who: Who, now: Instant, rate: f64, burst: f64) -> Who {
        if self.all.len() < MAX_CALLERS || self.all.contains_key(&who) {
            return who;
        }
        if self.swept.is_none_or(|last| now.saturating_duration_since(last) >= SWEEP) {
            self.swept = Some(now);
            self.all.retain(|_, caller| {
                caller.bucket.fill(now, rate, burst);
                caller.running > 0 || (rate > 0.0 && caller.bucket.tokens < burst)
            });
        }
        if self.all.len() < MAX_CALLERS { who } else { Who::Others }
    }
}

/// A request's place among those in flight.
pub struct Slot {
    shared: Arc<Shared>,
    who: Who,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(caller) = self.shared.lock().all.get_mut(&self.who) {
            caller.running = caller.running.saturating_sub(1);
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("who", &self.who).finish()
    }
}

/// The layer of rates and of requests in flight.
pub async fn limit(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    if UNLIMITED.contains(&route(request.extensions())) {
        return next.run(request).await;
    }
    let who = Who::of(&request, state.options().trust_forwarded);
    let slot = match state.limiter().enter(who, Instant::now()) {
        Ok(slot) => slot,
        Err(refusal) => return refusal.into_response(),
    };
    let place = match InFlight::new(&state, slot, &request) {
        Ok(place) => place,
        Err(error) => return error.into_response(),
    };
    request.extensions_mut().insert(place.clone());
    place.answer(next.run(request)).await
}

/// The layer next to the handlers: what they ask of pools counts against their caller's share.
pub async fn in_name(request: Request, next: Next) -> Response {
    match outcome(request.extensions()).identity().map(|identity| identity.account) {
        Some(account) => as_caller(account, next.run(request)).await,
        None => next.run(request).await,
    }
}

/// The layer of time: until the head of an answer. What streams after it may take as long as it likes.
pub async fn hurry(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let time = time_for(state.options(), request.method(), route(request.extensions()));
    match tokio::time::timeout(time, next.run(request)).await {
        Ok(response) => response,
        Err(_) => too_late(time).into_response(),
    }
}

pub fn too_late(time: Duration) -> ApiError {
    let detail =
        format!("there was no answer within {} s; what was asked may have been done", time.as_secs());
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "request_timeout", detail)
}

/// How long a route may take until the head of its answer.
pub fn time_for(options: &Options, method: &Method, route: &str) -> Duration {
    match is_slow(method, route) {
        true => options.slow_timeout,
        false => options.request_timeout,
    }
}

/// Whatever touches a sandbox may have to make it first, and that may take as long as its image is large.
fn is_slow(method: &Method, route: &str) -> bool {
    route.starts_with("/sandboxes/")
        || (route == "/sandboxes" && method == Method::POST)
        || route.contains("/sandbox/")
        || (route.starts_with("/conversations/") && method == Method::DELETE)
}

/// What goes to a port of a sandbox is none of ours to read: no CORS, no idempotency.
pub fn is_proxy(route: &str) -> bool {
    route.contains("/ports/{") && !route.ends_with("/token")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(rate: u32, burst: u32, concurrency: usize) -> Limiter {
        Limiter::new(&Options { rate, burst, concurrency, ..Options::default() })
    }

    fn someone(number: u128) -> Who {
        Who::Address(IpAddr::V6(Ipv6Addr::from_bits(number << 64)))
    }

    #[test]
    fn k5_tokens_grow_back_with_time() {
        let limiter = limiter(10, 3, 0);
        let begin = Instant::now();
        let at = |millis: u64| limiter.enter(Who::Others, begin + Duration::from_millis(millis)).map(drop);
        assert_eq!([at(0), at(0), at(0)], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(at(0), Err(Refusal::Rate(Duration::from_millis(100))));
        assert_eq!([at(100), at(200)], [Ok(()), Ok(())]);
        assert!(at(250).is_err() && at(300).is_ok());
        // However long the pause: no more than the burst.
        let later = |_| at(60_000).is_ok();
        assert_eq!((0..5).map(later).collect::<Vec<_>>(), [true, true, true, false, false]);
        // A clock that goes back gives nothing, and takes nothing.
        assert!(at(0).is_err() && at(60_100).is_ok());
    }

    #[test]
    fn k5_callers_do_not_take_from_each_other() {
        let limiter = limiter(1, 1, 0);
        let now = Instant::now();
        assert!(limiter.enter(Who::Account(AccountId::LOCAL), now).is_ok());
        assert!(limiter.enter(Who::Account(AccountId::LOCAL), now).is_err());
        assert!(limiter.enter(Who::Account(AccountId::generate()), now).is_ok());
        assert!(limiter.enter(Who::Others, now).is_ok());
    }

    #[test]
    fn k5_requests_in_flight_are_counted_until_they_are_dropped() {
        let limiter = limiter(0, 0, 2);
        let enter = || limiter.enter(Who::Others, Instant::now());
        let (first, second) = (enter().unwrap(), enter().unwrap());
        assert_eq!(enter().unwrap_err(), Refusal::Crowded);
        drop(first);
        let third = enter().unwrap();
        assert!(enter().is_err());
        drop((second, third));
        assert!(enter().is_ok());
    }

    #[test]
    fn k5_memory_is_bounded() {
        let limiter = limiter(1, 1, 0);
        let now = Instant::now();
        for number in 0..u128::try_from(MAX_CALLERS).unwrap() + 10 {
            drop(limiter.enter(someone(number), now));
        }
        assert_eq!(limiter.0.lock().all.len(), MAX_CALLERS + 1);
        assert!(limiter.enter(someone(1 << 60), now).is_err(), "the others share one bucket");
        assert!(limiter.enter(someone(1 << 60), now + Duration::from_secs(5)).is_ok());
        assert_eq!(limiter.0.lock().all.len(), 1);
    }

    #[test]
    fn addresses_are_networks() {
        let same = |a: &str, b: &str| network(a.parse().unwrap()) == network(b.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::ffff") && !same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1") && !same("10.0.0.1", "10.0.0.2"));
    }

    #[test]
    fn routes_have_their_time() {
        let options = Options::default();
        let time = |method: Method, route: &str| time_for(&options, &method, route).as_secs();
        assert_eq!(time(Method::POST, "/sandboxes/{id}/exec"), 3600);
        assert_eq!(time(Method::POST, "/conversation/{id}/sandbox/{sandbox}"), 3600);
        assert_eq!(time(Method::GET, "/sandboxes"), 60);
        assert_eq!(time(Method::GET, "/conversations/{id}/messages"), 60);
        assert!(is_proxy("/sandboxes/{id}/ports/{port}/{*path}") && is_proxy("/sandboxes/{id}/ports/{port}"));
        assert!(!is_proxy("/sandboxes/{id}/ports/{port}/token") && !is_proxy("/sandboxes/{id}"));
    }
}
