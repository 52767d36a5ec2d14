//! Records as files of the data folder: `records/<id>.json`, one per sandbox.
//!
//! A new record is written straight into its place and synced: as long as it is empty, it is none. A
//! changed one is written beside its place, synced, and moved there. One lock file stands around every change, so
//! that several `seawall` processes share a folder.

use async_trait::async_trait;
use seawall_api::{ErrorKind, SandboxId};
use seawall_core::{
    Error, Result,
    ports::{Claim, Durable, Record, Records},
};
use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

#[cfg(test)]
mod tests;

const LOCK: &str = ".lock";
const EPOCH: &str = ".epoch";
const CLAIM: &str = ".claim-";

#[derive(Debug, Clone)]
pub struct FileRecords {
    folder: Arc<Folder>,
}

impl FileRecords {
    pub fn open(data: &Path) -> Result<FileRecords> {
        let path = data.join("records");
        // Specs hold environments, and those hold secrets.
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed("make", &path))?;
        Ok(FileRecords { folder: Arc::new(Folder { path, claims: Arc::default() }) })
    }

    /// File IO blocks, so it has threads of its own.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = Arc::clone(&self.folder);
        let done = tokio::task::spawn_blocking(move || work(&folder)).await;
        done.map_err(|error| Error::internal("the work on the records was cut off").with_source(error))?
    }
}

#[async_trait]
impl Records for FileRecords {
    /// On this thread, where nobody else is at it: a command has nothing else to do. Many at once wait for the disk
    /// together.
    async fn insert(&self, record: &Record) -> Result<()> {
        let record = record.clone();
        let alone = self.folder.claims.load(Ordering::Relaxed) <= 1;
        match if alone { self.folder.try_lock()? } else { None } {
            Some(_lock) => self.folder.insert(&record),
            None => self.blocking(move |folder| folder.insert_locked(&record)).await,
        }
    }

    async fn insert_soon(&self, record: &Record) -> Result<Durable> {
        let Some(_lock) = self.folder.try_lock()? else {
            self.insert(record).await?;
            return Ok(Box::pin(async { Ok(()) }));
        };
        let file = self.folder.insert_unsynced(record)?;
        let records = self.clone();
        Ok(Box::pin(async move { records.blocking(move |folder| folder.sync_new(&file)).await }))
    }

    async fn update(&self, record: &Record) -> Result<()> {
        let record = record.clone();
        self.blocking(move |folder| folder.update(&record)).await
    }

    /// On this thread, where nobody else is at it: it waits for no disk.
    async fn note(&self, record: &Record) -> Result<()> {
        match self.folder.try_lock()? {
            Some(_lock) => self.folder.change(record, Synced::No),
            None => self.update(record).await,
        }
    }

    /// On this thread: one small file, mostly in memory.
    async fn get(&self, id: SandboxId) -> Result<Option<Record>> {
        self.folder.get(id)
    }

    async fn list(&self) -> Result<Vec<Record>> {
        self.blocking(Folder::list).await
    }

    async fn remove(&self, id: SandboxId) -> Result<()> {
        self.blocking(move |folder| folder.remove(id)).await
    }

    async fn claim(&self, id: SandboxId) -> Result<Claim> {
        match self.try_claim(id).await? {
            Some(claim) => Ok(claim),
            None => self.blocking(move |folder| folder.claim(id)).await,
        }
    }

    async fn try_claim(&self, id: SandboxId) -> Result<Option<Claim>> {
        let claimed = self.folder.try_claim(id)?;
        Ok(claimed.map(|claimed| Box::new(claimed) as Claim))
    }

    /// One counter for all sandboxes: larger than any given before is larger than any of this one.
    async fn next_epoch(&self, _id: SandboxId) -> Result<u64> {
        self.blocking(Folder::next_epoch).await
    }
}

/// Whether a loss of power may undo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Synced {
    Yes,
    No,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// How many claims this process holds.
    claims: Arc<AtomicUsize>,
}

/// A locked file, gone when the claim is given back.
struct Claimed {
    path: PathBuf,
    _file: File,
    held: Arc<AtomicUsize>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        // Before the lock goes; whoever waits for it looks whether the file is still there.
        let _ = std::fs::remove_file(&self.path);
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Folder {
    fn claimed(&self, path: PathBuf, file: File) -> Claimed {
        self.claims.fetch_add(1, Ordering::Relaxed);
        Claimed { path, _file: file, held: self.claims.clone() }
    }

    fn claim(&self, id: SandboxId) -> Result<Claim> {
        loop {
            let (path, file) = self.open_claim(id)?;
            file.lock().map_err(failed("lock", &path))?;
            if is_there(&path, &file) {
                return Ok(Box::new(self.claimed(path, file)));
            }
        }
    }

    fn try_claim(&self, id: SandboxId) -> Result<Option<Claimed>> {
        loop {
            let (path, file) = self.open_claim(id)?;
            match file.try_lock() {
                Ok(()) if is_there(&path, &file) => return Ok(Some(self.claimed(path, file))),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
            }
        }
    }

    fn open_claim(&self, id: SandboxId) -> Result<(PathBuf, File)> {
        let path = self.path.join(format!("{CLAIM}{id}"));
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(failed("open", &path))?;
        Ok((path, file))
    }

    fn file(&self, id: SandboxId) -> PathBuf {
        self.path.join(format!("{id}.json"))
    }

    /// Held until the file is dropped, also by a crash.
    fn lock(&self) -> Result<File> {
        let file = self.open_lock()?;
        file.lock().map_err(failed("lock", &self.path.join(LOCK)))?;
        Ok(file)
    }

    /// None where somebody else has it.
    fn try_lock(&self) -> Result<Option<File>> {
        let file = self.open_lock()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed("lock", &self.path.join(LOCK))(error)),
        }
    }

    fn open_lock(&self) -> Result<File> {
        let path = self.path.join(LOCK);
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        file.map_err(failed("open", &path))
    }

    fn insert_locked(&self, record: &Record) -> Result<()> {
        let _lock = self.lock()?;
        self.insert(record)
    }

    /// Under the lock.
    fn insert(&self, record: &Record) -> Result<()> {
        let file = self.insert_unsynced(record)?;
        self.sync_new(&file)
    }

    fn insert_unsynced(&self, record: &Record) -> Result<File> {
        self.clear_empty(record.id)?;
        if self.file(record.id).exists() {
            let message = format!("there is a sandbox {} already", record.id);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        if let Some(name) = &record.name
            && let Some(taken) = self.list()?.iter().find(|other| other.name.as_ref() == Some(name))
        {
            let message = format!("sandbox {} is called `{name}` already: choose another name", taken.id);
            return Err(Error::conflict(message));
        }
        self.put_new(record)
    }

    /// Straight into its place, which costs one wait for the disk and not two: an empty file is no record yet.
    fn put_new(&self, record: &Record) -> Result<File> {
        let path = self.file(record.id);
        let mut options = OpenOptions::new();
        let file = options.create_new(true).write(true).mode(0o600).open(&path);
        let file = file.map_err(failed("make", &path))?;
        (&file).write_all(&json(record)?).map_err(|error| {
            // What could not be finished must not take the space that is missing.
            let _ = std::fs::remove_file(&path);
            failed("write", &path)(error)
        })?;
        Ok(file)
    }

    fn sync_new(&self, file: &File) -> Result<()> {
        file.sync_all().map_err(failed("sync a record in", &self.path))?;
        if seawall_providers::keeps_names(file) { Ok(()) } else { self.sync() }
    }

    fn update(&self, record: &Record) -> Result<()> {
        let _lock = self.lock()?;
        self.change(record, Synced::Yes)
    }

    /// Under the lock.
    fn change(&self, record: &Record, synced: Synced) -> Result<()> {
        if !self.file(record.id).exists() {
            return Err(Error::not_found(format!("there is no record of sandbox {}", record.id)));
        }
        self.put(record, synced)
    }

    /// A record that a crash kept from being written. Under the lock, so nobody is at it.
    fn clear_empty(&self, id: SandboxId) -> Result<()> {
        let path = self.file(id);
        match std::fs::metadata(&path) {
            Ok(found) if found.len() == 0 => std::fs::remove_file(&path).map_err(failed("remove", &path)),
            _ => Ok(()),
        }
    }

    fn put(&self, record: &Record, synced: Synced) -> Result<()> {
        self.replace(&self.file(record.id), &json(record)?, synced)
    }

    fn get(&self, id: SandboxId) -> Result<Option<Record>> {
        let path = self.file(id);
        match read(&path) {
            Ok(record) if record.id != id => {
                Err(damaged(&path, format!("it holds the record of {}", record.id)))
            }
            Ok(record) => Ok(Some(record)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(damaged(&path, error)),
        }
    }

    fn list(&self) -> Result<Vec<Record>> {
        let entries = std::fs::read_dir(&self.path).map_err(failed("read", &self.path))?;
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed("read", &self.path))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(id) = name.strip_prefix(CLAIM).and_then(|id| id.parse().ok()) {
                // One that a crash left goes with the claim to it.
                drop(self.try_claim(id)?);
            }
            if name.starts_with('.') || !name.ends_with(".json") {
                continue;
            }
            match read(&path) {
                Ok(record) => records.push(record),
                // Removed since the folder was read, or not yet written; what a crash left empty goes.
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.clear_left(&name)?,
                Err(error) => tracing::warn!("{}", damaged(&path, error).chain()),
            }
        }
        records.sort_by_key(|record| (record.created_at, record.id));
        Ok(records)
    }

    /// Of an empty record, unless somebody is writing it.
    fn clear_left(&self, name: &str) -> Result<()> {
        let Some(id) = name.strip_suffix(".json").and_then(|id| id.parse().ok()) else { return Ok(()) };
        match self.try_lock()? {
            Some(_lock) => self.clear_empty(id),
            None => Ok(()),
        }
    }

    fn remove(&self, id: SandboxId) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.file(id);
        match std::fs::remove_file(&path) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("remove", &path)(error)),
        }
    }

    fn next_epoch(&self) -> Result<u64> {
        let _lock = self.lock()?;
        let path = self.path.join(EPOCH);
        let last = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().unwrap_or_else(|_| {
                tracing::warn!("{} is damaged: counting on from the time of day", path.display());
                milliseconds()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let next: u64 = last + 1;
        self.replace(&path, next.to_string().as_bytes(), Synced::Yes)?;
        Ok(next)
    }

    /// The new body or the old one; synced, also after a loss of power. Under the lock.
    fn replace(&self, path: &Path, body: &[u8], synced: Synced) -> Result<()> {
        let beside = self.path.join(".new");
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(&beside);
        let file = file.map_err(failed("make", &beside))?;
        let synced = if seawall_providers::keeps_bodies(&file) { synced } else { Synced::Yes };
        let sync = || if synced == Synced::Yes { file.sync_all() } else { Ok(()) };
        let written = (&file).write_all(body).and_then(|()| sync());
        let moved = written.and_then(|()| std::fs::rename(&beside, path));
        moved.map_err(|error| {
            // What could not be finished must not take the space that is missing.
            let _ = std::fs::remove_file(&beside);
            failed("write", path)(error)
        })?;
        if synced == Synced::Yes { self.sync() } else { Ok(()) }
    }

    /// A move is durable when its folder is.
    fn sync(&self) -> Result<()> {
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(failed("sync", &self.path))
    }
}

/// Whether a locked file still has its name.
fn is_there(path: &Path, file: &File) -> bool {
    let there = std::fs::metadata(path).ok().zip(file.metadata().ok());
    there.is_some_and(|(there, held)| (there.dev(), there.ino()) == (held.dev(), held.ino()))
}

fn json(record: &Record) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(record)
        .map_err(|error| Error::internal("a record cannot be written as JSON").with_source(error))
}

fn read(path: &Path) -> io::Result<Record> {
    let body = std::fs::read(path)?;
    if body.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    serde_json::from_slice(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// More than any count of starts can have reached.
fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX / 2)
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let message = format!("cannot {what} {}", path.display());
    move |error| Error::internal(message).with_source(error)
}

fn damaged(path: &Path, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let message =
        format!("the record {} is damaged: mend it, or move it away to forget the sandbox", path.display());
    Error::internal(message).with_source(cause)
}
