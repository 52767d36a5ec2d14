//! Dropping versions. What goes is decided by a record in the chain first, so that a push in flight loses its race,
//! looks again, and uploads anew what it lost. Then it is deleted; a prune that died is finished by the next.

use super::{
    COMMITS, Committed, Head, PACKS, Record, VersionRecord, Versions, What, commit::CANDIDATES,
    commit::manifest_key, history::live, legacy, probe::PROBES, record,
};
use crate::{Error, Result, retry::retry};
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use seawall_api::ErrorKind;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Which versions stay: the newest always, and those that either rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    pub newest: usize,
    /// Milliseconds.
    pub younger_than: Option<i64>,
}

/// Which versions go.
#[derive(Debug, Clone, Copy)]
enum Choice {
    /// All but these.
    AllBut(Keep),
    /// One, by its time or its number.
    One(i64),
    /// All of them, the newest too.
    All,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pruned {
    pub kept: usize,
    pub dropped: Vec<i64>,
    pub objects_deleted: u64,
    pub bytes_deleted: u64,
}

/// Bytes of a large manifest.
const LARGE: u64 = 8 << 20;
/// Whoever pushes meanwhile makes us look again.
const TRIES: usize = 20;

impl Versions {
    /// Drops all versions but those to keep, and deletes what no other version has.
    pub async fn prune(&self, keep: Keep) -> Result<Pruned> {
        self.drop_versions(Choice::AllBut(keep)).await
    }

    /// Drops one version, by its time or its number. `not_found` where there is none, `conflict` where it is the newest:
    /// a workspace that has it would take it for undone.
    pub async fn delete(&self, wanted: i64) -> Result<Pruned> {
        self.drop_versions(Choice::One(wanted)).await
    }

    /// Drops every version and deletes what they had, the records too but for one that says so. A push that is under way
    /// loses its race, and makes the first version of another history. One that slept for all of this finds its number
    /// free, and its record is no version: whoever calls this sees to it that nothing is pushed meanwhile.
    pub async fn delete_all(&self) -> Result<Pruned> {
        let pruned = self.drop_versions(Choice::All).await?;
        self.bury_records().await?;
        Ok(pruned)
    }

    /// As [`Versions::delete_all`], and nothing at all stays: for a workspace that nobody will ever push again.
    pub async fn erase(&self) -> Result<Pruned> {
        let mut erased = match self.delete_all().await {
            // A damaged record keeps nobody from deleting it.
            Err(error) if error.kind() == ErrorKind::Invalid => Pruned::default(),
            done => done?,
        };
        let left = retry("listing what is left", || self.bucket.list("", None)).await?;
        let keys: Vec<Arc<str>> = left.iter().map(|object| object.key.as_str().into()).collect();
        self.delete_objects(&keys).await?;
        erased.objects_deleted += left.len() as u64;
        erased.bytes_deleted += left.iter().map(|object| object.size).sum::<u64>();
        Ok(erased)
    }

    async fn drop_versions(&self, what: Choice) -> Result<Pruned> {
        for _ in 0..TRIES {
            if let Some(pruned) = self.try_drop(what).await? {
                return Ok(pruned);
            }
        }
        Err(Error::conflict("others push all the time; try again when they pause")
            .during("dropping versions"))
    }

    /// None where somebody committed meanwhile.
    async fn try_drop(&self, what: Choice) -> Result<Option<Pruned>> {
        let records = self.records_after(0).await?;
        let mut versions = self.older(&records).await?;
        versions.extend(live(&records));
        let (kept, dropped) = self.choose(&versions, what)?;
        // Without a record there is nothing by which a push could know what is decided here.
        if records.is_empty() && !matches!(what, Choice::All) {
            return match what {
                Choice::One(_) => Err(Error::conflict("it is of the older layout; sync first, then drop it")),
                _ => Ok(Some(Pruned::default())),
            };
        }
        let named = self.named(&kept).await?;
        let sizes = match what {
            Choice::All => self.all_objects().await?,
            _ => self.objects(&records, &versions).await?,
        };
        let doomed: Doomed = sizes.into_iter().filter(|(key, _)| !named.contains(key)).collect();
        if doomed.is_empty() && dropped.is_empty() {
            return Ok(Some(Pruned { kept: kept.len(), ..Pruned::default() }));
        }
        self.condemn(records.last(), &kept, &dropped, &doomed).await
    }

    /// Decides it by a record, and deletes. None where somebody was faster.
    async fn condemn(
        &self,
        last: Option<&Record>,
        kept: &[VersionRecord],
        dropped: &[VersionRecord],
        doomed: &Doomed,
    ) -> Result<Option<Pruned>> {
        let head = last.map_or_else(Head::default, |last| Head::of(last, kept.last().cloned()));
        let keys: Vec<Arc<str>> = doomed.iter().map(|(key, _)| key.as_str().into()).collect();
        let what = What::Condemned {
            newest: kept.last().map(|version| version.seq).filter(|seq| *seq > 0),
            versions: dropped.iter().map(|version| version.seq).filter(|seq| *seq > 0).collect(),
            objects: keys.clone(),
            timestamp: self.clock.now_ms(),
        };
        if self.commit_other(&head, what).await? == Committed::Lost {
            return Ok(None);
        }
        self.delete_objects(&keys).await?;
        Ok(Some(Pruned {
            kept: kept.len(),
            dropped: dropped.iter().map(|version| version.timestamp).collect(),
            objects_deleted: keys.len() as u64,
            bytes_deleted: doomed.iter().map(|(_, size)| size).sum(),
        }))
    }

    fn choose(&self, versions: &[VersionRecord], what: Choice) -> Result<Chosen> {
        let now = self.clock.now_ms();
        let is_kept = |keep: &Keep, at: usize, version: &VersionRecord| {
            let newest = at + keep.newest.max(1) >= versions.len();
            let young = keep.younger_than.is_some_and(|time| version.timestamp >= now.saturating_sub(time));
            newest || young
        };
        let one = match what {
            Choice::One(wanted) => Some(self.one_of(versions, wanted)?.timestamp),
            Choice::AllBut(_) | Choice::All => None,
        };
        if one.is_some() && one == versions.last().map(|newest| newest.timestamp) {
            return Err(Error::conflict(
                "the newest version stays; make another by a sync, or delete the sandbox with all its versions",
            ));
        }
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        for (at, version) in versions.iter().enumerate() {
            let stays = match &what {
                Choice::AllBut(keep) => is_kept(keep, at, version),
                Choice::One(_) => one != Some(version.timestamp),
                Choice::All => false,
            };
            if stays { &mut kept } else { &mut dropped }.push(version.clone());
        }
        Ok((kept, dropped))
    }

    /// What is left of a chain without versions: one small record, so that a push that slept finds no number free that
    /// was taken before. The others go.
    async fn bury_records(&self) -> Result<()> {
        let records = self.records_after(0).await?;
        let Some(mut last) = records.last().cloned() else { return Ok(()) };
        if !last.is_tombstone() {
            let what = What::tombstone(self.clock.now_ms());
            let Committed::Done(record) = self.commit_other(&Head::of(&last, None), what).await? else {
                // Somebody pushed: that is another history, and it goes on from these.
                return Ok(());
            };
            last = *record;
        }
        let old: Vec<Arc<str>> = records
            .iter()
            .map(|record| record.seq)
            .filter(|seq| *seq < last.seq)
            .map(|seq| record::key(seq).into())
            .collect();
        self.delete_objects(&old).await?;
        // Whose number it is was decided by them, and it is in the chain now.
        let asked = retry("listing records", || self.bucket.list(CANDIDATES, None)).await?;
        let asked: Vec<Arc<str>> = asked.iter().map(|object| object.key.as_str().into()).collect();
        self.delete_objects(&asked).await
    }

    /// Everything that the kept versions need.
    async fn named(&self, kept: &[VersionRecord]) -> Result<BTreeSet<String>> {
        let mut named = BTreeSet::new();
        let objects = |version| {
            async move {
                let tree = self.tree(version).await?;
                let place =
                    |file: &crate::tree::File| file.place.as_ref().map(|place| place.object.to_string());
                Ok(tree.files().filter_map(|(_, file)| place(file)).collect())
            }
            .boxed()
        };
        // Large ones one after the other: each is in memory as a whole.
        let at_once = if kept.iter().all(|version| version.manifest_size < LARGE) { 4 } else { 1 };
        let trees: Vec<BoxFuture<'_, Result<BTreeSet<String>>>> = kept.iter().map(objects).collect();
        let all: Vec<BTreeSet<String>> = futures::stream::iter(trees).buffered(at_once).try_collect().await?;
        for objects in all {
            named.extend(objects);
        }
        for version in kept {
            named.insert(version.manifest.clone());
            named.insert(manifest_key(version.timestamp));
        }
        Ok(named)
    }

    /// All that may be condemned: bodies and manifests, wherever they lie. Never records.
    async fn objects(&self, records: &[Record], versions: &[VersionRecord]) -> Result<BTreeMap<String, u64>> {
        let ours = records.iter().filter_map(Record::version).chain(versions);
        let known: BTreeSet<i64> = ours.map(|version| version.timestamp).collect();
        let mut all = BTreeMap::new();
        for prefix in [PACKS, CANDIDATES] {
            let listed = retry("listing bodies", || self.bucket.list(prefix, None)).await?;
            all.extend(listed.into_iter().map(|object| (object.key, object.size)));
        }
        // A time behind the newest version's may still be taken, by a push that must not lose it to a late delete.
        let newest = versions.last().map_or(i64::MIN, |version| version.timestamp);
        for timestamp in legacy::timestamps(self).await?.into_iter().filter(|time| *time <= newest) {
            let prefix = format!("{timestamp:013}/");
            let listed = retry("listing manifests", || self.bucket.list(&prefix, None)).await?;
            // A folder of which nothing is known but that there are files in it is somebody else's.
            let bare = listed.iter().all(|object| object.key == manifest_key(timestamp));
            if !bare && !known.contains(&timestamp) {
                continue;
            }
            all.extend(listed.into_iter().map(|object| (object.key, object.size)));
        }
        Ok(all)
    }

    /// All that is there but records, which are decided on later, and what a store is just asked with.
    async fn all_objects(&self) -> Result<BTreeMap<String, u64>> {
        let listed = retry("listing bodies", || self.bucket.list("", None)).await?;
        let stays = |key: &str| key.starts_with(COMMITS) || key.starts_with(PROBES);
        let all = listed.into_iter().filter(|object| !stays(&object.key));
        Ok(all.map(|object| (object.key, object.size)).collect())
    }

    async fn delete_objects(&self, keys: &[Arc<str>]) -> Result<()> {
        let delete = |key| retry("deleting a body", move || self.bucket.delete(key)).boxed();
        let deletes: Vec<BoxFuture<'_, Result<()>>> = keys.iter().map(|key: &Arc<str>| delete(key)).collect();
        futures::stream::iter(deletes).buffer_unordered(16).try_collect::<Vec<()>>().await.map(drop)
    }
}

/// Objects that go, with their sizes.
type Doomed = Vec<(String, u64)>;
/// Versions that stay, and versions that go.
type Chosen = (Vec<VersionRecord>, Vec<VersionRecord>);

/// What records condemned.
pub(crate) fn condemned(records: &[Record]) -> BTreeSet<Arc<str>> {
    let objects = |record: &Record| match &record.what {
        What::Condemned { objects, .. } => objects.clone(),
        _ => Vec::new(),
    };
    records.iter().flat_map(objects).collect()
}
