//! Accounts, keys, idempotency.

use super::{InUse, MemoryStore, oldest};
use crate::{
    Error, Result,
    ports::store::{Accounts, Begun, Cursor, Idempotency, KeyHash, KeyLimits, Page, Paged, to_micros},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ErrorKind, KeyId,
    account::{Account, ApiKey},
};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};

fn no_account(account: AccountId) -> Error {
    Error::not_found(format!("there is no account {account}"))
}

fn no_key(key: KeyId) -> Error {
    Error::not_found(format!("there is no key {key}"))
}

fn is_good(key: &ApiKey, at: Timestamp) -> bool {
    key.revoked_at.is_none_or(|over| over > at) && key.expires_at.is_none_or(|over| over > at)
}

fn exists(what: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("{what} exists already"))
}

#[async_trait]
impl Accounts for MemoryStore {
    async fn create(&self, account: &Account) -> Result<()> {
        let mut state = self.state();
        if let Some(there) = state.accounts.get(&account.id) {
            let same = (&there.name, &there.settings) == (&account.name, &account.settings);
            return if same { Ok(()) } else { Err(exists("the account")) };
        }
        let account = Account { created_at: to_micros(account.created_at), ..account.clone() };
        state.accounts.insert(account.id, account);
        Ok(())
    }

    async fn get(&self, account: AccountId) -> Result<Account> {
        self.state().accounts.get(&account).cloned().ok_or_else(|| no_account(account))
    }

    async fn list(&self, page: &Page) -> Result<Paged<Account>> {
        let all = self
            .state()
            .accounts
            .values()
            .map(|a| (Cursor::at(a.created_at, a.id.as_uuid().as_u128()), a.clone()))
            .collect();
        oldest(all, page)
    }

    async fn set_settings(&self, account: AccountId, settings: &Map<String, Value>) -> Result<()> {
        let mut state = self.state();
        let found = state.accounts.get_mut(&account).ok_or_else(|| no_account(account))?;
        found.settings = settings.clone();
        Ok(())
    }

    async fn set_suspended(&self, account: AccountId, at: Option<Timestamp>) -> Result<()> {
        let mut state = self.state();
        let found = state.accounts.get_mut(&account).ok_or_else(|| no_account(account))?;
        found.suspended_at = at.map(to_micros);
        Ok(())
    }

    async fn begin_deletion(&self, account: AccountId, at: Timestamp) -> Result<()> {
        let mut state = self.state();
        let found = state.accounts.get_mut(&account).ok_or_else(|| no_account(account))?;
        found.deleting_at.get_or_insert(to_micros(at));
        found.suspended_at.get_or_insert(to_micros(at));
        Ok(())
    }

    async fn erase(&self, account: AccountId, _limit: u32) -> Result<u64> {
        let mut state = self.state();
        let before = state.hook_runs.len() + state.keys_in_use.len() + state.sessions.len();
        state.hook_runs.retain(|_, (owner, _)| *owner != account);
        state.keys_in_use.retain(|(owner, _), _| *owner != account);
        state.sessions.retain(|(owner, ..), _| *owner != account);
        state.hook_usage.retain(|_, (owner, ..)| *owner != account);
        Ok((before - state.hook_runs.len() - state.keys_in_use.len() - state.sessions.len()) as u64)
    }

    async fn remove(&self, account: AccountId) -> Result<()> {
        let mut state = self.state();
        let has_sandbox = state.sandboxes.values().any(|row| row.account_id == account);
        if has_sandbox || state.conversations.values().any(|found| found.account_id == account) {
            return Err(Error::conflict(format!("account {account} still has sandboxes or conversations")));
        }
        state.keys.retain(|_, (key, _)| key.account_id != account);
        state.accounts.remove(&account);
        Ok(())
    }

    async fn add_key(&self, key: &ApiKey, hash: &KeyHash, limits: &KeyLimits) -> Result<()> {
        let mut state = self.state();
        if !state.accounts.contains_key(&key.account_id) {
            return Err(no_account(key.account_id));
        }
        if let Some((there, known)) = state.keys.get(&key.id) {
            let same = there.account_id == key.account_id && known == hash;
            return if same { Ok(()) } else { Err(exists("the key")) };
        }
        if state.keys.values().any(|(_, known)| known == hash) {
            return Err(exists("the key"));
        }
        let (account, now) = (key.account_id, key.created_at);
        let before = now - limits.keep_over;
        let count = |keys: &BTreeMap<KeyId, (ApiKey, KeyHash)>, live: bool| {
            let of =
                keys.values().filter(|(key, _)| key.account_id == account && (!live || is_good(key, now)));
            of.count() as u64
        };
        if count(&state.keys, false) >= limits.all {
            state.keys.retain(|_, (key, _)| key.account_id != account || is_good(key, before));
        }
        limits.check(count(&state.keys, true), count(&state.keys, false))?;
        let key = ApiKey {
            created_at: to_micros(key.created_at),
            expires_at: key.expires_at.map(to_micros),
            revoked_at: key.revoked_at.map(to_micros),
            last_used_at: key.last_used_at.map(to_micros),
            ..key.clone()
        };
        state.keys.insert(key.id, (key, *hash));
        Ok(())
    }

    async fn keys(&self, account: AccountId) -> Result<Vec<ApiKey>> {
        let state = self.state();
        let mut keys: Vec<_> = state
            .keys
            .values()
            .map(|(key, _)| key)
            .filter(|key| key.account_id == account)
            .cloned()
            .collect();
        keys.sort_by_key(|key| (key.created_at, key.id));
        Ok(keys)
    }

    async fn find_key(&self, hash: &KeyHash) -> Result<Option<ApiKey>> {
        Ok(self.state().keys.values().find(|(_, known)| known == hash).map(|(key, _)| key.clone()))
    }

    async fn good_keys(&self, keys: &[KeyId], at: Timestamp) -> Result<Vec<KeyId>> {
        let state = self.state();
        let in_use = |account: AccountId| {
            state.accounts.get(&account).is_some_and(|account| account.suspended_at.is_none())
        };
        let is = |id: &&KeyId| {
            state.keys.get(*id).is_some_and(|(key, _)| is_good(key, at) && in_use(key.account_id))
        };
        Ok(keys.iter().filter(is).copied().collect())
    }

    async fn revoke_key(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()> {
        let mut state = self.state();
        match state.keys.get_mut(&key) {
            Some((found, _)) if found.account_id == account => {
                let at = to_micros(at);
                found.revoked_at = Some(found.revoked_at.map_or(at, |before| before.min(at)));
                Ok(())
            }
            _ => Err(no_key(key)),
        }
    }

    async fn touch_key(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()> {
        let mut state = self.state();
        match state.keys.get_mut(&key) {
            Some((found, _)) if found.account_id == account => {
                found.last_used_at = found.last_used_at.max(Some(to_micros(at)));
                Ok(())
            }
            _ => Err(no_key(key)),
        }
    }
}

#[async_trait]
impl Idempotency for MemoryStore {
    async fn begin(
        &self,
        account: AccountId,
        key: &str,
        request: &[u8; 32],
        hold: Duration,
        keep: Duration,
    ) -> Result<Begun> {
        let (now, mut state) = (self.now(), self.state());
        let place = (account, key.to_owned());
        let counts = |there: &&InUse| there.keep_until > now || there.answer.is_none();
        if let Some(there) = state.keys_in_use.get(&place).filter(counts) {
            if there.request != *request {
                return Err(Error::conflict(
                    "the idempotency key was used for another request; use a new one",
                ));
            }
            if let Some(answer) = &there.answer {
                return Ok(Begun::Done(answer.clone()));
            }
            return Ok(if there.busy_until > now { Begun::Running } else { Begun::Lost });
        }
        let receipt = state.next_number();
        let taken = InUse {
            request: *request,
            receipt,
            busy_until: now + hold,
            keep_until: now + keep.max(hold),
            answer: None,
        };
        state.keys_in_use.insert(place, taken);
        Ok(Begun::New { receipt })
    }

    async fn renew(&self, receipts: &[u64], hold: Duration, keep: Duration) -> Result<u64> {
        let (now, mut state) = (self.now(), self.state());
        let held = |there: &&mut InUse| there.answer.is_none() && receipts.contains(&there.receipt);
        let mut renewed = 0;
        for there in state.keys_in_use.values_mut().filter(held) {
            there.busy_until = now + hold;
            there.keep_until = there.keep_until.max(now + keep.max(hold));
            renewed += 1;
        }
        Ok(renewed)
    }

    async fn finish(&self, account: AccountId, key: &str, receipt: u64, answer: &[u8]) -> Result<()> {
        let mut state = self.state();
        match state.keys_in_use.get_mut(&(account, key.to_owned())) {
            Some(there)
                if there.receipt == receipt && there.answer.as_deref().is_none_or(|a| a == answer) =>
            {
                there.answer = Some(answer.to_vec().into());
                Ok(())
            }
            _ => Err(Error::conflict("the idempotency key was another's meanwhile")),
        }
    }

    async fn abandon(&self, account: AccountId, key: &str, receipt: u64) -> Result<()> {
        let (mut state, place) = (self.state(), (account, key.to_owned()));
        let ours = state.keys_in_use.get(&place).is_some_and(|t| t.receipt == receipt && t.answer.is_none());
        if ours {
            state.keys_in_use.remove(&place);
        }
        Ok(())
    }

    async fn kept(&self, account: AccountId) -> Result<(u64, u64)> {
        let state = self.state();
        let all = state.keys_in_use.iter().filter(|((owner, _), _)| *owner == account);
        Ok(all.fold((0, 0), |(keys, bytes), (_, key)| {
            (keys + 1, bytes + key.answer.as_ref().map_or(0, |answer| answer.len() as u64))
        }))
    }

    async fn close_all(&self, answer: &[u8]) -> Result<u64> {
        let mut state = self.state();
        let open: Vec<_> = state.keys_in_use.values_mut().filter(|there| there.answer.is_none()).collect();
        let count = open.len() as u64;
        open.into_iter().for_each(|there| there.answer = Some(answer.to_vec().into()));
        Ok(count)
    }

    async fn expire(&self, limit: u32) -> Result<u64> {
        let (now, mut state) = (self.now(), self.state());
        let old: Vec<_> = state
            .keys_in_use
            .iter()
            .filter(|(_, there)| there.keep_until <= now && there.answer.is_some())
            .map(|(k, _)| k.clone())
            .collect();
        let old: Vec<_> = old.into_iter().take(limit as usize).collect();
        old.iter().for_each(|key| drop(state.keys_in_use.remove(key)));
        Ok(old.len() as u64)
    }
}
