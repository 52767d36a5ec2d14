//! Who is at a sandbox, among the processes on one data folder: locked files, which a crash gives back.
//!
//! ```text
//! <data>/records/.claim-<id>   held while somebody makes or removes that sandbox, or runs a turn of that id
//! <data>/records/.epoch        the counter of control epochs
//! ```

use async_trait::async_trait;
use seawall_api::SandboxId;
use seawall_core::{
    Error, Result,
    ports::{Claim, Claims},
};
use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

const LOCK: &str = ".lock";
const EPOCH: &str = ".epoch";
const CLAIM: &str = ".claim-";

#[derive(Debug, Clone)]
pub struct FileClaims {
    folder: Arc<Folder>,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
}

impl FileClaims {
    pub fn open(data: &Path) -> Result<FileClaims> {
        let path = data.join("records");
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed("make", &path))?;
        let folder = Folder { path };
        folder.tidy()?;
        Ok(FileClaims { folder: Arc::new(folder) })
    }

    /// File IO blocks, so it has threads of its own.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = Arc::clone(&self.folder);
        let done = tokio::task::spawn_blocking(move || work(&folder)).await;
        done.map_err(|error| Error::internal("the work on the claims was cut off").with_source(error))?
    }
}

#[async_trait]
impl Claims for FileClaims {
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

/// A locked file, gone when the claim is given back.
struct Claimed {
    path: PathBuf,
    _file: File,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        // Before the lock goes; whoever waits for it looks whether the file is still there.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Folder {
    /// What a crash left goes with the claim to it.
    fn tidy(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.path).map_err(failed("read", &self.path))? {
            let name = entry.map_err(failed("read", &self.path))?.file_name();
            if let Some(id) = name.to_str().and_then(|name| name.strip_prefix(CLAIM)?.parse().ok()) {
                drop(self.try_claim(id)?);
            }
        }
        Ok(())
    }

    fn claim(&self, id: SandboxId) -> Result<Claim> {
        loop {
            let (path, file) = self.open_claim(id)?;
            file.lock().map_err(failed("lock", &path))?;
            if is_there(&path, &file) {
                return Ok(Box::new(Claimed { path, _file: file }));
            }
        }
    }

    fn try_claim(&self, id: SandboxId) -> Result<Option<Claimed>> {
        loop {
            let (path, file) = self.open_claim(id)?;
            match file.try_lock() {
                Ok(()) if is_there(&path, &file) => return Ok(Some(Claimed { path, _file: file })),
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

    /// Held until the file is dropped, also by a crash.
    fn lock(&self) -> Result<File> {
        let file = self.open_lock()?;
        file.lock().map_err(failed("lock", &self.path.join(LOCK)))?;
        Ok(file)
    }

    fn open_lock(&self) -> Result<File> {
        let path = self.path.join(LOCK);
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        file.map_err(failed("open", &path))
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
        self.replace(&path, next.to_string().as_bytes())?;
        Ok(next)
    }

    /// The new body or the old one, also after a loss of power. Under the lock.
    fn replace(&self, path: &Path, body: &[u8]) -> Result<()> {
        let beside = self.path.join(".new");
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(&beside);
        let file = file.map_err(failed("make", &beside))?;
        let written = (&file).write_all(body).and_then(|()| file.sync_all());
        let moved = written.and_then(|()| std::fs::rename(&beside, path));
        let folder = || File::open(&self.path).and_then(|folder| folder.sync_all());
        moved.and_then(|()| folder()).map_err(failed("write", path))
    }
}

/// Whether a locked file still has its name.
fn is_there(path: &Path, file: &File) -> bool {
    let there = std::fs::metadata(path).ok().zip(file.metadata().ok());
    there.is_some_and(|(there, held)| (there.dev(), there.ino()) == (held.dev(), held.ino()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn opened() -> (tempfile::TempDir, FileClaims) {
        let data = tempfile::tempdir().unwrap();
        let claims = FileClaims::open(data.path()).unwrap();
        (data, claims)
    }

    #[test]
    fn epochs_only_grow() {
        let (data, _claims) = opened();
        let given: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let claims = FileClaims::open(data.path()).unwrap();
                    scope.spawn(move || (0..125).map(|_| claims.folder.next_epoch().unwrap()).collect())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(given.iter().all(|each| each.windows(2).all(|pair| pair[0] < pair[1])));
        let distinct: BTreeSet<u64> = given.into_iter().flatten().collect();
        assert_eq!(distinct.len(), 1000);
        assert_eq!(distinct.last(), Some(&1000));
    }

    #[test]
    fn a_damaged_counter_still_grows() {
        let (data, claims) = opened();
        assert_eq!(claims.folder.next_epoch().unwrap(), 1);
        std::fs::write(data.path().join("records/.epoch"), "nonsense").unwrap();
        let next = claims.folder.next_epoch().unwrap();
        assert!(next > 1_000_000);
        assert_eq!(claims.folder.next_epoch().unwrap(), next + 1);
    }

    #[tokio::test]
    async fn one_at_a_time_and_gone_afterwards() {
        let (data, claims) = opened();
        let id = SandboxId::generate();
        let held = claims.claim(id).await.unwrap();
        let other = FileClaims::open(data.path()).unwrap();
        assert!(other.try_claim(id).await.unwrap().is_none());
        drop(held);
        drop(other.try_claim(id).await.unwrap().unwrap());
        assert_eq!(std::fs::read_dir(data.path().join("records")).unwrap().count(), 0);
    }
}
