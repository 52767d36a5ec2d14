//! Conversations, turns and messages over HTTP: the real router on the real core, with boxes of the mock provider.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "common/world.rs"]
mod common;

#[path = "turns/conversations.rs"]
mod conversations;
#[path = "turns/messages.rs"]
mod messages;
#[path = "turns/owners.rs"]
mod owners;
#[path = "turns/streams.rs"]
mod streams;
#[path = "turns/turns.rs"]
mod turns;
