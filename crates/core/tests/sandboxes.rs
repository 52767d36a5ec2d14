//! What `Sandboxes` does, on the mock provider: real wires, held time, and faults on demand.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "sandboxes/attach.rs"]
mod attach;
#[path = "sandboxes/create.rs"]
mod create;
#[path = "sandboxes/exec.rs"]
mod exec;
#[path = "sandboxes/faults.rs"]
mod faults;
#[path = "sandboxes/find.rs"]
mod find;
#[path = "sandboxes/lifecycle.rs"]
mod lifecycle;
#[path = "sandboxes/providers.rs"]
mod providers;
#[path = "sandboxes/sweep.rs"]
mod sweep;
#[path = "sandboxes/watch.rs"]
mod watch;
#[path = "sandboxes/world.rs"]
mod world;
