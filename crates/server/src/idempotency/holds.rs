//! The calls with an `Idempotency-Key` that this server runs. One task renews all their holds together, and stores outcomes that the
//! store did not take at once.
//!
//! Invariant: a call that was dispatched is in here until its outcome is stored. A repeat is answered from here first, so that
//! no clock decides whether a call of this server still runs.

use super::answer::Stored;
use bytes::Bytes;
use seawall_api::{AccountId, ErrorKind};
use seawall_core::{
    Error, Result,
    ports::store::{Begun, Idempotency},
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::sleep;

/// How many holds one statement renews.
const BATCH: usize = 500;
/// A hold is renewed this often before it would end.
const RENEWALS: u32 = 4;

/// The account and its key.
pub type Place = (AccountId, String);

/// Cheap to clone.
#[derive(Clone)]
pub struct Holds(Arc<Shared>);

struct Shared {
    store: Arc<dyn Idempotency>,
    hold: Duration,
    keep: Duration,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    all: HashMap<Place, Call>,
    /// Whether the task that renews is there.
    renewing: bool,
}

struct Call {
    receipt: u64,
    request: [u8; 32],
    /// None while it runs.
    outcome: Option<Outcome>,
}

/// How a call came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It had no effect: its key is free.
    Nothing,
    /// This answers repeats.
    Stored(Bytes),
}

/// What a key stands for.
pub enum Taken {
    New(Claim),
    Running,
    Done(Bytes),
}

impl Holds {
    pub fn new(store: Arc<dyn Idempotency>, hold: Duration, keep: Duration) -> Holds {
        Holds(Arc::new(Shared { store, hold, keep, calls: Mutex::default() }))
    }

    /// Takes a key. `conflict` where it was used for another request.
    pub async fn take(&self, place: Place, request: &[u8; 32]) -> Result<Taken> {
        if let Some(known) = self.known(&place, request)? {
            return Ok(known);
        }
        let Shared { store, hold, keep, .. } = &*self.0;
        let receipt = match store.begin(place.0, &place.1, request, *hold, *keep).await? {
            Begun::New { receipt } => receipt,
            Begun::Running => return Ok(Taken::Running),
            Begun::Done(stored) => return Ok(Taken::Done(stored)),
            Begun::Lost => return Ok(Taken::Done(Stored::unknown().to_bytes())),
        };
        let mut calls = self.calls();
        calls.all.insert(place.clone(), Call { receipt, request: *request, outcome: None });
        let is_first = !std::mem::replace(&mut calls.renewing, true);
        drop(calls);
        if is_first {
            tokio::spawn(self.clone().renew());
        }
        Ok(Taken::New(Claim { holds: self.clone(), place, receipt, dispatched: false, settled: false }))
    }

    /// What is known of a key without the store.
    fn known(&self, place: &Place, request: &[u8; 32]) -> Result<Option<Taken>> {
        let calls = self.calls();
        let Some(call) = calls.all.get(place) else { return Ok(None) };
        if call.request != *request {
            return Err(Error::conflict("the idempotency key was used for another request; use a new one"));
        }
        Ok(Some(match &call.outcome {
            Some(Outcome::Stored(stored)) => Taken::Done(stored.clone()),
            // It is being freed.
            Some(Outcome::Nothing) | None => Taken::Running,
        }))
    }

    /// The call has ended. Where the store does not take that now, the task tries again.
    async fn end(&self, place: Place, receipt: u64, outcome: Outcome) {
        if let Some(call) = self.calls().all.get_mut(&place).filter(|call| call.receipt == receipt) {
            call.outcome = Some(outcome.clone());
        }
        self.store(place, receipt, outcome).await;
    }

    async fn store(&self, place: Place, receipt: u64, outcome: Outcome) {
        let (account, key) = (place.0, place.1.as_str());
        let stored = match &outcome {
            Outcome::Nothing => self.0.store.abandon(account, key, receipt).await,
            Outcome::Stored(answer) => self.0.store.finish(account, key, receipt, answer).await,
        };
        match stored {
            Err(error) if error.kind() != ErrorKind::Conflict => {
                tracing::warn!(
                    error = error.chain(),
                    "the outcome of a call is not stored yet; it is tried again"
                );
                return;
            }
            Err(error) => tracing::error!(error = error.chain(), "the outcome of a call is lost to repeats"),
            Ok(()) => {}
        }
        let mut calls = self.calls();
        if calls.all.get(&place).is_some_and(|call| call.receipt == receipt) {
            calls.all.remove(&place);
        }
    }

    /// Until no call is left.
    async fn renew(self) {
        let pause = self.0.hold / RENEWALS;
        loop {
            sleep(pause).await;
            let (running, ended) = {
                let mut calls = self.calls();
                if calls.all.is_empty() {
                    calls.renewing = false;
                    return;
                }
                calls.snapshot()
            };
            for batch in running.chunks(BATCH) {
                if let Err(error) = self.0.store.renew(batch, self.0.hold, self.0.keep).await {
                    // A hold that ended frees nothing: see `Begun::Lost`.
                    tracing::warn!(error = error.chain(), "the holds of calls that run are not renewed");
                }
            }
            for (place, receipt, outcome) in ended {
                self.store(place, receipt, outcome).await;
            }
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// The receipts of what runs, and the outcomes that are not stored.
    fn snapshot(&self) -> (Vec<u64>, Vec<(Place, u64, Outcome)>) {
        let running = self.all.values().filter(|call| call.outcome.is_none()).map(|call| call.receipt);
        let ended = self.all.iter().filter_map(|(place, call)| {
            call.outcome.clone().map(|outcome| (place.clone(), call.receipt, outcome))
        });
        (running.collect(), ended.collect())
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holds").field("calls", &self.calls().all.len()).finish_non_exhaustive()
    }
}

/// The right to run one call. Dropped unsettled, its key is free if the call was not dispatched, else its outcome is unknown.
pub struct Claim {
    holds: Holds,
    place: Place,
    receipt: u64,
    dispatched: bool,
    settled: bool,
}

impl Claim {
    /// From here on the call may have an effect.
    pub fn dispatch(&mut self) {
        self.dispatched = true;
    }

    pub async fn settle(mut self, outcome: Outcome) {
        self.settled = true;
        self.holds.end(self.place.clone(), self.receipt, outcome).await;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Without a runtime the process ends: the next start says that the outcome is unknown.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.settled {
            return;
        }
        let outcome = match self.dispatched {
            true => Outcome::Stored(Stored::unknown().to_bytes()),
            false => Outcome::Nothing,
        };
        let (holds, place, receipt) = (self.holds.clone(), self.place.clone(), self.receipt);
        runtime.spawn(async move { holds.end(place, receipt, outcome).await });
    }
}
