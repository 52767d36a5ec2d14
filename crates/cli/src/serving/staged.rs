//! Files that nobody needs any more: what uploads that were cut off left in the bucket of the data folder, and what is remembered
//! of buckets that nobody syncs with.
//!
//! A round walks through all folders, a batch of entries at a time. Links are not followed.

use crate::config::Settings;
use seawall_core::{Error, Result};
use seawall_sync::stores::is_unfinished;
use std::{
    fs::{self, ReadDir},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tokio::time::sleep;

/// Entries that are looked at together.
const BATCH: usize = 500;
/// Between batches.
const PAUSE: Duration = Duration::from_millis(20);
/// How long what is remembered of a bucket is kept. All of it may be deleted at any time.
const MEMORY: Duration = Duration::from_secs(30 * 86_400);

/// A folder, and which of its files are removed when they are old enough.
struct Place {
    folder: PathBuf,
    age: Duration,
    is_removed: fn(&str) -> bool,
}

pub struct Staged {
    places: Vec<Place>,
}

impl Staged {
    pub fn new(settings: &Settings) -> Staged {
        let remembered =
            Place { folder: settings.data.join("sync/records"), age: MEMORY, is_removed: |_| true };
        let bucket = settings.retention.staged_objects.map(|age| Place {
            folder: settings.data.join("bucket"),
            age,
            is_removed: is_unfinished,
        });
        Staged { places: bucket.into_iter().chain([remembered]).collect() }
    }

    pub async fn round(&mut self) -> Result<()> {
        for place in &self.places {
            let removed = place.walk().await?;
            if removed > 0 {
                tracing::info!(folder = %place.folder.display(), removed, "old files removed");
            }
        }
        Ok(())
    }
}

/// The part of a walk that is left.
struct Walk {
    open: Option<ReadDir>,
    folders: Vec<PathBuf>,
    removed: u64,
}

impl Place {
    async fn walk(&self) -> Result<u64> {
        let mut walk = Walk { open: None, folders: vec![self.folder.clone()], removed: 0 };
        let (age, is_removed) = (self.age, self.is_removed);
        loop {
            let (back, is_done) = tokio::task::spawn_blocking(move || {
                let done = walk.batch(age, is_removed);
                (walk, done)
            })
            .await
            .map_err(|error| Error::internal("looking for old files was cut off").with_source(error))?;
            walk = back;
            if is_done {
                return Ok(walk.removed);
            }
            sleep(PAUSE).await;
        }
    }
}

impl Walk {
    /// True at the end.
    fn batch(&mut self, age: Duration, is_removed: fn(&str) -> bool) -> bool {
        for _ in 0..BATCH {
            let Some(folder) = &mut self.open else {
                let Some(next) = self.folders.pop() else { return true };
                match fs::read_dir(&next) {
                    Ok(open) => self.open = Some(open),
                    Err(error) => unless_gone(&next, &error),
                }
                continue;
            };
            match folder.next() {
                None => self.open = None,
                // One that cannot be read now is looked at in the next round.
                Some(entry) => drop(entry.and_then(|entry| self.look(&entry, age, is_removed))),
            }
        }
        false
    }

    fn look(&mut self, entry: &fs::DirEntry, age: Duration, is_removed: fn(&str) -> bool) -> io::Result<()> {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            self.folders.push(entry.path());
            return Ok(());
        }
        let name = entry.file_name();
        if !kind.is_file() || !name.to_str().is_some_and(is_removed) {
            return Ok(());
        }
        let written = entry.metadata()?.modified()?;
        // One from the future is new.
        if SystemTime::now().duration_since(written).unwrap_or_default() < age {
            return Ok(());
        }
        match fs::remove_file(entry.path()) {
            Ok(()) => self.removed += 1,
            Err(error) => unless_gone(&entry.path(), &error),
        }
        Ok(())
    }
}

fn unless_gone(path: &Path, error: &io::Error) {
    if error.kind() != io::ErrorKind::NotFound {
        tracing::warn!(path = %path.display(), %error, "an old file could not be looked at");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn aged(path: &Path, age: Duration) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }

    #[tokio::test]
    async fn k11_what_cut_off_uploads_left_is_removed_and_no_object() {
        let data = tempfile::tempdir().unwrap();
        let at = |name: &str| data.path().join("bucket/docs/a").join(name);
        let (old, new) = (Duration::from_secs(100_000), Duration::from_secs(60));
        let objects = ["file", "file#", "file#1#", "file##1", "file#1b"];
        objects.iter().for_each(|name| aged(&at(name), old));
        aged(&at("file#1"), old);
        aged(&at("deep/er/file#12"), old);
        aged(&at("file#2"), new);
        let outside = data.path().join("outside#1");
        aged(&outside, old);
        std::os::unix::fs::symlink(data.path(), at("link")).unwrap();
        let settings = Settings { data: data.path().to_owned(), ..Settings::default() };
        Staged::new(&settings).round().await.unwrap();
        assert!(!at("file#1").exists() && !at("deep/er/file#12").exists());
        let kept = objects.iter().chain(&["file#2", "link"]);
        kept.for_each(|name| assert!(at(name).exists(), "{name}"));
        assert!(outside.exists(), "a link leads nowhere");
    }

    /// More than a batch, in folders that come and go.
    #[tokio::test(start_paused = true)]
    async fn k11_a_walk_goes_on_batch_by_batch() {
        let data = tempfile::tempdir().unwrap();
        for number in 0..BATCH * 2 {
            let path = data.path().join(format!("bucket/{}/x#{number}", number % 7));
            aged(&path, Duration::from_secs(100_000));
        }
        let settings = Settings { data: data.path().to_owned(), ..Settings::default() };
        Staged::new(&settings).round().await.unwrap();
        for number in 0..7 {
            assert_eq!(fs::read_dir(data.path().join(format!("bucket/{number}"))).unwrap().count(), 0);
        }
        // Nothing is there to look at.
        fs::remove_dir_all(data.path().join("bucket")).unwrap();
        Staged::new(&settings).round().await.unwrap();
    }
}
