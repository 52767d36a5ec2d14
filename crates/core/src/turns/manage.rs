//! What becomes of turns and conversations besides being run.

use super::{LOOK_AGAIN, Turns};
use crate::{Error, Result, ports::store::Page, service::EndSandbox};
use seawall_api::{AccountId, ConversationId, ErrorKind, SandboxId, TurnId, conversation::TurnState};
use std::sync::PoisonError;

/// How many running turns are looked at together.
const LOOKED_AT: u32 = 500;

impl Turns {
    /// Stops the agent. What it did and said is kept. False where this process does not run the turn.
    pub fn cancel(&self, turn: TurnId) -> bool {
        let live = self.inner.live.lock().unwrap_or_else(PoisonError::into_inner);
        match live.get(&turn) {
            Some(live) => {
                live.cancel.send_replace(true);
                true
            }
            None => false,
        }
    }

    /// As [`Turns::cancel`], wherever it runs: whoever has it hears of it. False where it is over.
    pub async fn cancel_turn(&self, account: AccountId, turn: TurnId) -> Result<bool> {
        let store = &self.inner.stores.turns;
        let asked = store.request_cancel(account, turn, self.inner.clock.now()).await?;
        if asked {
            tracing::info!(%account, %turn, "the end of a turn is asked for");
            self.cancel(turn);
        }
        Ok(asked)
    }

    /// C5: with all that was said. `terminate`: its sandbox too, saved first.
    pub async fn delete_conversation(
        &self,
        account: AccountId,
        id: ConversationId,
        terminate: bool,
    ) -> Result<()> {
        let conversation = self.inner.stores.conversations.get(account, id).await?;
        if let (true, Some(sandbox)) = (terminate, conversation.sandbox_id) {
            self.refuse_while_running(account, id).await?;
            let how = EndSandbox { sync: true, force: false, volumes: None, delete_versions: false };
            match self.inner.service.end(account, sandbox, &how).await {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.inner.stores.conversations.delete(account, id).await?;
        tracing::info!(%account, conversation = %id, terminate, "conversation deleted");
        Ok(())
    }

    async fn refuse_while_running(&self, account: AccountId, id: ConversationId) -> Result<()> {
        let last = self.inner.stores.turns.list(account, id, &Page::first(1)).await?;
        match last.items.first().is_some_and(|turn| turn.state == TurnState::Running) {
            true => Err(Error::conflict("a turn of this conversation runs: wait for it, or cancel it")),
            false => Ok(()),
        }
    }

    /// Whether a turn runs in a sandbox of the account.
    pub async fn is_busy(&self, account: AccountId, sandbox: SandboxId) -> Result<bool> {
        Ok(self.inner.stores.turns.running_in(account, sandbox).await?.is_some())
    }

    /// Takes up turns whose process is gone, and returns how many there were.
    pub async fn take_up(&self) -> Result<usize> {
        let store = &self.inner.stores.turns;
        let (mut taken, mut page) = (0, Page::first(LOOKED_AT));
        loop {
            let found = store.running(&page).await?;
            for turn in found.items {
                let known = self.find_live(turn.id).is_some();
                // The runner has the claim; whether that is so is asked again by the one that is spawned here.
                if !known && self.claim(turn.id).await?.is_some() {
                    self.spawn(turn.account_id, store.get(turn.account_id, turn.id).await?);
                    taken += 1;
                }
            }
            match found.next {
                Some(next) => page = Page::first(LOOKED_AT).after(next),
                None => return Ok(taken),
            }
        }
    }

    /// Ends when this process runs no turn any more.
    pub async fn idle(&self) {
        loop {
            let watched = {
                let live = self.inner.live.lock().unwrap_or_else(PoisonError::into_inner);
                live.values().next().map(|live| live.events.subscribe())
            };
            let Some(mut watched) = watched else { return };
            // Changes, or is dropped with its turn.
            let _ = tokio::time::timeout(LOOK_AGAIN, watched.changed()).await;
        }
    }

    /// How many turns are under way in this process.
    pub fn running_here(&self) -> usize {
        self.inner.live.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
