//! Settings of the provider.

use super::{limits::Defaults, mounts::Mounts};

/// The operator's settings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NativeSettings {
    pub defaults: Defaults,
    /// Folders of the host that sandboxes may be given.
    pub mounts: Mounts,
    /// MiB of the data disk that are never given to sandboxes. None: a twentieth of it, at most 1 GiB.
    pub disk_reserve_mb: Option<u64>,
}
