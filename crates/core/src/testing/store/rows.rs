//! Rows of sandboxes, sessions, runs of hooks.

use super::{MemoryStore, State, expiry::is_linked, newest, oldest};
use crate::{
    Error, Result,
    ports::{
        RecordHead,
        store::{
            Cursor, HookOutcome, HookRun, HookRuns, Page, Paged, SandboxFilter, SandboxRow, SandboxRows,
            Session, SessionScope, Sessions, has_versions, merge_metadata, to_micros,
        },
    },
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ErrorKind, HookRunId, SandboxId, sandbox::SandboxState};
use serde_json::{Map, Value};

fn no_sandbox(id: SandboxId) -> Error {
    Error::not_found(format!("there is no sandbox {id}"))
}

fn no_session(scope: SessionScope, id: &str) -> Error {
    Error::not_found(format!("there is no session of {} `{id}`", scope.as_str()))
}

impl State {
    fn sandbox(&mut self, account: AccountId, id: SandboxId) -> Result<&mut SandboxRow> {
        let found = self.sandboxes.get_mut(&id).filter(|row| row.account_id == account);
        found.ok_or_else(|| no_sandbox(id))
    }

    fn listed(&self, account: AccountId, filter: &SandboxFilter, page: &Page) -> Result<Paged<SandboxRow>> {
        let wanted = |row: &&SandboxRow| {
            row.account_id == account
                && (filter.name.is_none() || filter.name == row.name)
                && filter.state.map_or(row.state != SandboxState::Terminated, |wanted| wanted == row.state)
        };
        let found = self.sandboxes.values().filter(wanted);
        newest(found.map(|r| (Cursor::at(r.created_at, r.id.as_uuid().as_u128()), r.clone())).collect(), page)
    }

    fn name_is_free(&self, row: &SandboxRow) -> Result<()> {
        let Some(name) = &row.name else { return Ok(()) };
        let taken = |other: &SandboxRow| {
            other.id != row.id
                && other.account_id == row.account_id
                && other.name.as_ref() == Some(name)
                && other.state != SandboxState::Terminated
        };
        match self.sandboxes.values().any(taken) {
            true => Err(Error::conflict(format!("another sandbox is called `{name}`"))),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl SandboxRows for MemoryStore {
    async fn insert(&self, row: &SandboxRow) -> Result<SandboxRow> {
        let mut state = self.state();
        if let Some(there) = state.sandboxes.get(&row.id) {
            if *there == (SandboxRow { version: 1, ..row.kept() }) {
                return Ok(there.clone());
            }
            return Err(Error::new(ErrorKind::AlreadyExists, format!("sandbox {} exists already", row.id)));
        }
        state.name_is_free(row)?;
        let row = SandboxRow { version: 1, ..row.kept() };
        state.sandboxes.insert(row.id, row.clone());
        Ok(row)
    }

    async fn get(&self, account: AccountId, id: SandboxId) -> Result<SandboxRow> {
        self.state().sandbox(account, id).cloned()
    }

    async fn find(&self, id: SandboxId) -> Result<Option<SandboxRow>> {
        Ok(self.state().sandboxes.get(&id).cloned())
    }

    async fn sizes(&self, account: AccountId, filter: &SandboxFilter, page: &Page) -> Result<Vec<u64>> {
        let size =
            |row: &SandboxRow| serde_json::to_string(&row.metadata).map_or(0, |text| text.len() as u64);
        Ok(SandboxRows::list(self, account, filter, page).await?.items.iter().map(size).collect())
    }

    async fn list(
        &self,
        account: AccountId,
        filter: &SandboxFilter,
        page: &Page,
    ) -> Result<Paged<SandboxRow>> {
        let mut state = self.state();
        state.widest_page = state.widest_page.max(page.limit);
        state.listed(account, filter, page)
    }

    async fn update(&self, row: &SandboxRow) -> Result<SandboxRow> {
        let (now, mut state) = (self.now(), self.state());
        let there = state.sandbox(row.account_id, row.id)?.clone();
        let done = SandboxRow {
            version: row.version + 1,
            metadata: there.metadata.clone(),
            created_at: there.created_at,
            last_used_at: there.last_used_at.max(to_micros(row.last_used_at)),
            ..row.kept()
        };
        if there == done {
            return Ok(there);
        }
        if there.version != row.version {
            return Err(Error::conflict(format!(
                "sandbox {} was changed by somebody else meanwhile",
                row.id
            )));
        }
        state.name_is_free(row)?;
        match done.state {
            SandboxState::Terminated => drop(state.ended.entry(row.id).or_insert(now)),
            _ => drop(state.ended.remove(&row.id)),
        }
        state.sandboxes.insert(row.id, done.clone());
        Ok(done)
    }

    async fn merge_metadata(
        &self,
        account: AccountId,
        id: SandboxId,
        changes: &Map<String, Value>,
    ) -> Result<SandboxRow> {
        let mut state = self.state();
        let row = state.sandbox(account, id)?;
        let mut metadata = row.metadata.clone();
        merge_metadata(&mut metadata, changes)?;
        row.metadata = metadata;
        row.version += 1;
        Ok(row.clone())
    }

    async fn touch(&self, account: AccountId, id: SandboxId, at: Timestamp) -> Result<()> {
        let mut state = self.state();
        let row = state.sandbox(account, id)?;
        row.last_used_at = row.last_used_at.max(to_micros(at));
        Ok(())
    }

    async fn remove(&self, account: AccountId, id: SandboxId) -> Result<()> {
        let mut state = self.state();
        if state.sandbox(account, id).is_ok() {
            state.sandboxes.remove(&id);
            state.ended.remove(&id);
        }
        Ok(())
    }

    async fn of_node(&self, node: Option<&str>, page: &Page) -> Result<Paged<SandboxRow>> {
        let state = self.state();
        let found = state
            .sandboxes
            .values()
            .filter(|row| row.node.as_deref() == node && row.state != SandboxState::Terminated);
        oldest(found.map(|r| (Cursor::at(r.created_at, r.id.as_uuid().as_u128()), r.clone())).collect(), page)
    }

    async fn heads_of_node(&self, node: Option<&str>, page: &Page) -> Result<Paged<RecordHead>> {
        let found = self.of_node(node, page).await?;
        Ok(Paged { items: found.items.iter().map(SandboxRow::head).collect(), next: found.next })
    }

    async fn heads_of_account(
        &self,
        account: AccountId,
        state: Option<SandboxState>,
        page: &Page,
    ) -> Result<Paged<RecordHead>> {
        let filter = SandboxFilter { state, name: None };
        let found = self.state().listed(account, &filter, page)?;
        Ok(Paged { items: found.items.iter().map(SandboxRow::head).collect(), next: found.next })
    }

    async fn ended_bytes(&self, account: AccountId) -> Result<u64> {
        let size = |row: &SandboxRow| {
            let texts = [serde_json::to_string(&row.spec), serde_json::to_string(&row.metadata)];
            texts.into_iter().flatten().map(|text| text.len() as u64).sum::<u64>()
        };
        let state = self.state();
        Ok(state
            .sandboxes
            .values()
            .filter(|row| row.account_id == account && row.state == SandboxState::Terminated)
            .map(size)
            .sum())
    }

    async fn remove_ended(&self, account: AccountId, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let mut gone: Vec<_> = state
            .sandboxes
            .values()
            .filter(|row| row.account_id == account && row.state == SandboxState::Terminated)
            .filter(|row| !is_linked(&state, row.id) && !has_versions(&row.metadata))
            .map(|row| (state.ended.get(&row.id).copied(), row.id))
            .collect();
        gone.sort();
        gone.truncate(limit as usize);
        for (_, id) in &gone {
            state.sandboxes.remove(id);
            state.ended.remove(id);
        }
        Ok(gone.len() as u64)
    }

    async fn head(&self, id: SandboxId) -> Result<Option<RecordHead>> {
        Ok(self.state().sandboxes.get(&id).map(SandboxRow::head))
    }
}

#[async_trait]
impl Sessions for MemoryStore {
    async fn open(&self, session: &Session) -> Result<(Session, bool)> {
        let mut state = self.state();
        let key = (session.account_id, session.scope.as_str(), session.scope_id.clone());
        let new = Session {
            created_at: to_micros(session.created_at),
            last_used_at: to_micros(session.last_used_at),
            ..session.clone()
        };
        let there = state.sessions.entry(key).or_insert(new).clone();
        let made = there.sandbox_id == session.sandbox_id;
        Ok((there, made))
    }

    async fn get(&self, account: AccountId, scope: SessionScope, id: &str) -> Result<Session> {
        let found = self.state().sessions.get(&(account, scope.as_str(), id.to_owned())).cloned();
        found.ok_or_else(|| no_session(scope, id))
    }

    async fn touch(&self, account: AccountId, scope: SessionScope, id: &str, at: Timestamp) -> Result<()> {
        let mut state = self.state();
        let found = state.sessions.get_mut(&(account, scope.as_str(), id.to_owned()));
        let found = found.ok_or_else(|| no_session(scope, id))?;
        found.last_used_at = found.last_used_at.max(to_micros(at));
        Ok(())
    }

    async fn end(&self, account: AccountId, scope: SessionScope, id: &str) -> Result<Option<Session>> {
        Ok(self.state().sessions.remove(&(account, scope.as_str(), id.to_owned())))
    }

    async fn expired(&self, used: Timestamp, made: Timestamp, limit: u32) -> Result<Vec<Session>> {
        let state = self.state();
        let old = state.sessions.values().filter(|s| s.last_used_at < used || s.created_at < made);
        Ok(old.take(limit as usize).cloned().collect())
    }
}

#[async_trait]
impl HookRuns for MemoryStore {
    async fn begin(&self, account: AccountId, run: &HookRun) -> Result<()> {
        let run = HookRun { began_at: to_micros(run.began_at), ..run.clone() };
        self.state().hook_runs.entry(run.id).or_insert((account, run));
        Ok(())
    }

    async fn end(&self, account: AccountId, id: HookRunId, outcome: &HookOutcome) -> Result<()> {
        let mut state = self.state();
        let found = state.hook_runs.get_mut(&id).filter(|(owner, _)| *owner == account);
        let (_, run) = found.ok_or_else(|| Error::not_found(format!("there is no run {id} of a hook")))?;
        run.outcome.get_or_insert_with(|| HookOutcome {
            ended_at: to_micros(outcome.ended_at),
            error: outcome.error.clone(),
        });
        Ok(())
    }

    async fn list(
        &self,
        account: AccountId,
        sandbox: Option<SandboxId>,
        page: &Page,
    ) -> Result<Paged<HookRun>> {
        let state = self.state();
        let wanted = |(owner, run): &&(AccountId, HookRun)| {
            *owner == account && (sandbox.is_none() || run.sandbox_id == sandbox)
        };
        let found = state.hook_runs.values().filter(wanted);
        newest(
            found.map(|(_, r)| (Cursor::at(r.began_at, r.id.as_uuid().as_u128()), r.clone())).collect(),
            page,
        )
    }
}
