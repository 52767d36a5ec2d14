//! Turns, hooks and the sandbox service on the mock provider: real wires, held time, and faults on demand.
//!
//! The mock's guest knows no sync: what needs files in a bucket is in `crates/providers/tests/turns.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "turns/cancels.rs"]
mod cancels;
#[path = "turns/clock.rs"]
mod clock;
#[path = "turns/cold_starts.rs"]
mod cold_starts;
#[path = "turns/conversations.rs"]
mod conversations;
#[path = "turns/fakes.rs"]
mod fakes;
#[path = "turns/faults.rs"]
mod faults;
#[path = "turns/files.rs"]
mod files;
#[path = "turns/follow.rs"]
mod follow;
#[path = "turns/forgotten.rs"]
mod forgotten;
#[path = "turns/hooks.rs"]
mod hooks;
#[path = "turns/manage.rs"]
mod manage;
#[path = "turns/messages.rs"]
mod messages;
#[path = "turns/pages.rs"]
mod pages;
#[path = "turns/reaper.rs"]
mod reaper;
#[path = "turns/recovery.rs"]
mod recovery;
#[path = "turns/retention.rs"]
mod retention;
#[path = "turns/service.rs"]
mod service;
#[path = "turns/shell.rs"]
mod shell;
#[path = "turns/trouble.rs"]
mod trouble;
#[path = "turns/usage.rs"]
mod usage;
#[path = "turns/webhooks.rs"]
mod webhooks;
#[path = "turns/world.rs"]
mod world;
