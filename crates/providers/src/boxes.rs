//! The folders of boxes on this machine, as `local` and `native` keep them: what is in them, and who may change
//! them. A folder with a `box.json` is a box; one without is being made, or was left by a crash.

use jiff::Timestamp;
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use seawall_api::{AccountId, ErrorKind, SandboxId, sandbox::SandboxSpec};
use seawall_core::{Error, Result, steps::reached};
use seawall_jail::tree::remove as remove_tree;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
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
    /// Whose it is. Boxes of versions that did not note it are the operator's.
    #[serde(default = "operator")]
    pub account: AccountId,
}

fn operator() -> AccountId {
    AccountId::LOCAL
}

/// The folder that holds a folder for each box.
#[derive(Debug, Clone)]
pub struct Boxes {
    pub path: PathBuf,
}

/// The right to change one box, across processes. Given back when dropped.
#[derive(Debug)]
pub struct Held {
    _dir: OwnedFd,
}

impl Boxes {
    /// Makes the folder, and clears away what crashes left in it.
    pub fn open(path: PathBuf) -> Result<Boxes> {
        make_private(&path).map_err(|e| io_error(&path, e))?;
        let boxes = Boxes { path };
        for entry in fs::read_dir(&boxes.path).map_err(|e| io_error(&boxes.path, e))?.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(GONE) {
                // Best effort: it is nobody's, and the next one tries again.
                let _ = remove_tree(&entry.path());
            } else if let Ok(id) = name.parse() {
                boxes.clear_unborn(id)?;
            }
        }
        Ok(boxes)
    }

    /// A folder without an intent, which nobody is just making, never became a box.
    fn clear_unborn(&self, id: SandboxId) -> Result<()> {
        let born = || fs::metadata(self.of(id).join("box.json")).is_ok_and(|found| found.len() > 0);
        if born() {
            return Ok(());
        }
        match self.try_hold(id)? {
            Some(_held) if !born() => self.remove(id),
            _ => Ok(()),
        }
    }

    pub fn of(&self, id: SandboxId) -> PathBuf {
        self.path.join(id.to_string())
    }

    /// Waits for the right to change a box. None where there is no folder for it.
    pub fn hold(&self, id: SandboxId) -> Result<Option<Held>> {
        self.lock(id, FlockOperation::LockExclusive)
    }

    /// As [`Boxes::hold`], without waiting: none also where somebody else has it.
    pub fn try_hold(&self, id: SandboxId) -> Result<Option<Held>> {
        self.lock(id, FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(&self, id: SandboxId, how: FlockOperation) -> Result<Option<Held>> {
        let path = self.of(id);
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(io_error(&path, errno.into())),
            };
            match rustix::fs::flock(&dir, how) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(io_error(&path, errno.into())),
            }
            // Whoever had it before may have removed it; then this is the lock of a ghost.
            let there = fs::metadata(&path).ok().zip(rustix::fs::fstat(&dir).ok());
            if there.is_some_and(|(path, held)| std::os::unix::fs::MetadataExt::ino(&path) == held.st_ino) {
                return Ok(Some(Held { _dir: dir }));
            }
        }
    }

    /// As [`Boxes::hold`], and makes the folder where it is missing.
    pub fn hold_new(&self, id: SandboxId) -> Result<Held> {
        let path = self.of(id);
        loop {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(io_error(&path, error));
                }
                _ => {}
            }
            reached("the folder is made");
            if let Some(held) = self.hold(id)? {
                return Ok(held);
            }
        }
    }

    /// None where there is no box. A damaged intent is an error that names it.
    pub fn intent(&self, id: SandboxId) -> Result<Option<Intent>> {
        let path = self.of(id).join("box.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) if bytes.is_empty() => return Ok(None),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&path, error)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let message = format!("{} cannot be read; remove the sandbox to get rid of it", path.display());
            Error::internal(message).with_source(error)
        })
    }

    /// Durable when it returns. Straight into its place, which costs one wait for the disk and not two: until it is
    /// written it is empty, and then there is no box.
    pub fn write_intent(&self, intent: &Intent) -> Result<()> {
        let folder = self.of(intent.id);
        let write = || -> io::Result<()> {
            let mut file = File::create(folder.join("box.json"))?;
            reached("the intent is empty");
            file.write_all(&serde_json::to_vec(intent)?)?;
            reached("the intent is written");
            file.sync_all()?;
            if keeps_names(&file) {
                return Ok(());
            }
            File::open(&folder)?.sync_all()?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| io_error(&folder, error))
    }

    pub fn ids(&self) -> Result<Vec<SandboxId>> {
        let entries = fs::read_dir(&self.path).map_err(|e| io_error(&self.path, e))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut ids: Vec<SandboxId> = names.filter_map(|name| name.parse().ok()).collect();
        ids.sort();
        Ok(ids)
    }

    /// In one step, so that a crash leaves a box or none; what is left of it goes when opening.
    pub fn remove(&self, id: SandboxId) -> Result<()> {
        match self.put_aside(id)? {
            Some(aside) => remove_tree(&aside).map_err(|e| io_error(&aside, e)),
            None => Ok(()),
        }
    }

    /// As [`Boxes::remove`], but what is left of it is the caller's to remove.
    pub fn put_aside(&self, id: SandboxId) -> Result<Option<PathBuf>> {
        let (folder, aside) = (self.of(id), self.aside(&id.to_string(), "box"));
        match fs::rename(&folder, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // An earlier removal was cut short there, or there is no space for a new name.
            Err(_) => remove_tree(&folder).map_err(|e| io_error(&folder, e))?,
            Ok(()) => {}
        }
        reached("the folder is aside");
        Ok(Some(aside))
    }

    /// Where something of a box, or a volume, is put that is to be removed.
    pub fn aside(&self, name: &str, what: &str) -> PathBuf {
        self.path.join(format!("{GONE}{what}-{name}"))
    }
}

pub fn make_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Whether a new file that was synced has its name too, after a loss of power. These file systems write their
/// changes in order; others have to be asked, and each question costs a wait for the disk.
pub fn keeps_names(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| matches!(found.f_type, EXT4 | XFS))
}

const EXT4: i64 = 0xEF53;
const XFS: i64 = 0x5846_5342;

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
