//! Suspending, resuming and deleting accounts (K10).
//!
//! A deletion is marked first and then worked off: whatever interrupts it, the next round goes on. The account's row
//! goes last, so nothing of an account is left without somebody who would look for it.

use crate::{
    Error, Result, Services,
    ports::{
        RecordHead, Volumes,
        store::{ConversationFilter, Cursor, HEADS, MAX_PAGE, Page, Paged, WHOLE_ROWS},
    },
    service::EndSandbox,
};
use seawall_api::{
    AccountId, ErrorKind,
    account::Account,
    sandbox::{EndReason, SandboxState},
};
use std::time::Duration;

/// Rows of one table that one statement deletes.
const BATCH: u32 = 500;

impl Services {
    /// Refuses the account's keys from now on, ends its turns, and stops its sandboxes. Their volumes stay, and what no
    /// bucket has is pushed as ever.
    pub async fn suspend_account(&self, account: AccountId) -> Result<Account> {
        refuse_operator(account, "suspended")?;
        self.stores.accounts.set_suspended(account, Some(self.clock.now())).await?;
        self.accounts.forget(account);
        self.keys.end_account(account);
        tracing::info!(%account, "account suspended");
        self.quiet_account(account).await;
        self.stores.accounts.get(account).await
    }

    /// Lets the account's keys in again. Its sandboxes start with their next use.
    pub async fn resume_account(&self, account: AccountId) -> Result<Account> {
        if self.stores.accounts.get(account).await?.deleting_at.is_some() {
            return Err(Error::conflict("this account is being deleted, which cannot be taken back"));
        }
        self.stores.accounts.set_suspended(account, None).await?;
        self.accounts.forget(account);
        tracing::info!(%account, "account resumed");
        self.stores.accounts.get(account).await
    }

    /// Marks the account as being deleted, and works it off as far as that goes now. [`Services::finish_deletions`]
    /// does the rest. Deleting what is gone succeeds.
    pub async fn delete_account(&self, account: AccountId) -> Result<()> {
        refuse_operator(account, "deleted")?;
        match self.stores.accounts.begin_deletion(account, self.clock.now()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            marked => marked?,
        }
        self.accounts.forget(account);
        self.keys.end_account(account);
        tracing::info!(%account, "account is being deleted");
        self.erase_account(account).await
    }

    /// Goes on with deletions that something interrupted, and stops what suspended accounts still run. What fails for one account is logged, and tried again later.
    pub async fn finish_deletions(&self) -> Result<()> {
        let mut page = Page::first(MAX_PAGE);
        loop {
            let found = self.stores.accounts.list(&page).await?;
            for account in &found.items {
                if account.deleting_at.is_some() {
                    if let Err(error) = self.erase_account(account.id).await {
                        tracing::warn!(account = %account.id, error = %error.chain(), "an account is not deleted yet");
                    }
                } else if account.suspended_at.is_some() {
                    self.quiet_account(account.id).await;
                }
            }
            match found.next {
                Some(next) => page = Page::first(MAX_PAGE).after(next),
                None => return Ok(()),
            }
        }
    }

    /// Ends the turns of an account and stops what it runs, also where a turn has not ended yet. Best effort: the next round
    /// comes again. What runs only to be saved is left to whoever saves it.
    async fn quiet_account(&self, account: AccountId) {
        if let Err(error) = self.cancel_turns(account).await {
            tracing::warn!(%account, error = %error.chain(), "turns of a suspended account go on");
        }
        if let Err(error) = self.stop_running(account).await {
            tracing::warn!(%account, error = %error.chain(), "sandboxes of a suspended account run on");
        }
    }

    async fn stop_running(&self, account: AccountId) -> Result<()> {
        let (boxes, mut after) = (self.sandboxes.boxes(), None);
        loop {
            let found = self.heads(account, Some(SandboxState::Running), after).await?;
            for head in found.items.iter().filter(|head| !boxes.is_saving(account, head.id)) {
                if let Err(error) = boxes.stop_unsaved(head.id, Duration::ZERO, EndReason::Stopped).await {
                    tracing::warn!(sandbox = %head.id, error = %error.chain(), "a sandbox of a suspended account runs on");
                }
            }
            after = found.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn cancel_turns(&self, account: AccountId) -> Result<()> {
        let mut page = Page::first(MAX_PAGE);
        loop {
            let running = self.stores.turns.running(&page).await?;
            for turn in running.items.iter().filter(|turn| turn.account_id == account) {
                self.turns.cancel_turn(account, turn.id).await?;
            }
            match running.next {
                Some(next) => page = Page::first(MAX_PAGE).after(next),
                None => return Ok(()),
            }
        }
    }

    async fn erase_account(&self, account: AccountId) -> Result<()> {
        self.cancel_turns(account).await?;
        self.erase_sandboxes(account).await?;
        self.erase_files(account).await?;
        self.sandboxes.boxes().remove_shares(account).await?;
        self.erase_conversations(account).await?;
        while self.stores.accounts.erase(account, BATCH).await? > 0 {
            // Others have the database in between.
            tokio::task::yield_now().await;
        }
        self.stores.accounts.remove(account).await?;
        self.keys.forget_account(account);
        self.accounts.forget(account);
        self.sandboxes.boxes().forget_account(account);
        tracing::info!(%account, "account deleted");
        Ok(())
    }

    /// Boxes and volumes of every sandbox.
    async fn erase_sandboxes(&self, account: AccountId) -> Result<()> {
        let how =
            EndSandbox { sync: false, force: true, volumes: Some(Volumes::Delete), delete_versions: false };
        let mut after = None;
        loop {
            let found = self.heads(account, None, after).await?;
            for head in found.items {
                match self.sandboxes.end(account, head.id, &how).await {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            after = found.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Everything in buckets, also of sandboxes that were ended before, and then their rows, which tell where that is.
    async fn erase_files(&self, account: AccountId) -> Result<()> {
        let done = self.sandboxes.delete_files_of(account).await?;
        if let Some((place, why)) = done.left.first() {
            return Err(Error::unavailable(format!("files at {place} cannot be deleted now: {why}")));
        }
        let mut after = None;
        loop {
            let found = self.heads(account, Some(SandboxState::Terminated), after).await?;
            for head in found.items {
                self.sandboxes.boxes().purge(head.id, Volumes::Delete).await?;
            }
            after = found.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn erase_conversations(&self, account: AccountId) -> Result<()> {
        loop {
            let page = Page::first(WHOLE_ROWS);
            let found =
                self.stores.conversations.list(account, &ConversationFilter::default(), &page).await?;
            if found.items.is_empty() {
                return Ok(());
            }
            for conversation in found.items {
                self.stores.conversations.delete(account, conversation.id).await?;
            }
        }
    }

    /// A page of the account's sandboxes in a state (`None`: all that were not ended). Callers work off one page before they read
    /// the next, so that little is in memory, however many sandboxes there are and whatever their owner stored in them.
    async fn heads(
        &self,
        account: AccountId,
        state: Option<SandboxState>,
        after: Option<Cursor>,
    ) -> Result<Paged<RecordHead>> {
        let page = Page { limit: HEADS, after };
        self.stores.sandboxes.heads_of_account(account, state, &page).await
    }
}

fn refuse_operator(account: AccountId, what: &str) -> Result<()> {
    match account == AccountId::LOCAL {
        true => Err(Error::invalid(format!("the operator's own account `local` cannot be {what}"))),
        false => Ok(()),
    }
}
