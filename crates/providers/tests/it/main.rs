//! The integration tests of this crate, in one program.

#![allow(clippy::expect_used, clippy::unwrap_used)] // Helpers beside the tests are tests too.

mod alone;
mod docker;
mod limits;
mod native;
mod turns;
mod workspaces;
