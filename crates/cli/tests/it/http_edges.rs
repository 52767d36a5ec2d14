//! `seawall serve` from end to end: who is let in, what is refused and how, limits, terminals, ports, sandboxes, traces.

mod client;
mod connections;
mod document;
mod errors;
mod files;
mod keys;
mod limits;
mod metrics;
mod mounts;
mod ports;
mod sandboxes;
mod server;
mod service;
mod socket;
mod terminals;
mod traces;
