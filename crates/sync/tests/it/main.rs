//! The integration tests of this crate, in one program.

#![allow(clippy::expect_used, clippy::print_stdout, clippy::unwrap_used)] // Helpers beside the tests are tests too.

mod crashes;
mod format;
mod fuzz;
mod histories;
mod ignore_git;
mod interleavings;
#[path = "../support/proxy.rs"]
mod proxy;
mod requirements;
#[cfg(feature = "stores")]
mod s3;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/world.rs"]
mod world;
