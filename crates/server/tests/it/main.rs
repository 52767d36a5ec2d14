//! The integration tests of this crate, in one program.

#![allow(clippy::expect_used, clippy::unwrap_used)] // Helpers beside the tests are tests too.

mod files;
mod fuzz;
mod hostile;
mod idempotency;
mod limits;
mod openapi;
mod proxy;
mod sandboxes;
mod tenants;
mod terminals;
mod turns;
mod versions;
mod world;
