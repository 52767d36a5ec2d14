//! `seawall serve` from end to end: who is let in, what is refused and how, limits, terminals, ports, sandboxes, traces.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "edges/client.rs"]
mod client;
#[path = "edges/connections.rs"]
mod connections;
#[path = "edges/document.rs"]
mod document;
#[path = "edges/errors.rs"]
mod errors;
#[path = "edges/files.rs"]
mod files;
#[path = "edges/keys.rs"]
mod keys;
#[path = "edges/limits.rs"]
mod limits;
#[path = "edges/metrics.rs"]
mod metrics;
#[path = "edges/mounts.rs"]
mod mounts;
#[path = "edges/ports.rs"]
mod ports;
#[path = "edges/sandboxes.rs"]
mod sandboxes;
#[path = "edges/server.rs"]
mod server;
#[path = "edges/service.rs"]
mod service;
#[path = "edges/socket.rs"]
mod socket;
#[path = "edges/terminals.rs"]
mod terminals;
#[path = "edges/traces.rs"]
mod traces;
#[path = "cli/world.rs"]
#[allow(dead_code)] // Other tests use more of it.
mod world;
