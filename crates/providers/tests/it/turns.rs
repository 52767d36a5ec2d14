//! Turns on real guests: files that go to a bucket and come back, and agents that need a model.
//!
//! What needs neither is in `crates/core/tests/it/turns.rs`, on the mock and on held time.

mod agents;
mod ends;
mod files;
mod logs;
mod notes;
mod reaper;
mod shared;
mod world;
