//! The records of the chain.

use super::COMMITS;
use crate::{state::CommitRef, sums::Strong};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const FORMAT: &str = "1.0";

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A link of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub version: String,
    pub seq: u64,
    /// Random, so that a writer knows its own record again.
    pub id: String,
    pub parent: Option<String>,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    Version(VersionRecord),
    /// A prune decided: these objects go, and nothing may refer to them.
    Condemned {
        /// The newest version, which stays.
        newest: Option<u64>,
        /// The versions that are dropped.
        versions: Vec<u64>,
        objects: Vec<Arc<str>>,
        timestamp: i64,
    },
    /// A verify found these bodies damaged: no new version may rely on them.
    Quarantined {
        newest: Option<u64>,
        bodies: Vec<Body>,
        timestamp: i64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRecord {
    #[serde(skip)]
    pub seq: u64,
    #[serde(skip)]
    pub id: String,
    /// Unix milliseconds, later than any before.
    pub timestamp: i64,
    /// The key of its manifest.
    pub manifest: String,
    pub manifest_hash: Strong,
    pub manifest_size: u64,
    /// What a workspace with this version has: [`crate::tree::Tree::digest`].
    pub tree: Strong,
    pub files: u64,
    pub bytes: u64,
    /// The record by which all versions before were deleted; 0 where that never happened. Whatever a workspace agreed on
    /// before it is of another history, and says nothing about this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub began: u64,
    /// Bodies lie beside the manifest under their own paths, and no record was ever written.
    #[serde(skip)]
    pub legacy: bool,
}

impl What {
    /// Everything before it is gone.
    pub fn tombstone(timestamp: i64) -> What {
        What::Condemned { newest: None, versions: Vec::new(), objects: Vec::new(), timestamp }
    }
}

impl VersionRecord {
    pub fn commit_ref(&self) -> CommitRef {
        let (id, timestamp, tree) = (self.id.clone(), self.timestamp, self.tree);
        CommitRef { seq: self.seq, id, timestamp, tree, seen: None, partial: false }
    }
}

/// Bytes of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Body {
    pub object: Arc<str>,
    pub offset: u64,
    pub size: u64,
}

impl Record {
    pub fn new(seq: u64, id: String, parent: &str, what: What) -> Record {
        let parent = (!parent.is_empty()).then(|| parent.to_owned());
        let mut record = Record { version: FORMAT.to_owned(), seq, id, parent, what };
        record.own();
        record
    }

    pub fn parse(json: &[u8]) -> Result<Record, String> {
        let mut record: Record = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if record.version != FORMAT {
            return Err(format!("its version is {:?}", record.version));
        }
        record.own();
        Ok(record)
    }

    fn own(&mut self) {
        let (seq, id) = (self.seq, self.id.clone());
        if let What::Version(version) = &mut self.what {
            (version.seq, version.id) = (seq, id);
        }
    }

    pub fn to_json(&self) -> Vec<u8> {
        // Plain fields: writing them to memory cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn version(&self) -> Option<&VersionRecord> {
        match &self.what {
            What::Version(version) => Some(version),
            _ => None,
        }
    }

    /// Whether all before it is gone, records included.
    pub fn is_tombstone(&self) -> bool {
        matches!(&self.what, What::Condemned { newest: None, versions, objects, .. }
            if versions.is_empty() && objects.is_empty())
    }

    pub fn timestamp(&self) -> i64 {
        match &self.what {
            What::Version(version) => version.timestamp,
            What::Condemned { timestamp, .. } | What::Quarantined { timestamp, .. } => *timestamp,
        }
    }
}

/// The name of a record. Names sort as their numbers do.
pub fn key(seq: u64) -> String {
    format!("{COMMITS}{seq:020}")
}

pub fn parse_key(key: &str) -> Option<u64> {
    let name = key.strip_prefix(COMMITS)?;
    let is_number = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| is_number)
}
