//! Retention, in memory.

use super::{MemoryStore, oldest};
use crate::{
    Error, Result,
    ports::store::{Cursor, Expiry, Page, Paged, Walked, to_micros},
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
        let (now, mut state) = (self.now(), self.state());
        let place = |id: &SandboxId, ended: &Timestamp| Cursor::at(*ended, id.as_uuid().as_u128());
        let mut ended: Vec<(Cursor, SandboxId)> = state
            .ended
            .iter()
            .filter(|(id, at)| {
                let row = state.sandboxes.get(id);
                row.is_some_and(|row| row.state == SandboxState::Terminated) && **at + age < now
            })
            .map(|(id, at)| (place(id, at), *id))
            .filter(|(place, _)| after.is_none_or(|after| *place > after))
            .collect();
        ended.sort();
        let more = ended.len() >= limit as usize;
        ended.truncate(limit as usize);
        let mut walked = Walked { removed: 0, next: ended.last().map(|(place, _)| *place).filter(|_| more) };
        for (_, id) in ended {
            if state.conversations.values().all(|found| found.sandbox_id != Some(id)) {
                state.sandboxes.remove(&id);
                state.ended.remove(&id);
                walked.removed += 1;
            }
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

    async fn sandboxes_after(
        &self,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Vec<(AccountId, SandboxId)>> {
        let state = self.state();
        let after = after.map_or(0, |cursor| cursor.id);
        let rest = state.sandboxes.values().filter(|row| row.id.as_uuid().as_u128() > after);
        Ok(rest.map(|row| (row.account_id, row.id)).take(limit as usize).collect())
    }
}
