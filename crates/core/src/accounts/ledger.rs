//! The ledger: which sandboxes an account has, and admission of new ones.
//!
//! Counts are kept in memory, loaded from the account's rows on its first request. A count may be too high where a box
//! ended without a word (its guest died, its own deadline passed, another process removed it): so before a request is
//! refused, the boxes that are counted as running are looked at, and the request is decided again.
//!
//! A request for a sandbox passes the bounds per sandbox first (`service/bounds.rs`). The ledger then checks
//! `stored_mb`, `sandboxes`, `running_sandboxes` and the sum of `disk_mb`, and counts the sandbox in the same step.
//! Totals of CPU, memory, processes and disk IO are limits of a control group, or sums where a provider has no such
//! group (`ledger/cost.rs`). `stored_mb` is the sum of the account's bytes in buckets and in conversations. The
//! account `local` has neither counts nor totals.

mod cost;
mod ended;

pub use cost::Cost;

use super::{
    catalog::AccountCatalog,
    limit::{AccountLimits, Limit},
};
use crate::{
    Providers, Result,
    ports::{
        AccountTotals,
        store::{Page, SandboxFilter, SandboxRows, Stored, WHOLE_ROWS},
    },
    sandboxes::counted_disk,
};
use async_trait::async_trait;
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{SandboxSpec, SandboxState},
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

/// A look at an account's boxes is good for a second at the most.
const MOST_GOOD: Duration = Duration::from_secs(1);

/// A request to make or start a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub account: AccountId,
    pub sandbox: SandboxId,
    /// The limit of its disk; 0 where it has none.
    pub disk_mb: u64,
    /// Whether it shall run.
    pub start: bool,
    /// The limits of the sandbox, which count while it runs.
    pub cost: Cost,
}

/// What there is of a sandbox, beyond what the ledger believes.
#[async_trait]
pub trait LiveBoxes: Send + Sync {
    /// `None` where the sandbox was ended or is not known; else whether its box runs.
    async fn is_running(&self, id: SandboxId) -> Result<Option<bool>>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Entry {
    disk_mb: u64,
    running: bool,
    /// Whether the box was started only so that its files can be saved. Such a box does not count as running, and its
    /// account may not use it before it is admitted.
    saving: bool,
    /// Admissions that are neither confirmed nor dropped: their boxes may not be visible yet.
    pending: u32,
    /// The limits of the sandbox, which count while it runs.
    cost: Cost,
    /// Grows with each admission, so that the end of an earlier run releases no later one.
    runs: u64,
}

impl Entry {
    /// Whether it takes a place of those that may run.
    fn has_place(&self) -> bool {
        self.running && !self.saving
    }

    /// Whether nothing was admitted since the mark, and nothing is under way.
    fn is_of(&self, mark: Mark) -> bool {
        self.runs == mark.0 && self.pending == 0
    }
}

#[derive(Debug, Default)]
struct Book {
    loaded: bool,
    entries: HashMap<SandboxId, Entry>,
    /// The totals that each provider holds the account to.
    totals: HashMap<String, AccountTotals>,
    /// The last look at its boxes. Held during one.
    looks: Arc<AsyncMutex<Option<Look>>>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    began: Instant,
    took: Duration,
}

impl Look {
    /// Whether it answers who asked then. One that took long is good for longer, so that however often an account asks, looks
    /// at its boxes take a tenth of the time.
    fn is_good(&self, asked: Instant) -> bool {
        let good_for = (self.took * 10).min(MOST_GOOD);
        self.began > asked || asked.duration_since(self.began) < self.took + good_for
    }
}

/// What an account uses of the limits that the ledger holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub sandboxes: u64,
    pub running: u64,
    pub disk_mb: u64,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Ledger(Arc<Inner>);

struct Inner {
    rows: Arc<dyn SandboxRows>,
    stored: Arc<dyn Stored>,
    catalog: AccountCatalog,
    providers: Option<Providers>,
    books: Mutex<HashMap<AccountId, Book>>,
    /// What is known of records of ended sandboxes.
    unread: ended::Unread,
    /// Held while the rows of an account are loaded.
    loading: AsyncMutex<()>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

/// The right to have one sandbox, and to let it run. While it lives, nothing concludes from a missing box that the
/// sandbox is not there. Dropping it takes no count back: whether the box came to run is looked at before the next
/// refusal, so neither a caller that hangs up nor a start that fails late makes room for a box too many.
#[derive(Debug)]
#[must_use]
pub struct Admission {
    granted: Option<(Ledger, Request)>,
}

impl Admission {
    /// The admission of an account without limits, which nothing counts.
    pub fn free() -> Admission {
        Admission { granted: None }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some((ledger, request)) = self.granted.take() {
            ledger.change(request.account, request.sandbox, |entry| {
                entry.pending = entry.pending.saturating_sub(1);
            });
        }
    }
}

/// What the ledger knew of a box before it was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

impl Ledger {
    /// Creates a ledger. If `providers` is `None`, the limits of sandboxes are not summed.
    pub fn new(
        rows: Arc<dyn SandboxRows>,
        stored: Arc<dyn Stored>,
        catalog: AccountCatalog,
        providers: Option<Providers>,
    ) -> Ledger {
        let (books, unread, loading) = (Mutex::default(), ended::Unread::default(), AsyncMutex::default());
        Ledger(Arc::new(Inner { rows, stored, catalog, providers, books, unread, loading }))
    }

    fn cost(&self, provider: &str, spec: &SandboxSpec) -> Cost {
        self.0.providers.as_ref().map(|all| Cost::of(all, provider, spec)).unwrap_or_default()
    }

    /// Checks a request against the account's limits and counts it, in one step. The caller holds the [`Admission`]
    /// until the box is made or started.
    pub async fn admit(&self, request: Request, boxes: &dyn LiveBoxes) -> Result<Admission> {
        if request.account == AccountId::LOCAL {
            return Ok(Admission::free());
        }
        let limits = self.open_limits(request.account).await?;
        self.load(request.account).await?;
        match self.try_admit(request, &limits) {
            Ok(admission) => Ok(admission),
            Err(_) => {
                self.look_again(request.account, boxes).await?;
                self.try_admit(request, &limits)
            }
        }
    }

    /// Admits the start of a sandbox that somebody will ask for soon, so that nothing is stored for one that would be refused.
    /// `disk_mb`: of a new one. `None`: it is there, and counted.
    pub async fn reserve(
        &self,
        account: AccountId,
        sandbox: SandboxId,
        disk_mb: Option<u64>,
        boxes: &dyn LiveBoxes,
    ) -> Result<Admission> {
        self.load(account).await?;
        let counted = self.lock().get(&account).and_then(|book| book.entries.get(&sandbox)).copied();
        let counted = counted.unwrap_or_default();
        let disk_mb = disk_mb.unwrap_or(counted.disk_mb);
        self.admit(Request { account, sandbox, disk_mb, start: true, cost: counted.cost }, boxes).await
    }

    /// Lets a box run so that its files can be saved, which no limit may refuse. A box that counts as running goes on to
    /// count while the [`Admission`] lives, even if it is stopped and started again. Any other box is not counted.
    pub async fn save(&self, request: Request) -> Result<Admission> {
        if request.account == AccountId::LOCAL {
            return Ok(Admission::free());
        }
        self.load(request.account).await?;
        let mut books = self.lock();
        let entry = books.entry(request.account).or_default().entries.entry(request.sandbox).or_default();
        entry.saving |= !entry.running;
        Ok(self.granted(books, request))
    }

    /// Whether a box runs only to be saved.
    pub fn is_saving(&self, account: AccountId, sandbox: SandboxId) -> bool {
        let books = self.lock();
        let entry = books.get(&account).and_then(|book| book.entries.get(&sandbox));
        entry.is_some_and(|entry| entry.running && entry.saving)
    }

    /// Refuses an account that has all the bytes in buckets and conversations that it may have, and returns how many those are. Nothing that
    /// saves files is refused by this.
    pub async fn refuse_full(&self, account: AccountId) -> Result<Option<u64>> {
        match account {
            AccountId::LOCAL => Ok(None),
            _ => Ok(self.open_limits(account).await?.get(Limit::StoredMb).map(to_bytes)),
        }
    }

    /// The limits of an account that may have anything at all.
    async fn open_limits(&self, account: AccountId) -> Result<AccountLimits> {
        self.0.catalog.refuse_suspended(account).await?;
        let limits = self.0.catalog.settings(account).await?.limits;
        if let Some(most) = limits.get(Limit::StoredMb) {
            let used = self.0.stored.total(account).await?;
            if used >= to_bytes(most) {
                let what =
                    "nothing is made, started or restored before versions or conversations are deleted";
                return Err(Limit::StoredMb.reached(most, used.div_ceil(1 << 20), what));
            }
        }
        Ok(limits)
    }

    /// The totals of an account, where a provider does not have them yet.
    pub async fn new_totals(&self, account: AccountId, provider: &str) -> Result<Option<AccountTotals>> {
        if account == AccountId::LOCAL {
            return Ok(None);
        }
        let limits = self.0.catalog.settings(account).await?.limits;
        let totals = AccountTotals {
            cpus: limits.get(Limit::Cpus).map(|milli| Limit::Cpus.shown(milli)),
            memory_mb: limits.get(Limit::MemoryMb),
            max_processes: limits.get(Limit::Processes),
            disk_io_mb_s: limits.get(Limit::DiskIoMbS),
            disk_iops: None,
        };
        let books = self.lock();
        let set = books.get(&account).and_then(|book| book.totals.get(provider));
        Ok((set != Some(&totals)).then_some(totals))
    }

    pub fn totals_are_set(&self, account: AccountId, provider: &str, totals: AccountTotals) {
        self.lock().entry(account).or_default().totals.insert(provider.to_owned(), totals);
    }

    /// To be taken before a box is stopped.
    pub fn mark(&self, account: AccountId, sandbox: SandboxId) -> Mark {
        let books = self.lock();
        Mark(books.get(&account).and_then(|book| book.entries.get(&sandbox)).map_or(0, |entry| entry.runs))
    }

    /// The provider says that the box does not run. A start that was admitted since the mark keeps its place.
    pub fn stopped(&self, account: AccountId, sandbox: SandboxId, mark: Mark) {
        self.change(account, sandbox, |entry| entry.running &= !entry.is_of(mark));
    }

    /// A sandbox was ended. One that is just being made anew keeps its place.
    pub fn removed(&self, account: AccountId, sandbox: SandboxId, mark: Mark) {
        if let Some(book) = self.lock().get_mut(&account)
            && book.entries.get(&sandbox).is_some_and(|entry| entry.is_of(mark))
        {
            book.entries.remove(&sandbox);
        }
    }

    /// What an account uses now.
    pub async fn counts(&self, account: AccountId, boxes: &dyn LiveBoxes) -> Result<Counts> {
        self.load(account).await?;
        self.look_again(account, boxes).await?;
        Ok(self.lock().get(&account).map(Book::counts).unwrap_or_default())
    }

    /// Drops what is known of an account that was deleted.
    pub fn forget(&self, account: AccountId) {
        self.lock().remove(&account);
        self.0.unread.forget(account);
    }

    fn try_admit(&self, request: Request, limits: &AccountLimits) -> Result<Admission> {
        let mut books = self.lock();
        let book = books.entry(request.account).or_default();
        let before = book.entries.get(&request.sandbox).copied();
        book.check(request, before, limits)?;
        book.entries.entry(request.sandbox).or_default().saving &= !request.start;
        Ok(self.granted(books, request))
    }

    fn granted(&self, mut books: MutexGuard<'_, HashMap<AccountId, Book>>, request: Request) -> Admission {
        let entry = books.entry(request.account).or_default().entries.entry(request.sandbox).or_default();
        entry.disk_mb = request.disk_mb;
        entry.cost = request.cost;
        entry.running |= request.start;
        entry.pending += 1;
        entry.runs += 1;
        Admission { granted: Some((self.clone(), request)) }
    }

    async fn load(&self, account: AccountId) -> Result<()> {
        let is_loaded = || self.lock().get(&account).is_some_and(|book| book.loaded);
        if is_loaded() {
            return Ok(());
        }
        let _alone = self.0.loading.lock().await;
        if is_loaded() {
            return Ok(());
        }
        let (mut found, mut page) = (Vec::new(), Page::first(WHOLE_ROWS));
        loop {
            let rows = self.0.rows.list(account, &SandboxFilter::default(), &page).await?;
            found.extend(rows.items.iter().map(|row| {
                let disk_mb = counted_disk(&row.spec);
                let cost = self.cost(&row.provider, &row.spec);
                (row.id, Entry { disk_mb, cost, running: may_run(row.state), ..Entry::default() })
            }));
            match rows.next {
                Some(next) => page = Page::first(WHOLE_ROWS).after(next),
                None => break,
            }
        }
        let mut books = self.lock();
        let book = books.entry(account).or_default();
        for (id, entry) in found {
            book.entries.entry(id).or_insert(entry);
        }
        book.loaded = true;
        Ok(())
    }

    /// Corrects the entries of boxes that ended, or of sandboxes that are gone: one look at a time of each account, and none
    /// for some time after one that took long.
    async fn look_again(&self, account: AccountId, boxes: &dyn LiveBoxes) -> Result<()> {
        let looks = self.lock().entry(account).or_default().looks.clone();
        let asked = Instant::now();
        let mut last = looks.lock().await;
        if last.is_some_and(|last| last.is_good(asked)) {
            return Ok(());
        }
        let began = Instant::now();
        self.look_at_all(account, boxes).await?;
        *last = Some(Look { began, took: began.elapsed() });
        Ok(())
    }

    async fn look_at_all(&self, account: AccountId, boxes: &dyn LiveBoxes) -> Result<()> {
        let settled = |(id, entry): (&SandboxId, &Entry)| (entry.pending == 0).then_some((*id, *entry));
        let known: Vec<(SandboxId, Entry)> = self
            .lock()
            .get(&account)
            .into_iter()
            .flat_map(|book| &book.entries)
            .filter_map(settled)
            .collect();
        for (id, seen) in known {
            let now = boxes.is_running(id).await?;
            let mut books = self.lock();
            let Some(book) = books.get_mut(&account) else { return Ok(()) };
            // Whoever changed it meanwhile knows better.
            if book.entries.get(&id) != Some(&seen) {
                continue;
            }
            match now {
                Some(running) => drop(book.entries.insert(id, Entry { running, ..seen })),
                None => drop(book.entries.remove(&id)),
            }
        }
        Ok(())
    }

    fn change(&self, account: AccountId, sandbox: SandboxId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.lock().get_mut(&account).and_then(|book| book.entries.get_mut(&sandbox)) {
            change(entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AccountId, Book>> {
        self.0.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_bytes(mb: u64) -> u64 {
    mb.saturating_mul(1 << 20)
}

/// Whether a row in this state may have a box that runs.
fn may_run(state: SandboxState) -> bool {
    matches!(
        state,
        SandboxState::Creating | SandboxState::Running | SandboxState::Paused | SandboxState::Stopping
    )
}

impl Book {
    fn counts(&self) -> Counts {
        self.entries.values().fold(Counts::default(), |sum, entry| Counts {
            sandboxes: sum.sandboxes + 1,
            running: sum.running + u64::from(entry.has_place()),
            disk_mb: sum.disk_mb.saturating_add(entry.disk_mb),
        })
    }

    /// Refuses what would bring the account above a limit. What is counted already is not counted twice.
    fn check(&self, request: Request, before: Option<Entry>, limits: &AccountLimits) -> Result<()> {
        let now = self.counts();
        let within = |limit: Limit, used: u64, more: u64| match limits.get(limit) {
            // No other sandbox's end would make room for it.
            Some(most) if limit == Limit::DiskMb && more > most => {
                Err(limit.exceeded(most, more, "the sandbox is refused"))
            }
            Some(most) if more > 0 && used.saturating_add(more) > most => {
                Err(limit.reached(most, used, "the sandbox is refused; stop or end others first"))
            }
            _ => Ok(()),
        };
        within(Limit::Sandboxes, now.sandboxes, u64::from(before.is_none()))?;
        let was_running = before.is_some_and(|entry| entry.has_place());
        within(Limit::RunningSandboxes, now.running, u64::from(request.start && !was_running))?;
        if request.start {
            self.check_sums(request.cost, before, limits)?;
        }
        let had = before.map_or(0, |entry| entry.disk_mb);
        within(Limit::DiskMb, now.disk_mb - had, if request.disk_mb > had { request.disk_mb } else { 0 })
    }
}
