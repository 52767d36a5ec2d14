//! Fakes for tests: a clock that is held, records in memory, and a provider that fails on demand.

mod clock;
mod cut;
mod faulty;
mod host;
mod log;
mod records;
mod store;

pub use clock::ManualClock;
pub use faulty::{Faults, FaultyProvider, Op};
pub use host::{MemoryClaims, OneBucket, SetClock, TokioClock};
pub use log::Log;
pub use records::MemoryRecords;
pub use store::MemoryStore;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A test that panicked elsewhere says so itself; its lock is not worth a second panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
