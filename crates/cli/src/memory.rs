//! What this installation remembers of buckets, in the data folder. All of it may be deleted at any time.
//!
//! ```text
//! <data>/sync/manifests/<hash>   manifests of versions that were synced lately
//! <data>/sync/records/<hash>     the newest record of a workspace that this installation wrote
//! <data>/sync/stores/<hash>      whether the store refuses a second create
//! ```

use async_trait::async_trait;
use bytes::Bytes;
use seawall_sync::{sums::Strong, versions::Memory};
use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Manifests that are kept: those of the workspaces that were synced last.
const MAX_MANIFESTS: usize = 64;

#[derive(Debug, Clone)]
pub struct FileMemory {
    folder: PathBuf,
}

impl FileMemory {
    pub fn new(data: &Path) -> FileMemory {
        FileMemory { folder: data.join("sync") }
    }

    fn manifest_file(&self, hash: &Strong) -> PathBuf {
        self.folder.join("manifests").join(hash.to_string())
    }

    fn store_file(&self, place: &str) -> PathBuf {
        self.folder.join("stores").join(Strong::of(place.as_bytes()).to_string())
    }

    /// The last one of a workspace.
    fn record_file(&self, place: &str) -> PathBuf {
        self.folder.join("records").join(Strong::of(place.as_bytes()).to_string())
    }

    fn write(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        let folder = file.parent().unwrap_or(&self.folder);
        // Names and checksums of files are nobody else's business.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Written beside and renamed: others read at the same time.
        let draft = folder.join(format!(".{}", seawall_api::ProcessId::generate()));
        fs::write(&draft, bytes)?;
        fs::rename(&draft, file)
    }

    fn remember(&self, manifest: &Path, json: &[u8]) -> io::Result<()> {
        self.write(manifest, json)?;
        self.tidy()
    }

    /// The oldest go.
    fn tidy(&self) -> io::Result<()> {
        let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(self.folder.join("manifests"))? {
            let entry = entry?;
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
        found.sort();
        for (_, path) in found.iter().take(found.len().saturating_sub(MAX_MANIFESTS)) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// The name before the first line's end, and what follows.
fn split(mut bytes: Bytes) -> Option<(Bytes, Bytes)> {
    let at = bytes.iter().position(|byte| *byte == b'\n')?;
    let name = bytes.split_to(at);
    Some((name, bytes.split_off(1)))
}

/// What cannot be remembered is asked for again.
fn forgotten(what: &str, done: io::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(what, %error, "it could not be remembered");
    }
}

#[async_trait]
impl Memory for FileMemory {
    async fn manifest(&self, hash: &Strong) -> Option<Bytes> {
        fs::read(self.manifest_file(hash)).ok().map(Bytes::from)
    }

    async fn keep_manifest(&self, hash: &Strong, json: Bytes) {
        // Nobody waits for it.
        let (memory, file) = (self.clone(), self.manifest_file(hash));
        tokio::task::spawn_blocking(move || {
            forgotten("a manifest", memory.remember(&file, &json));
        });
    }

    /// Not of a folder: one that is a mount may be another at times, with other records of the same names, and reading
    /// one costs nothing there.
    async fn record(&self, place: &str, name: &str) -> Option<Bytes> {
        if place.starts_with('/') || place.starts_with("file:") {
            return None;
        }
        let (kept, json) = fs::read(self.record_file(place)).ok().map(Bytes::from).and_then(split)?;
        (kept == name.as_bytes()).then_some(json)
    }

    async fn keep_record(&self, place: &str, name: &str, json: Bytes) {
        let line = [name.as_bytes(), b"\n", &json].concat();
        forgotten("a record", self.write(&self.record_file(place), &line));
    }

    async fn refuses_second_create(&self, place: &str) -> Option<bool> {
        match fs::read_to_string(self.store_file(place)).ok()?.trim() {
            "refuses" => Some(true),
            "overwrites" => Some(false),
            _ => None,
        }
    }

    async fn keep_refusal(&self, place: &str, refuses: bool) {
        let word = if refuses { "refuses" } else { "overwrites" };
        forgotten("a store", self.write(&self.store_file(place), word.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_old_is_forgotten_and_the_rest_is_not() {
        let data = tempfile::tempdir().unwrap();
        let memory = FileMemory::new(data.path());
        assert_eq!(memory.refuses_second_create("s3://a").await, None);
        memory.keep_refusal("s3://a", false).await;
        assert_eq!(memory.refuses_second_create("s3://a").await, Some(false));
        memory.keep_record("s3://a", ".commits/1", Bytes::from_static(b"{\n}")).await;
        assert_eq!(memory.record("s3://a", ".commits/1").await, Some(Bytes::from_static(b"{\n}")));
        assert_eq!(memory.record("s3://a", ".commits/2").await, None);
        memory.keep_record("/folder", ".commits/1", Bytes::from_static(b"{}")).await;
        assert_eq!(memory.record("/folder", ".commits/1").await, None);
        for number in 0..MAX_MANIFESTS + 5 {
            let json = Bytes::from(number.to_string());
            memory.remember(&memory.manifest_file(&Strong::of(&json)), &json).unwrap();
        }
        let left = fs::read_dir(data.path().join("sync/manifests")).unwrap().count();
        assert_eq!(left, MAX_MANIFESTS);
        let last = Bytes::from((MAX_MANIFESTS + 4).to_string());
        assert_eq!(memory.manifest(&Strong::of(&last)).await, Some(last));
    }
}
