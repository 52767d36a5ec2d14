//! A local tree, parents first, links as links.

use anyhow::{Context, Result};
use std::{
    fs::Metadata,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};
use tokio::sync::mpsc;

#[derive(Debug)]
pub struct Found {
    pub path: PathBuf,
    /// From the top of the walk, as bytes.
    pub relative: Vec<u8>,
    pub meta: Metadata,
}

impl Found {
    pub fn mtime(&self) -> (i64, u32) {
        mtime(&self.meta)
    }
}

pub fn mtime(meta: &Metadata) -> (i64, u32) {
    (meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap_or(0))
}

/// Everything beneath `top`, on a thread of its own, no faster than it is taken.
pub fn beneath(top: &Path) -> mpsc::Receiver<Result<Found>> {
    let (sender, receiver) = mpsc::channel(256);
    let top = top.to_owned();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = send_all(&top, &sender) {
            let _ = sender.blocking_send(Err(error));
        }
    });
    receiver
}

fn send_all(top: &Path, sender: &mpsc::Sender<Result<Found>>) -> Result<()> {
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        let cannot_read = || format!("cannot read the directory {}", directory.display());
        for entry in std::fs::read_dir(&directory).with_context(cannot_read)? {
            let path = entry.with_context(cannot_read)?.path();
            let meta =
                path.symlink_metadata().with_context(|| format!("cannot look at {}", path.display()))?;
            if meta.is_dir() {
                waiting.push(path.clone());
            }
            let relative = path.strip_prefix(top)?.as_os_str().as_bytes().to_vec();
            if sender.blocking_send(Ok(Found { path, relative, meta })).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parents_come_first_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("a/b/c"), "x").unwrap();
        std::os::unix::fs::symlink("..", folder.path().join("a/up")).unwrap();
        let mut found = Vec::new();
        let mut walk = beneath(folder.path());
        while let Some(each) = walk.recv().await {
            found.push(String::from_utf8(each.unwrap().relative).unwrap());
        }
        let place = |name: &str| found.iter().position(|each| each == name).unwrap();
        assert!(place("a") < place("a/b") && place("a/b") < place("a/b/c"));
        assert_eq!(found.len(), 4);
    }
}
