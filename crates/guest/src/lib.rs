//! The program inside every sandbox: its process 1.
//!
//! It reaps, forwards signals, and serves processes, terminals, files and tunnels over the wire. It is
//! one thread (and a few short-lived ones for file IO), static, and holds no secret.
//!
//! Where to look: [`server`] takes connections and dispatches requests; [`process`] runs commands, each
//! under a [`process::keeper`] that leaves no descendant behind; [`path`] and [`files`] keep paths
//! beneath their root; [`init`] is the duty of a process 1.
//!
//! Invariant: memory is bounded, whatever a process prints or a client does not read.

pub mod boxed;
pub mod bulk;
pub mod config;
pub mod container;
pub mod creds;
pub mod daemon;
pub mod deadlines;
pub mod dial;
pub mod fault;
pub mod files;
pub mod init;
pub mod path;
pub mod poll;
pub mod process;
pub mod say;
pub mod server;
pub mod state;
pub mod sudo;
pub mod sync;
pub mod tunnel;
pub mod users;
