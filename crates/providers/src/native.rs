//! The native provider: boxes made of the kernel's own parts, without a daemon. The default on Linux.
//!
//! A box is a folder with its intent (`box.json`) and a process 1 whose number the launcher noted in the
//! folder before that process did anything (`run`). The kernel's truth about a box is whether that process
//! lives: with it goes its pid namespace, and with that everything else.
//!
//! The number of process 1 is believed only with its start time and the machine's boot id. One signal through a pidfd
//! ends a box, and the box is dead when its pid namespace is. The host writes the reason into `end` before it ends a
//! box. Without `end`, the words `idle` and `max_lifetime` in `ended` are the guest's own report; otherwise the box
//! is `failed: guest_died`, or `failed: oom` where the kernel killed a process of its group.
//!
//! `box.json` is written under its final name and synced: on ext4 and XFS the name of a synced file is durable, so
//! one wait for the disk suffices; elsewhere the folder is synced too. A removal is recorded durably while the
//! processes end; then group, volume and folder are removed, then the record.

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
