//! Adding to the chain: one record per number, and whoever comes second looks again.

use super::{Head, Key, Pass, Record, Turnstile, VersionRecord, Versions, What};
use crate::{Error, Result, bucket, retry::retry, state::StateFile, sums::Strong, tree::Tree};
use bytes::Bytes;
use seawall_api::ErrorKind;
use std::sync::Arc;

/// What came of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    Done(Record),
    /// Somebody else has the number: look again, and merge.
    Lost,
}

/// Who may write the next record.
enum Door {
    /// The store decides.
    Store,
    Lease(Box<dyn Pass>),
}

impl Versions {
    /// The way to the next record. Before the first one the store proves what it can do.
    async fn door(&self) -> Result<Door> {
        if self.is_exclusive().await? {
            return Ok(Door::Store);
        }
        match &self.turnstile {
            Some(turnstile) => Ok(Door::Lease(self.enter(turnstile).await?)),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} overwrites an object that it was asked to create only if absent, so two writers could \
                     lose each other's versions; use a store that honours If-None-Match, or give the server a \
                     database whose leases can decide",
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
                    tracing::warn!(%place, "the store overwrites what it should refuse; a lease decides instead");
                }
                self.memory.keep_refusal(&place, proved).await;
                proved
            }
        };
        Ok(*self.exclusive.get_or_init(|| refuses))
    }

    async fn enter(&self, turnstile: &Arc<dyn Turnstile>) -> Result<Box<dyn Pass>> {
        turnstile.enter(&format!("sync {}", self.bucket.place())).await
    }

    /// Adds a version: its manifest, then its record. The bodies are in the bucket already.
    pub async fn commit_version(&self, head: &Head, id: &str, tree: &Tree) -> Result<Committed> {
        if let Some((path, _)) = tree.files().find(|(_, file)| file.place.is_none() && file.size > 0) {
            return Err(Error::new(ErrorKind::Internal, "its body is nowhere").on(path));
        }
        let door = self.door().await?;
        let done = self.version_through(&door, head, id, tree).await;
        door.close().await;
        done
    }

    async fn version_through(&self, door: &Door, head: &Head, id: &str, tree: &Tree) -> Result<Committed> {
        if self.is_taken(door, head).await? {
            return Ok(Committed::Lost);
        }
        let now = self.clock.now_ms();
        let timestamp = now.max(head.version.as_ref().map_or(0, |version| version.timestamp + 1));
        let state =
            StateFile { last_synced_at: timestamp.div_euclid(1000), commit: None, tree: tree.clone() };
        let json = Bytes::from(state.to_json());
        let (timestamp, manifest) = self.put_manifest(door, id, timestamp, &json).await?;
        let version = VersionRecord {
            seq: head.seq + 1,
            epoch: door.epoch(),
            id: id.to_owned(),
            timestamp,
            manifest,
            manifest_hash: Strong::of(&json),
            manifest_size: json.len() as u64,
            tree: tree.digest(),
            files: tree.files().count() as u64,
            bytes: tree.files().map(|(_, file)| file.size).sum(),
            legacy: false,
        };
        let record = Record::new(
            (head.seq + 1, door.epoch()),
            id.to_owned(),
            &head.id,
            What::Version(version.clone()),
        );
        let done = self.create_record(door, record).await?;
        if let Committed::Done(_) = done {
            self.memory.keep_manifest(&version.manifest_hash, json).await;
        }
        Ok(done)
    }

    /// Adds a record that is no version.
    pub(crate) async fn commit_other(&self, head: &Head, what: What) -> Result<Committed> {
        let door = self.door().await?;
        let done = async {
            match self.is_taken(&door, head).await? {
                true => Ok(Committed::Lost),
                false => {
                    let record = Record::new((head.seq + 1, door.epoch()), self.ids.next(), &head.id, what);
                    self.create_record(&door, record).await
                }
            }
        }
        .await;
        door.close().await;
        done
    }

    /// Under a lease the store refuses nothing, so its holder looks first.
    async fn is_taken(&self, door: &Door, head: &Head) -> Result<bool> {
        match door {
            Door::Store => Ok(false),
            Door::Lease(_) => {
                let keys = self.keys_from(head.seq.max(1)).await?;
                let known = (head.seq > 0).then_some(Key { seq: head.seq, epoch: head.epoch });
                Ok(keys != Vec::from_iter(known))
            }
        }
    }

    /// Never over another one: a committed manifest stays as it is.
    async fn put_manifest(
        &self,
        door: &Door,
        id: &str,
        timestamp: i64,
        json: &Bytes,
    ) -> Result<(i64, String)> {
        let step = "storing the manifest";
        if let Door::Lease(_) = door {
            // The store refuses nothing, so the one that counts has a name of its own.
            let own = format!(".manifests/{id}");
            let shown = manifest_key(timestamp);
            let put = |key: String| {
                let json = json.clone();
                async move { retry(step, || self.bucket.put(&key, json.clone())).await }
            };
            futures::future::try_join(put(own.clone()), put(shown)).await?;
            return Ok((timestamp, own));
        }
        for timestamp in timestamp.. {
            let key = manifest_key(timestamp);
            if retry(step, || self.bucket.create(&key, json.clone())).await? {
                return Ok((timestamp, key));
            }
        }
        Err(Error::new(ErrorKind::Internal, "there is no time left for a version"))
    }

    async fn create_record(&self, door: &Door, record: Record) -> Result<Committed> {
        let name = Key { seq: record.seq, epoch: record.epoch };
        let key = name.to_string();
        let body = Bytes::from(record.to_json());
        let step = "committing the version";
        match door {
            Door::Store => match retry(step, || self.bucket.create(&key, body.clone())).await {
                Ok(true) => Ok(Committed::Done(record)),
                // It may be our own, whose reply was lost.
                Ok(false) => self.whose(&name, record).await,
                Err(error) => self.lost_reply(&name, record, error).await,
            },
            Door::Lease(pass) => {
                retry(step, || self.bucket.put(&key, body.clone())).await?;
                // Held until now means that nobody else looked before our record was there.
                match pass.holds().await? {
                    true => Ok(Committed::Done(record)),
                    false => Ok(Committed::Lost),
                }
            }
        }
    }

    async fn whose(&self, key: &Key, record: Record) -> Result<Committed> {
        let there = self.record(key).await?;
        Ok(if there.id == record.id { Committed::Done(record) } else { Committed::Lost })
    }

    /// Whether it was stored is known to the store alone.
    async fn lost_reply(&self, key: &Key, record: Record, error: Error) -> Result<Committed> {
        match bucket::find(&*self.bucket, &key.to_string(), super::MAX_RECORD).await {
            Ok(Some(_)) => self.whose(key, record).await,
            _ => Err(error),
        }
    }
}

impl Door {
    fn epoch(&self) -> u64 {
        match self {
            Door::Store => 0,
            Door::Lease(pass) => pass.epoch(),
        }
    }

    async fn close(self) {
        if let Door::Lease(pass) = self {
            pass.leave().await;
        }
    }
}

pub fn manifest_key(timestamp: i64) -> String {
    format!("{timestamp:013}/{}", crate::path::STATE)
}
