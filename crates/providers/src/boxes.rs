//! The folders of boxes on this machine, as `local` and `native` keep them: what is in them, and who may change
//! them. A folder with a `box.json` is a box; one without is being made, or was left by a crash. Where something lives or
//! ran in it all the same, its `box.json` was lost or damaged: that box is told of as damaged, and is left as it is until
//! it is removed or made again.

use jiff::Timestamp;
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{Egress, EndReason, Limits, SandboxSpec},
};
use seawall_core::{
    Error, Result,
    ports::{BoxInfo, BoxState},
    queues::{Queues, Turn},
    steps::reached,
};
use seawall_jail::tree::remove as remove_tree;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fmt,
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::sleep;

/// How the folders of removed boxes begin.
const GONE: &str = ".gone-";
/// Files that the first start of a box leaves in its folder, with `native` and with `local`.
const STARTED: [&str; 2] = ["run", "guest.lock"];
/// The code of the error of an intent that cannot be read, and the reason of its sandbox's failure.
const DAMAGED: &str = "damaged";

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

/// Whether anything of a box lives, whatever its folder says.
pub type Lives = Arc<dyn Fn(SandboxId) -> bool + Send + Sync>;

/// The pause between attempts to lock a folder.
const BUSY: Duration = Duration::from_millis(10);

/// The folder that holds a folder for each box. Clones share its queues.
#[derive(Clone)]
pub struct Boxes {
    pub path: PathBuf,
    lives: Lives,
    /// Who waits for a box in this process.
    queues: Queues,
    /// Damaged boxes that the log has told of.
    told: Arc<Mutex<HashSet<SandboxId>>>,
}

impl fmt::Debug for Boxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Boxes").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The right to change one box, across processes. Given back when dropped.
#[derive(Debug)]
pub struct Held {
    _dir: OwnedFd,
    _turn: Turn,
}

/// What came of a try to lock a box's folder.
enum Lock {
    Taken(OwnedFd),
    /// Another process, or another provider of this one, has it.
    Busy,
    NoFolder,
}

impl Boxes {
    /// Makes the folder, and clears away what crashes left in it.
    pub fn open(path: PathBuf, lives: Lives) -> Result<Boxes> {
        make_private(&path).map_err(|e| io_error(&path, e))?;
        let boxes = Boxes { path, lives, queues: Queues::default(), told: Arc::default() };
        for entry in fs::read_dir(&boxes.path).map_err(|e| io_error(&boxes.path, e))?.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(GONE) {
                // Best effort: it is nobody's, and the next one tries again.
                let _ = remove_tree(&entry.path());
            } else if let Ok(id) = name.parse()
                && let Err(error) = boxes.clear_unborn(id)
            {
                // It is no other box's concern.
                tracing::error!(sandbox = %id, error = %error.chain(), "a folder that a crash left cannot be removed");
            }
        }
        Ok(boxes)
    }

    /// A folder without an intent, in which nothing lives or ran and which nobody is just making, never became a box.
    fn clear_unborn(&self, id: SandboxId) -> Result<()> {
        let is_unborn = || {
            let written = fs::metadata(self.of(id).join("box.json")).is_ok_and(|found| found.len() > 0);
            !written && !self.was_started(id)
        };
        if is_unborn()
            && let Lock::Taken(_dir) = self.try_lock(id)?
            && is_unborn()
        {
            self.remove(id)?;
        }
        Ok(())
    }

    /// Whether anything of a box lives.
    pub fn lives(&self, id: SandboxId) -> bool {
        (self.lives)(id)
    }

    /// Whether something runs or ran in a box. Before that its intent was written.
    fn was_started(&self, id: SandboxId) -> bool {
        STARTED.iter().any(|name| !matches!(fs::exists(self.of(id).join(name)), Ok(false))) || self.lives(id)
    }

    pub fn of(&self, id: SandboxId) -> PathBuf {
        self.path.join(id.to_string())
    }

    /// Waits for the right to change a box, without taking a thread. None where there is no folder for it.
    pub async fn hold(&self, id: SandboxId) -> Result<Option<Held>> {
        let turn = self.queues.wait(id).await;
        loop {
            match self.try_lock(id)? {
                Lock::Taken(dir) => return Ok(Some(Held { _dir: dir, _turn: turn })),
                Lock::NoFolder => return Ok(None),
                // A launcher of a server that was just killed may still hold the lock.
                Lock::Busy => sleep(BUSY).await,
            }
        }
    }

    fn try_lock(&self, id: SandboxId) -> Result<Lock> {
        let path = self.of(id);
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => return Ok(Lock::NoFolder),
                Err(errno) => return Err(io_error(&path, errno.into())),
            };
            match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => return Ok(Lock::Busy),
                Err(errno) => return Err(io_error(&path, errno.into())),
            }
            // Whoever had it before may have removed it; then this is the lock of a ghost.
            let there = fs::metadata(&path).ok().zip(rustix::fs::fstat(&dir).ok());
            if there.is_some_and(|(path, held)| std::os::unix::fs::MetadataExt::ino(&path) == held.st_ino) {
                return Ok(Lock::Taken(dir));
            }
        }
    }

    /// As [`Boxes::hold`], and makes the folder where it is missing.
    pub async fn hold_new(&self, id: SandboxId) -> Result<Held> {
        let path = self.of(id);
        loop {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(io_error(&path, error));
                }
                _ => {}
            }
            reached("the folder is made");
            if let Some(held) = self.hold(id).await? {
                return Ok(held);
            }
        }
    }

    /// None where there is no box. An error with the code `damaged` where there is one whose intent cannot be read.
    pub fn intent(&self, id: SandboxId) -> Result<Option<Intent>> {
        let path = self.of(id).join("box.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(damaged(&path).with_source(error)),
        };
        match serde_json::from_slice::<Intent>(&bytes) {
            Ok(intent) if intent.id == id => Ok(Some(intent)),
            Ok(intent) => Err(damaged(&path).with_source(format!("it is that of sandbox {}", intent.id))),
            Err(_) if bytes.is_empty() && !self.was_started(id) => Ok(None),
            Err(error) => Err(damaged(&path).with_source(error)),
        }
    }

    /// As [`Boxes::intent`], of a box that is to be made: one that is damaged is made anew, unless something of it lives.
    pub fn intent_to_make(&self, id: SandboxId) -> Result<Option<Intent>> {
        match self.intent(id) {
            Err(error) if error.code() == DAMAGED => match self.lives(id) {
                true => {
                    let message = format!("sandbox {id} is damaged, and its processes still run; remove it");
                    Err(Error::conflict(message).with_code(DAMAGED).with_source(error))
                }
                false => {
                    tracing::warn!(sandbox = %id, error = %error.chain(), "a damaged box is made anew");
                    Ok(None)
                }
            },
            other => other,
        }
    }

    /// A box as it was looked at. One that could not be is damaged; the log tells of it once.
    pub fn seen(&self, id: SandboxId, found: Result<BoxInfo>, pid: Option<u32>) -> Result<BoxInfo> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let error = match found {
            Err(error) if error.kind() != ErrorKind::NotFound => error,
            found => {
                told.remove(&id);
                return found;
            }
        };
        if told.insert(id) {
            tracing::error!(sandbox = %id, error = %error.chain(), "a box is damaged: remove its sandbox");
        }
        Ok(BoxInfo {
            id,
            state: BoxState::Damaged,
            reason: Some(EndReason::Failed(DAMAGED.to_owned())),
            spec: SandboxSpec::default(),
            created_at: Timestamp::UNIX_EPOCH,
            pid,
            volume: id.to_string(),
            limits: Limits::default(),
            egress: Egress::None,
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

fn damaged(path: &Path) -> Error {
    let message = format!("{} cannot be read; remove the sandbox to get rid of it", path.display());
    Error::internal(message).with_code(DAMAGED)
}

/// Why a damaged box is not started.
pub fn refuse_damaged(info: &BoxInfo) -> Result<()> {
    match info.state {
        BoxState::Damaged => {
            Err(Error::conflict(format!("sandbox {} is damaged; remove it", info.id)).with_code(DAMAGED))
        }
        _ => Ok(()),
    }
}

/// Refuses what only a provider with images can do.
pub fn refuse_image_options(provider: &str, spec: &SandboxSpec) -> Result<()> {
    if spec.allow_network {
        let message = format!(
            "the provider `{provider}` cannot enforce `allow_network` here; leave it out, or use the provider `docker`"
        );
        return Err(Error::new(ErrorKind::LimitUnenforceable, message));
    }
    let asked = [
        ("command", spec.command.is_some()),
        ("read_only_root", spec.read_only_root),
        ("network", spec.network.is_some()),
        ("runtime", spec.runtime.is_some()),
    ];
    match asked.iter().find(|(_, asked)| *asked) {
        Some((name, _)) => {
            let message = format!(
                "the provider `{provider}` has no `{name}`; leave it out, or use the provider `docker`"
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        None => Ok(()),
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
