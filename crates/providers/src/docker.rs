//! Containers of a Docker daemon.
//!
//! The container is the record: its labels hold the specification of the box, and its state is the box's state. The
//! host keeps a folder for each container ([`folders`]), and recreates a missing one.
//!
//! - [`daemon`]: the connection to the daemon, and its errors in the terms of the contract.
//! - [`labels`]: names and labels of containers and volumes.
//! - [`container`]: what a container is created with.
//! - [`state`]: what the daemon reports of a container, as a box.
//! - [`disks`]: data volumes of a fixed size.
//! - [`network`]: networks of containers that reach public addresses, and their rules.
//! - [`program`]: the guest, in a volume of its own.
//! - [`sockets`], [`exec_stream`]: the two transports of the wire.
//!
//! The guest is the entrypoint, in a read-only volume, and its exit code is the reason of the box's end. A connection
//! is either a socket in a folder that is mounted read-only into the container, which the guest dials once and whose
//! peer must be the container's process 1, or the stdio of a process that the daemon starts in the container; the
//! guest accepts that one because it has no parent there. Containers with a network are on a bridge of their account
//! (`seawall_jail::firewall`).

mod address;
mod container;
mod daemon;
mod disks;
mod events;
mod exec_stream;
mod folders;
mod image;
mod labels;
mod make;
mod network;
mod program;
mod provider;
mod run;
mod sockets;
mod state;
mod volumes;

pub use network::NetworkSettings;
pub use provider::{DockerProvider, DockerSettings, Transport};
