//! Bytes that go to a bucket, counted for the account whose they are.
//!
//! Invariant: no object is stored before its bytes are counted. What a call may have stored stays counted, also where it
//! failed; what surely was not stored is given back by [`Metered::settle`]. So a process that dies leaves a count that is
//! too high, and never one that is too low.

use crate::{accounts::Limit, ports::store::Stored};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use seawall_api::AccountId;
use seawall_sync::{
    Error, Result,
    bucket::{Bodies, Bucket, Object, SharedBucket},
};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::{Mutex, MutexGuard};

/// Small objects are counted together: a push has three of them.
const STEP: u64 = 64 << 10;
/// A large object is counted as it goes, in steps.
const LARGE_STEP: u64 = 8 << 20;

/// Whose bytes they are, and where they are counted.
#[derive(Clone)]
pub struct Account {
    id: AccountId,
    stored: Arc<dyn Stored>,
    /// More than this is not stored. None for pushes that save what would else be lost.
    most: Option<u64>,
}

impl Account {
    pub fn new(id: AccountId, stored: Arc<dyn Stored>) -> Account {
        Account { id, stored, most: None }
    }

    pub(super) fn id(&self) -> AccountId {
        self.id
    }

    pub(super) fn within(self, most: Option<u64>) -> Account {
        Account { most, ..self }
    }

    /// Refuses what was counted just now and is too much.
    async fn refuse_more(&self) -> Result<()> {
        let Some(most) = self.most else { return Ok(()) };
        let used = self.stored.total(self.id).await.map_err(|error| failed(&error))?;
        match used <= most {
            true => Ok(()),
            false => Err(failed(&Limit::StoredMb.reached(
                most >> 20,
                used.div_ceil(1 << 20),
                "the rest is not stored",
            ))),
        }
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A part of a bucket whose bytes are counted. Clones share the count.
#[derive(Clone)]
pub struct Metered {
    inner: SharedBucket,
    meter: Arc<Meter>,
}

struct Meter {
    account: Account,
    place: String,
    count: Mutex<Count>,
}

#[derive(Default)]
struct Count {
    /// Counted, and not needed yet.
    credit: u64,
    /// What each object may take that was stored here.
    objects: HashMap<String, u64>,
    /// Objects of which it is not known whether they are there: the call failed.
    unsure: HashSet<String>,
    /// How often the place was listed when it was counted last. None where nothing is to be settled.
    listings: Option<u64>,
}

impl Count {
    fn used(&self) -> u64 {
        self.objects.values().sum()
    }
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metered").field("inner", &self.inner).finish_non_exhaustive()
    }
}

fn failed(error: &crate::Error) -> Error {
    Error::new(error.kind(), error.chain()).during("counting what is stored")
}

impl Meter {
    async fn add(&self, delta: u64, back: bool) -> Result<u64> {
        let delta = i64::try_from(delta).unwrap_or(i64::MAX);
        let signed = if back { -delta } else { delta };
        let added = self.account.stored.add(self.account.id, &self.place, signed).await;
        added.map_err(|error| failed(&error))
    }

    /// Counts so many bytes more for an object, before they are stored.
    async fn charge(&self, key: &str, size: u64, step: u64) -> Result<()> {
        let mut count = self.count.lock().await;
        let more = size.saturating_sub(count.objects.get(key).copied().unwrap_or(0));
        if more > count.credit {
            let wanted = (more - count.credit).max(step);
            self.count_more(&mut count, wanted).await?;
        }
        count.credit -= more;
        *count.objects.entry(key.to_owned()).or_default() += more;
        Ok(())
    }

    async fn count_more(&self, count: &mut MutexGuard<'_, Count>, bytes: u64) -> Result<()> {
        let listings = self.add(bytes, false).await?;
        // The place was listed since, perhaps before what was stored here could be seen.
        if count.listings.is_some_and(|before| before != listings) {
            self.add(count.used() + count.credit, false).await?;
        }
        count.listings = Some(listings);
        count.credit += bytes;
        // Counted first, and then looked at: of several at once, none stores what brings the account above its limit.
        self.account.refuse_more().await
    }

    /// Takes back what was counted and not needed.
    async fn give_back(&self, credit: u64, used: u64, listings: u64) -> Result<()> {
        if self.add(credit, true).await? != listings {
            // It was not in the count any more, and what was stored may not be either.
            self.add(credit + used, false).await?;
        }
        Ok(())
    }

    /// An object is not there after all.
    async fn refund(&self, key: &str) {
        let mut count = self.count.lock().await;
        if let Some(size) = count.objects.remove(key) {
            count.credit += size;
        }
    }
}

impl Metered {
    pub fn new(inner: SharedBucket, account: Account) -> Metered {
        let meter = Meter { account, place: inner.place(), count: Mutex::default() };
        Metered { inner, meter: Arc::new(meter) }
    }

    /// The bytes of the objects that were stored here.
    pub async fn added(&self) -> u64 {
        self.meter.count.lock().await.used()
    }

    /// Gives back what was counted and not needed. A place that was never listed is listed now: what was there before
    /// anybody counted is counted once.
    pub async fn settle(&self) -> Result<()> {
        let mut count = self.meter.count.lock().await;
        let Some(listings) = count.listings.take() else { return Ok(()) };
        let (credit, used) = (std::mem::take(&mut count.credit), count.used());
        match listings {
            0 => self.recount().await.map(drop),
            _ => self.meter.give_back(credit, used, listings).await,
        }
    }

    /// Counts what is there, after something was deleted and while nobody else stores anything: nothing is left to settle.
    pub async fn recount_alone(&self) -> Result<()> {
        let mut count = self.meter.count.lock().await;
        self.recount().await?;
        *count = Count::default();
        Ok(())
    }

    /// Counts what is there.
    async fn recount(&self) -> Result<u64> {
        let listed = self.inner.list("", None).await?;
        let bytes = listed.iter().map(|object| object.size).sum();
        let Account { id, stored, .. } = &self.meter.account;
        stored.set(*id, &self.meter.place, bytes).await.map_err(|error| failed(&error))?;
        Ok(bytes)
    }
}

#[async_trait]
impl Bucket for Metered {
    fn place(&self) -> String {
        self.inner.place()
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        self.meter.charge(key, body.len() as u64, STEP).await?;
        let created = self.inner.create(key, body).await;
        match &created {
            Ok(true) => {}
            // Unless it is there because an earlier try stored it.
            Ok(false) => {
                if !self.meter.count.lock().await.unsure.contains(key) {
                    self.meter.refund(key).await;
                }
            }
            Err(_) => drop(self.meter.count.lock().await.unsure.insert(key.to_owned())),
        }
        created
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.meter.charge(key, body.len() as u64, STEP).await?;
        self.inner.put(key, body).await
    }

    async fn upload(&self, key: &str, body: Bodies) -> Result<()> {
        let (meter, name, cut_off) = (self.meter.clone(), key.to_owned(), Arc::new(AtomicBool::new(false)));
        let is_cut_off = cut_off.clone();
        let counted = futures::stream::try_unfold((body, 0u64), move |(mut body, sent)| {
            let (meter, name, cut_off) = (meter.clone(), name.clone(), cut_off.clone());
            async move {
                let next = body.next().await.transpose();
                cut_off.store(next.is_err(), Ordering::Relaxed);
                let Some(part) = next? else { return Ok(None) };
                let sent = sent + part.len() as u64;
                meter.charge(&name, sent, LARGE_STEP).await?;
                Ok::<_, Error>(Some((part, (body, sent))))
            }
        });
        let done = self.inner.upload(key, counted.boxed()).await;
        // A store never has a part of a body.
        if done.is_err() && is_cut_off.load(Ordering::Relaxed) {
            self.meter.refund(key).await;
        }
        done
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies> {
        self.inner.get(key, range).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>> {
        self.inner.list(prefix, after).await
    }

    async fn folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.folders(prefix).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.inner.delete(key).await?;
        self.meter.refund(key).await;
        Ok(())
    }
}

impl Drop for Meter {
    /// Whoever stored something was cut off: what was counted and is not needed is given back all the same.
    fn drop(&mut self) {
        let count = std::mem::take(self.count.get_mut());
        let (Some(listings), Ok(runtime)) = (count.listings, tokio::runtime::Handle::try_current()) else {
            return;
        };
        let meter =
            Meter { account: self.account.clone(), place: self.place.clone(), count: Mutex::default() };
        runtime.spawn(async move {
            if let Err(error) = meter.give_back(count.credit, count.used(), listings).await {
                let (account, place) = (meter.account.id, &meter.place);
                tracing::warn!(%account, place, %error, "bytes stay counted that are not stored");
            }
        });
    }
}

#[cfg(test)]
mod tests;
