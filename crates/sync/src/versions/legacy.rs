//! The older layout (S14): `{timestamp}/.sandbox-state`, with the bodies under their own paths beside it.
//!
//! It is read, and new versions are made on top of it; their manifests name its bodies where they are.

use super::{Head, VersionRecord, Versions, commit::manifest_key};
use crate::{
    Error, Result, bucket,
    retry::retry,
    state::StateFile,
    sums::Strong,
    tree::{Node, Place, Tree},
};
use std::sync::Arc;

const MAX_MANIFEST: u64 = 2 << 30;

/// Folders that are named by a time of 13 digits.
pub async fn timestamps(versions: &Versions) -> Result<Vec<i64>> {
    let folders = retry("looking for older versions", || versions.bucket.folders("")).await?;
    let digits = |name: &&String| name.len() == 13 && name.bytes().all(|byte| byte.is_ascii_digit());
    let mut found: Vec<i64> = folders.iter().filter(digits).filter_map(|name| name.parse().ok()).collect();
    found.sort_unstable();
    Ok(found)
}

/// The head of a chain without a record: the newest folder with a manifest that lists bodies beside it.
pub async fn head(versions: &Versions) -> Result<Head> {
    for timestamp in timestamps(versions).await?.into_iter().rev() {
        let key = manifest_key(timestamp);
        let found =
            retry("reading a manifest", || bucket::find(&*versions.bucket, &key, MAX_MANIFEST)).await?;
        let Some(json) = found else { continue };
        // Not the one before it instead: that would undo what came since.
        let state = StateFile::parse(&json, &versions.limits).map_err(|error| {
            Error::invalid(format!(
                "the newest version cannot be read: {error}; restore an older one by its time"
            ))
            .on(&key)
        })?;
        if state.packed {
            // Ours, and without a record: its push died before it was a version.
            continue;
        }
        let version = record(timestamp, &json, &beside(timestamp, state.tree));
        return Ok(Head { version: Some(version), ..Head::default() });
    }
    Ok(Head::default())
}

fn record(timestamp: i64, json: &[u8], tree: &Tree) -> VersionRecord {
    VersionRecord {
        seq: 0,
        id: format!("older-{timestamp}"),
        timestamp,
        manifest: manifest_key(timestamp),
        manifest_hash: Strong::of(json),
        manifest_size: json.len() as u64,
        tree: tree.digest(),
        files: tree.files().count() as u64,
        bytes: tree.files().map(|(_, file)| file.size).sum(),
        began: 0,
        legacy: true,
    }
}

pub async fn find(versions: &Versions, timestamp: i64) -> Result<Option<VersionRecord>> {
    let key = manifest_key(timestamp);
    let found = retry("reading a manifest", || bucket::find(&*versions.bucket, &key, MAX_MANIFEST)).await?;
    let Some(json) = found else { return Ok(None) };
    let parsed = StateFile::parse(&json, &versions.limits);
    let state = parsed.map_err(|error| Error::invalid(error.to_string()).on(&key))?;
    // Ours, and without a record: its push died before it was a version.
    if state.packed {
        return Ok(None);
    }
    Ok(Some(record(timestamp, &json, &beside(timestamp, state.tree))))
}

pub async fn tree(versions: &Versions, version: &VersionRecord) -> Result<Tree> {
    let read = || bucket::read(&*versions.bucket, &version.manifest, MAX_MANIFEST);
    let json = retry("reading a manifest", read).await?;
    let parsed = StateFile::parse(&json, &versions.limits);
    let state = parsed.map_err(|error| Error::invalid(error.to_string()).on(&version.manifest))?;
    Ok(beside(version.timestamp, state.tree))
}

/// Every body lies under its own path in the folder.
fn beside(timestamp: i64, mut tree: Tree) -> Tree {
    for (path, node) in &mut tree.0 {
        if let Node::File(file) = node {
            let object: Arc<str> = format!("{timestamp:013}/{}", path.lossy()).into();
            file.place = Some(Place::plain(object, 0));
        }
    }
    tree
}
