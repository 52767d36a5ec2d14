use super::{
    kit::{Cx, at, begin, end},
    suite::cases,
};
use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::future::join_all;
use seawall_api::{
    ConversationId, TurnId,
    conversation::{Message, Turn, TurnState},
};
use seawall_core::ports::store::{BeginTurn, Direction, EndTurn, Page, StoredPlace};

cases!("stored";
    k8_what_is_added_is_counted_by_account;
    k8_no_count_falls_below_zero;
    k8_adding_at_once_loses_nothing;
    k8_a_listing_replaces_what_was_counted;
    k8_places_are_listed_in_pages;
    k8_what_is_forgotten_is_not_counted;
    k5_conversations_count_from_the_end_of_each_turn_until_they_are_deleted;
    k5_what_conversations_count_is_what_is_left_of_them_whatever_the_order;
);

const PLACE: &str = "s3://bucket/docs/one";

async fn k8_what_is_added_is_counted_by_account(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    ensure!(stored.total(cx.account).await? == 0);
    ensure!(stored.add(cx.account, PLACE, 100).await? == 0);
    ensure!(stored.add(cx.account, PLACE, 20).await? == 0);
    ensure!(stored.add(cx.account, "s3://bucket/docs/two", 3).await? == 0);
    // The same place of another is another's.
    stored.add(cx.stranger, PLACE, 5000).await?;
    ensure!(stored.total(cx.account).await? == 123);
    ensure!(stored.total(cx.stranger).await? == 5000);
    stored.add(cx.account, PLACE, 1 << 45).await?;
    ensure!(stored.total(cx.account).await? == (1 << 45) + 123);
    Ok(())
}

async fn k8_no_count_falls_below_zero(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    stored.add(cx.account, "new", -7).await?;
    ensure!(stored.total(cx.account).await? == 0);
    stored.add(cx.account, PLACE, 5).await?;
    stored.add(cx.account, PLACE, -9).await?;
    stored.add(cx.account, PLACE, 4).await?;
    ensure!(stored.total(cx.account).await? == 4);
    Ok(())
}

async fn k8_adding_at_once_loses_nothing(cx: Cx) -> Result<()> {
    let adds = (0..32).map(|number| {
        let cx = cx.clone();
        async move { cx.stores.stored.add(cx.account, PLACE, if number % 2 == 0 { 10 } else { 3 }).await }
    });
    for done in join_all(adds).await {
        done?;
    }
    ensure!(cx.stores.stored.total(cx.account).await? == 16 * 13);
    Ok(())
}

async fn k8_a_listing_replaces_what_was_counted(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    stored.add(cx.account, PLACE, 100).await?;
    stored.set(cx.account, PLACE, 40).await?;
    ensure!(stored.total(cx.account).await? == 40);
    // Whoever adds knows that a listing came in between.
    ensure!(stored.add(cx.account, PLACE, 2).await? == 1);
    stored.set(cx.account, PLACE, 0).await?;
    ensure!(stored.add(cx.account, PLACE, 1).await? == 2);
    stored.set(cx.account, "never added", 9).await?;
    ensure!(stored.add(cx.account, "never added", 0).await? == 1);
    ensure!(stored.total(cx.account).await? == 10);
    Ok(())
}

async fn k8_places_are_listed_in_pages(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    for (number, place) in ["b", "a/x", "c", "a"].into_iter().enumerate() {
        stored.add(cx.account, place, number as i64).await?;
    }
    stored.add(cx.stranger, "b", 77).await?;
    let names = |found: Vec<StoredPlace>| found.into_iter().map(|one| one.place).collect::<Vec<_>>();
    ensure!(names(stored.places(cx.account, None, 3).await?) == ["a", "a/x", "b"]);
    ensure!(names(stored.places(cx.account, Some("b"), 3).await?) == ["c"]);
    let first = stored.places(cx.account, None, 1).await?.remove(0);
    ensure!(first == StoredPlace { account: cx.account, place: "a".into(), bytes: 3 });
    // Of all accounts, each once, in one order.
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = stored.all_places(after.as_ref(), 2).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        seen.extend(page);
    }
    ensure!(seen.len() == 5, "{seen:?}");
    let mut sorted = seen.clone();
    sorted.sort_by_key(|one| (one.account, one.place.clone()));
    ensure!(seen == sorted);
    Ok(())
}

async fn k8_what_is_forgotten_is_not_counted(cx: Cx) -> Result<()> {
    let stored = &cx.stores.stored;
    stored.add(cx.account, PLACE, 100).await?;
    stored.forget(cx.stranger, PLACE).await?;
    ensure!(stored.total(cx.account).await? == 100);
    for _ in 0..2 {
        stored.forget(cx.account, PLACE).await?;
        ensure!(stored.total(cx.account).await? == 0 && stored.places(cx.account, None, 9).await?.is_empty());
    }
    ensure!(stored.add(cx.account, PLACE, 1).await? == 0, "it is new");
    Ok(())
}

fn bytes_of(message: &Message) -> u64 {
    serde_json::to_string(message).unwrap().len() as u64
}

async fn k5_conversations_count_from_the_end_of_each_turn_until_they_are_deleted(cx: Cx) -> Result<()> {
    let (stored, turns) = (&cx.stores.stored, &cx.stores.turns);
    let [one, two] = [cx.conversation().await?, cx.conversation().await?];
    let mut counted = [0, 0];
    for number in 0..6 {
        let conversation = [one, two][number % 2];
        let first = Some(Bytes::from_static(b"begun"));
        let new = BeginTurn { first_event: first, created_at: at(0), ..begin(conversation) };
        let turn = turns.begin(cx.account, None, &new).await?;
        let events = [Bytes::from(vec![b'x'; 100]), Bytes::from("\u{1f980}".repeat(number))];
        // Twice the same, as one does who was not told that it is done.
        for _ in 0..2 {
            turns.append_events(cx.account, None, turn.id, 1, &events, 0).await?;
        }
        ensure!(stored.total(cx.account).await? == counted.iter().sum::<u64>(), "it runs");
        let ended = end(&turn);
        for _ in 0..2 {
            turns.end(cx.account, None, &ended).await?;
        }
        let prompt = cx.stores.messages.get(cx.account, conversation, turn.prompt_id).await?;
        let answer = cx.stores.messages.get(cx.account, conversation, turn.answer_id).await?;
        counted[number % 2] += 105 + 4 * number as u64 + bytes_of(&prompt) + bytes_of(&answer);
        ensure!(stored.total(cx.account).await? == counted.iter().sum::<u64>(), "{number}");
    }
    stored.add(cx.account, PLACE, 7).await?;
    ensure!(stored.total(cx.account).await? == counted.iter().sum::<u64>() + 7);
    ensure!(stored.total(cx.stranger).await? == 0);
    // It is no place of a bucket.
    for places in [stored.places(cx.account, None, 9).await?, stored.all_places(None, 9).await?] {
        ensure!(places.iter().map(|one| one.place.as_str()).eq([PLACE]), "{places:?}");
    }
    for _ in 0..2 {
        cx.stores.conversations.delete(cx.account, one).await?;
        ensure!(stored.total(cx.account).await? == counted[1] + 7);
    }
    cx.stores.conversations.delete(cx.account, two).await?;
    ensure!(stored.total(cx.account).await? == 7);
    Ok(())
}

/// Turns, deletions and retention of an account, in an order that a number decides.
struct Life {
    cx: Cx,
    random: u64,
    conversations: Vec<ConversationId>,
    running: Vec<Turn>,
    ended: Vec<TurnId>,
}

impl Life {
    fn below(&mut self, most: usize) -> usize {
        // Knuth's linear congruential generator.
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % most
    }

    fn any<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.below(all.len())])
    }

    async fn step(&mut self) -> Result<()> {
        match self.below(10) {
            0 => self.conversations.push(self.cx.conversation().await?),
            1..=3 => self.begin().await?,
            4 | 5 => self.end().await?,
            6 => self.delete().await?,
            7 | 8 => self.forget().await?,
            _ => self.expire().await?,
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<()> {
        let Some(conversation) = self.any(&self.conversations.clone()) else { return Ok(()) };
        if self.running.iter().any(|turn| turn.conversation_id == conversation) {
            return Ok(());
        }
        let (letters, events) = (self.below(3000), self.below(5));
        let mut new = begin(conversation);
        new.prompt.body = "p".repeat(letters);
        let turn = self.cx.stores.turns.begin(self.cx.account, None, &new).await?;
        for number in 0..events as u64 {
            let event = Bytes::from(vec![b'e'; self.below(2000)]);
            self.cx.stores.turns.append_events(self.cx.account, None, turn.id, number, &[event], 0).await?;
        }
        self.running.push(turn);
        Ok(())
    }

    async fn end(&mut self) -> Result<()> {
        if self.running.is_empty() {
            return Ok(());
        }
        let which = self.below(self.running.len());
        let turn = self.running.remove(which);
        let (failed, letters) = (self.below(4) == 0, self.below(3000));
        let mut ended = end(&turn);
        match &mut ended.answer {
            Some(answer) if !failed => answer.body = "a".repeat(letters),
            _ => ended = EndTurn { answer: None, state: TurnState::Failed, ..ended },
        }
        self.cx.stores.turns.end(self.cx.account, None, &ended).await?;
        self.ended.push(turn.id);
        Ok(())
    }

    async fn delete(&mut self) -> Result<()> {
        let Some(conversation) = self.any(&self.conversations.clone()) else { return Ok(()) };
        // It is refused while a turn runs.
        if self.cx.stores.conversations.delete(self.cx.account, conversation).await.is_ok() {
            self.conversations.retain(|one| *one != conversation);
        }
        Ok(())
    }

    /// All events of a turn, in batches, as retention does.
    async fn forget(&mut self) -> Result<()> {
        let (Some(turn), limit) = (self.any(&self.ended.clone()), 1 + self.below(3) as u32) else {
            return Ok(());
        };
        let expiry = &self.cx.stores.expiry;
        // Its conversation may be deleted.
        while let Ok(removed) = expiry.forget_events(self.cx.account, turn, "{}", limit).await {
            if removed < u64::from(limit) {
                break;
            }
        }
        Ok(())
    }

    /// Messages from before now, or from before the first turn that runs.
    async fn expire(&mut self) -> Result<()> {
        let first = self.running.iter().map(|turn| turn.created_at).min().filter(|_| self.below(2) == 0);
        let before = first.unwrap_or_else(super::kit::now);
        let (limit, mut after) = (1 + self.below(5) as u32, None);
        loop {
            after = self.cx.stores.expiry.expire_messages(before, after, limit).await?.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// What there is of turns that have ended.
    async fn left(&self) -> Result<u64> {
        let (Cx { stores, account, .. }, mut bytes) = (&self.cx, 0);
        for conversation in &self.conversations {
            let all = Page::first(500);
            let runs = self.running.iter().find(|turn| turn.conversation_id == *conversation);
            let messages =
                stores.messages.list(*account, *conversation, Direction::OldestFirst, &all).await?;
            let counted = messages.items.iter().filter(|one| one.turn_id != runs.map(|turn| turn.id));
            bytes += counted.map(bytes_of).sum::<u64>();
            for turn in stores.turns.list(*account, *conversation, &all).await?.items {
                // Those that are gone are an error.
                let events = stores.turns.events(*account, turn.id, 0, 500).await.unwrap_or_default();
                let of_it: u64 = events.iter().map(|event| event.data.len() as u64).sum();
                bytes += if turn.state == TurnState::Running { 0 } else { of_it };
            }
        }
        Ok(bytes)
    }
}

async fn k5_what_conversations_count_is_what_is_left_of_them_whatever_the_order(cx: Cx) -> Result<()> {
    for seed in 0..8 {
        let (conversations, running, ended) = Default::default();
        let mut life = Life { cx: cx.clone(), random: seed, conversations, running, ended };
        for step in 0..60 {
            life.step().await?;
            let (counted, left) = (cx.stores.stored.total(cx.account).await?, life.left().await?);
            ensure!(counted == left, "seed {seed}, step {step}: {counted} are counted, and {left} are left");
        }
        while !life.running.is_empty() {
            life.end().await?;
        }
        for conversation in life.conversations {
            cx.stores.conversations.delete(cx.account, conversation).await?;
        }
        ensure!(cx.stores.stored.total(cx.account).await? == 0, "seed {seed}");
    }
    Ok(())
}
