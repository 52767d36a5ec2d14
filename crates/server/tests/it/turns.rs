//! Conversations, turns and messages over HTTP: the real router on the real core, with boxes of the mock provider.

mod conversations;
mod lifecycle;
mod messages;
mod owners;
mod streams;
