//! Following a turn: what is stored, then what comes, to its end. As often as somebody asks, from any event on.

use super::Turns;
use crate::{
    Error, Result,
    budget::Reservation,
    ports::store::{TurnEvent, events_gone},
    shares::as_caller,
};
use seawall_api::{
    AccountId, TurnId,
    conversation::{Turn, TurnState},
    event::Event,
};
use std::{collections::VecDeque, time::Duration};
use tokio::{sync::watch, time::timeout};

/// Events of one look, and their bytes. One that is larger comes alone.
const PAGE: u32 = 500;
const PAGE_BYTES: u64 = 256 << 10;
/// What an event takes while it is sent: as it is stored, parsed, and written again.
const COPIES: u64 = 3;
/// The poll interval for a turn that no task runs yet: a server that has just started continues turns one after the other.
const NOT_YET: Duration = Duration::from_millis(200);
/// Between looks at one that runs here, should a wake-up be missed. Thousands may be listening.
const HERE: Duration = Duration::from_secs(15);

/// A reader of a turn's events.
#[derive(Debug)]
pub struct Followed {
    turns: Turns,
    account: AccountId,
    turn: TurnId,
    next: u64,
    ready: VecDeque<TurnEvent>,
    over: bool,
    /// Nobody woke it in time: the store is asked, whatever is known here.
    doubts: bool,
    /// Bytes for the events that are ready. None where they are not counted.
    room: Option<Reservation>,
}

impl Turns {
    /// From event number `from` on, to the end.
    ///
    /// `gone`, with the code `events_gone`, where retention removed its events.
    pub async fn follow(&self, account: AccountId, turn: TurnId, from: u64) -> Result<Followed> {
        let store = &self.inner.stores.turns;
        // It must be theirs.
        if store.get(account, turn).await?.state != TurnState::Running
            && store.summary(account, turn).await?.is_some()
        {
            return Err(events_gone(turn));
        }
        Ok(self.followed(account, turn, from))
    }

    /// As [`Turns::follow`], from the first on, of a turn that the caller has just begun.
    pub fn follow_begun(&self, account: AccountId, turn: TurnId) -> Followed {
        self.followed(account, turn, 0)
    }

    fn followed(&self, account: AccountId, turn: TurnId, from: u64) -> Followed {
        let (ready, over, doubts) = (VecDeque::new(), false, false);
        Followed { turns: self.clone(), account, turn, next: from, ready, over, doubts, room: None }
    }

    /// The last event of a turn that has ended, made from its rows: it is there also where a crash came in between.
    async fn last_event(&self, account: AccountId, turn: &Turn) -> Result<Event> {
        let stats = self.inner.stores.conversations.get(account, turn.conversation_id).await?.stats;
        let usage = turn.usage.unwrap_or_default();
        let estimate = self.folded_briefly(account, turn.id).await?.usage().1;
        Ok(Event::TurnEnded { state: turn.state, error: turn.error.clone(), usage, estimate, stats })
    }
}

impl Turns {
    /// The next events of a turn, as many as fit into [`PAGE_BYTES`], or one. `room` has bytes for them when they are read.
    pub(super) async fn some_events(
        &self,
        account: AccountId,
        turn: TurnId,
        from: u64,
        room: Option<&mut Reservation>,
    ) -> Result<Vec<TurnEvent>> {
        let store = &self.inner.stores.turns;
        let sizes = store.event_sizes(account, turn, from, PAGE).await?;
        let (mut bytes, mut count) = (0, 0);
        for size in sizes {
            if count > 0 && bytes + size > PAGE_BYTES {
                break;
            }
            (bytes, count) = (bytes + size, count + 1);
        }
        if let Some(room) = room {
            let needed = bytes * COPIES;
            room.shrink_to(needed);
            room.grow(needed - room.bytes()).await?;
        }
        // Where there are none it says whether that is so because they are another's.
        store.events(account, turn, from, count.max(1)).await
    }
}

impl Followed {
    /// Counts what it holds of events among bodies in flight.
    pub fn within(mut self, room: Reservation) -> Followed {
        self.room = Some(room);
        self
    }

    /// The next event with its number. None after the last.
    pub async fn next(&mut self) -> Result<Option<(u64, Event)>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.next = event.number + 1;
                let parsed = serde_json::from_slice(&event.data);
                let parsed =
                    parsed.map_err(|error| Error::internal("an event is damaged").with_source(error))?;
                return Ok(Some((event.number, parsed)));
            }
            if self.over {
                return Ok(None);
            }
            if let Some(last) = as_caller(self.account, self.look()).await? {
                self.over = true;
                // Whoever has seen it already asked for what comes after.
                return Ok((last.0 >= self.next).then_some(last));
            }
        }
    }

    /// Whether there is anything new.
    async fn fetch(&mut self) -> Result<bool> {
        let room = self.room.as_mut();
        self.ready = self.turns.some_events(self.account, self.turn, self.next, room).await?.into();
        Ok(!self.ready.is_empty())
    }

    /// Fetches what is there, or waits for more. The last event, where the turn is over and all was told.
    async fn look(&mut self) -> Result<Option<(u64, Event)>> {
        let store = self.turns.inner.stores.turns.clone();
        // Before the look: what is stored in between is not missed.
        let live = self.turns.find_live(self.turn);
        let mut seen = live.as_ref().map(|live| live.events.subscribe());
        if let Some(seen) = &mut seen {
            seen.mark_unchanged();
        }
        // Mostly it runs here, and what was stored just now is at hand.
        let known = live.and_then(|live| live.since(self.next)).filter(|_| !self.doubts);
        if let Some(known) = known {
            self.ready = known;
            if let (true, Some(seen)) = (self.ready.is_empty(), seen) {
                self.wait_here(seen).await;
            }
            return Ok(None);
        }
        self.doubts = false;
        if self.fetch().await? {
            return Ok(None);
        }
        let turn = store.get(self.account, self.turn).await?;
        if turn.state != TurnState::Running {
            // What was stored between the two looks comes first.
            if self.fetch().await? {
                return Ok(None);
            }
            let last = self.turns.last_event(self.account, &turn).await?;
            return Ok(Some((turn.events, last)));
        }
        match seen {
            Some(seen) => self.wait_here(seen).await,
            None => tokio::time::sleep(NOT_YET).await,
        }
        Ok(None)
    }

    /// For a change, or until its sender is gone: then the turn is over, or somebody else's.
    async fn wait_here(&mut self, mut seen: watch::Receiver<u64>) {
        self.doubts = timeout(HERE, seen.changed()).await.is_err();
    }
}
