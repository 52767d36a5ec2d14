//! Manifests: read from a cache where that has them, checked in any case.

use super::{VersionRecord, Versions, legacy};
use crate::{Error, Result, bucket, retry::retry, state::StateFile, sums::Strong, tree::Tree};
use async_trait::async_trait;
use bytes::Bytes;

/// What this installation remembers of a bucket, to ask less. May forget at any time.
#[async_trait]
pub trait Memory: Send + Sync {
    /// A manifest, by its hash.
    async fn manifest(&self, _hash: &Strong) -> Option<Bytes> {
        None
    }

    async fn keep_manifest(&self, _hash: &Strong, _json: Bytes) {}

    /// A record that this installation wrote or read, by the place and its name.
    async fn record(&self, _place: &str, _name: &str) -> Option<Bytes> {
        None
    }

    async fn keep_record(&self, _place: &str, _name: &str, _json: Bytes) {}

    /// Whether the store at a place refuses a second create.
    async fn refuses_second_create(&self, _place: &str) -> Option<bool> {
        None
    }

    async fn keep_refusal(&self, _place: &str, _refuses: bool) {}
}

#[derive(Debug, Clone, Copy, Default)]
pub struct NoMemory;

impl Memory for NoMemory {}

/// A manifest of four million files fits.
const MAX_MANIFEST: u64 = 2 << 30;

impl Versions {
    /// The files of a version, with where their bodies are.
    pub async fn tree(&self, version: &VersionRecord) -> Result<Tree> {
        if let Some(gate) = &self.gate {
            gate.admit(version.manifest_size).await?;
        }
        if version.legacy {
            return legacy::tree(self, version).await;
        }
        let damaged = |why: String| {
            let time = version.timestamp;
            Error::invalid(format!(
                "the manifest of version {time} is damaged: {why}; restore another version, see `seawall versions`"
            ))
            .on(&version.manifest)
        };
        if let Some(json) = self.memory.manifest(&version.manifest_hash).await
            && Strong::of(&json) == version.manifest_hash
        {
            return self.parse(&json).map_err(damaged);
        }
        let json = retry("reading the manifest", || async {
            let json = bucket::read(&*self.bucket, &version.manifest, MAX_MANIFEST).await?;
            match Strong::of(&json) == version.manifest_hash {
                true => Ok(json),
                // Perhaps it was damaged on the way only.
                false => Err(Error::unavailable("its hash is not that of its record").on(&version.manifest)),
            }
        })
        .await?;
        tracing::debug!(path = version.manifest, bytes = json.len(), "state file read");
        self.memory.keep_manifest(&version.manifest_hash, json.clone()).await;
        self.parse(&json).map_err(damaged)
    }

    fn parse(&self, json: &[u8]) -> Result<Tree, String> {
        StateFile::parse(json, &self.limits).map(|state| state.tree).map_err(|error| error.to_string())
    }
}
