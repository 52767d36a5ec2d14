//! The current work of a server, and the look-up of accounts by name.

use super::Services;
use crate::{
    Error, Result,
    ports::{
        RecordHead,
        store::{Page, Paged},
    },
};
use seawall_api::{AccountId, sandbox::SandboxState};

/// Work that a server has, all accounts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// Sandboxes that run, or are being made or stopped.
    pub sandboxes: u64,
    pub turns: u64,
    /// Sandboxes with work that no bucket has.
    pub unsynced: u64,
    /// Messages and webhooks that are not delivered yet.
    pub deliveries: u64,
}

impl Activity {
    pub fn is_idle(&self) -> bool {
        *self == Activity::default()
    }

    fn add(&mut self, head: &RecordHead) {
        let rests = matches!(
            head.state,
            SandboxState::Terminated
                | SandboxState::Stopped
                | SandboxState::Created
                | SandboxState::Failed
                | SandboxState::Lost
        );
        self.sandboxes += u64::from(!rests);
        self.unsynced += u64::from(head.unsynced.is_some() && head.state != SandboxState::Terminated);
    }
}

impl Services {
    /// The work of this server. States are those of records, which the reaper brings up to date every few seconds.
    pub async fn activity(&self) -> Result<Activity> {
        let (deliveries, _) = self.stores.outbox.waiting().await?;
        let turns = self.turns.running_here() as u64;
        let mut activity = Activity { turns, deliveries, ..Activity::default() };
        let mut after = None;
        loop {
            let page = self.sandboxes.boxes().heads(after).await?;
            page.items.iter().for_each(|head| activity.add(head));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(activity),
            }
        }
    }

    /// The account of an id or a name. `conflict` where several have the name.
    pub async fn find_account(&self, named: &str) -> Result<AccountId> {
        let named = named.trim();
        if let Ok(id) = named.parse::<AccountId>() {
            return Ok(self.stores.accounts.get(id).await?.id);
        }
        let mut found = Vec::new();
        let mut page = Page::first(PAGE);
        loop {
            let Paged { items, next } = self.stores.accounts.list(&page).await?;
            found.extend(items.into_iter().filter(|account| account.name == named).map(|account| account.id));
            match next {
                Some(next) => page = Page::first(PAGE).after(next),
                None => break,
            }
        }
        match found[..] {
            [id] => Ok(id),
            [] => Err(Error::not_found(format!(
                "there is no account `{named}`; `seawall accounts ls` lists them"
            ))),
            _ => Err(Error::conflict(format!("several accounts are called `{named}`; give the id of one"))),
        }
    }
}

const PAGE: u32 = 500;
