//! For tests: faults at every call of a bucket or a workspace, a clock that is told the time, names that repeat.

mod bucket;
mod workspace;

pub use bucket::FaultyBucket;
pub use workspace::FaultyWorkspace;

use crate::{
    Error, Result,
    versions::{Clock, Ids, Turnstile},
};
use async_trait::async_trait;
use std::collections::HashMap;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicI64, AtomicU64, Ordering},
};
use tokio::sync::Notify;

/// What goes wrong at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies before it is done.
    CrashBefore,
    /// The process dies when it was done, and hears nothing of it.
    CrashAfter,
    /// It is not done, and an error is told.
    Fails,
    /// It is done, and an error is told.
    LostReply,
}

impl Fault {
    pub const ALL: [Fault; 4] = [Fault::CrashBefore, Fault::CrashAfter, Fault::Fails, Fault::LostReply];
}

/// When something goes wrong, shared by all that a process uses.
#[derive(Debug, Default)]
pub struct Faults {
    calls: AtomicU64,
    planned: Mutex<Option<(u64, Fault)>>,
    crashed: Notify,
}

impl Faults {
    pub fn at(call: u64, fault: Fault) -> Arc<Faults> {
        Arc::new(Faults { planned: Mutex::new(Some((call, fault))), ..Faults::default() })
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Ends when the process is to die.
    pub async fn crash(&self) {
        self.crashed.notified().await;
    }

    /// Does a call, with what was planned for it.
    pub async fn call<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let planned = *self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        match planned.filter(|(at, _)| *at == number).map(|(_, fault)| fault) {
            None => work.await,
            Some(Fault::Fails) => Err(Error::unavailable("a test made it fail")),
            Some(Fault::LostReply) => {
                work.await?;
                Err(Error::unavailable("a test lost the reply"))
            }
            Some(Fault::CrashBefore) => self.die().await,
            Some(Fault::CrashAfter) => {
                // A store knows nothing of its client's death.
                let _ = work.await;
                self.die().await
            }
        }
    }

    async fn die<T>(&self) -> Result<T> {
        self.crashed.notify_one();
        futures::future::pending().await
    }
}

/// A clock that moves when told.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn at(now: i64) -> Arc<ManualClock> {
        Arc::new(ManualClock(AtomicI64::new(now)))
    }

    pub fn set(&self, now: i64) {
        self.0.store(now, Ordering::Relaxed);
    }

    pub fn advance(&self, by: i64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Names that are the same in each run.
#[derive(Debug)]
pub struct CountedIds {
    who: String,
    next: AtomicU64,
}

impl CountedIds {
    pub fn of(who: &str) -> Arc<CountedIds> {
        Arc::new(CountedIds { who: who.to_owned(), next: AtomicU64::new(1) })
    }
}

impl Ids for CountedIds {
    fn next(&self) -> String {
        format!("{}{}", self.who, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// A database in memory that lets the first through.
#[derive(Debug, Default)]
pub struct MemoryTurnstile(Mutex<HashMap<String, String>>);

#[async_trait]
impl Turnstile for MemoryTurnstile {
    async fn admit(&self, name: &str, who: &str) -> Result<bool> {
        let mut admitted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(admitted.entry(name.to_owned()).or_insert_with(|| who.to_owned()) == who)
    }
}
