//! Processor time that requests take from the threads of the server, bounded per account.
//!
//! All requests run on the same few threads, so an account that keeps those busy delays every step of all other requests. Each
//! account but the operator's therefore has a balance of processor time that grows back at a fixed rate. A request is charged
//! for the time that its handler and its body take, with a fixed amount for what happens elsewhere on its behalf. An account
//! that overdrew its balance waits, without a thread: before a handler begins, between two frames of a body, and between two
//! steps of a socket. A handler that has begun is never held up, since it may hold a transaction of the database that others wait for.

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use seawall_api::AccountId;
use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep};

/// What every request is charged with: its head, its key, its line in the logs, and the threads of the database.
const REQUEST: Duration = Duration::from_micros(250);
/// What a byte of a body is charged with, in nanoseconds: the kernel copies it to the socket.
const BYTE_NANOS: u64 = 1;
/// The largest balance of an account: how long it may keep a thread busy after a pause.
const BURST: Duration = Duration::from_millis(50);
/// The longest that a request or a frame waits.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Balances of this many accounts are kept before full ones are dropped.
const KEPT: usize = 1024;

/// The balances of all accounts. Clones share them.
#[derive(Debug, Clone)]
pub struct Pace(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Seconds of processor time that an account gets in a second.
    rate: f64,
    balances: Mutex<HashMap<AccountId, Balance>>,
}

/// Seconds of processor time. Negative where the account overdrew it.
#[derive(Debug, Clone, Copy)]
struct Balance {
    seconds: f64,
    at: Instant,
}

impl Pace {
    /// Balances that let an account keep so many percent of the processors busy. 0: no account is held up.
    pub fn of_processors(percent: u32) -> Pace {
        let processors = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        Pace::new(processors * f64::from(percent) / 100.0)
    }

    fn new(rate: f64) -> Pace {
        Pace(Arc::new(Shared { rate, balances: Mutex::default() }))
    }

    /// The meter of a request. None for the operator's account, whose requests are not held up.
    pub fn meter(&self, account: AccountId) -> Option<Meter> {
        (account != AccountId::LOCAL && self.0.rate > 0.0).then(|| Meter { shared: self.0.clone(), account })
    }
}

impl Shared {
    fn balances(&self) -> MutexGuard<'_, HashMap<AccountId, Balance>> {
        self.balances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grown(&self, balance: Balance, now: Instant) -> Balance {
        let passed = now.saturating_duration_since(balance.at).as_secs_f64();
        Balance { seconds: (balance.seconds + passed * self.rate).min(BURST.as_secs_f64()), at: now }
    }
}

/// Charges one account. Clones charge the same one.
#[derive(Clone)]
pub struct Meter {
    shared: Arc<Shared>,
    account: AccountId,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("account", &self.account).finish_non_exhaustive()
    }
}

impl Meter {
    /// Takes time from the balance, and returns how long the account has to wait until nothing is overdrawn.
    fn charge(&self, time: Duration, now: Instant) -> Duration {
        let mut balances = self.shared.balances();
        if balances.len() >= KEPT && !balances.contains_key(&self.account) {
            let full = BURST.as_secs_f64();
            balances.retain(|_, balance| self.shared.grown(*balance, now).seconds < full);
        }
        let fresh = Balance { seconds: BURST.as_secs_f64(), at: now };
        let balance = balances.entry(self.account).or_insert(fresh);
        *balance = self.shared.grown(*balance, now);
        let lowest = -LONGEST_WAIT.as_secs_f64() * self.shared.rate;
        balance.seconds = (balance.seconds - time.as_secs_f64()).max(lowest);
        Duration::from_secs_f64((-balance.seconds).max(0.0) / self.shared.rate)
    }

    /// Charges for a request, and waits until its account may have it handled.
    pub async fn begin(&self) {
        let wait = self.charge(REQUEST, Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    /// Charges for the time that a handler keeps its thread. Never holds it up.
    pub async fn measure<T>(&self, handler: impl Future<Output = T>) -> T {
        let mut handler = std::pin::pin!(handler);
        std::future::poll_fn(|cx| {
            let began = thread_time();
            let polled = handler.as_mut().poll(cx);
            self.charge(thread_time().saturating_sub(began), Instant::now());
            polled
        })
        .await
    }

    /// Charges for the time that a socket keeps its thread, and holds it up where its account overdrew its balance.
    pub async fn drive(&self, socket: impl Future<Output = ()>) {
        let (mut socket, mut pause) = (std::pin::pin!(socket), None::<Pin<Box<Sleep>>>);
        std::future::poll_fn(|cx| {
            if let Some(pausing) = &mut pause {
                ready!(pausing.as_mut().poll(cx));
                pause = None;
            }
            let began = thread_time();
            let polled = socket.as_mut().poll(cx);
            let wait = self.charge(thread_time().saturating_sub(began), Instant::now());
            if !wait.is_zero() {
                pause = Some(Box::pin(sleep(wait)));
            }
            polled
        })
        .await;
    }
}

/// The processor time of this thread so far. Time in which others had the processor does not count.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A body that charges for each frame, and waits before the next one where its account overdrew its balance.
pub struct PacedBody {
    inner: Body,
    meter: Meter,
    pause: Option<Pin<Box<Sleep>>>,
}

impl PacedBody {
    pub fn new(inner: Body, meter: Meter) -> PacedBody {
        PacedBody { inner, meter, pause: None }
    }
}

impl HttpBody for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let began = thread_time();
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        let bytes = match &polled {
            Poll::Ready(Some(Ok(frame))) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        let copied = Duration::from_nanos(bytes as u64 * BYTE_NANOS);
        let kept_busy = thread_time().saturating_sub(began);
        let wait = self.meter.charge(kept_busy + copied, Instant::now());
        if !wait.is_zero() {
            self.pause = Some(Box::pin(sleep(wait)));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;

    fn meter(rate: f64) -> Meter {
        Pace::new(rate).meter(AccountId::generate()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn k5_an_account_gets_its_share_of_processor_time_and_no_more() {
        let (mine, begun) = (meter(0.5), Instant::now());
        // Requests that keep a thread for 10 ms each, as many at once as a client likes.
        join_all((0..100).map(async |_| {
            mine.begin().await;
            mine.charge(Duration::from_millis(10), Instant::now());
        }))
        .await;
        mine.begin().await;
        let took = begun.elapsed().as_secs_f64();
        assert!((1.5..2.5).contains(&took), "a second of processor time at half a processor: {took}");
    }

    #[tokio::test(start_paused = true)]
    async fn k5_what_one_account_overdrew_holds_up_no_other() {
        let pace = Pace::new(0.5);
        let [mine, theirs] =
            [pace.meter(AccountId::generate()).unwrap(), pace.meter(AccountId::generate()).unwrap()];
        theirs.charge(Duration::from_secs(100), Instant::now());
        let begun = Instant::now();
        mine.begin().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        theirs.begin().await;
        assert!(begun.elapsed() <= LONGEST_WAIT, "nobody waits for ever: {:?}", begun.elapsed());
        assert!(begun.elapsed() >= LONGEST_WAIT / 2);
        assert!(pace.meter(AccountId::LOCAL).is_none(), "the operator is not held up");
    }

    #[tokio::test(start_paused = true)]
    async fn k5_large_bodies_are_sent_as_the_balance_allows() {
        let (meter, begun) = (meter(0.1), Instant::now());
        let piece = Bytes::from(vec![0; 1_000_000]);
        let pieces = futures::stream::iter((0..100).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
        let body = Body::new(PacedBody::new(Body::from_stream(pieces), meter));
        let sent = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        assert_eq!(sent.len(), 100_000_000);
        let took = begun.elapsed().as_secs_f64();
        assert!(took >= 0.4, "100 MB are 100 ms of copying, at a tenth of a processor: {took}");
    }

    #[tokio::test(start_paused = true)]
    async fn k5_sockets_are_driven_as_the_balance_allows() {
        let (meter, begun) = (meter(0.1), Instant::now());
        let socket = async {
            for _ in 0..10 {
                // As if this step had kept the thread for 20 ms.
                meter.charge(Duration::from_millis(20), Instant::now());
                tokio::task::yield_now().await;
            }
        };
        meter.drive(socket).await;
        let took = begun.elapsed().as_secs_f64();
        assert!(took >= 1.0, "200 ms, of which 50 are free, at a tenth of a processor: {took}");
    }

    #[tokio::test(start_paused = true)]
    async fn k5_balances_of_accounts_that_are_not_seen_any_more_are_dropped() {
        let pace = Pace::new(1.0);
        for _ in 0..3 * KEPT {
            pace.meter(AccountId::generate()).unwrap().begin().await;
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(pace.0.balances().len() <= KEPT, "{}", pace.0.balances().len());
    }
}
