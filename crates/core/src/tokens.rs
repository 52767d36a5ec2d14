//! Token budgets of accounts: tokens are reserved before a request goes to a model, and charged when its answer has
//! passed.
//!
//! Every number here is a sum of input, output and cached tokens. A request counts on the UTC day on which it is
//! sent, however long its answer takes.
//!
//! Invariants, which hold for any number of turns, processes and interleavings:
//!
//! 1. What is charged and what is reserved is never above a limit together, as long as no answer uses more than was
//!    reserved for it. An answer that did is charged in full, and then nothing more is reserved.
//! 2. A reservation is in the store before its request is sent. A crash therefore leaves the whole reservation
//!    charged: the budget may lose tokens that were never used, and never gains any.
//! 3. A turn writes only rows of its own run, with absolute values, so that a write can be repeated.
//!
//! Within one process the memory of [`TokenLedger`] decides who gets the last tokens. Other processes (the command
//! line runs each turn in one of its own) are seen in the totals that each write returns, and a reservation that no
//! longer fits them is given back before it is used.

mod account;
mod turn;

pub use turn::{Reservation, TurnTokens};

use crate::{
    Error, Result,
    ports::{
        Clock,
        store::{TokenTotals, Tokens},
    },
};
use account::AccountTokens;
use seawall_api::{AccountId, TurnId};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// The names of the limits, as account settings have them.
pub const PER_DAY: &str = "tokens_per_day";
pub const PER_MONTH: &str = "tokens_per_month";

/// How many tokens an account may use. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenLimits {
    pub per_day: Option<u64>,
    pub per_month: Option<u64>,
}

impl TokenLimits {
    pub fn is_unlimited(&self) -> bool {
        self.per_day.is_none() && self.per_month.is_none()
    }

    /// Each limit that is set: its name, its value, and what counts against it.
    fn each(&self, totals: &TokenTotals) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let day = self.per_day.map(|value| (PER_DAY, value, totals.day));
        let month = self.per_month.map(|value| (PER_MONTH, value, totals.month));
        day.into_iter().chain(month)
    }

    fn holds(&self, totals: &TokenTotals) -> bool {
        self.each(totals).all(|(_, value, charged)| charged <= value)
    }
}

/// Why tokens were not reserved.
#[derive(Debug)]
pub enum TokenRefusal {
    Limit(LimitReached),
    /// The store cannot be written, so nothing is known to be reserved.
    Unavailable(Error),
}

/// A limit that a request does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitReached {
    /// [`PER_DAY`] or [`PER_MONTH`].
    pub limit: &'static str,
    pub value: u64,
    /// Tokens that were charged, without what requests in flight have reserved.
    pub used: u64,
    pub reserved: u64,
    /// What the request asked for.
    pub needed: u64,
}

impl LimitReached {
    /// Whether the request would fit if the requests in flight used nothing: then it may fit later.
    pub fn may_pass(&self) -> bool {
        self.used.saturating_add(self.needed) <= self.value
    }
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitReached { limit, value, used, reserved, needed } = self;
        let (again, when) = match *limit {
            PER_DAY => ("today", "midnight UTC"),
            _ => ("this month", "the first of the next month, UTC"),
        };
        write!(
            f,
            "the account's limit `{limit}` is {value} tokens: {used} are used {again}, {reserved} are reserved by \
             requests in flight, and this request may need {needed}; it begins anew at {when}"
        )
    }
}

/// The budgets of all accounts. Cloning is cheap, and all clones are one.
#[derive(Clone)]
pub struct TokenLedger(Arc<Ledger>);

struct Ledger {
    store: Arc<dyn Tokens>,
    clock: Arc<dyn Clock>,
    accounts: Mutex<HashMap<AccountId, Weak<AccountTokens>>>,
}

impl fmt::Debug for TokenLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLedger").finish_non_exhaustive()
    }
}

impl TokenLedger {
    pub fn new(store: Arc<dyn Tokens>, clock: Arc<dyn Clock>) -> TokenLedger {
        TokenLedger(Arc::new(Ledger { store, clock, accounts: Mutex::default() }))
    }

    /// The budget of one run of a turn.
    pub fn turn(&self, account: AccountId, turn: TurnId, limits: TokenLimits) -> Result<TurnTokens> {
        TurnTokens::new(self.account(account), turn, limits)
    }

    /// What the account is charged for today and for this month, with what requests in flight have reserved.
    pub async fn totals(&self, account: AccountId) -> Result<TokenTotals> {
        let account = self.account(account);
        account.writer().await.sync(account.today()).await
    }

    fn account(&self, id: AccountId) -> Arc<AccountTokens> {
        let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get(&id).and_then(Weak::upgrade) {
            return account;
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        let account = Arc::new(AccountTokens::new(id, self.0.store.clone(), self.0.clock.clone()));
        accounts.insert(id, Arc::downgrade(&account));
        account
    }
}
