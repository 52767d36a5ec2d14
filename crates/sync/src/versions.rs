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
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use seawall_api::ErrorKind;
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

const COMMITS: &str = ".commits/";
pub(crate) const PACKS: &str = ".packs/";
/// A record is small, but for one that condemns very many packs.
const MAX_RECORD: u64 = 64 << 20;

/// A database that lets one through, for stores that cannot refuse a second create.
#[async_trait]
pub trait Turnstile: Send + Sync {
    /// Whether `who` is the one for this name. The first who asks is, and stays it.
    async fn admit(&self, name: &str, who: &str) -> Result<bool>;
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

/// Whoever sees to it that not too many large manifests are in memory at once.
#[async_trait]
pub trait Gate: Send + Sync {
    /// Waits until a manifest of so many bytes may be read.
    async fn admit(&self, bytes: u64) -> Result<()>;
}

/// The chain of one workspace.
#[derive(Clone)]
pub struct Versions {
    pub(crate) bucket: SharedBucket,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) turnstile: Option<Arc<dyn Turnstile>>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) limits: Limits,
    pub(crate) gate: Option<Arc<dyn Gate>>,
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
    pub id: String,
    /// The newest version: its record.
    pub version: Option<VersionRecord>,
    /// The record by which all versions before were deleted; 0 where that never happened.
    pub began: u64,
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
    last: Option<u64>,
}

impl Head {
    pub(crate) fn of(last: &Record, version: Option<VersionRecord>) -> Head {
        let began = match (&last.what, &version) {
            (What::Condemned { newest: None, .. }, _) => last.seq,
            (_, Some(version)) => version.began,
            (_, None) => 0,
        };
        Head { seq: last.seq, id: last.id.clone(), version, began }
    }
}

impl Versions {
    pub fn new(bucket: SharedBucket, clock: Arc<dyn Clock>) -> Versions {
        let (memory, limits, exclusive) = (Arc::new(NoMemory), Limits::default(), Arc::default());
        let ids = Arc::new(RandomIds);
        Versions { bucket, clock, turnstile: None, memory, limits, gate: None, ids, exclusive }
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

    /// Asks before it reads a manifest.
    pub fn with_gate(mut self, gate: Arc<dyn Gate>) -> Versions {
        self.gate = Some(gate);
        self
    }

    pub fn place(&self) -> String {
        self.bucket.place()
    }

    /// The numbers of the records from one on, sorted.
    pub(crate) async fn numbers_from(&self, seq: u64) -> Result<Vec<u64>> {
        let after = record::key(seq.saturating_sub(1));
        let after = (seq > 1).then_some(after.as_str());
        let listed = retry("looking for the newest version", || self.bucket.list(COMMITS, after)).await?;
        let numbers = listed.iter().filter_map(|object| record::parse_key(&object.key));
        Ok(numbers.filter(|number| *number >= seq).collect())
    }

    pub(crate) async fn record(&self, seq: u64) -> Result<Record> {
        let name = record::key(seq);
        let body =
            retry("reading a version's record", || bucket::read(&*self.bucket, &name, MAX_RECORD)).await?;
        let record = Record::parse(&body).and_then(|record| match record.seq == seq {
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
        match self.numbers_from(0).await?.last() {
            Some(last) => self.head_at(self.record(*last).await?).await,
            None => legacy::head(self).await,
        }
    }

    /// What came since a workspace agreed on a version: one list where nothing did.
    pub async fn news(&self, base: Option<&CommitRef>) -> Result<News> {
        let Some(base) = base else {
            let numbers = self.numbers_from(0).await?;
            return Ok(News { base: BaseIs::Void, records: numbers.len(), last: numbers.last().copied() });
        };
        let known = base.seen.unwrap_or(base.seq);
        let numbers = self.numbers_from(known).await?;
        let last = numbers.last().copied();
        if known == 0 {
            let is = self.older_base(base, last.is_none()).await?;
            return Ok(News { base: is, records: numbers.len(), last });
        }
        let is = match numbers.first() {
            Some(first) if *first == known && numbers.len() == 1 => BaseIs::Head,
            Some(first) if *first == known => BaseIs::Older,
            _ => BaseIs::Void,
        };
        Ok(News { base: is, records: numbers.len().saturating_sub(1), last })
    }

    /// What a base of the older layout is: its folder has to be there, as it was.
    async fn older_base(&self, base: &CommitRef, is_last: bool) -> Result<BaseIs> {
        let found = legacy::find(self, base.timestamp).await?;
        if found.is_none_or(|version| version.tree != base.tree) {
            return Ok(BaseIs::Void);
        }
        let is_head =
            is_last && legacy::head(self).await?.version.is_some_and(|head| head.timestamp == base.timestamp);
        Ok(if is_head { BaseIs::Head } else { BaseIs::Older })
    }

    /// The end of the chain that the news tell of. The record of a workspace's own last commit may be remembered.
    pub(crate) async fn head_of(&self, news: &News, base: Option<&CommitRef>) -> Result<Head> {
        let Some(last) = news.last else { return self.head().await };
        if let Some(base) = base.filter(|base| news.base == BaseIs::Head && base.seen.is_none())
            && let Some(known) = self.memory.record(&self.bucket.place(), &record::key(last)).await
            && let Ok(record) = Record::parse(&known)
            && record.id == base.id
        {
            return self.head_at(record).await;
        }
        self.head_at(self.record(last).await?).await
    }

    /// Whether a base with the number of the newest is known to be of another chain. Asks nobody.
    pub(crate) async fn is_anothers(&self, news: &News, base: Option<&CommitRef>) -> bool {
        let (Some(base), Some(last)) = (base.filter(|base| base.seen.is_none()), news.last) else {
            return false;
        };
        let known = self.memory.record(&self.bucket.place(), &record::key(last)).await;
        known.and_then(|known| Record::parse(&known).ok()).is_some_and(|record| record.id != base.id)
    }

    /// Whether a base that is not the newest is one of this chain, and not of another one in its place.
    pub(crate) async fn knows(&self, base: &CommitRef) -> Result<bool> {
        if base.seq == 0 {
            return Ok(true);
        }
        match self.record(base.seq).await {
            Ok(record) => Ok(record.id == base.id),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn head_at(&self, last: Record) -> Result<Head> {
        let version = match &last.what {
            What::Version(version) => Some(version.clone()),
            What::Condemned { newest: None, .. } | What::Quarantined { newest: None, .. } => {
                legacy::head(self).await?.version
            }
            What::Condemned { newest: Some(newest), .. } | What::Quarantined { newest: Some(newest), .. } => {
                self.record(*newest).await?.version().cloned()
            }
        };
        Ok(Head::of(&last, version))
    }

    /// A commit of which only number and name are known: as it is in the chain, where it is.
    pub(crate) async fn committed(&self, pending: &CommitRef) -> Result<Option<CommitRef>> {
        let record = match self.record(pending.seq).await {
            Ok(record) => record,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let version = record.version().filter(|version| version.id == pending.id);
        Ok(version.map(VersionRecord::commit_ref))
    }

    /// Every record behind a number, oldest first.
    pub async fn records_after(&self, seq: u64) -> Result<Vec<Record>> {
        let numbers = self.numbers_from(seq + 1).await?;
        let reads: Vec<BoxFuture<'_, Result<Record>>> =
            numbers.into_iter().map(|number| self.record(number).boxed()).collect();
        futures::stream::iter(reads).buffered(16).try_collect().await
    }
}
