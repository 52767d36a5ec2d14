//! Retention, in memory.

use super::{MemoryStore, State, oldest};
use crate::{
    Error, Result,
    ports::store::{Cursor, Expiry, Page, Paged, SandboxRow, Walked, has_versions, to_micros},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, SandboxId, TurnId, conversation::TurnState, sandbox::SandboxState,
};
use std::time::Duration;

/// The keys of entries, at most so many.
fn keys<K: Clone, V>(all: impl Iterator<Item = (K, V)>, is_old: impl Fn(&V) -> bool, limit: u32) -> Vec<K> {
    all.filter(|(_, value)| is_old(value)).map(|(key, _)| key).take(limit as usize).collect()
}

/// Sandboxes that were ended at least `age` ago, the earliest first.
fn ended(state: &State, now: Timestamp, age: Duration) -> Vec<(Cursor, &SandboxRow)> {
    let rows = state.ended.iter().filter(|(_, at)| **at + age < now);
    let mut found: Vec<_> = rows
        .filter_map(|(id, at)| Some((Cursor::at(*at, id.as_uuid().as_u128()), state.sandboxes.get(id)?)))
        .filter(|(_, row)| row.state == SandboxState::Terminated)
        .collect();
    found.sort_by_key(|(place, _)| *place);
    found
}

pub(super) fn is_linked(state: &State, id: SandboxId) -> bool {
    state.conversations.values().any(|found| found.sandbox_id == Some(id))
}

#[async_trait]
impl Expiry for MemoryStore {
    async fn expire_leases(&self, age: Duration, limit: u32) -> Result<u64> {
        let (now, mut state) = (self.now(), self.state());
        let held = state.leases.iter().map(|(name, held)| (name.clone(), held));
        let old = keys(held, |held| held.expires_at + age < now, limit);
        old.iter().for_each(|name| drop(state.leases.remove(name)));
        Ok(old.len() as u64)
    }

    async fn expire_hook_runs(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let runs = state.hook_runs.iter().map(|(id, (_, run))| (*id, run));
        let old = keys(runs, |run| run.began_at < before, limit);
        old.iter().for_each(|id| drop(state.hook_runs.remove(id)));
        Ok(old.len() as u64)
    }

    async fn expire_sessions(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let sessions = state.sessions.iter().map(|(key, session)| (key.clone(), session));
        let old = keys(sessions, |session| session.last_used_at < before, limit);
        old.iter().for_each(|key| drop(state.sessions.remove(key)));
        Ok(old.len() as u64)
    }

    async fn expire_sandboxes(&self, age: Duration, after: Option<Cursor>, limit: u32) -> Result<Walked> {
        let mut state = self.state();
        let mut ended: Vec<_> = ended(&state, self.now(), age)
            .into_iter()
            .filter(|(place, _)| after.is_none_or(|after| *place > after))
            .map(|(place, row)| (place, row.id, is_linked(&state, row.id) || has_versions(&row.metadata)))
            .collect();
        let more = ended.len() >= limit as usize;
        ended.truncate(limit as usize);
        let mut walked = Walked { removed: 0, next: ended.last().map(|(place, ..)| *place).filter(|_| more) };
        for (_, id, _) in ended.into_iter().filter(|(.., stays)| !stays) {
            state.sandboxes.remove(&id);
            state.ended.remove(&id);
            walked.removed += 1;
        }
        Ok(walked)
    }

    async fn turns_with_events(&self, before: Timestamp, limit: u32) -> Result<Vec<(AccountId, TurnId)>> {
        let state = self.state();
        let mut old: Vec<_> = state
            .turns
            .values()
            .filter(|(_, turn)| turn.ended_at.is_some_and(|ended| ended < to_micros(before)))
            .filter(|(_, turn)| state.events.contains_key(&turn.id))
            .map(|(account, turn)| (turn.ended_at, *account, turn.id))
            .collect();
        old.sort();
        old.truncate(limit as usize);
        Ok(old.into_iter().map(|(_, account, turn)| (account, turn)).collect())
    }

    async fn forget_events(&self, account: AccountId, id: TurnId, summary: &str, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let ended = |(owner, turn): &&(AccountId, seawall_api::conversation::Turn)| {
            *owner == account && turn.state != TurnState::Running
        };
        if state.turns.get(&id).filter(ended).is_none() {
            return Err(Error::conflict(format!("turn {id} is not there, or still runs")));
        }
        state.summaries.entry(id).or_insert_with(|| summary.to_owned());
        let Some(events) = state.events.get_mut(&id) else { return Ok(0) };
        let removed = events.len().min(limit as usize);
        events.drain(..removed);
        if removed < limit as usize {
            state.events.remove(&id);
        }
        Ok(removed as u64)
    }

    async fn idle_conversations(
        &self,
        before: Timestamp,
        page: &Page,
    ) -> Result<Paged<(AccountId, ConversationId)>> {
        let state = self.state();
        let old = state.conversations.values().filter(|found| found.updated_at < before).map(|found| {
            let place = Cursor::at(found.updated_at, found.id.as_uuid().as_u128());
            (place, (found.account_id, found.id))
        });
        oldest(old.collect(), page)
    }

    /// All in one batch.
    async fn expire_messages(&self, before: Timestamp, _: Option<Cursor>, limit: u32) -> Result<Walked> {
        let mut state = self.state();
        let messages = state.messages.keys().map(|key| (*key, key.2));
        let old = keys(messages, |at| *at < before, limit);
        old.iter().for_each(|key| drop(state.messages.remove(key)));
        let next = (old.len() as u64 == u64::from(limit)).then_some(Cursor::OLDEST);
        Ok(Walked { removed: old.len() as u64, next })
    }

    async fn ended_with_versions(&self, age: Duration, page: &Page) -> Result<Paged<(AccountId, SandboxId)>> {
        let state = self.state();
        let ended = ended(&state, self.now(), age).into_iter();
        let wanted = ended.filter(|(_, row)| has_versions(&row.metadata) && !is_linked(&state, row.id));
        oldest(wanted.map(|(place, row)| (place, (row.account_id, row.id))).collect(), page)
    }
}
