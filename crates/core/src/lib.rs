//! What the service does, without saying how: no vendor crate, no HTTP, no SQL.
//!
//! [`Sandboxes`] is the one service that the CLI and the server call; [`ports`] are the traits it
//! needs; [`lifecycle`] is its state machine, a pure function. Nearly all behaviour is tested here,
//! with the fakes of `testing` and paused time.
//!
//! Durations use clocks that no operator can set: `tokio::time::Instant` within a process, the database's clock
//! between processes, the boot id between boots. The times of a conversation's messages only grow.

pub mod accounts;
pub mod agents;
pub mod budget;
pub mod claims;
pub mod delivery;
pub mod error;
pub mod exec;
pub mod hooks;
pub mod host_paths;
pub mod keys;
pub mod lifecycle;
pub mod mounts;
mod persist;
pub mod ports;
pub mod providers;
pub mod queues;
pub mod reaper;
pub mod repositories;
pub mod retention;
pub mod rows;
pub mod sandboxes;
pub mod service;
pub mod services;
pub mod shares;
pub mod steps;
pub mod templates;
pub mod tokens;
pub mod tunnels;
pub mod turns;
pub mod workspaces;

#[cfg(feature = "testing")]
pub mod fuzzing;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::{Error, Result};
pub use exec::{ExecOutput, ExecRequest};
pub use providers::Providers;
pub use sandboxes::{NewSandbox, Sandboxes};
pub use services::{Activity, ServiceParts, Services};
pub use turns::Turns;
pub use workspaces::Workspaces;
