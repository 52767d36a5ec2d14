//! The native provider: boxes made of the kernel's own parts, without a daemon. The default on Linux.
//!
//! A box is a folder with its intent (`box.json`) and a process 1 whose number the launcher noted in the
//! folder before that process did anything (`run`). The kernel's truth about a box is whether that process
//! lives: with it goes its pid namespace, and with that everything else.

mod disks;
mod end;
mod folder;
mod groups;
mod launch;
mod limits;
mod mounts;
mod place;
mod probe;
mod provider;
mod resources;
mod settings;
mod spares;

pub use limits::{Defaults, table as limits_table};
pub(crate) use limits::{check_least, unenforceable};
pub(crate) use mounts::HostFolders;
pub use mounts::{MountRoot, Mounts};
pub use provider::NativeProvider;
pub use settings::NativeSettings;
