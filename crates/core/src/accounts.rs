//! Accounts: their settings, the limits that follow from them, and the ledger that holds accounts to their limits.
//!
//! [`AccountSettings`] is what an operator wrote, parsed strictly. [`AccountCatalog`] answers which limits hold for an
//! account now. [`Ledger`] admits sandboxes: every box that is made or started passes it first. The account `local` is
//! the operator's own and has bounds per sandbox only.
//!
//! Invariant: one server owns a database, so the counts of a running server are the truth that limits are checked
//! against. What other processes change on the same database is found when a request would be refused.

mod catalog;
mod conversations;
mod ledger;
mod lifecycle;
mod limit;
mod settings;
mod usage;

pub use catalog::AccountCatalog;
pub use conversations::LimitedConversations;
pub use ledger::{Admission, Cost, Counts, Ledger, LiveBoxes, Mark, Request};
pub use limit::{AccountLimits, Limit, Machine};
pub use settings::AccountSettings;

use crate::ports::store::Stores;
use std::sync::Arc;

/// Stores that refuse new conversations to accounts at their limit.
pub fn limited(stores: Stores, catalog: &AccountCatalog) -> Stores {
    let conversations = LimitedConversations::new(stores.conversations.clone(), catalog.clone());
    Stores { conversations: Arc::new(conversations), ..stores }
}
