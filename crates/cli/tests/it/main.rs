//! The integration tests of this crate, in one program.

#![allow(clippy::expect_used, clippy::unwrap_used)] // Helpers beside the tests are tests too.

mod agents;
mod architecture;
mod background;
mod cli;
mod crash;
mod docker;
mod gates;
mod github;
mod http_edges;
mod http_turns;
mod kills;
mod shell;
mod surfaces;
mod turns;
mod world;
