//! The host's folder of a container: its sockets, and the reason of a forced end.
//!
//! ```text
//! <data>/docker/boxes/<id>/wires   mounted into the container, which can only read it
//!                          end     the reason, where the host kills a container whose guest does not end by itself
//! ```

use crate::boxes::{io_error, make_private};
use seawall_api::{SandboxId, sandbox::EndReason};
use seawall_core::Result;
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub struct Folders {
    root: PathBuf,
}

impl Folders {
    pub fn open(data: &Path) -> Result<Folders> {
        let root = data.join("docker/boxes");
        make_private(&root).map_err(|error| io_error(&root, error))?;
        Ok(Folders { root })
    }

    fn of(&self, id: SandboxId) -> PathBuf {
        self.root.join(id.to_string())
    }

    /// The folder in which hosts listen for the guest.
    pub fn wires(&self, id: SandboxId) -> PathBuf {
        self.of(id).join("wires")
    }

    /// Makes the folders of a container. The guest may be a user that this machine does not know.
    pub fn make(&self, id: SandboxId) -> Result<PathBuf> {
        let wires = self.wires(id);
        let made = make_private(&wires)
            .and_then(|()| fs::set_permissions(&wires, fs::Permissions::from_mode(0o755)));
        made.map_err(|error| io_error(&wires, error))?;
        Ok(wires)
    }

    /// Notes why a container is about to be killed.
    pub fn write_end(&self, id: SandboxId, reason: &EndReason) -> Result<()> {
        let end = self.of(id).join("end");
        match fs::write(&end, reason.to_string()) {
            // Another call removes the sandbox.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&end, error)),
            _ => Ok(()),
        }
    }

    /// Why a container was killed, where a host killed it.
    pub fn end(&self, id: SandboxId) -> Option<EndReason> {
        fs::read_to_string(self.of(id).join("end")).ok()?.parse().ok()
    }

    /// Forgets why a container was killed that starts again.
    pub fn forget_end(&self, id: SandboxId) -> Result<()> {
        let end = self.of(id).join("end");
        match fs::remove_file(&end) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&end, error)),
            _ => Ok(()),
        }
    }

    pub fn remove(&self, id: SandboxId) -> Result<()> {
        let folder = self.of(id);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&folder, error)),
            _ => Ok(()),
        }
    }
}
