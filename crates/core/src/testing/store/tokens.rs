//! Charges for models.

use super::{MemoryStore, State};
use crate::{
    Result,
    ports::store::{Day, TokenCharge, TokenTotals, Tokens},
};
use async_trait::async_trait;
use seawall_api::{AccountId, TurnId};

impl State {
    /// Adds to the sum of what has ended.
    pub(super) fn charge(&mut self, account: AccountId, day: Day, tokens: u64) {
        if tokens > 0 {
            *self.charges.entry((account, day, None)).or_default() += tokens;
        }
    }

    /// What the runs of a turn were charged, and what the turn used beyond that, becomes part of the sums.
    pub(super) fn close_charges(&mut self, account: AccountId, turn: TurnId, used: u64, ended: Day) {
        let of_it = |(owner, _, run): &(AccountId, Day, Option<(TurnId, u64)>)| {
            *owner == account && run.is_some_and(|(of, _)| of == turn)
        };
        let open: Vec<_> = self.charges.keys().filter(|key| of_it(key)).copied().collect();
        let mut charged = 0;
        for key in open {
            let tokens = self.charges.remove(&key).unwrap_or(0);
            charged += tokens;
            self.charge(account, key.1, tokens);
        }
        self.charge(account, ended, used.saturating_sub(charged));
    }
}

#[async_trait]
impl Tokens for MemoryStore {
    async fn charge(&self, account: AccountId, charges: &[TokenCharge], today: Day) -> Result<TokenTotals> {
        let mut state = self.state();
        for charge in charges {
            let key = (account, charge.day, Some((charge.turn, charge.run)));
            state.charges.insert(key, charge.tokens);
        }
        state.charges.retain(|(owner, day, _), _| *owner != account || *day >= today.oldest_kept());
        let (first, last) = today.month();
        let sum = |first: Day, last: Day| {
            let counted =
                |(owner, day, _): &(AccountId, Day, _)| *owner == account && (first..=last).contains(day);
            state.charges.iter().filter(|(key, _)| counted(key)).map(|(_, tokens)| tokens).sum()
        };
        Ok(TokenTotals { day: sum(today, today), month: sum(first, last) })
    }
}
