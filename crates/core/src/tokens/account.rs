//! One account's budget, as this process sees it.

use super::{LimitReached, PER_DAY, TokenLimits, TokenRefusal};
use crate::{
    Result,
    ports::{
        Clock,
        store::{Day, TokenCharge, TokenTotals, Tokens},
    },
};
use seawall_api::{AccountId, TurnId};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Mutex as AsyncMutex, MutexGuard as AsyncGuard},
    time::Instant,
};

/// How old the totals may be on which a request is refused: other processes may have given tokens back since.
const FRESH: Duration = Duration::from_secs(1);

pub(super) struct AccountTokens {
    account: AccountId,
    store: Arc<dyn Tokens>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// One write at a time: an older value must not replace a newer one.
    writing: AsyncMutex<()>,
}

#[derive(Default)]
struct State {
    /// `None` while a write is under way, and after one that failed.
    known: Option<Known>,
    rows: BTreeMap<RowKey, Row>,
}

/// What the store said last.
#[derive(Clone, Copy)]
struct Known {
    today: Day,
    totals: TokenTotals,
    at: Instant,
}

/// Names what one run of a turn is charged on a day. Only this process writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey {
    pub day: Day,
    pub turn: TurnId,
    pub run: u64,
}

#[derive(Default)]
struct Row {
    /// What is charged, with what is reserved.
    now: u64,
    /// The part of it that requests in flight have reserved.
    reserved: u64,
    /// The value in the store.
    saved: u64,
}

/// What memory alone can say to a request for tokens.
pub(super) enum Admission {
    /// So many are reserved, and have to be written.
    Granted(u64),
    Refused(LimitReached),
    /// The store has to be asked first.
    Unknown,
}

/// The right to write. It is held while totals are read and used, so that they cannot change in between.
pub(super) struct Writer<'a> {
    account: &'a AccountTokens,
    _alone: AsyncGuard<'a, ()>,
}

impl AccountTokens {
    pub fn new(account: AccountId, store: Arc<dyn Tokens>, clock: Arc<dyn Clock>) -> AccountTokens {
        AccountTokens { account, store, clock, state: Mutex::default(), writing: AsyncMutex::default() }
    }

    pub fn today(&self) -> Day {
        Day::of(self.clock.now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn writer(&self) -> Writer<'_> {
        Writer { account: self, _alone: self.writing.lock().await }
    }

    /// Reserves `most` tokens in memory, or what is left of them where that is at least `least`.
    pub fn admit(&self, key: RowKey, limits: &TokenLimits, [least, most]: [u64; 2]) -> Admission {
        self.state().admit(key, limits, [least, most])
    }

    /// Makes a row where there is none.
    pub fn open(&self, key: RowKey) {
        self.state().rows.entry(key).or_default();
    }

    /// Ends a reservation: `charged` tokens stay in its place. Of a run that was forgotten the value in the store
    /// stays.
    pub fn settle(&self, key: RowKey, reserved: u64, charged: u64) {
        if let Some(row) = self.state().rows.get_mut(&key) {
            row.reserved = row.reserved.saturating_sub(reserved);
            row.now = row.now.saturating_sub(reserved).saturating_add(charged);
        }
    }

    /// Forgets the rows of a run. Their values stay in the store, where the end of the turn replaces them.
    pub fn forget(&self, run: u64) {
        let mut state = self.state();
        state.rows.retain(|key, _| key.run != run);
        state.known = None;
    }
}

impl Writer<'_> {
    /// Writes what has changed, and returns the totals with all of it. Asks nothing where others have just done so.
    pub async fn sync(&self, today: Day) -> Result<TokenTotals> {
        let account = self.account;
        let charges = {
            let mut state = account.state();
            let charges = state.unsaved();
            match state.totals(today) {
                Some(totals) if charges.is_empty() && state.is_fresh(today) => return Ok(totals),
                _ => {}
            }
            // Whether a write has happened that fails, or is not waited for, is not known.
            state.known = None;
            charges
        };
        let totals = account.store.charge(account.account, &charges, today).await?;
        let mut state = account.state();
        for charge in &charges {
            let key = RowKey { day: charge.day, turn: charge.turn, run: charge.run };
            if let Some(row) = state.rows.get_mut(&key) {
                row.saved = charge.tokens;
            }
        }
        state.known = Some(Known { today, totals, at: Instant::now() });
        Ok(state.totals(today).unwrap_or(totals))
    }

    /// As [`AccountTokens::admit`], on totals that are fresh.
    pub async fn admit(
        &self,
        key: RowKey,
        limits: &TokenLimits,
        wanted: [u64; 2],
    ) -> Result<u64, TokenRefusal> {
        let totals = self.sync(key.day).await.map_err(TokenRefusal::Unavailable)?;
        let mut state = self.account.state();
        match state.admit(key, limits, wanted) {
            Admission::Granted(tokens) => Ok(tokens),
            Admission::Refused(reached) => Err(TokenRefusal::Limit(reached)),
            // A run was forgotten just now, or a second has passed: these totals are good enough to refuse on.
            Admission::Unknown => {
                Err(TokenRefusal::Limit(state.reached(key.day, limits, &totals, wanted[0])))
            }
        }
    }

    /// Why a reservation does not fit that was given back.
    pub fn refusal(
        &self,
        today: Day,
        limits: &TokenLimits,
        totals: &TokenTotals,
        needed: u64,
    ) -> LimitReached {
        self.account.state().reached(today, limits, totals, needed)
    }
}

impl State {
    fn is_fresh(&self, today: Day) -> bool {
        self.known.is_some_and(|known| known.today == today && known.at.elapsed() < FRESH)
    }

    fn unsaved(&self) -> Vec<TokenCharge> {
        let changed = self.rows.iter().filter(|(_, row)| row.now != row.saved);
        let charge = |(key, row): (&RowKey, &Row)| {
            let RowKey { day, turn, run } = *key;
            TokenCharge { day, turn, run, tokens: row.now }
        };
        changed.map(charge).collect()
    }

    /// The store's totals with what is not written yet.
    fn totals(&self, today: Day) -> Option<TokenTotals> {
        let known = self.known.filter(|known| known.today == today)?;
        let (first, last) = today.month();
        let mut totals = known.totals;
        for (key, row) in &self.rows {
            let replace = |total: u64| total.saturating_add(row.now).saturating_sub(row.saved);
            if key.day == today {
                totals.day = replace(totals.day);
            }
            if (first..=last).contains(&key.day) {
                totals.month = replace(totals.month);
            }
        }
        Some(totals)
    }

    fn admit(&mut self, key: RowKey, limits: &TokenLimits, [least, most]: [u64; 2]) -> Admission {
        let Some(totals) = self.totals(key.day) else { return Admission::Unknown };
        let left = limits.each(&totals).map(|(_, value, charged)| value.saturating_sub(charged)).min();
        let granted = left.map_or(most, |left| left.min(most));
        if granted < least {
            return match self.is_fresh(key.day) {
                true => Admission::Refused(self.reached(key.day, limits, &totals, least)),
                false => Admission::Unknown,
            };
        }
        let row = self.rows.entry(key).or_default();
        row.now = row.now.saturating_add(granted);
        row.reserved = row.reserved.saturating_add(granted);
        Admission::Granted(granted)
    }

    /// The limit that has the least left.
    fn reached(&self, today: Day, limits: &TokenLimits, totals: &TokenTotals, needed: u64) -> LimitReached {
        let tightest = limits.each(totals).min_by_key(|(_, value, charged)| value.saturating_sub(*charged));
        let (limit, value, charged) = tightest.unwrap_or((PER_DAY, 0, 0));
        let (first, last) = if limit == PER_DAY { (today, today) } else { today.month() };
        let counted = self.rows.iter().filter(|(key, _)| (first..=last).contains(&key.day));
        let reserved: u64 = counted.fold(0, |sum, (_, row)| sum.saturating_add(row.reserved));
        let reserved = reserved.min(charged);
        LimitReached { limit, value, used: charged - reserved, reserved, needed }
    }
}
