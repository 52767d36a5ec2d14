//! The budget as one turn uses it.

use super::{
    TokenLimits, TokenRefusal,
    account::{AccountTokens, Admission, RowKey},
};
use crate::{Error, Result, persist::persist};
use seawall_api::{TurnId, conversation::Usage};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::watch, time::timeout};

/// How long the end of a turn waits for its requests, which are cut off by then.
const SETTLE: Duration = Duration::from_secs(5);

/// More than any request can use: what is claimed beyond is not believed, so that totals can be added.
const MOST: u64 = 3 * Usage::MOST;

/// The budget of one run of a turn. Clones are of the same run.
#[derive(Clone)]
pub struct TurnTokens(Arc<Run>);

struct Run {
    account: Arc<AccountTokens>,
    turn: TurnId,
    run: u64,
    limits: TokenLimits,
    in_flight: watch::Sender<usize>,
    closed: AtomicBool,
}

impl fmt::Debug for TurnTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { turn, limits, .. } = &*self.0;
        f.debug_struct("TurnTokens").field("turn", turn).field("limits", limits).finish_non_exhaustive()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.account.forget(self.run);
    }
}

impl TurnTokens {
    pub(super) fn new(account: Arc<AccountTokens>, turn: TurnId, limits: TokenLimits) -> Result<TurnTokens> {
        let mut run = [0; 8];
        getrandom::fill(&mut run)
            .map_err(|error| Error::internal("the system gives no random numbers").with_source(error))?;
        // Databases have no unsigned numbers.
        let run = u64::from_le_bytes(run) >> 1;
        let (in_flight, closed) = (watch::Sender::new(0), AtomicBool::new(false));
        Ok(TurnTokens(Arc::new(Run { account, turn, run, limits, in_flight, closed })))
    }

    pub fn limits(&self) -> &TokenLimits {
        &self.0.limits
    }

    /// Reserves `most` tokens, or what is left of them where that is at least `least`. They are in the store when
    /// this returns. An account without limits reserves nothing, and is charged for what is used.
    pub async fn reserve(&self, least: u64, most: u64) -> Result<Reservation, TokenRefusal> {
        let run = &self.0;
        run.check_open()?;
        let (key, wanted) = (run.key(), [least.min(MOST), most.max(least).min(MOST)]);
        if run.limits.is_unlimited() {
            run.account.open(key);
            return Ok(Reservation::new(self, key, 0));
        }
        match run.account.admit(key, &run.limits, wanted) {
            Admission::Refused(reached) => Err(TokenRefusal::Limit(reached)),
            Admission::Granted(tokens) => self.write(Reservation::new(self, key, tokens), least).await,
            Admission::Unknown => {
                let writer = run.account.writer().await;
                let tokens = writer.admit(key, &run.limits, wanted).await?;
                drop(writer);
                self.write(Reservation::new(self, key, tokens), least).await
            }
        }
    }

    /// Brings a reservation into the store. It is given back where it does not fit what other processes have written
    /// there, and where this is not waited for.
    async fn write(&self, reservation: Reservation, least: u64) -> Result<Reservation, TokenRefusal> {
        let (run, day) = (&self.0, reservation.key.day);
        // While the totals were read.
        run.check_open()?;
        let writer = run.account.writer().await;
        let totals = writer.sync(day).await.map_err(TokenRefusal::Unavailable)?;
        if run.limits.holds(&totals) {
            return Ok(reservation);
        }
        drop(reservation);
        let totals = writer.sync(day).await.map_err(TokenRefusal::Unavailable)?;
        Err(TokenRefusal::Limit(writer.refusal(day, &run.limits, &totals, least)))
    }

    /// Waits for the run's requests, brings what they are charged into the store, however long that takes, and ends
    /// the run here: what is still in flight then stays reserved. To be called before the turn is ended in the store.
    pub async fn close(&self) -> Result<()> {
        let run = &self.0;
        run.closed.store(true, Ordering::Relaxed);
        let mut in_flight = run.in_flight.subscribe();
        if timeout(SETTLE, in_flight.wait_for(|count| *count == 0)).await.is_err() {
            tracing::warn!(turn = %run.turn, "requests to models outlive their turn: their estimates are charged");
        }
        let flush = || async { run.account.writer().await.sync(run.account.today()).await };
        let flushed = persist(flush).await;
        run.account.forget(run.run);
        flushed.map(drop)
    }
}

impl Run {
    fn key(&self) -> RowKey {
        RowKey { day: self.account.today(), turn: self.turn, run: self.run }
    }

    fn check_open(&self) -> Result<(), TokenRefusal> {
        match self.closed.load(Ordering::Relaxed) {
            true => Err(TokenRefusal::Unavailable(Error::unavailable("the turn of this request is over"))),
            false => Ok(()),
        }
    }
}

/// Tokens that one request may use. Dropping it charges what [`Reservation::charge`] said last, and nothing where
/// that was never called.
#[derive(Debug)]
pub struct Reservation {
    run: TurnTokens,
    key: RowKey,
    tokens: u64,
    charge: u64,
}

impl Reservation {
    fn new(run: &TurnTokens, key: RowKey, tokens: u64) -> Reservation {
        run.0.in_flight.send_modify(|count| *count += 1);
        Reservation { run: run.clone(), key, tokens, charge: 0 }
    }

    /// How many tokens are reserved: none of an account without limits.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Sets what is charged at the end. It may be more than was reserved.
    pub fn charge(&mut self, tokens: u64) {
        self.charge = tokens.min(MOST);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let run = &self.run.0;
        run.account.settle(self.key, self.tokens, self.charge);
        run.in_flight.send_modify(|count| *count = count.saturating_sub(1));
    }
}
