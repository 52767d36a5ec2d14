//! Data volumes of a fixed size, where the daemon runs on this machine and this process is root.
//!
//! ```text
//! <data>/docker/disks/<volume>/disk.img   an ext4 file system
//!                              device     a link to its loop device, while a container starts
//! ```
//!
//! The volume on the daemon is a `local` volume whose device is the link. The daemon mounts it when the first container
//! of the volume starts and unmounts it after the last has ended, which also frees the loop device. At other times the
//! link is missing, so that a start behind our back fails: a stale one could be another sandbox's device.

use crate::{
    boxes::{io_error, make_private},
    native::unenforceable,
};
use seawall_core::{Error, Result};
use seawall_jail::{
    disk::{self, Attached, Disk},
    tree,
};
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::{Mutex, OwnedMutexGuard};

#[derive(Debug)]
pub struct Disks {
    root: PathBuf,
    /// Held while a container with a disk starts.
    starting: Arc<Mutex<()>>,
}

/// A disk that the daemon can mount while this lives.
#[derive(Debug)]
pub struct Ready {
    link: PathBuf,
    _attached: Attached,
    _alone: OwnedMutexGuard<()>,
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.link);
    }
}

impl Disks {
    pub fn new(data: &Path) -> Disks {
        Disks { root: data.join("docker/disks"), starting: Arc::default() }
    }

    fn folder(&self, volume: &str) -> PathBuf {
        self.root.join(volume)
    }

    /// The path that the volume on the daemon has as its device.
    pub fn device(&self, volume: &str) -> PathBuf {
        self.folder(volume).join("device")
    }

    fn image(&self, volume: &str) -> PathBuf {
        self.folder(volume).join("disk.img")
    }

    /// Makes the file system of a volume. An existing one keeps its size.
    pub fn make(&self, volume: &str, mb: u64) -> Result<()> {
        let (folder, image) = (self.folder(volume), self.image(volume));
        let made = || -> io::Result<()> {
            if image.exists() {
                return Ok(());
            }
            make_private(&folder)?;
            let draft = folder.join("draft.img");
            disk::make(&draft, mb)?;
            // The workspace is the top of the file system, and nothing in it is the user's yet.
            fs::remove_dir(Disk::mount(&draft)?.top().join("lost+found"))?;
            disk::settle(&draft)?;
            fs::rename(&draft, &image)
        };
        made().map_err(|error| io_error(&image, error))
    }

    /// Attaches the disk of a volume, so that the daemon can mount it. None where the volume has no disk.
    pub async fn ready(&self, volume: &str) -> Result<Option<Ready>> {
        let image = self.image(volume);
        if !image.exists() {
            return Ok(None);
        }
        let alone = self.starting.clone().lock_owned().await;
        let attached = Attached::new(&image).map_err(|error| io_error(&image, error))?;
        let link = self.device(volume);
        let linked = match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => symlink(attached.path(), &link),
        };
        linked.map_err(|error| io_error(&link, error))?;
        Ok(Some(Ready { link, _attached: attached, _alone: alone }))
    }

    /// The bytes that the disk of a volume takes. None where the volume has no disk.
    pub fn taken(&self, volume: &str) -> Option<u64> {
        let folder = self.folder(volume);
        folder.exists().then(|| tree::taken(&folder))
    }

    /// Removes the disk of a volume that the daemon no longer has.
    pub fn remove(&self, volume: &str) -> Result<()> {
        let folder = self.folder(volume);
        match tree::remove(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&folder, error)),
            _ => Ok(()),
        }
    }
}

/// Returns an error with the reason if this machine cannot limit the size of a volume.
pub fn missing(is_local: bool) -> Option<Error> {
    let why = match () {
        () if !is_local => "the Docker daemon is on another machine",
        () if !rustix::process::geteuid().is_root() => "seawall does not run as root",
        () if disk::mkfs().is_none() => "there is no mkfs.ext4",
        () if !Path::new("/dev/loop-control").exists() => "there are no loop devices",
        () => return None,
    };
    Some(unenforceable("disk_mb", why, "Use the provider `native`"))
}
