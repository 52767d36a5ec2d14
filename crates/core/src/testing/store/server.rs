//! Leases, the outbox, and bytes in buckets.

use super::{Held, MemoryStore, State, Waiting};
use crate::{
    Result,
    ports::store::{
        Delivery, Fence, Lease, Leases, Outbox, OutboxEntry, Stored, StoredPlace, Takeover, Task,
    },
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::AccountId;
use std::{collections::BTreeSet, time::Duration};

impl State {
    /// None: another's.
    pub(super) fn hold(&mut self, name: &str, holder: &str, time: Duration, now: Timestamp) -> Option<Lease> {
        let epoch = match self.leases.get(name) {
            Some(held) if held.expires_at > now && held.holder != holder => return None,
            Some(held) if held.expires_at > now => held.epoch,
            Some(held) => held.epoch + 1,
            None => 1,
        };
        let held = Held { holder: holder.to_owned(), epoch, expires_at: now + time, released: false };
        self.leases.insert(name.to_owned(), held);
        Some(Lease { name: name.to_owned(), holder: holder.to_owned(), epoch })
    }
}

#[async_trait]
impl Leases for MemoryStore {
    async fn acquire(&self, name: &str, holder: &str, time: Duration) -> Result<Option<Lease>> {
        let (now, mut state) = (self.now(), self.state());
        Ok(state.hold(name, holder, time, now))
    }

    async fn take_over(&self, name: &str, holder: &str, time: Duration) -> Result<Takeover> {
        let (now, mut state) = (self.now(), self.state());
        let epoch = match state.leases.get(name) {
            Some(held) if held.expires_at > now && held.holder != holder => {
                let left = held.expires_at.duration_since(now).unsigned_abs();
                return Ok(Takeover::Held { holder: held.holder.clone(), left });
            }
            Some(held) => held.epoch + 1,
            None => 1,
        };
        let held = Held { holder: holder.to_owned(), epoch, expires_at: now + time, released: false };
        state.leases.insert(name.to_owned(), held);
        Ok(Takeover::Ours(Lease { name: name.to_owned(), holder: holder.to_owned(), epoch }))
    }

    async fn renew(&self, lease: &Lease, time: Duration) -> Result<bool> {
        let (now, mut state) = (self.now(), self.state());
        match state.leases.get_mut(&lease.name) {
            Some(held) if held.epoch == lease.epoch && held.holder == lease.holder && !held.released => {
                held.expires_at = now + time;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn holds(&self, fence: &Fence) -> Result<bool> {
        Ok(self.state().check(Some(fence)).is_ok())
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let (now, mut state) = (self.now(), self.state());
        if let Some(held) = state.leases.get_mut(&lease.name).filter(|held| held.epoch == lease.epoch) {
            (held.expires_at, held.released) = (now, true);
        }
        Ok(())
    }
}

#[async_trait]
impl Outbox for MemoryStore {
    async fn add(&self, task: &Task, due: Timestamp) -> Result<u64> {
        let mut state = self.state();
        let id = state.next_number();
        let waiting = Waiting { task: task.clone(), due, receipt: 0, attempts: 0, last_error: None };
        state.outbox.insert(id, waiting);
        Ok(id)
    }

    async fn take(&self, limit: u32, time: Duration) -> Result<Vec<Delivery>> {
        let (now, mut state) = (self.now(), self.state());
        let receipt = state.next_number();
        // Of each conversation the first.
        let mut seen = BTreeSet::new();
        let firsts = state
            .outbox
            .iter()
            .filter(|(_, waiting)| waiting.task.line().is_none_or(|conversation| seen.insert(conversation)));
        let mut due: Vec<_> = firsts.filter(|(_, w)| w.due <= now).map(|(id, w)| (w.due, *id)).collect();
        due.sort();
        due.truncate(limit as usize);
        let mut taken = Vec::new();
        for (_, id) in due {
            let Some(waiting) = state.outbox.get_mut(&id) else { continue };
            waiting.due = now + time;
            waiting.receipt = receipt;
            waiting.attempts += 1;
            let (task, attempts) = (waiting.task.clone(), waiting.attempts);
            let entry = OutboxEntry { id, task, attempts, last_error: waiting.last_error.clone() };
            taken.push(Delivery { entry, receipt });
        }
        taken.sort_by_key(|delivery| delivery.entry.id);
        Ok(taken)
    }

    async fn done(&self, delivery: &Delivery) -> Result<bool> {
        let mut state = self.state();
        let ours = state.outbox.get(&delivery.entry.id).is_some_and(|w| w.receipt == delivery.receipt);
        if ours {
            state.outbox.remove(&delivery.entry.id);
        }
        Ok(ours)
    }

    async fn failed(&self, delivery: &Delivery, error: &str, again_in: Duration) -> Result<bool> {
        let (now, mut state) = (self.now(), self.state());
        match state.outbox.get_mut(&delivery.entry.id) {
            Some(waiting) if waiting.receipt == delivery.receipt => {
                waiting.due = now + again_in;
                waiting.receipt = 0;
                waiting.last_error = Some(error.to_owned());
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn waiting(&self) -> Result<(u64, Option<Timestamp>)> {
        let state = self.state();
        Ok((state.outbox.len() as u64, state.outbox.values().map(|waiting| waiting.due).min()))
    }
}

#[async_trait]
impl Stored for MemoryStore {
    async fn add(&self, account: AccountId, place: &str, delta: i64) -> Result<u64> {
        let mut state = self.state();
        let (bytes, set) = state.stored.entry((account, place.to_owned())).or_default();
        *bytes = bytes.saturating_add_signed(delta);
        Ok(*set)
    }

    async fn set(&self, account: AccountId, place: &str, now: u64) -> Result<()> {
        let mut state = self.state();
        let (bytes, set) = state.stored.entry((account, place.to_owned())).or_default();
        *bytes = now;
        *set += 1;
        Ok(())
    }

    async fn total(&self, account: AccountId) -> Result<u64> {
        let state = self.state();
        let own = state.stored.iter().filter(|((owner, _), _)| *owner == account);
        Ok(own.map(|(_, (bytes, _))| bytes).sum::<u64>() + state.conversation_bytes(account))
    }

    async fn places(&self, account: AccountId, after: Option<&str>, limit: u32) -> Result<Vec<StoredPlace>> {
        let state = self.state();
        let own = state.stored.iter().map(stored_place).filter(|one| one.account == account);
        Ok(own.filter(|one| after.is_none_or(|after| *one.place > *after)).take(limit as usize).collect())
    }

    async fn all_places(&self, after: Option<&StoredPlace>, limit: u32) -> Result<Vec<StoredPlace>> {
        let state = self.state();
        let key = |one: &StoredPlace| (one.account, one.place.clone());
        let all = state.stored.iter().map(stored_place);
        Ok(all.filter(|one| after.is_none_or(|after| key(one) > key(after))).take(limit as usize).collect())
    }

    async fn forget(&self, account: AccountId, place: &str) -> Result<()> {
        self.state().stored.remove(&(account, place.to_owned()));
        Ok(())
    }
}

fn stored_place(((account, place), (bytes, _)): (&(AccountId, String), &(u64, u64))) -> StoredPlace {
    StoredPlace { account: *account, place: place.clone(), bytes: *bytes }
}
