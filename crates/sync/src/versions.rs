//! Versions of a workspace in a bucket: a chain of commit records, each created once and never changed.
//!
//! ```text
//! {prefix}/.commits/00000000000000000007   a record: a version, or what a prune or a verify decided
//! {prefix}/1704067200123/.sandbox-state    the manifest of a version
//! {prefix}/.packs/00000000000000000007-…   bodies
//! ```
//!
//! Invariants: a record's number is its parent's plus one, and no record is ever deleted, so that a writer who slept
//! cannot take a number again. A version exists when its record does. Nothing refers to a condemned pack.

mod commit;
mod history;
mod legacy;
mod manifest;
mod probe;
mod prune;
mod record;
mod verify;

pub use commit::Committed;
pub use history::VersionInfo;
pub use manifest::{Memory, NoMemory};
pub use prune::{Keep, Pruned};
pub(crate) use record::Key;
pub use record::{Body, Record, VersionRecord, What};
pub use verify::{Damage, Verified};
pub(crate) use {prune::condemned, verify::quarantined};

use crate::{
    Error, Result,
    bucket::{self, SharedBucket},
    retry::retry,
    state::{CommitRef, Limits},
};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

const COMMITS: &str = ".commits/";
pub(crate) const PACKS: &str = ".packs/";
/// A record is small, but for one that condemns very many packs.
const MAX_RECORD: u64 = 64 << 20;

/// A right that a database gives to one holder at a time, for stores that cannot refuse a second create.
#[async_trait]
pub trait Turnstile: Send + Sync {
    /// Waits for the right to a name. The number is larger than that of any holder before.
    async fn enter(&self, name: &str) -> Result<Box<dyn Pass>>;
}

#[async_trait]
pub trait Pass: Send + Sync {
    fn epoch(&self) -> u64;
    /// Whether it still holds, asked of the database.
    async fn holds(&self) -> Result<bool>;
    async fn leave(self: Box<Self>);
}

/// Milliseconds since 1970.
pub trait Clock: Send + Sync {
    fn now_ms(&self) -> i64;
}

/// Names that are used once in the world, for commits and packs.
pub trait Ids: Send + Sync {
    fn next(&self) -> String;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn next(&self) -> String {
        uuid::Uuid::new_v4().simple().to_string()
    }
}

/// The chain of one workspace.
#[derive(Clone)]
pub struct Versions {
    pub(crate) bucket: SharedBucket,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) turnstile: Option<Arc<dyn Turnstile>>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) limits: Limits,
    /// Names that nobody else takes.
    pub(crate) ids: Arc<dyn Ids>,
    /// Whether the store refuses a second create. Found out once.
    exclusive: Arc<OnceLock<bool>>,
}

impl fmt::Debug for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versions").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

/// Where the chain ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// The number of the last record; 0 where there is none.
    pub seq: u64,
    /// Of the lease that decided on it; 0 where the store did.
    pub epoch: u64,
    pub id: String,
    /// The newest version: its record.
    pub version: Option<VersionRecord>,
}

/// What a workspace's base is to the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseIs {
    Head,
    Older,
    /// Not in the chain: another bucket, or a record that lost after all. Nothing may be concluded from it.
    Void,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct News {
    pub base: BaseIs,
    /// How many records are behind it.
    pub records: usize,
    /// The last record; none where it has to be looked for.
    last: Option<Key>,
}

impl Head {
    pub(crate) fn of(last: &Record, version: Option<VersionRecord>) -> Head {
        Head { seq: last.seq, epoch: last.epoch, id: last.id.clone(), version }
    }
}

impl Versions {
    pub fn new(bucket: SharedBucket, clock: Arc<dyn Clock>) -> Versions {
        let (memory, limits, exclusive) = (Arc::new(NoMemory), Limits::default(), Arc::default());
        Versions { bucket, clock, turnstile: None, memory, limits, ids: Arc::new(RandomIds), exclusive }
    }

    pub fn with_turnstile(mut self, turnstile: Option<Arc<dyn Turnstile>>) -> Versions {
        self.turnstile = turnstile;
        self
    }

    pub fn with_memory(mut self, memory: Arc<dyn Memory>) -> Versions {
        self.memory = memory;
        self
    }

    pub fn with_ids(mut self, ids: Arc<dyn Ids>) -> Versions {
        self.ids = ids;
        self
    }

    pub fn with_limits(mut self, limits: Limits) -> Versions {
        self.limits = limits;
        self
    }

    pub fn place(&self) -> String {
        self.bucket.place()
    }

    /// The keys of the records from a number on, the winner of each number, sorted.
    pub(crate) async fn keys_from(&self, seq: u64) -> Result<Vec<Key>> {
        let after = record::last_key(seq.saturating_sub(1));
        let after = (seq > 1).then_some(after.as_str());
        let listed = retry("looking for the newest version", || self.bucket.list(COMMITS, after)).await?;
        let mut keys: Vec<Key> = Vec::new();
        for object in listed {
            let Some(key) = Key::parse(&object.key).filter(|key| key.seq >= seq) else { continue };
            match keys.last_mut() {
                // Sorted by epoch within a number, and the highest epoch wins.
                Some(last) if last.seq == key.seq => *last = key,
                _ => keys.push(key),
            }
        }
        Ok(keys)
    }

    pub(crate) async fn record(&self, key: &Key) -> Result<Record> {
        let name = key.to_string();
        let body =
            retry("reading a version's record", || bucket::read(&*self.bucket, &name, MAX_RECORD)).await?;
        let record = Record::parse(&body, key.epoch).and_then(|record| match record.seq == key.seq {
            true => Ok(record),
            false => Err(format!("it says that it is number {}", record.seq)),
        });
        record.map_err(|why| {
            Error::invalid(format!(
                "it is not a commit record: {why}; `seawall verify` tells what is damaged"
            ))
            .on(&name)
        })
    }

    pub async fn head(&self) -> Result<Head> {
        match self.keys_from(0).await?.last() {
            Some(key) => self.head_at(self.record(key).await?).await,
            None => legacy::head(self).await,
        }
    }

    /// What came since a workspace agreed on a version: one list where nothing did.
    pub async fn news(&self, base: Option<&CommitRef>) -> Result<News> {
        let keys = self.keys_from(base.map_or(0, |base| base.seq)).await?;
        let last = keys.last().copied();
        let Some(base) = base else { return Ok(News { base: BaseIs::Void, records: keys.len(), last }) };
        if base.seq == 0 {
            let is_head =
                last.is_none() && legacy::head(self).await?.version.is_some_and(|head| head.id == base.id);
            let base = if is_head { BaseIs::Head } else { BaseIs::Older };
            return Ok(News { base, records: keys.len(), last });
        }
        let known = Key { seq: base.seq, epoch: base.epoch };
        let base = match keys.first() {
            Some(first) if *first == known && keys.len() == 1 => BaseIs::Head,
            Some(first) if *first == known => BaseIs::Older,
            _ => BaseIs::Void,
        };
        Ok(News { base, records: keys.len().saturating_sub(1), last })
    }

    /// The end of the chain that the news tell of.
    pub(crate) async fn head_of(&self, news: &News) -> Result<Head> {
        match &news.last {
            Some(key) => self.head_at(self.record(key).await?).await,
            None => self.head().await,
        }
    }

    async fn head_at(&self, last: Record) -> Result<Head> {
        let version = match &last.what {
            What::Version(version) => Some(version.clone()),
            What::Condemned { newest: None, .. } | What::Quarantined { newest: None, .. } => {
                legacy::head(self).await?.version
            }
            What::Condemned { newest: Some(newest), .. } | What::Quarantined { newest: Some(newest), .. } => {
                let keys = self.keys_from(*newest).await?;
                let key = keys.first().filter(|key| key.seq == *newest);
                let key = key.ok_or_else(|| Error::invalid(format!("record {newest} is gone")))?;
                self.record(key).await?.version().cloned()
            }
        };
        Ok(Head::of(&last, version))
    }

    /// A commit of which only number and name are known: as it is in the chain, where it is.
    pub(crate) async fn committed(&self, pending: &CommitRef) -> Result<Option<CommitRef>> {
        let keys = self.keys_from(pending.seq).await?;
        let Some(key) = keys.first().filter(|key| key.seq == pending.seq) else { return Ok(None) };
        let record = self.record(key).await?;
        let version = record.version().filter(|version| version.id == pending.id);
        Ok(version.map(VersionRecord::commit_ref))
    }

    /// Every record behind a number, oldest first.
    pub async fn records_after(&self, seq: u64) -> Result<Vec<Record>> {
        let keys = self.keys_from(seq + 1).await?;
        let reads = keys.into_iter().map(|key| async move { self.record(&key).await });
        futures::stream::iter(reads).buffered(16).try_collect().await
    }
}
