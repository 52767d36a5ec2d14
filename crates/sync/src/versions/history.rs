//! Which versions there are.

use super::{Record, VersionRecord, Versions, What, legacy};
use crate::{Error, Result};
use seawall_api::ErrorKind;
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VersionInfo {
    pub seq: u64,
    pub id: String,
    /// Unix milliseconds; what a version is called by.
    pub timestamp: i64,
    pub files: u64,
    pub bytes: u64,
}

impl From<&VersionRecord> for VersionInfo {
    fn from(version: &VersionRecord) -> Self {
        let VersionRecord { seq, id, timestamp, files, bytes, .. } = version.clone();
        VersionInfo { seq, id, timestamp, files, bytes }
    }
}

/// Versions that no prune dropped, oldest first.
pub(crate) fn live(records: &[Record]) -> Vec<VersionRecord> {
    let mut dropped: BTreeSet<u64> = BTreeSet::new();
    // Where all went, a record of before is nothing but the late word of a push that slept.
    let mut began = 0;
    for record in records {
        if let What::Condemned { versions, newest, .. } = &record.what {
            dropped.extend(versions);
            began = if newest.is_none() { record.seq } else { began };
        }
    }
    let versions = records.iter().filter_map(Record::version);
    versions.filter(|version| version.seq > began && !dropped.contains(&version.seq)).cloned().collect()
}

impl Versions {
    /// The versions that can be restored, oldest first; also those of the older layout.
    pub async fn log(&self) -> Result<Vec<VersionRecord>> {
        let records = self.records_after(0).await?;
        let mut versions = self.older(&records).await?;
        versions.extend(live(&records));
        Ok(versions)
    }

    /// Of the older layout. A folder that a record speaks of is ours.
    pub(crate) async fn older(&self, records: &[Record]) -> Result<Vec<VersionRecord>> {
        let ours: BTreeSet<i64> =
            records.iter().filter_map(Record::version).map(|version| version.timestamp).collect();
        let mut older = Vec::new();
        for timestamp in legacy::timestamps(self).await? {
            if ours.contains(&timestamp) {
                continue;
            }
            match legacy::find(self, timestamp).await {
                Ok(version) => older.extend(version),
                // It cannot be restored; whoever prunes leaves it alone.
                Err(error) if error.kind() == ErrorKind::Invalid => {
                    tracing::warn!(timestamp, %error, "an older version cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(older)
    }

    /// By its timestamp, or by its number.
    pub async fn find(&self, wanted: i64) -> Result<VersionRecord> {
        let log = self.log().await?;
        self.one_of(&log, wanted).cloned()
    }

    pub(super) fn one_of<'v>(&self, log: &'v [VersionRecord], wanted: i64) -> Result<&'v VersionRecord> {
        let by_time = log.iter().find(|version| version.timestamp == wanted);
        let by_number =
            log.iter().find(|version| i64::try_from(version.seq) == Ok(wanted) && version.seq > 0);
        by_time.or(by_number).ok_or_else(|| {
            Error::not_found(format!(
                "there is no version {wanted} in {}; `seawall versions` lists those that are there",
                self.bucket.place()
            ))
        })
    }
}
