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
//!                     <name>/          the same of one that boxes share; all of it stays
//! ```

use crate::{
    boxes::{Boxes, io_error, make_private, no_box},
    volumes,
};
use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use seawall_api::{
    SandboxId,
    sandbox::{Egress, EndReason, Limits, SandboxSpec},
};
use seawall_core::{
    Result,
    ports::{BoxInfo, BoxState},
};
use seawall_jail::tree::remove as remove_tree;
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Held while anything of a box is alive.
const LOCK: &str = "guest.lock";

#[derive(Debug, Clone)]
pub struct Folders {
    pub boxes: Boxes,
    pub volumes: PathBuf,
}

impl Folders {
    pub fn open(data: &Path) -> Result<Folders> {
        let volumes = data.join("local/volumes");
        make_private(&volumes).map_err(|e| io_error(&volumes, e))?;
        let boxes = data.join("local/boxes");
        let guests = boxes.clone();
        // What cannot be told counts as alive: nothing is removed.
        let lives = move |id: SandboxId| is_alive(&guests.join(id.to_string())).unwrap_or(true);
        let folders = Folders { boxes: Boxes::open(boxes, Arc::new(lives))?, volumes };
        // Other users than ours may run in a box: they get through to their own folder, and see no other.
        for dir in [data.join("local"), folders.volumes.clone()] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o711)).map_err(|e| io_error(&dir, e))?;
        }
        Ok(folders)
    }

    pub fn of(&self, id: SandboxId) -> PathBuf {
        self.boxes.of(id)
    }

    /// What the box calls `/`.
    pub fn root(&self, id: SandboxId, spec: &SandboxSpec) -> PathBuf {
        self.volumes.join(spec.volume_of(id))
    }

    /// The folders that the box's processes see. Existing ones stay as they are.
    pub fn make_root(&self, id: SandboxId, spec: &SandboxSpec) -> Result<()> {
        let _alone = spec.volume.as_ref().map(|_| volumes::lock(&self.volumes)).transpose()?;
        let root = self.root(id, spec);
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
        let found = self.read(id);
        let pid = if found.is_err() && self.boxes.lives(id) { self.guest_pid(id) } else { None };
        self.boxes.seen(id, found, pid)
    }

    fn read(&self, id: SandboxId) -> Result<BoxInfo> {
        let intent = self.boxes.intent(id)?.ok_or_else(|| no_box(id))?;
        let (state, reason, pid) = self.state(id)?;
        let volume = self.root(id, &intent.spec).join("work").display().to_string();
        let (spec, created_at, limits) = (intent.spec, intent.created_at, Limits::default());
        let egress = Egress::External;
        Ok(BoxInfo { id, state, reason, spec, created_at, pid, volume, limits, egress })
    }

    /// The guest that runs, or ran last.
    pub fn guest_pid(&self, id: SandboxId) -> Option<u32> {
        fs::read_to_string(self.of(id).join(LOCK)).ok()?.trim().parse().ok()
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
        let folder = self.of(id);
        is_alive(&folder).map_err(|error| io_error(&folder.join(LOCK), error))
    }

    /// Removes the box's own folders, and the volume of its own where asked. The intent goes last.
    pub fn remove(&self, id: SandboxId, volume: bool) -> Result<()> {
        let root = self.volumes.join(id.to_string());
        let gone: Vec<PathBuf> = match volume {
            true => vec![root],
            false => vec![root.join("home"), root.join("tmp")],
        };
        for path in &gone {
            remove_tree(path).map_err(|e| io_error(path, e))?;
        }
        self.boxes.remove(id)
    }
}

fn is_alive(folder: &Path) -> io::Result<bool> {
    let lock = match rustix::fs::open(folder.join(LOCK), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(lock) => lock,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}
