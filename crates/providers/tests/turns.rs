//! Turns on real guests: files that go to a bucket and come back, and agents that need a model.
//!
//! What needs neither is in `crates/core/tests/turns.rs`, on the mock and on held time.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "turns/agents.rs"]
mod agents;
#[path = "turns/ends.rs"]
mod ends;
#[path = "turns/files.rs"]
mod files;
#[path = "turns/logs.rs"]
mod logs;
#[path = "turns/notes.rs"]
mod notes;
#[path = "turns/reaper.rs"]
mod reaper;
#[path = "turns/shared.rs"]
mod shared;
#[path = "turns/world.rs"]
mod world;
