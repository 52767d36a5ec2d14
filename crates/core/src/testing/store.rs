//! The stores in memory: the same contracts, but for what is durable.

mod accounts;
mod conversations;
mod expiry;
mod rows;
mod server;
mod tokens;

use super::lock;
use crate::{
    Error, Result,
    ports::{
        Clock, SystemClock,
        store::{Cursor, Day, Fence, HookRun, KeyHash, Page, Paged, SandboxRow, Session, Stores, Task},
    },
};
use bytes::Bytes;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, HookRunId, KeyId, MessageId, SandboxId, TurnId,
    account::{Account, ApiKey},
    conversation::{Conversation, Message, Turn, Usage},
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

/// Everything in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    clock: Arc<dyn Clock>,
}

/// Tokens by account, day and run of a turn.
type Charges = BTreeMap<(AccountId, Day, Option<(TurnId, u64)>), u64>;

#[derive(Default)]
struct State {
    accounts: BTreeMap<AccountId, Account>,
    keys: BTreeMap<KeyId, (ApiKey, KeyHash)>,
    conversations: BTreeMap<ConversationId, Conversation>,
    turns: BTreeMap<TurnId, (AccountId, Turn)>,
    boots: BTreeMap<TurnId, String>,
    summaries: BTreeMap<TurnId, String>,
    /// When sandboxes were ended.
    ended: BTreeMap<SandboxId, Timestamp>,
    events: BTreeMap<TurnId, Vec<Bytes>>,
    usage: BTreeMap<TurnId, Usage>,
    hook_usage: BTreeMap<(ConversationId, String), (AccountId, Usage, Timestamp)>,
    /// By the run of a turn; what has ended is under none.
    charges: Charges,
    messages: BTreeMap<(AccountId, ConversationId, Timestamp, MessageId), Message>,
    sandboxes: BTreeMap<SandboxId, SandboxRow>,
    sessions: BTreeMap<(AccountId, &'static str, String), Session>,
    hook_runs: BTreeMap<HookRunId, (AccountId, HookRun)>,
    outbox: BTreeMap<u64, Waiting>,
    keys_in_use: BTreeMap<(AccountId, String), InUse>,
    leases: BTreeMap<String, Held>,
    /// Bytes, and how often they were set.
    stored: BTreeMap<(AccountId, String), (u64, u64)>,
    /// The largest page of whole rows of sandboxes that was asked for.
    widest_page: u32,
    /// For outbox entries and receipts.
    last_number: u64,
}

struct Waiting {
    task: Task,
    due: Timestamp,
    receipt: u64,
    attempts: u32,
    last_error: Option<String>,
}

struct InUse {
    request: [u8; 32],
    receipt: u64,
    busy_until: Timestamp,
    keep_until: Timestamp,
    answer: Option<Bytes>,
}

struct Held {
    holder: String,
    epoch: u64,
    /// When it ended, of one that was released.
    expires_at: Timestamp,
    released: bool,
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore::with_clock(Arc::new(SystemClock))
    }

    pub fn with_clock(clock: Arc<dyn Clock>) -> MemoryStore {
        MemoryStore { state: Arc::default(), clock }
    }

    /// All ports on this memory.
    pub fn stores(&self) -> Stores {
        Stores::of(Arc::new(self.clone()))
    }

    /// Returns the size of the largest page of whole rows of sandboxes that was asked for. The server's own work reads small ones.
    pub fn widest_page(&self) -> u32 {
        self.state().widest_page
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn check(&self, fence: Option<&Fence>) -> Result<()> {
        let Some(fence) = fence else { return Ok(()) };
        let holds = self.leases.get(&fence.name).is_some_and(|l| l.epoch == fence.epoch && !l.released);
        let lost =
            || Error::conflict(format!("the lease `{}` of epoch {} has ended", fence.name, fence.epoch));
        if holds { Ok(()) } else { Err(lost()) }
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

/// A page of what is sorted already, each with its place.
fn paged<T>(
    all: impl Iterator<Item = (Cursor, T)>,
    page: &Page,
    is_after: impl Fn(&Cursor, &Cursor) -> bool,
) -> Result<Paged<T>> {
    page.check()?;
    let wanted = all.filter(|(place, _)| page.after.is_none_or(|after| is_after(place, &after)));
    let found: Vec<_> = wanted.take(page.limit as usize + 1).collect();
    let cut = Paged::cut(found, page.limit, |(place, _)| *place);
    Ok(Paged { items: cut.items.into_iter().map(|(_, item)| item).collect(), next: cut.next })
}

/// The newest first.
fn newest<T>(mut all: Vec<(Cursor, T)>, page: &Page) -> Result<Paged<T>> {
    all.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    paged(all.into_iter(), page, |place, after| place < after)
}

fn oldest<T>(mut all: Vec<(Cursor, T)>, page: &Page) -> Result<Paged<T>> {
    all.sort_by_key(|(place, _)| *place);
    paged(all.into_iter(), page, |place, after| place > after)
}
