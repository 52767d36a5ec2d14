//! Dropping versions. What goes is decided by a record in the chain first, so that a push in flight loses its race,
//! looks again, and uploads anew what it lost. Then it is deleted; a prune that died is finished by the next.

use super::{
    Committed, Head, PACKS, Record, VersionRecord, Versions, What, commit::CANDIDATES, commit::manifest_key,
    history::live, legacy,
};
use crate::{Result, retry::retry};
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use serde::Serialize;
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

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Pruned {
    pub kept: usize,
    pub dropped: Vec<i64>,
    pub objects_deleted: u64,
    pub bytes_deleted: u64,
}

/// Whoever pushes meanwhile makes us look again.
const TRIES: usize = 20;

impl Versions {
    pub async fn prune(&self, keep: Keep) -> Result<Pruned> {
        for _ in 0..TRIES {
            if let Some(pruned) = self.try_prune(keep).await? {
                return Ok(pruned);
            }
        }
        Err(crate::Error::conflict("others push all the time; prune again when they pause").during("pruning"))
    }

    /// None where somebody committed meanwhile.
    async fn try_prune(&self, keep: Keep) -> Result<Option<Pruned>> {
        let records = self.records_after(0).await?;
        let Some(last) = records.last() else { return Ok(Some(Pruned::default())) };
        let mut versions = self.older(&records).await?;
        versions.extend(live(&records));
        let (kept, dropped) = self.choose(&versions, keep);
        let named = self.named(&kept).await?;
        let sizes = self.objects(&records, &versions).await?;
        let doomed: Vec<Arc<str>> =
            sizes.keys().filter(|key| !named.contains(&***key)).map(|key| Arc::from(key.as_str())).collect();
        if doomed.is_empty() && dropped.is_empty() {
            return Ok(Some(Pruned { kept: kept.len(), ..Pruned::default() }));
        }
        let head = Head::of(last, kept.last().cloned());
        let what = What::Condemned {
            newest: kept.last().map(|version| version.seq).filter(|seq| *seq > 0),
            versions: dropped.iter().map(|version| version.seq).filter(|seq| *seq > 0).collect(),
            objects: doomed.clone(),
            timestamp: self.clock.now_ms(),
        };
        if self.commit_other(&head, what).await? == Committed::Lost {
            return Ok(None);
        }
        self.delete_all(&doomed).await?;
        Ok(Some(Pruned {
            kept: kept.len(),
            dropped: dropped.iter().map(|version| version.timestamp).collect(),
            objects_deleted: doomed.len() as u64,
            bytes_deleted: doomed.iter().filter_map(|key| sizes.get(&**key)).sum(),
        }))
    }

    fn choose(&self, versions: &[VersionRecord], keep: Keep) -> (Vec<VersionRecord>, Vec<VersionRecord>) {
        let now = self.clock.now_ms();
        let count = versions.len();
        let stays = |(at, version): (usize, &VersionRecord)| {
            let newest = at + keep.newest.max(1) >= count;
            let young = keep.younger_than.is_some_and(|time| version.timestamp >= now.saturating_sub(time));
            newest || young
        };
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        for (at, version) in versions.iter().enumerate() {
            match stays((at, version)) {
                true => kept.push(version.clone()),
                false => dropped.push(version.clone()),
            }
        }
        (kept, dropped)
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
        let trees: Vec<BoxFuture<'_, Result<BTreeSet<String>>>> = kept.iter().map(objects).collect();
        let all: Vec<BTreeSet<String>> = futures::stream::iter(trees).buffered(4).try_collect().await?;
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

    async fn delete_all(&self, keys: &[Arc<str>]) -> Result<()> {
        let delete = |key| retry("deleting a body", move || self.bucket.delete(key)).boxed();
        let deletes: Vec<BoxFuture<'_, Result<()>>> = keys.iter().map(|key: &Arc<str>| delete(key)).collect();
        futures::stream::iter(deletes).buffer_unordered(16).try_collect::<Vec<()>>().await.map(drop)
    }
}

/// What records condemned.
pub(crate) fn condemned(records: &[Record]) -> BTreeSet<Arc<str>> {
    let objects = |record: &Record| match &record.what {
        What::Condemned { objects, .. } => objects.clone(),
        _ => Vec::new(),
    };
    records.iter().flat_map(objects).collect()
}
