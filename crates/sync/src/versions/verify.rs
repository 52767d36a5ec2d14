//! Reading everything again. What is damaged is told, and quarantined by a record in the chain: from then on no
//! version relies on it, and the next push stores such a body anew where the workspace still has it.

use super::{Body, Committed, Head, NoMemory, Record, VersionRecord, Versions, What, history::live};
use crate::{
    Result,
    retry::retry,
    sparse::{self, Decoder, Part},
    sums::Hasher,
    tree::{File, Place},
};
use futures::StreamExt;
use seawall_api::{ErrorKind, files::FileName};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The versions that suffer from it.
    pub versions: Vec<i64>,
    /// None: the version as a whole.
    pub path: Option<FileName>,
    pub object: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Verified {
    pub versions: usize,
    pub bodies: u64,
    pub bytes: u64,
    pub damage: Vec<Damage>,
    /// Bodies that this run put under quarantine.
    pub quarantined: usize,
}

/// A body, and who needs it.
struct Needed {
    file: File,
    path: FileName,
    versions: Vec<i64>,
}

impl Versions {
    pub async fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Verified> {
        // What this installation remembers says nothing of what the bucket has.
        let fresh = Versions { memory: Arc::new(NoMemory), ..self.clone() };
        fresh.verify_all(&mut progress).await
    }

    async fn verify_all(&self, progress: &mut impl FnMut(u64)) -> Result<Verified> {
        let mut found = Verified::default();
        let records = self.readable(&mut found).await?;
        let mut versions = self.older(&records).await?;
        versions.extend(live(&records));
        found.versions = versions.len();
        let needed = self.needed(&versions, &mut found).await?;
        let mut bad: Vec<Body> = Vec::new();
        for (object, bodies) in needed {
            for (at, needed) in bodies {
                found.bodies += 1;
                found.bytes += needed.file.size;
                progress(needed.file.size);
                if self.damage(&needed.file).await?.is_none() {
                    continue;
                }
                // Once more: the way may be to blame, and a quarantine is for what is damaged there.
                let Some(why) = self.damage(&needed.file).await? else { continue };
                let Needed { path, versions, file } = needed;
                bad.push(Body { object: object.as_str().into(), offset: at, size: file.size });
                let (path, object) = (Some(path), object.clone());
                found.damage.push(Damage { versions, path, object, why });
            }
        }
        found.quarantined = self.quarantine(&records, bad).await?;
        Ok(found)
    }

    /// The records that are there. What is missing in between, or is none, is damage.
    async fn readable(&self, found: &mut Verified) -> Result<Vec<Record>> {
        let (mut records, mut damage, mut next) = (Vec::new(), Vec::new(), 1);
        for number in self.numbers_from(0).await? {
            let read = match self.record(number).await {
                Err(error) if error.kind() != ErrorKind::Invalid => return Err(error),
                read => read.ok(),
            };
            // All before it was deleted.
            if read.as_ref().is_some_and(Record::is_tombstone) {
                damage.clear();
                next = number;
            }
            let gap = "it is gone; versions have numbers without a gap";
            damage.extend((next..number).map(|missing| no_record(missing, gap)));
            next = number + 1;
            match read {
                Some(record) => records.push(record),
                None => damage.push(no_record(number, "it is not a commit record")),
            }
        }
        found.damage.extend(damage);
        Ok(records)
    }

    /// Every body once, however many versions use it.
    async fn needed(
        &self,
        versions: &[VersionRecord],
        found: &mut Verified,
    ) -> Result<BTreeMap<String, BTreeMap<u64, Needed>>> {
        let mut needed: BTreeMap<String, BTreeMap<u64, Needed>> = BTreeMap::new();
        for version in versions {
            let tree = match self.tree(version).await {
                Ok(tree) => tree,
                Err(error) if error.kind() == ErrorKind::Denied => return Err(error),
                Err(error) => {
                    let (versions, object) = (vec![version.timestamp], version.manifest.clone());
                    found.damage.push(Damage { versions, path: None, object, why: error.to_string() });
                    continue;
                }
            };
            for (path, file) in tree.files() {
                let Some(Place { object, offset, .. }) = &file.place else { continue };
                let of_object = needed.entry(object.to_string()).or_default();
                let entry = of_object.entry(*offset).or_insert_with(|| Needed {
                    file: file.clone(),
                    path: path.clone(),
                    versions: Vec::new(),
                });
                if entry.versions.last() != Some(&version.timestamp) {
                    entry.versions.push(version.timestamp);
                }
            }
        }
        Ok(needed)
    }

    async fn damage(&self, file: &File) -> Result<Option<String>> {
        let Some(place) = file.place.as_ref().filter(|_| file.size > 0) else { return Ok(None) };
        let (object, stored) = (&*place.object, place.stored(file.size));
        let range = Some(place.offset..place.end(file.size));
        let mut body = match retry("verifying", || self.bucket.get(object, range.clone())).await {
            Ok(body) => body,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some("it is gone".to_owned())),
            Err(error) if error.kind() == ErrorKind::Invalid => return Ok(Some(error.to_string())),
            Err(error) => return Err(error.during("verifying")),
        };
        let mut decoder = Decoder::new(file.size, place.sparse.as_deref());
        let (mut hasher, mut size) = (Hasher::default(), 0u64);
        while let Some(part) = body.next().await {
            let mut part = match part {
                Ok(part) => part,
                // Cut short on the way: the second look decides.
                Err(error) if error.is_retryable() => return Ok(Some(error.to_string())),
                Err(error) => return Err(error.during("verifying").on(object)),
            };
            size += part.len() as u64;
            loop {
                match decoder.next(&mut part) {
                    Ok(None) => break,
                    Ok(Some(Part::Data(bytes))) => hasher.update(&bytes),
                    Ok(Some(Part::Zeros(count))) => hash_zeros(&mut hasher, count).await,
                    Err(error) => return Ok(Some(error.to_string())),
                }
            }
        }
        let whole = decoder.is_done() && hasher.finish().agree(&file.sums);
        Ok(match (size == stored, whole) {
            (true, true) => None,
            (true, false) => Some("its bytes are not those that were stored".to_owned()),
            (false, _) => Some(format!("it has {size} bytes instead of {stored}")),
        })
    }

    async fn quarantine(&self, records: &[Record], bad: Vec<Body>) -> Result<usize> {
        let known = quarantined(records);
        let bodies: Vec<Body> = bad.into_iter().filter(|body| !known.contains(body)).collect();
        let (false, Some(mut last)) = (bodies.is_empty(), records.last().cloned()) else { return Ok(0) };
        let count = bodies.len();
        let mut records = records.to_vec();
        loop {
            let newest = live(&records).last().map(|version| version.seq);
            let what = What::Quarantined { newest, bodies: bodies.clone(), timestamp: self.clock.now_ms() };
            let head = Head::of(&last, None);
            if let Committed::Done(_) = self.commit_other(&head, what).await? {
                return Ok(count);
            }
            // Whoever was faster may have made a version: that is the newest then.
            records.extend(self.records_after(last.seq).await?);
            if let Some(newest) = records.last() {
                last = newest.clone();
            }
        }
    }
}

/// There may be gigabytes of them, and others want the thread too.
async fn hash_zeros(hasher: &mut Hasher, mut count: u64) {
    while count > 0 {
        let zeros = sparse::zeros(count);
        hasher.update(&zeros);
        count -= zeros.len() as u64;
        tokio::task::yield_now().await;
    }
}

fn no_record(number: u64, why: &str) -> Damage {
    let (object, why) = (super::record::key(number), why.to_owned());
    Damage { versions: Vec::new(), path: None, object, why }
}

pub(crate) fn quarantined(records: &[Record]) -> BTreeSet<Body> {
    let bodies = |record: &Record| match &record.what {
        What::Quarantined { bodies, .. } => bodies.clone(),
        _ => Vec::new(),
    };
    records.iter().flat_map(bodies).collect()
}
