//! Linux containers without a daemon: namespaces, mounts, control groups, system calls, capabilities.
//!
//! [`launcher`] starts boxes from one small process, [`rootfs`] says which file tree a box has (through
//! [`kernel`], so that the order is tested without root), [`cgroup`] limits it, [`seccomp`] and [`caps`] take
//! its powers away, [`user`] makes its root a nobody.
//!
//! This crate knows nothing of sandboxes, wires or the service.

pub mod caps;
pub mod cgroup;
pub mod disk;
pub mod etc;
pub mod firewall;
pub mod kernel;
pub mod launcher;
pub mod machine;
pub mod net;
pub mod order;
pub mod own;
pub mod process;
#[cfg(test)]
mod recorder;
pub mod rootfs;
pub mod seccomp;
pub mod tree;
pub mod user;
