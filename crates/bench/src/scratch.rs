//! Data folders of measurements, and the removal of their sandboxes.

use anyhow::{Context, Result};
use seawall_api::{SandboxId, http::StopServer};
use seawall_cli::{
    app::{App, check_data},
    config::Settings,
    output,
    serving::Ownership,
};
use seawall_client::{Client, LocalServer};
use seawall_core::ports::Volumes;
use std::{
    fs::{DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// The prefix of the names of these folders, in the folder for temporary files.
const PREFIX: &str = "seawall-bench-";
/// The file that a measurement holds locked for as long as it runs.
const LOCK: &str = ".bench";
/// How long a server that was asked to stop may take.
const STOP: Duration = Duration::from_secs(60);

/// A data folder that is deleted when this value is dropped.
pub struct Scratch {
    pub path: PathBuf,
    _lock: File,
}

impl Scratch {
    pub fn new() -> Result<Self> {
        // Short: providers make sockets in it.
        let id = SandboxId::generate().to_string();
        let tail = id.rsplit('-').next().unwrap_or_default();
        let path = std::env::temp_dir().join(format!("{PREFIX}{tail}"));
        DirBuilder::new()
            .mode(0o711)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock()?;
        Ok(Scratch { path, _lock: lock })
    }

    /// The settings for this folder. Other databases and buckets are never measured.
    pub fn settings(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        settings.data = self.path.clone();
        settings.database = None;
        settings.sync.bucket = None;
        settings.provider = Some(settings.provider_name().to_owned());
        settings
    }

    /// Deletes everything in the folder but its lock. No server may be using it.
    pub fn wipe(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name() == LOCK {
                continue;
            }
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }

    /// Folders of measurements that were killed. Their sandboxes are in no other list.
    fn left_behind() -> Vec<Scratch> {
        let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
        let dead = ours.filter_map(|entry| {
            let path = entry.path();
            // Any user can make a folder of that name there.
            check_data(&path).ok()?;
            let lock = File::open(path.join(LOCK)).ok()?;
            lock.try_lock().ok()?;
            Some(Scratch { path, _lock: lock })
        });
        dead.collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A data folder that this process owns, opened.
pub struct Owned {
    pub app: App,
    _ownership: Ownership,
}

impl Owned {
    pub async fn open(settings: Settings) -> Result<Owned> {
        let ownership = Ownership::take(&settings.data).await?;
        let ownership = ownership
            .with_context(|| format!("another process uses the data folder {}", settings.data.display()))?;
        let app = App::open(settings, &ownership).await?;
        Ok(Owned { app, _ownership: ownership })
    }
}

/// Removes what killed measurements left: servers, sandboxes and folders.
pub async fn clear_left_behind(settings: &Settings) {
    for scratch in Scratch::left_behind() {
        output::note(format!("clearing away a measurement that was killed: {}", scratch.path.display()));
        clear(&scratch, settings).await;
    }
}

/// Ends the server of a folder, if one runs, and removes the folder's sandboxes.
pub async fn clear(scratch: &Scratch, settings: &Settings) {
    let cleared = async {
        if Ownership::try_take(&scratch.path)?.is_none() {
            stop_server(&scratch.path).await?;
        }
        let owned = Owned::open(scratch.settings(settings)).await?;
        remove_all(&owned.app).await;
        anyhow::Ok(())
    };
    if let Err(error) = cleared.await {
        output::note(format!("{} cannot be cleared: {error:#}", scratch.path.display()));
    }
}

/// Stops a server of either kind, in the background or in the foreground, and waits until it has ended.
async fn stop_server(data: &Path) -> Result<()> {
    let client = Client::local(LocalServer::new(data), None)?;
    // A server that is about to end does not answer.
    let _ = client.stop_server(&StopServer { instance: None, replaced: true }).await;
    Ownership::take_within(data, STOP).await?.context("its server does not end")?;
    Ok(())
}

pub async fn remove_all(app: &App) {
    for info in app.sandboxes.list().await.unwrap_or_default() {
        let _ = app.sandboxes.give_up_unsynced(info.id).await;
        let stopped = app.sandboxes.stop(info.id, Duration::ZERO).await;
        let removed = app.sandboxes.remove(info.id, Volumes::Delete).await;
        if let Err(error) = stopped.map(drop).and(removed) {
            output::note(format!("sandbox {} of the measurement is left behind: {}", info.id, error.chain()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_wiped_and_deleted() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path.clone();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        std::fs::write(path.join("c"), "x").unwrap();
        scratch.wipe().unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [LOCK]);
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_measurement_has_its_own_folder_database_and_bucket() {
        let scratch = Scratch::new().unwrap();
        let mut settings =
            Settings { database: Some("postgres://elsewhere".to_owned()), ..Settings::default() };
        settings.sync.bucket = Some("s3://elsewhere".to_owned());
        let own = scratch.settings(&settings);
        assert_eq!((own.data, own.database, own.sync.bucket), (scratch.path.clone(), None, None));
        assert_eq!(own.provider.as_deref(), Some("native"));
    }
}
