//! Fakes for tests: a clock that is held, records in memory, and a provider that fails on demand.

mod clock;
mod cut;
mod faulty;
mod host;
mod log;
mod records;
mod store;

pub use crate::claims::HostClaims;
pub use clock::ManualClock;
pub use faulty::{Faults, FaultyProvider, Op};
pub use host::{OneBucket, SetClock, TokioClock};
pub use log::Log;
pub use records::MemoryRecords;
pub use store::MemoryStore;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// A test that panicked elsewhere says so itself; its lock is not worth a second panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test and prints how long it took, which `scripts/run-tests` reads: libtest-mimic does not report it.
#[allow(clippy::print_stdout)]
pub fn timed<T>(name: &str, test: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = test();
    println!("timed {name} {:.3}", begun.elapsed().as_secs_f64());
    result
}
