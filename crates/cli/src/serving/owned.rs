//! Ownership of a data folder: one process at a time opens its database and makes its sandboxes.
//!
//! ```text
//! <data>/serve.lock   locked by the owner for as long as its process lives; never deleted
//! <data>/start.lock   locked by a command while it starts a server, and by whatever else is about to become the owner
//! ```
//!
//! The kernel's lock alone proves that a server lives: it goes with its process, however that ends. A process that is about to
//! become the owner holds `start.lock`, so that two of them never race, and gives it back when the socket is there. An owner
//! never waits for `start.lock`.

use anyhow::{Context, Result, bail};
use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, sleep};

const OWNER: &str = "serve.lock";
const STARTER: &str = "start.lock";
/// The first and the longest pause between tries to take a lock.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A program that a killed server was about to execute shares its lock for a moment.
const AFTERMATH: Duration = Duration::from_secs(2);

/// The right to use a data folder. It ends with the process, or when it is dropped.
#[derive(Debug)]
pub struct Ownership {
    file: File,
    data: PathBuf,
}

impl Ownership {
    /// `None` where another process owns the folder.
    pub fn try_take(data: &Path) -> Result<Option<Ownership>> {
        let file = open(data, OWNER)?;
        Ok(locked(&file, data)?.then(|| Ownership { file, data: data.to_owned() }))
    }

    /// Waits for a moment, in case the owner has just been killed.
    pub async fn take(data: &Path) -> Result<Option<Ownership>> {
        Ownership::take_within(data, AFTERMATH).await
    }

    pub async fn take_within(data: &Path, patience: Duration) -> Result<Option<Ownership>> {
        let (until, mut pause) = (Instant::now() + patience, FIRST_PAUSE);
        loop {
            match Ownership::try_take(data)? {
                None if Instant::now() < until => sleep(pause).await,
                taken => return Ok(taken),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Ownership for work that needs the folder without a server.
    pub async fn take_offline(data: &Path) -> Result<(Ownership, StartLock)> {
        let start = StartLock::take(data, AFTERMATH).await?;
        match Ownership::take(data).await? {
            Some(owned) => Ok((owned, start)),
            None => bail!(
                "a server uses {}: stop it first with `seawall server stop`, or where it was started",
                data.display()
            ),
        }
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Whether the folder is still there and this lock is still its lock. A folder that was deleted or replaced has another
    /// owner soon.
    pub fn holds(&self) -> bool {
        let same = |here: std::fs::Metadata, there: std::fs::Metadata| {
            (here.dev(), here.ino()) == (there.dev(), there.ino())
        };
        match (self.file.metadata(), std::fs::metadata(self.data.join(OWNER))) {
            (Ok(here), Ok(there)) => same(here, there),
            _ => false,
        }
    }
}

/// Whether some process owns the folder now. Only a holder of [`StartLock`] may ask: it takes the lock for an instant.
pub fn is_owned(data: &Path, _start: &StartLock) -> Result<bool> {
    let file = open(data, OWNER)?;
    Ok(!locked(&file, data)?)
}

/// The right to start a server, or to become one.
#[derive(Debug)]
pub struct StartLock(File);

impl StartLock {
    pub fn try_take(data: &Path) -> Result<Option<StartLock>> {
        let file = open(data, STARTER)?;
        Ok(locked(&file, data)?.then_some(StartLock(file)))
    }

    pub async fn take(data: &Path, patience: Duration) -> Result<StartLock> {
        let (until, mut pause) = (Instant::now() + patience, FIRST_PAUSE);
        loop {
            if let Some(lock) = StartLock::try_take(data)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                bail!("another command is starting a server on {}, and has not finished", data.display());
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Failed starts, as their holder wrote them: a line each.
    pub fn failures(&mut self) -> String {
        let mut text = String::new();
        let read = self.0.seek(SeekFrom::Start(0)).and_then(|_| self.0.read_to_string(&mut text));
        read.map_or(String::new(), |_| text)
    }

    /// Best effort: without the note a start is only tried once more.
    pub fn set_failures(&mut self, text: &str) {
        let written = self.0.set_len(0).and_then(|()| self.0.seek(SeekFrom::Start(0)));
        if let Err(error) = written.and_then(|_| self.0.write_all(text.as_bytes())) {
            tracing::debug!(%error, "the failed start was not noted");
        }
    }
}

fn open(data: &Path, name: &str) -> Result<File> {
    let path = data.join(name);
    let mut options = File::options();
    let opened = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
    opened.with_context(|| format!("cannot open {}", path.display()))
}

fn locked(file: &File, data: &Path) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock the data folder {}", data.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_has_one_owner_and_notices_its_loss() {
        let data = tempfile::tempdir().unwrap();
        let owned = Ownership::try_take(data.path()).unwrap().unwrap();
        assert!(Ownership::try_take(data.path()).unwrap().is_none());
        let start = StartLock::try_take(data.path()).unwrap().unwrap();
        assert!(StartLock::try_take(data.path()).unwrap().is_none());
        assert!(is_owned(data.path(), &start).unwrap() && owned.holds());
        std::fs::remove_file(data.path().join(OWNER)).unwrap();
        assert!(!owned.holds());
        std::fs::write(data.path().join(OWNER), "").unwrap();
        assert!(!owned.holds(), "the file of that name is another");
        assert!(!is_owned(data.path(), &start).unwrap());
    }

    #[tokio::test]
    async fn failed_starts_are_noted_in_the_lock() {
        let data = tempfile::tempdir().unwrap();
        let mut start = StartLock::take(data.path(), Duration::ZERO).await.unwrap();
        start.set_failures("1 first\n2 second\n");
        start.set_failures("3 third\n");
        assert_eq!(start.failures(), "3 third\n");
        drop(start);
        assert_eq!(StartLock::try_take(data.path()).unwrap().unwrap().failures(), "3 third\n");
    }
}
