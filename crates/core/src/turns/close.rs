//! The end of a turn: its hooks, its answer, and the one transaction that counts it.

use super::{run::Runner, save::pushed_event};
use crate::{
    Error, Result,
    hooks::{HookContext, Moment},
    persist::persist,
    ports::store::{EndTurn, just_after},
    service::told,
    templates::When,
};
use futures::FutureExt;
use jiff::Timestamp;
use seawall_api::{
    conversation::{Message, Role, TurnState},
    event::Event,
};
use seawall_sync::engine::SyncReport;
use std::sync::{Arc, Mutex, PoisonError};

impl Runner {
    /// H6: always, after success, error and hang-up.
    pub(super) async fn finish(&mut self, state: TurnState, error: &Option<String>) -> Result<()> {
        if self.answer.pushed {
            return Ok(());
        }
        let row = persist(|| self.turns.inner.stores.sandboxes.find(self.sandbox())).await?;
        if row.as_ref().is_some_and(|row| row.account_id != self.wanted.account) {
            // Somebody else was quicker to take the id: it is theirs.
            return Ok(());
        }
        let (is_known, worked) = (row.is_some(), self.answer.started.is_some());
        let pushed: Arc<Mutex<Option<Result<Option<SyncReport>>>>> = Arc::default();
        let (turns, wanted) = (self.turns.clone(), self.wanted.clone());
        let (pusher, what, result) = (turns.clone(), wanted.clone(), pushed.clone());
        let push = async move {
            let done = match is_known {
                true => pusher.push(&what, worked).await,
                // It was never made, so there is nothing to push.
                false => Ok(None),
            };
            let failed = done.as_ref().err().map(|error| Error::new(error.kind(), error.chain()));
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            failed.map_or(Ok(()), Err)
        };
        let moment = Moment::StreamFinish {
            state,
            answer: Some(Box::new(self.message(state, error))),
            usage: self.answer.usage().0,
        };
        // The agent has ended: what is left is done to its end.
        let context = HookContext { cancelled: None, ..wanted.context() };
        let ran = turns.inner.hooks.run(&context, &moment, Some(push.boxed())).await;
        let mut pushed = pushed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let replaced = wanted.template.hooks.stream_finish.iter().any(|hook| hook.when == When::Instead);
        if pushed.is_none() && ran.is_err() && is_known && !replaced {
            // A hook before it failed the turn; the files are not to be lost with it.
            pushed = Some(turns.push(&wanted, worked).await);
        }
        let event = match pushed {
            Some(Ok(Some(report))) => pushed_event(&report),
            Some(Err(error)) => {
                Some(Event::WorkspaceUnsynced { error: told(self.wanted.account, error.chain()) })
            }
            _ => None,
        };
        if let Some(event) = event {
            self.store(vec![event], self.turn.output_offset).await?;
        }
        ran
    }

    /// A time behind the prompt, whatever the clock says.
    pub(super) fn ended_at(&self) -> Timestamp {
        self.turns.inner.clock.now().max(just_after(self.turn.created_at))
    }

    /// The answer as it is stored (M1).
    pub(super) fn message(&self, state: TurnState, error: &Option<String>) -> Message {
        let body = match (self.answer.body.is_empty(), error) {
            (true, Some(error)) => format!("[{state}: {error}]"),
            _ => self.answer.body.clone(),
        };
        Message {
            id: self.turn.answer_id,
            conversation_id: self.conversation.id,
            turn_id: Some(self.id()),
            role: Role::Assistant,
            body,
            usage: Some(self.answer.usage().0),
            tool_calls: self.answer.tool_calls.clone(),
            created_at: self.ended_at(),
            revision: 1,
        }
    }

    /// M3: usage, totals and answer in one transaction, once.
    pub(super) async fn close(&self, state: TurnState, error: Option<String>) -> Result<()> {
        let (usage, estimate) = self.answer.usage();
        let answer = self.message(state, &error);
        let ended_at = answer.created_at;
        let end = EndTurn { id: self.id(), state, answer: Some(answer), error, usage, ended_at };
        let store = &self.turns.inner.stores.turns;
        let ended = persist(|| store.end(self.wanted.account, Some(&self.fence), &end)).await?;
        let stats = ended.stats;
        let bytes = end.answer.as_ref().map_or(0, |answer| answer.body.len());
        tracing::info!(key = %self.turn.answer_id, conversation = %self.conversation.id, bytes, "message stored");
        tracing::info!(
            turn = %self.id(), conversation = %self.conversation.id, sandbox = %self.sandbox(), %state, estimate,
            input_tokens = usage.input_tokens, output_tokens = usage.output_tokens, cache_tokens = usage.cache_tokens,
            total_input_tokens = stats.total_input_tokens, total_output_tokens = stats.total_output_tokens,
            total_cache_tokens = stats.total_cache_tokens, messages = stats.messages_exchanged, "turn ended"
        );
        self.turns.live(self.id()).ended(self.stored + 1);
        self.turns.inner.lanes.ended(self.conversation.id, Some(self.sandbox()));
        Ok(())
    }
}
