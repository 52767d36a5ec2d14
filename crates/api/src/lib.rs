//! Every type that crosses a process boundary.
//!
//! Invariant: no IO, no tokio, no vendor crate. What is here is a promise to another process, so a
//! change shows in a frozen fixture (`tests/fixtures`).
//!
//! Start with [`sandbox`] for the nouns and [`message`] for what a host asks of a guest.

pub mod account;
pub mod conversation;
pub mod error;
pub mod event;
pub mod exec;
pub mod files;
pub mod frame;
pub mod hello;
pub mod hook;
pub mod http;
pub mod id;
pub mod message;
pub mod sandbox;

pub use error::{ErrorKind, Fault};
pub use id::{
    AccountId, ConversationId, HookRunId, InvalidId, KeyId, MessageId, ProcessId, SandboxId, TurnId,
};
