//! Adding to the chain: one record per number, and whoever comes second looks again.
//!
//! If a store does not refuse a second create (`probe`), a database admits one commit id per number
//! (`Turnstile::admit`), under a lease of thirty days. A lease around the commit would not suffice, because a writer
//! that slept past its end writes late. So a writer first stores its record as `.candidates/<number>-<id>` and then
//! requests the number. **The record in the chain is only ever stored with the bytes of the admitted candidate**, by its writer or
//! by the next refused one, so a late write stores the same bytes. If a bucket was emptied under its database, an
//! admitted number has no candidate: the next lease on that number decides. The time of a manifest is decided in the
//! same way.

use super::{Head, Record, Turnstile, VersionRecord, Versions, What, record};
use crate::{Error, Result, bucket, retry::retry, state::StateFile, sums::Strong, tree::Tree};
use bytes::Bytes;
use seawall_api::ErrorKind;
use std::sync::Arc;

/// What came of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    Done(Box<Record>),
    /// Somebody else has the number: look again, and merge.
    Lost,
}

/// Who decides who writes the next record.
enum Door<'a> {
    Store,
    Database(&'a Arc<dyn Turnstile>),
}

/// Under which name a database lets one through, and again where a bucket was emptied under it.
const MAX_TURNS: u32 = 100;

impl Versions {
    /// The way to the next record. Before the first one the store proves what it can do.
    async fn door(&self) -> Result<Door<'_>> {
        if self.is_exclusive().await? {
            return Ok(Door::Store);
        }
        match &self.turnstile {
            Some(turnstile) => Ok(Door::Database(turnstile)),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} overwrites an object that it was asked to create only if absent, so two writers could \
                     lose each other's versions; use a store that honours If-None-Match, or give the server a \
                     database that can decide",
                    self.bucket.place()
                ),
            )),
        }
    }

    async fn is_exclusive(&self) -> Result<bool> {
        if let Some(known) = self.exclusive.get() {
            return Ok(*known);
        }
        let place = self.bucket.place();
        let refuses = match self.memory.refuses_second_create(&place).await {
            Some(known) => known,
            None => {
                let proved = self.refuses_second_create().await?;
                if !proved {
                    tracing::warn!(%place, "the store overwrites what it should refuse; the database decides instead");
                }
                self.memory.keep_refusal(&place, proved).await;
                proved
            }
        };
        Ok(*self.exclusive.get_or_init(|| refuses))
    }

    /// Adds a version: its manifest, then its record. The bodies are in the bucket already.
    pub async fn commit_version(
        &self,
        head: &Head,
        id: &str,
        (tree, digest): (&Tree, Strong),
    ) -> Result<Committed> {
        if let Some((path, _)) = tree.files().find(|(_, file)| file.place.is_none() && file.size > 0) {
            return Err(Error::new(ErrorKind::Internal, "its body is nowhere").on(path));
        }
        let door = self.door().await?;
        let now = self.clock.now_ms();
        let timestamp = now.max(head.version.as_ref().map_or(0, |version| version.timestamp + 1));
        let json = Bytes::from(StateFile::manifest(timestamp.div_euclid(1000), tree));
        let (timestamp, manifest) = self.put_manifest(&door, id, timestamp, &json).await?;
        let version = VersionRecord {
            seq: head.seq + 1,
            id: id.to_owned(),
            timestamp,
            manifest,
            manifest_hash: Strong::of(&json),
            manifest_size: json.len() as u64,
            tree: digest,
            files: tree.files().count() as u64,
            bytes: tree.files().map(|(_, file)| file.size).sum(),
            began: head.began,
            legacy: false,
        };
        let record = Record::new(head.seq + 1, id.to_owned(), &head.id, What::Version(version.clone()));
        let done = self.create_record(&door, record).await?;
        if let Committed::Done(record) = &done {
            self.memory.keep_manifest(&version.manifest_hash, json).await;
            let (place, name) = (self.bucket.place(), record::key(record.seq));
            self.memory.keep_record(&place, &name, record.to_json().into()).await;
        }
        Ok(done)
    }

    /// Adds a record that is no version.
    pub(crate) async fn commit_other(&self, head: &Head, what: What) -> Result<Committed> {
        let door = self.door().await?;
        self.create_record(&door, Record::new(head.seq + 1, self.ids.next(), &head.id, what)).await
    }

    /// Never over another one: a committed manifest stays as it is.
    async fn put_manifest(
        &self,
        door: &Door<'_>,
        id: &str,
        timestamp: i64,
        json: &Bytes,
    ) -> Result<(i64, String)> {
        let step = "storing the manifest";
        for timestamp in timestamp.. {
            let key = manifest_key(timestamp);
            let is_ours = match door {
                Door::Store => retry(step, || self.bucket.create(&key, json.clone())).await?,
                Door::Database(turnstile) => {
                    let name = format!("manifest {timestamp} of {}", self.bucket.place());
                    let admitted = turnstile.admit(&name, id).await?;
                    if admitted {
                        retry(step, || self.bucket.put(&key, json.clone())).await?;
                    }
                    admitted
                }
            };
            if is_ours {
                tracing::debug!(path = key, bytes = json.len(), "state file written");
                return Ok((timestamp, key));
            }
        }
        Err(Error::new(ErrorKind::Internal, "there is no time left for a version"))
    }

    async fn create_record(&self, door: &Door<'_>, record: Record) -> Result<Committed> {
        if let Door::Database(turnstile) = door {
            return self.decided_elsewhere(turnstile, record).await;
        }
        let body = Bytes::from(record.to_json());
        let key = record::key(record.seq);
        match retry(STEP, || self.bucket.create(&key, body.clone())).await {
            Ok(true) => Ok(Committed::Done(Box::new(record))),
            // It may be our own, whose reply was lost.
            Ok(false) => self.whose(record).await,
            Err(error) => self.lost_reply(record, error).await,
        }
    }

    async fn whose(&self, record: Record) -> Result<Committed> {
        let there = self.record(record.seq).await?;
        Ok(if there.id == record.id { Committed::Done(Box::new(record)) } else { Committed::Lost })
    }

    /// Whether it was stored is known to the store alone.
    async fn lost_reply(&self, record: Record, error: Error) -> Result<Committed> {
        match bucket::find(&*self.bucket, &record::key(record.seq), super::MAX_RECORD).await {
            Ok(Some(_)) => self.whose(record).await,
            _ => Err(error),
        }
    }

    /// The store refuses nothing, so the database says whose the number is. Everybody who may be told so has left
    /// the record beside the chain before, so that whoever comes next can finish what the one who died began: the
    /// record in the chain is only ever stored with the bytes of the one who was let through.
    async fn decided_elsewhere(&self, turnstile: &Arc<dyn Turnstile>, record: Record) -> Result<Committed> {
        let body = Bytes::from(record.to_json());
        let (seq, candidate) = (record.seq, candidate(record.seq, &record.id));
        let key = record::key(seq);
        retry(STEP, || self.bucket.put(&candidate, body.clone())).await?;
        for turn in 1..=MAX_TURNS {
            let name = format!("commit {seq} of {} ({turn})", self.bucket.place());
            let admitted = turnstile.admit(&name, &record.id).await?;
            if self.numbers_from(seq).await?.first() == Some(&seq) {
                return self.whose(record).await;
            }
            if admitted {
                retry(STEP, || self.bucket.put(&key, body.clone())).await?;
                return Ok(Committed::Done(Box::new(record)));
            }
            if self.finish(turnstile, &name, seq).await? {
                return Ok(Committed::Lost);
            }
            // Nobody's record is there: the bucket was emptied since. The next turn decides.
        }
        Err(Error::conflict("the database and the bucket do not belong together; use another prefix")
            .during(STEP))
    }

    /// Stores the record of whoever was let through and died. False where it is nowhere.
    async fn finish(&self, turnstile: &Arc<dyn Turnstile>, name: &str, seq: u64) -> Result<bool> {
        let (prefix, key) = (candidate(seq, ""), record::key(seq));
        let left = retry(STEP, || self.bucket.list(&prefix, None)).await?;
        for object in left {
            let read = bucket::find(&*self.bucket, &object.key, super::MAX_RECORD).await?;
            let Some(record) = read.as_deref().and_then(|body| Record::parse(body).ok()) else { continue };
            if turnstile.admit(name, &record.id).await? {
                let body = Bytes::from(record.to_json());
                retry(STEP, || self.bucket.put(&key, body.clone())).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

const STEP: &str = "committing the version";
/// Records of those who ask a database for their number.
pub(crate) const CANDIDATES: &str = ".candidates/";

fn candidate(seq: u64, id: &str) -> String {
    format!("{CANDIDATES}{seq:020}-{id}")
}

pub fn manifest_key(timestamp: i64) -> String {
    format!("{timestamp:013}/{}", crate::path::STATE)
}
