//! Who may run a turn, and what is stored of it.
//!
//! A lease in the database, in the name of the machine, lasts 30 s and is renewed every 8 s. Each write of a runner
//! carries the lease's epoch and is refused in its own transaction once the lease has another holder (`Fence`), so a
//! runner that slept past its lease writes nothing. SQLite does not wait for the disk with each event of a running
//! turn: a power failure, which ends the box too, may lose the last events of a turn that has not ended. The
//! transaction that ends a turn syncs all of them.

use super::{Turns, answer::Answer, room::Room};
use crate::{
    Error, Result,
    persist::persist,
    ports::{
        Claim,
        store::{BeginTurn, Lease, NewLease},
    },
};
use seawall_api::{
    AccountId, ErrorKind, TurnId,
    conversation::{Conversation, Turn, TurnState},
    event::Event,
};
use std::{sync::atomic::Ordering, time::Duration};

/// After this time without a sign of life another machine may take a turn over.
pub(super) const LEASE: Duration = Duration::from_secs(30);
/// The right to run a turn: on this machine, and among machines.
pub(super) struct Held {
    pub claim: Claim,
    pub lease: Lease,
    /// Of a turn that was just begun: its conversation, its prompt, and its room. Nothing else is stored of it.
    pub known: Option<(Conversation, String, Room)>,
}

fn lease_name(turn: TurnId) -> String {
    format!("turn {turn}")
}

/// A turn, and what is stored of it.
pub(super) struct Found {
    pub turn: Turn,
    pub conversation: Conversation,
    pub answer: Answer,
    pub room: Room,
    pub prompt: String,
}

impl Turns {
    /// Claimed before anybody can know of it, and with its lease from its first moment on: what is stored of it then
    /// is what was just said, and need not be read.
    pub(super) async fn hold_new(
        &self,
        begin: &mut BeginTurn,
        conversation: &Conversation,
        room: Room,
    ) -> Result<Option<Held>> {
        let Some(claim) = self.claim(begin.id).await? else { return Ok(None) };
        let new = NewLease { name: lease_name(begin.id), holder: self.inner.node.clone(), time: LEASE };
        let lease = Lease { name: new.name.clone(), holder: new.holder.clone(), epoch: 1 };
        begin.lease = Some(new);
        let known = Some((conversation.clone(), begin.prompt.body.clone(), room));
        Ok(Some(Held { claim, lease, known }))
    }

    /// None: somebody else has it.
    pub(super) async fn held(&self, id: TurnId, held: Option<Held>) -> Result<Option<Held>> {
        if held.is_some() {
            self.live(id).runs.store(true, Ordering::Relaxed);
            return Ok(held);
        }
        let Some(claim) = self.claim(id).await? else { return Ok(None) };
        self.live(id).runs.store(true, Ordering::Relaxed);
        let (leases, name) = (&self.inner.stores.leases, lease_name(id));
        match persist(|| leases.acquire_soon(&name, &self.inner.node, LEASE)).await? {
            Some(lease) => Ok(Some(Held { claim, lease, known: None })),
            None => {
                self.live(id).runs.store(false, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// None: it is over.
    pub(super) async fn found(&self, account: AccountId, id: TurnId) -> Result<Option<Found>> {
        let stores = &self.inner.stores;
        let turn = stores.turns.get(account, id).await?;
        if turn.state != TurnState::Running {
            return Ok(None);
        }
        let mut room = self.room(account);
        let (conversation, answer, prompt) = tokio::try_join!(
            stores.conversations.get(account, turn.conversation_id),
            self.folded(account, id, &mut room),
            self.prompt(account, &turn),
        )?;
        Ok(Some(Found { turn, conversation, answer, room, prompt }))
    }

    /// What the events so far come to.
    async fn folded(&self, account: AccountId, id: TurnId, room: &mut Room) -> Result<Answer> {
        let (mut answer, mut from) = (Answer::default(), 0);
        loop {
            let events = self.some_events(account, id, from, None).await?;
            let Some(last) = events.last() else { return Ok(answer) };
            from = last.number + 1;
            for event in &events {
                room.found(event.data.len());
                match serde_json::from_slice(&event.data) {
                    Ok(event) => room.fold(&mut answer, &event),
                    Err(error) => {
                        tracing::warn!(turn = %id, number = event.number, %error, "an event is damaged")
                    }
                }
            }
        }
    }

    /// As [`Turns::folded`], without what was said: its session, what it used, how it ended. Where its events are gone, what is
    /// left of that.
    pub(crate) async fn folded_briefly(&self, account: AccountId, id: TurnId) -> Result<Answer> {
        let (mut answer, mut from) = (Answer::default(), 0);
        loop {
            let events = match self.some_events(account, id, from, None).await {
                Err(error) if error.kind() == ErrorKind::Gone => return self.summarized(account, id).await,
                found => found?,
            };
            let Some(last) = events.last() else { return Ok(answer) };
            from = last.number + 1;
            for event in events.iter().filter_map(|event| serde_json::from_slice::<Event>(&event.data).ok()) {
                if !matches!(event, Event::Text { .. } | Event::ToolCall { .. } | Event::ToolResult { .. }) {
                    answer.apply(&event);
                }
            }
        }
    }

    async fn summarized(&self, account: AccountId, id: TurnId) -> Result<Answer> {
        let summary = self.inner.stores.turns.summary(account, id).await?.unwrap_or_default();
        let summary = serde_json::from_str(&summary);
        let damaged =
            |error| Error::internal(format!("the summary of turn {id} is damaged")).with_source(error);
        Ok(Answer::of_summary(summary.map_err(damaged)?))
    }

    /// It may still be on its way to its store.
    async fn prompt(&self, account: AccountId, turn: &Turn) -> Result<String> {
        let messages = &self.inner.stores.messages;
        match messages.get(account, turn.conversation_id, turn.prompt_id).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.inner.courier.round().await?;
                Ok(messages.get(account, turn.conversation_id, turn.prompt_id).await?.body)
            }
            found => Ok(found?.body),
        }
    }
}
