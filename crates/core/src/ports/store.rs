//! What is durable: the ports of the stores.
//!
//! Rules that every method keeps, unless it says otherwise:
//!
//! - **Durable when it returns.** What a call that changes something has returned survives a crash of this process
//!   and of the machine. A call that returns an error of a retryable kind may or may not have happened; calling it
//!   again with the same arguments is safe, and happens once.
//! - **Owned.** A method that takes an account neither shows nor changes rows of another: another's row is not there
//!   (`not_found`). Methods without an account are the server's own, and nothing that comes from a request reaches
//!   them unchecked; each says why it needs none.
//! - **Idempotent by id.** Ids are made by the caller. Making what is there, and is the same, is making it once.
//! - **Concurrent.** Calls from several tasks, processes and machines behave as if one came after the other.
//! - **Fenced**, where a method takes a [`Fence`]: in the same transaction it is checked that the lease still is the
//!   caller's. Else `conflict`, and nothing has happened.
//! - **Microseconds.** Times are kept to the microsecond. Finer parts are cut off.

mod accounts;
mod conversations;
mod database;
mod expiry;
mod hook_runs;
mod idempotency;
mod leases;
mod messages;
mod outbox;
mod page;
mod sandboxes;
mod sessions;
mod stored;
mod tokens;
mod turns;

pub use accounts::{Accounts, KeyHash, KeyLimits};
pub use conversations::{ConversationFilter, Conversations, HookUsage, NewConversation, SortBy};
pub use database::Database;
pub use expiry::{Expiry, Walked};
pub use hook_runs::{DEFAULT_HOOK, HookOutcome, HookRun, HookRuns, WEBHOOK_TO};
pub use idempotency::{Begun, Idempotency};
pub use leases::{Fence, Lease, Leases, Takeover};
pub use messages::{Direction, Messages};
pub use outbox::{Delivery, Outbox, OutboxEntry, Task};
pub use page::{Cursor, MAX_PAGE, Page, Paged};
pub(crate) use sandboxes::LAST_PLACE;
pub use sandboxes::{
    HEADS, MAX_METADATA, MAX_METADATA_KEYS, SandboxFilter, SandboxRow, SandboxRows, WHOLE_ROWS, has_versions,
    merge_metadata,
};
pub use sessions::{Session, SessionScope, Sessions};
pub use stored::{Stored, StoredPlace};
pub use tokens::{Day, TokenCharge, TokenTotals, Tokens, all_tokens};
pub use turns::{BeginTurn, EndTurn, NewLease, RunningTurn, TurnEvent, Turns, events_gone};

use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;

/// All of them. One database mostly, but messages may be elsewhere.
#[derive(Clone)]
pub struct Stores {
    pub accounts: Arc<dyn Accounts>,
    pub conversations: Arc<dyn Conversations>,
    pub turns: Arc<dyn Turns>,
    pub messages: Arc<dyn Messages>,
    pub sandboxes: Arc<dyn SandboxRows>,
    pub sessions: Arc<dyn Sessions>,
    pub hook_runs: Arc<dyn HookRuns>,
    pub outbox: Arc<dyn Outbox>,
    pub idempotency: Arc<dyn Idempotency>,
    pub leases: Arc<dyn Leases>,
    pub stored: Arc<dyn Stored>,
    pub tokens: Arc<dyn Tokens>,
    pub expiry: Arc<dyn Expiry>,
}

impl Stores {
    /// All on one store.
    pub fn of<S>(store: Arc<S>) -> Stores
    where
        S: Accounts
            + Conversations
            + Turns
            + Messages
            + SandboxRows
            + Sessions
            + HookRuns
            + Outbox
            + Idempotency
            + Leases
            + Stored
            + Tokens
            + Expiry
            + 'static,
    {
        Stores {
            accounts: store.clone(),
            conversations: store.clone(),
            turns: store.clone(),
            messages: store.clone(),
            sandboxes: store.clone(),
            sessions: store.clone(),
            hook_runs: store.clone(),
            outbox: store.clone(),
            idempotency: store.clone(),
            leases: store.clone(),
            stored: store.clone(),
            tokens: store.clone(),
            expiry: store,
        }
    }
}

/// A time as stores keep it.
pub fn to_micros(time: Timestamp) -> Timestamp {
    // A time without its finer part is a time.
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

/// The next time that stores can tell from another.
pub fn just_after(time: Timestamp) -> Timestamp {
    // At the end of all time there is none.
    to_micros(time).checked_add(SignedDuration::from_micros(1)).unwrap_or(time)
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").finish_non_exhaustive()
    }
}
