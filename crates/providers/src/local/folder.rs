//! The folders of boxes: what is in them, and who may change them.
//!
//! ```text
//! <data>/local/boxes/<id>/box.json     the intent, synced before anything else is made
//!                         guest.lock   held while anything of the box is alive; the guest's number
//!                         wire.sock    where the guest listens
//!                         end          the reason of an orderly end
//!                         guest.log    what the guest had to say
//! <data>/local/volumes/<id>/work       the data volume; outlives the box
//!                           home, tmp  go with the box
//! ```

use jiff::Timestamp;
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use seawall_api::{
    ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxSpec},
};
use seawall_core::{
    Error, Result,
    ports::{BoxInfo, BoxState},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// How the folders of removed boxes begin.
const GONE: &str = ".gone-";

/// What a box was asked to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    pub version: u32,
    pub id: SandboxId,
    pub spec: SandboxSpec,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone)]
pub struct Folders {
    pub boxes: PathBuf,
    pub volumes: PathBuf,
}

/// The right to change one box, across processes. Given back when dropped.
#[derive(Debug)]
pub struct Held {
    _dir: OwnedFd,
}

impl Folders {
    pub fn open(data: &Path) -> Result<Folders> {
        let folders = Folders { boxes: data.join("local/boxes"), volumes: data.join("local/volumes") };
        for dir in [&folders.boxes, &folders.volumes] {
            make_private(dir).map_err(|e| io_error(dir, e))?;
        }
        for entry in fs::read_dir(&folders.boxes).map_err(|e| io_error(&folders.boxes, e))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(GONE) {
                // Best effort: it is nobody's, and the next one tries again.
                let _ = remove_tree(&entry.path());
            }
        }
        // Other users than ours may run in a box: they get through to their own folder, and see no other.
        for dir in [data.join("local"), folders.volumes.clone()] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o711)).map_err(|e| io_error(&dir, e))?;
        }
        Ok(folders)
    }

    pub fn of(&self, id: SandboxId) -> PathBuf {
        self.boxes.join(id.to_string())
    }

    /// What the box calls `/`.
    pub fn root(&self, id: SandboxId) -> PathBuf {
        self.volumes.join(id.to_string())
    }

    pub fn work(&self, id: SandboxId) -> PathBuf {
        self.root(id).join("work")
    }

    /// Waits for the right to change a box. None where there is no folder for it.
    pub fn hold(&self, id: SandboxId) -> Result<Option<Held>> {
        let path = self.of(id);
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(io_error(&path, errno.into())),
            };
            match rustix::fs::flock(&dir, FlockOperation::LockExclusive) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(io_error(&path, errno.into())),
            }
            // Whoever had it before may have removed it; then this is the lock of a ghost.
            let there = fs::metadata(&path).ok().zip(rustix::fs::fstat(&dir).ok());
            if there.is_some_and(|(path, held)| std::os::unix::fs::MetadataExt::ino(&path) == held.st_ino) {
                return Ok(Some(Held { _dir: dir }));
            }
        }
    }

    /// As [`Folders::hold`], and makes the folder where it is missing.
    pub fn hold_new(&self, id: SandboxId) -> Result<Held> {
        let path = self.of(id);
        loop {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(io_error(&path, error));
                }
                _ => {}
            }
            if let Some(held) = self.hold(id)? {
                return Ok(held);
            }
        }
    }

    /// None where there is no box. A damaged intent is an error that names it.
    pub fn intent(&self, id: SandboxId) -> Result<Option<Intent>> {
        let path = self.of(id).join("box.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&path, error)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let message = format!("{} cannot be read; remove the sandbox to get rid of it", path.display());
            Error::internal(message).with_source(error)
        })
    }

    /// Durable when it returns.
    pub fn write_intent(&self, intent: &Intent) -> Result<()> {
        let folder = self.of(intent.id);
        let write = || -> io::Result<()> {
            let temporary = folder.join("box.json.tmp");
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(intent)?)?;
            file.sync_all()?;
            fs::rename(&temporary, folder.join("box.json"))?;
            File::open(&folder)?.sync_all()?;
            File::open(&self.boxes)?.sync_all()
        };
        write().map_err(|error| io_error(&folder, error))
    }

    /// The folders that the box's processes see. Existing ones stay as they are.
    pub fn make_root(&self, id: SandboxId) -> Result<()> {
        let root = self.root(id);
        make_private(&root).map_err(|e| io_error(&root, e))?;
        for (name, mode) in [("work", 0o777), ("home", 0o777), ("tmp", 0o1777)] {
            let dir = root.join(name);
            match fs::create_dir(&dir) {
                Ok(()) => {
                    fs::set_permissions(&dir, fs::Permissions::from_mode(mode))
                        .map_err(|e| io_error(&dir, e))?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error(&dir, error)),
            }
        }
        // As root, other users may run in the box, and have to get through to their folders.
        let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        fs::set_permissions(&root, fs::Permissions::from_mode(mode)).map_err(|e| io_error(&root, e))
    }

    pub fn info(&self, id: SandboxId) -> Result<BoxInfo> {
        let intent = self.intent(id)?.ok_or_else(|| no_box(id))?;
        let (state, reason, pid) = self.state(id)?;
        let volume = self.work(id).display().to_string();
        Ok(BoxInfo { id, state, reason, spec: intent.spec, created_at: intent.created_at, pid, volume })
    }

    /// The guest that runs, or ran last.
    pub fn guest_pid(&self, id: SandboxId) -> Option<u32> {
        fs::read_to_string(self.of(id).join("guest.lock")).ok()?.trim().parse().ok()
    }

    /// The truth, by the lock.
    fn state(&self, id: SandboxId) -> Result<(BoxState, Option<EndReason>, Option<u32>)> {
        let folder = self.of(id);
        let pid = self.guest_pid(id);
        if self.is_alive(id)? {
            return Ok((BoxState::Running, None, pid));
        }
        if pid.is_none() {
            return Ok((BoxState::Created, None, None));
        }
        let reason = match fs::read_to_string(folder.join("end")) {
            Ok(text) => text.trim().parse().unwrap_or(EndReason::Stopped),
            Err(_) => EndReason::Failed("guest_died".into()),
        };
        Ok((BoxState::Stopped, Some(reason), None))
    }

    /// Whether anything of the box lives: its guest, or a command's keeper.
    pub fn is_alive(&self, id: SandboxId) -> Result<bool> {
        let path = self.of(id).join("guest.lock");
        let lock = match rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(lock) => lock,
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(io_error(&path, errno.into())),
        };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(io_error(&path, errno.into())),
        }
    }

    pub fn ids(&self) -> Result<Vec<SandboxId>> {
        let entries = fs::read_dir(&self.boxes).map_err(|e| io_error(&self.boxes, e))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut ids: Vec<SandboxId> = names.filter_map(|name| name.parse().ok()).collect();
        ids.sort();
        Ok(ids)
    }

    /// Removes the box's own folders, and the volume where asked. The intent goes last.
    pub fn remove(&self, id: SandboxId, volume: bool) -> Result<()> {
        let root = self.root(id);
        let gone: Vec<PathBuf> = match volume {
            true => vec![root],
            false => vec![root.join("home"), root.join("tmp")],
        };
        for path in &gone {
            remove_tree(path).map_err(|e| io_error(path, e))?;
        }
        // In one step, so that a crash leaves a box or none; what is left of it goes when opening.
        let (folder, aside) = (self.of(id), self.boxes.join(format!("{GONE}{id}")));
        match fs::rename(&folder, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // An earlier removal was cut short there, or there is no space for a new name.
            Err(_) => remove_tree(&folder).map_err(|e| io_error(&folder, e))?,
            Ok(()) => {}
        }
        remove_tree(&aside).map_err(|e| io_error(&aside, e))
    }
}

fn make_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Removes a tree without following links. A user who took away his own rights gets them back first.
fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unlock_tree(path);
            fs::remove_dir_all(path)
        }
        other => other,
    }
}

fn unlock_tree(path: &Path) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    if !metadata.is_dir() {
        return;
    }
    // What cannot be changed shows when it is removed.
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        unlock_tree(&entry.path());
    }
}

pub fn no_box(id: SandboxId) -> Error {
    Error::not_found(format!("there is no box for sandbox {id}"))
}

pub fn io_error(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, path.display().to_string()).with_source(error)
}
