//! The mock provider: boxes in memory, for tests. Nothing of the machine is touched.
//!
//! It serves the real wire, so that everything above it runs as it would with a real guest. Commands
//! are scripts ([`MockProvider::on_command`]); files are a map; a provider call can be made to fail
//! ([`MockProvider::fail_next`]) and a guest to die ([`MockProvider::crash`]). Clones share one
//! substrate, as two host processes share a machine.

mod files;
mod guest;
mod output;
mod processes;
mod provider;
mod script;
mod stream;

pub use provider::{MockOp, MockProvider};
pub use script::{MockCall, Script, Step};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic elsewhere is told by whoever panicked; what the lock guards is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
