//! Retention (K11): what is kept long enough is removed, in small batches with pauses between them, so that no request waits.
//!
//! [`Keep`] says how long each kind of thing is kept. What only grows has a default; conversations, messages and versions stay
//! unless the operator says otherwise. After the clock was set, nothing is removed for a while: a clock that jumps ahead makes
//! everything look old.
//!
//! A round waits at most 30 s for an account's syncs and then continues with the next account. The parts of a turn's
//! events that later turns need are kept as its summary.

use crate::{
    Result, Services,
    ports::store::{Cursor, Page, StoredPlace, Walked},
};
use jiff::{SignedDuration, Timestamp};
use seawall_api::ErrorKind;
use seawall_sync::versions::Keep as KeepVersions;
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep};

const DAY: Duration = Duration::from_secs(86_400);

/// Rows of a batch, at the most.
const BATCH: u32 = 500;
/// Between batches.
const PAUSE: Duration = Duration::from_millis(20);
/// Batches of one kind in a round. What is left is the next round's.
const MOST_BATCHES: u32 = 200;
/// Turns, conversations and sandboxes of a round that take more than a statement each.
const MOST_TURNS: u32 = 2000;
const MOST_CONVERSATIONS: u32 = 100;
const MOST_PRUNED: u32 = 20;
/// How long a walk rests at its end, for each of its batches, and at the most.
const REST: Duration = Duration::from_secs(5);
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// A clock that is off by more between two rounds was set.
const SET: SignedDuration = SignedDuration::from_mins(10);
/// How long nothing is removed then.
const DISTRUST: Duration = Duration::from_secs(3600);

/// How long things are kept. `None`: for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// After their end or release.
    pub leases: Option<Duration>,
    /// After the end of their turn.
    pub events: Option<Duration>,
    /// After their beginning.
    pub hook_runs: Option<Duration>,
    /// After the end of the sandbox. Records that a conversation is linked to stay with it, and those that have versions.
    pub ended_sandboxes: Option<Duration>,
    /// After their last use.
    pub sessions: Option<Duration>,
    /// After their last change, with their turns and messages.
    pub conversations: Option<Duration>,
    /// After they were written.
    pub messages: Option<Duration>,
    /// After they were made. The newest of a sandbox stays, until the sandbox was ended so long ago and no conversation is linked
    /// to it.
    pub versions: Option<Duration>,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep {
            leases: Some(DAY),
            events: Some(DAY * 7),
            hook_runs: Some(DAY * 30),
            ended_sandboxes: Some(DAY * 30),
            sessions: Some(DAY * 30),
            conversations: None,
            messages: None,
            versions: None,
        }
    }
}

/// How much a round removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    pub leases: u64,
    pub idempotency_keys: u64,
    pub events: u64,
    pub hook_runs: u64,
    pub sandboxes: u64,
    pub sessions: u64,
    pub conversations: u64,
    pub messages: u64,
    pub versions: u64,
}

/// A walk through rows of which some stay. The more there are, the longer it rests at its end.
#[derive(Debug)]
struct Walk<C = Cursor> {
    after: Option<C>,
    batches: u32,
    rests_until: Option<Instant>,
}

impl<C> Default for Walk<C> {
    fn default() -> Self {
        Walk { after: None, batches: 0, rests_until: None }
    }
}

impl<C> Walk<C> {
    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| until > Instant::now())
    }

    /// One more batch is done; `next` is where it goes on.
    fn goes_on(&mut self, next: Option<C>) {
        (self.after, self.batches) = (next, self.batches + 1);
        if self.after.is_none() {
            self.rests_until = Some(Instant::now() + (REST * self.batches).min(LONGEST_REST));
            self.batches = 0;
        }
    }
}

#[derive(Debug, Default)]
struct Progress {
    sandboxes: Walk,
    messages: Walk,
    conversations: Walk,
    ended: Walk,
    versions: Walk<StoredPlace>,
    /// The time of day at the last round.
    looked: Option<(Instant, Timestamp)>,
    distrusted_until: Option<Instant>,
}

/// Clones share their progress.
#[derive(Clone)]
pub struct Retention {
    services: Services,
    keep: Keep,
    progress: Arc<Mutex<Progress>>,
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retention").field("keep", &self.keep).finish_non_exhaustive()
    }
}

impl Retention {
    pub fn new(services: &Services, keep: Keep) -> Retention {
        Retention { services: services.clone(), keep, progress: Arc::default() }
    }

    /// Removes what is kept long enough, up to a bound: what is left is the next round's. What fails for one kind is told, and
    /// the others are looked at all the same.
    pub async fn round(&self) -> Result<Removed> {
        let mut removed = Removed::default();
        if !self.trusts_clock() {
            return Ok(removed);
        }
        let now = self.services.clock.now();
        let before = |age: Duration| {
            let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
            now.checked_sub(age).unwrap_or(Timestamp::MIN)
        };
        let (stores, keep) = (&self.services.stores, &self.keep);
        let expiry = &stores.expiry;
        removed.idempotency_keys =
            told("idempotency keys", batches(|| stores.idempotency.expire(BATCH)).await);
        if let Some(age) = keep.leases {
            removed.leases = told("leases", batches(|| expiry.expire_leases(age, BATCH)).await);
        }
        if let Some(age) = keep.hook_runs {
            let before = before(age);
            removed.hook_runs =
                told("runs of hooks", batches(|| expiry.expire_hook_runs(before, BATCH)).await);
        }
        if let Some(age) = keep.sessions {
            let before = before(age);
            removed.sessions = told("sessions", batches(|| expiry.expire_sessions(before, BATCH)).await);
        }
        if let Some(age) = keep.events {
            removed.events = told("events", self.forget_events(before(age)).await);
        }
        if let Some(age) = keep.conversations {
            removed.conversations = told("conversations", self.delete_conversations(before(age)).await);
        }
        if let Some(age) = keep.messages {
            let before = before(age);
            let walk = self.walk(
                |progress| &mut progress.messages,
                |after| expiry.expire_messages(before, after, BATCH),
            );
            removed.messages = told("messages", walk.await);
        }
        if let Some(age) = keep.ended_sandboxes {
            let walk = self
                .walk(|progress| &mut progress.sandboxes, |after| expiry.expire_sandboxes(age, after, BATCH));
            removed.sandboxes = told("records of sandboxes", walk.await);
        }
        if let Some(age) = keep.versions {
            removed.versions = told("versions", self.prune_versions(age).await);
        }
        if removed != Removed::default() {
            tracing::info!(?removed, "retention removed what was kept long enough");
        }
        Ok(removed)
    }

    /// False for a while after the clock was set.
    fn trusts_clock(&self) -> bool {
        let (at, now) = (Instant::now(), self.services.clock.now());
        let mut progress = self.progress();
        if let Some((then, said)) = progress.looked.replace((at, now)) {
            let passed = SignedDuration::try_from(at - then).unwrap_or(SignedDuration::MAX);
            let off = now.duration_since(said).saturating_sub(passed);
            if off.abs() > SET {
                tracing::warn!(%off, "the clock was set: nothing is removed for an hour");
                progress.distrusted_until = Some(at + DISTRUST);
            }
        }
        progress.distrusted_until.is_none_or(|until| until <= at)
    }

    /// What later turns need of a turn's events is kept as its summary.
    async fn forget_events(&self, before: Timestamp) -> Result<u64> {
        let (expiry, mut removed, mut turns) = (&self.services.stores.expiry, 0, 0);
        loop {
            let found = expiry.turns_with_events(before, BATCH).await?;
            for (account, turn) in &found {
                let summary = self.services.turns.folded_briefly(*account, *turn).await?.summary();
                let summary = serde_json::to_string(&summary).unwrap_or_default();
                let forget = || expiry.forget_events(*account, *turn, &summary, BATCH);
                removed += match batches(forget).await {
                    // Its conversation was deleted meanwhile.
                    Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => 0,
                    done => done?,
                };
                turns += 1;
                if turns % 25 == 0 {
                    sleep(PAUSE).await;
                }
            }
            if found.len() < BATCH as usize || turns >= MOST_TURNS {
                return Ok(removed);
            }
        }
    }

    /// As a user would: their sandboxes stay, unless the server's setting says that they go along.
    async fn delete_conversations(&self, before: Timestamp) -> Result<u64> {
        let Services { stores, turns, delete_terminates_sandbox: terminate, .. } = &self.services;
        let (after, rests) = {
            let progress = self.progress();
            (progress.conversations.after, progress.conversations.rests())
        };
        if rests {
            return Ok(0);
        }
        let page = Page { limit: MOST_CONVERSATIONS, after };
        let found = stores.expiry.idle_conversations(before, &page).await?;
        let mut deleted = 0;
        for (account, id) in found.items {
            match turns.delete_conversation(account, id, *terminate).await {
                Ok(()) => deleted += 1,
                // A turn of it runs, its files cannot be saved now, or somebody was quicker.
                Err(error) => {
                    tracing::debug!(conversation = %id, error = %error.chain(), "it is kept for now");
                }
            }
            sleep(PAUSE).await;
        }
        self.progress().conversations.goes_on(found.next);
        Ok(deleted)
    }

    /// A few workspaces a round, one after the other, and from the beginning again. What an ended sandbox has, that no
    /// conversation is linked to, goes altogether.
    async fn prune_versions(&self, age: Duration) -> Result<u64> {
        self.prune_ended(age).await?;
        let (after, rests) = {
            let progress = self.progress();
            (progress.versions.after.clone(), progress.versions.rests())
        };
        if rests {
            return Ok(0);
        }
        let millis = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let keep = KeepVersions { newest: 1, younger_than: Some(millis) };
        let expired = self.services.sandboxes.expire_versions(keep, after.as_ref(), MOST_PRUNED).await?;
        self.progress().versions.goes_on(expired.next);
        Ok(expired.versions)
    }

    async fn prune_ended(&self, age: Duration) -> Result<()> {
        let (after, rests) = {
            let progress = self.progress();
            (progress.ended.after, progress.ended.rests())
        };
        if rests {
            return Ok(());
        }
        let page = Page { limit: MOST_PRUNED, after };
        let found = self.services.stores.expiry.ended_with_versions(age, &page).await?;
        for (account, id) in found.items {
            if let Err(error) = self.services.sandboxes.expire_ended(account, id).await {
                tracing::warn!(%account, sandbox = %id, error = %error.chain(), "its versions could not be deleted");
            }
            sleep(PAUSE).await;
        }
        self.progress().ended.goes_on(found.next);
        Ok(())
    }

    /// Goes on where the last round ended.
    async fn walk<F: Future<Output = Result<Walked>>>(
        &self,
        place: impl Fn(&mut Progress) -> &mut Walk,
        work: impl Fn(Option<Cursor>) -> F,
    ) -> Result<u64> {
        let mut removed = 0;
        for _ in 0..MOST_BATCHES {
            let (after, rests) = {
                let mut progress = self.progress();
                let walk = place(&mut progress);
                (walk.after, walk.rests())
            };
            if rests {
                break;
            }
            let walked = work(after).await?;
            removed += walked.removed;
            place(&mut self.progress()).goes_on(walked.next);
            sleep(PAUSE).await;
        }
        Ok(removed)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Batch by batch, until one is not full.
async fn batches<F: Future<Output = Result<u64>>>(work: impl Fn() -> F) -> Result<u64> {
    let mut removed = 0;
    for _ in 0..MOST_BATCHES {
        let done = work().await?;
        removed += done;
        if done < u64::from(BATCH) {
            break;
        }
        sleep(PAUSE).await;
    }
    Ok(removed)
}

/// What could not be removed now is removed in a later round.
fn told(what: &str, removed: Result<u64>) -> u64 {
    removed.unwrap_or_else(|error| {
        tracing::warn!(what, error = %error.chain(), "retention could not remove what is kept long enough");
        0
    })
}
