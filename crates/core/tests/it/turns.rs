//! Turns, hooks and the sandbox service on the mock provider: real wires, held time, and faults on demand.
//!
//! The mock's guest knows no sync: what needs files in a bucket is in `crates/providers/tests/it/turns.rs`.

mod cancels;
mod clock;
mod cold_starts;
mod conversations;
mod fakes;
mod faults;
mod files;
mod follow;
mod forgotten;
mod hooks;
mod manage;
mod messages;
mod pages;
mod reaper;
mod reconcile;
mod recovery;
mod retention;
mod service;
mod shell;
mod trouble;
mod usage;
mod webhooks;
mod world;
