//! The binary from end to end, on the local provider, each test in a data folder of its own.

#![allow(clippy::unwrap_used)] // Helpers beside the tests are tests too.

#[path = "cli/copy.rs"]
mod copy;
#[path = "cli/lifecycle.rs"]
mod lifecycle;
#[path = "cli/logs.rs"]
mod logs;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/sync.rs"]
mod sync;
#[path = "cli/timeouts.rs"]
mod timeouts;
#[path = "cli/world.rs"]
mod world;
