//! Conversations, turns, messages.

use super::{MemoryStore, State, newest, oldest};
use crate::{
    Error, Result,
    ports::store::{
        BeginTurn, ConversationFilter, Conversations, Cursor, Day, Direction, EndTurn, Fence, HookUsage,
        Messages, NewConversation, Page, Paged, RunningTurn, SandboxRow, SortBy, TurnEvent, Turns,
        all_tokens, events_gone, just_after, to_micros,
    },
};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, MessageId, SandboxId, TurnId,
    conversation::{Conversation, Message, Stats, Turn, TurnState, Usage},
};

fn no_conversation(id: ConversationId) -> Error {
    Error::not_found(format!("there is no conversation {id}"))
}

fn no_turn(id: TurnId) -> Error {
    Error::not_found(format!("there is no turn {id}"))
}

/// A time behind all that was said in a conversation.
fn after(conversation: &Conversation, time: Timestamp) -> Timestamp {
    match conversation.stats.messages_exchanged {
        0 => to_micros(time),
        _ => to_micros(time).max(just_after(conversation.updated_at)),
    }
}

impl State {
    fn conversation(&mut self, account: AccountId, id: ConversationId) -> Result<&mut Conversation> {
        let found = self.conversations.get_mut(&id).filter(|found| found.account_id == account);
        found.ok_or_else(|| no_conversation(id))
    }

    fn turn(&mut self, account: AccountId, id: TurnId) -> Result<&mut Turn> {
        let found = self.turns.get_mut(&id).filter(|(owner, _)| *owner == account);
        found.map(|(_, turn)| turn).ok_or_else(|| no_turn(id))
    }

    fn put(&mut self, account: AccountId, message: &Message) {
        let key = (account, message.conversation_id, to_micros(message.created_at), message.id);
        let newer = self.messages.get(&key).is_none_or(|there| there.revision < message.revision);
        if newer {
            self.messages.insert(key, message.clone());
        }
    }

    /// What is left of the messages and events of turns that have ended.
    pub(super) fn conversation_bytes(&self, account: AccountId) -> u64 {
        let over = |(owner, turn): &&(AccountId, Turn)| *owner == account && turn.state != TurnState::Running;
        let mut bytes = 0;
        for (_, turn) in self.turns.values().filter(over) {
            bytes +=
                self.events.get(&turn.id).into_iter().flatten().map(|event| event.len() as u64).sum::<u64>();
            let own = |message: &&Message| {
                message.conversation_id == turn.conversation_id
                    && [turn.prompt_id, turn.answer_id].contains(&message.id)
            };
            bytes += self.messages.values().filter(own).map(size).sum::<u64>();
        }
        bytes
    }

    /// V6. One that is gone has no totals.
    fn add_to_sandbox(&mut self, account: AccountId, id: SandboxId, usage: &Usage) {
        let mine = |row: &&mut SandboxRow| row.account_id == account;
        if let Some(row) = self.sandboxes.get_mut(&id).filter(mine) {
            usage.add_to(&mut row.metadata);
            row.version += 1;
        }
    }

    fn running(&mut self, account: AccountId, id: TurnId) -> Result<&mut Turn> {
        let turn = self.turn(account, id)?;
        match turn.state {
            TurnState::Running => Ok(turn),
            state => Err(Error::conflict(format!("turn {id} has ended: {state}"))),
        }
    }
}

#[async_trait]
impl Conversations for MemoryStore {
    async fn ensure(&self, account: AccountId, new: &NewConversation) -> Result<(Conversation, bool)> {
        let mut state = self.state();
        if state.conversations.contains_key(&new.id) {
            return Ok((state.conversation(account, new.id)?.clone(), false));
        }
        let made = Conversation {
            id: new.id,
            account_id: account,
            organization_id: new.organization_id.clone(),
            agent_id: new.agent_id.clone(),
            sandbox_id: new.sandbox_id,
            template: new.template.clone(),
            stats: Stats::default(),
            created_at: to_micros(new.created_at),
            updated_at: to_micros(new.created_at),
        };
        state.conversations.insert(new.id, made.clone());
        Ok((made, true))
    }

    async fn get(&self, account: AccountId, id: ConversationId) -> Result<Conversation> {
        self.state().conversation(account, id).cloned()
    }

    async fn count(&self, account: AccountId) -> Result<u64> {
        let state = self.state();
        Ok(state.conversations.values().filter(|found| found.account_id == account).count() as u64)
    }

    async fn list(
        &self,
        account: AccountId,
        filter: &ConversationFilter,
        page: &Page,
    ) -> Result<Paged<Conversation>> {
        let state = self.state();
        let wanted = |c: &&Conversation| {
            c.account_id == account
                && (filter.organization_id.is_none() || filter.organization_id == c.organization_id)
                && (filter.agent_id.is_none() || filter.agent_id == c.agent_id)
                && (filter.sandbox_id.is_none() || filter.sandbox_id == c.sandbox_id)
        };
        let time = |c: &Conversation| match filter.sort {
            SortBy::Updated => c.updated_at,
            SortBy::Created => c.created_at,
        };
        let found = state.conversations.values().filter(wanted);
        newest(found.map(|c| (Cursor::at(time(c), c.id.as_uuid().as_u128()), c.clone())).collect(), page)
    }

    async fn set_template(
        &self,
        account: AccountId,
        id: ConversationId,
        template: Option<&str>,
        at: Timestamp,
    ) -> Result<()> {
        let mut state = self.state();
        let found = state.conversation(account, id)?;
        found.template = template.map(str::to_owned);
        found.updated_at = found.updated_at.max(to_micros(at));
        Ok(())
    }

    async fn link(
        &self,
        account: AccountId,
        id: ConversationId,
        expected: Option<SandboxId>,
        sandbox: Option<SandboxId>,
        at: Timestamp,
    ) -> Result<()> {
        let mut state = self.state();
        let found = state.conversation(account, id)?;
        if found.sandbox_id == sandbox {
            return Ok(());
        }
        if found.sandbox_id != expected {
            return Err(Error::conflict(format!("conversation {id} is linked to another sandbox")));
        }
        found.sandbox_id = sandbox;
        found.updated_at = found.updated_at.max(to_micros(at));
        Ok(())
    }

    async fn add_usage(&self, account: AccountId, used: &HookUsage) -> Result<bool> {
        let (mut state, usage) = (self.state(), used.usage.capped());
        state.conversation(account, used.conversation_id)?;
        let key = (used.conversation_id, used.name.clone());
        if state.hook_usage.contains_key(&key) {
            return Ok(false);
        }
        state.hook_usage.insert(key, (account, usage, to_micros(used.at)));
        state.add_to_sandbox(account, used.sandbox_id, &usage);
        state.charge(account, Day::of(used.at), all_tokens(&usage));
        let conversation = state.conversation(account, used.conversation_id)?;
        conversation.stats = conversation.stats.plus(&usage);
        conversation.updated_at = conversation.updated_at.max(to_micros(used.at));
        Ok(true)
    }

    async fn delete(&self, account: AccountId, id: ConversationId) -> Result<()> {
        let mut state = self.state();
        if state.conversation(account, id).is_err() {
            return Ok(());
        }
        let of_it: Vec<TurnId> =
            state.turns.values().map(|(_, t)| t).filter(|t| t.conversation_id == id).map(|t| t.id).collect();
        if of_it.iter().any(|turn| state.turns[turn].1.state == TurnState::Running) {
            return Err(Error::conflict(format!("a turn of conversation {id} runs: cancel it first")));
        }
        for turn in of_it {
            state.turns.remove(&turn);
            state.events.remove(&turn);
            state.usage.remove(&turn);
            state.summaries.remove(&turn);
            state.boots.remove(&turn);
        }
        state.hook_usage.retain(|(conversation, _), _| *conversation != id);
        state.messages.retain(|(owner, conversation, ..), _| (*owner, *conversation) != (account, id));
        state.conversations.remove(&id);
        Ok(())
    }
}

#[async_trait]
impl Turns for MemoryStore {
    async fn begin(&self, account: AccountId, fence: Option<&Fence>, new: &BeginTurn) -> Result<Turn> {
        if new.prompt.conversation_id != new.conversation_id || new.prompt.turn_id != Some(new.id) {
            return Err(Error::invalid("the prompt is of another conversation or turn"));
        }
        let (now, mut state) = (self.now(), self.state());
        state.check(fence)?;
        let before = state.conversation(account, new.conversation_id)?.clone();
        if let Some((owner, there)) = state.turns.get(&new.id) {
            let same = *owner == account
                && (there.conversation_id, there.prompt_id) == (new.conversation_id, new.prompt.id);
            let other = || Error::conflict(format!("turn {} exists with another prompt", new.id));
            return if same { Ok(there.clone()) } else { Err(other()) };
        }
        let stands_in_the_way = |owner: AccountId, turn: &Turn| {
            turn.state == TurnState::Running
                && owner == account
                && (turn.conversation_id == new.conversation_id
                    || (new.sandbox_id.is_some() && turn.sandbox_id == new.sandbox_id))
        };
        if state.turns.values().any(|(owner, turn)| stands_in_the_way(*owner, turn)) {
            return Err(Error::conflict("a turn of this conversation, or with its sandbox, runs"));
        }
        let created_at = after(&before, new.created_at);
        let of_it = state.turns.values().filter(|(_, turn)| turn.conversation_id == new.conversation_id);
        let turn = Turn {
            id: new.id,
            conversation_id: new.conversation_id,
            sandbox_id: new.sandbox_id,
            template: new.template.clone(),
            number: of_it.map(|(_, turn)| turn.number).max().unwrap_or(0) + 1,
            state: TurnState::Running,
            error: None,
            prompt_id: new.prompt.id,
            answer_id: new.answer_id,
            usage: None,
            output_offset: 0,
            events: u64::from(new.first_event.is_some()),
            created_at,
            ended_at: None,
            cancelling: false,
        };
        state.turns.insert(new.id, (account, turn.clone()));
        state.boots.extend(new.boot.clone().map(|boot| (new.id, boot)));
        state.events.entry(new.id).or_default().extend(new.first_event.clone());
        if let Some(lease) = &new.lease {
            state.hold(&lease.name, &lease.holder, lease.time, now);
        }
        state.put(
            account,
            &Message { created_at: after(&before, new.prompt.created_at), ..new.prompt.clone() },
        );
        let conversation = state.conversation(account, new.conversation_id)?;
        conversation.stats.messages_exchanged += 1;
        conversation.updated_at = conversation.updated_at.max(created_at);
        Ok(turn)
    }

    async fn end(&self, account: AccountId, fence: Option<&Fence>, end: &EndTurn) -> Result<Conversation> {
        if end.state == TurnState::Running {
            return Err(Error::invalid("a turn does not end as `running`"));
        }
        let mut state = self.state();
        state.check(fence)?;
        let usage = end.usage.capped();
        let turn = state.turn(account, end.id)?;
        let id = turn.conversation_id;
        let foreign = |answer: &Message| answer.conversation_id != id || answer.turn_id != Some(end.id);
        if end.answer.as_ref().is_some_and(foreign) {
            return Err(Error::invalid("the answer is of another conversation or turn"));
        }
        if turn.state == TurnState::Running {
            turn.state = end.state;
            turn.error = end.error.clone();
            turn.usage = Some(usage);
            turn.ended_at = Some(to_micros(end.ended_at));
            let sandbox = turn.sandbox_id;
            state.usage.insert(end.id, usage);
            state.close_charges(account, end.id, all_tokens(&usage), Day::of(end.ended_at));
            if let Some(sandbox) = sandbox {
                state.add_to_sandbox(account, sandbox, &usage);
            }
            if let Some(answer) = &end.answer {
                state.put(account, answer);
            }
            let conversation = state.conversation(account, id)?;
            conversation.stats = conversation.stats.plus(&usage);
            conversation.stats.messages_exchanged += u64::from(end.answer.is_some());
            conversation.updated_at = conversation.updated_at.max(to_micros(end.ended_at));
        }
        state.conversation(account, id).cloned()
    }

    async fn request_cancel(&self, account: AccountId, id: TurnId, _at: Timestamp) -> Result<bool> {
        let mut state = self.state();
        let turn = state.turn(account, id)?;
        turn.cancelling |= turn.state == TurnState::Running;
        Ok(turn.state == TurnState::Running)
    }

    async fn save_answer(&self, account: AccountId, fence: Option<&Fence>, answer: &Message) -> Result<()> {
        let id = answer.turn_id.ok_or_else(|| Error::invalid("the answer names no turn"))?;
        let mut state = self.state();
        state.check(fence)?;
        if state.turn(account, id)?.conversation_id != answer.conversation_id {
            return Err(Error::invalid("the answer is of another conversation than its turn"));
        }
        state.running(account, id)?;
        state.put(account, answer);
        Ok(())
    }

    async fn get(&self, account: AccountId, id: TurnId) -> Result<Turn> {
        self.state().turn(account, id).cloned()
    }

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        page: &Page,
    ) -> Result<Paged<Turn>> {
        let state = self.state();
        let found = state.turns.values().filter(|(o, t)| *o == account && t.conversation_id == conversation);
        let place = |turn: &Turn| Cursor::number(turn.number);
        newest(found.map(|(_, turn)| (place(turn), turn.clone())).collect(), page)
    }

    async fn append_events(
        &self,
        account: AccountId,
        fence: Option<&Fence>,
        id: TurnId,
        first: u64,
        events: &[Bytes],
        output_offset: u64,
    ) -> Result<()> {
        let mut state = self.state();
        state.check(fence)?;
        let there = state.turn(account, id)?.events;
        if first > there {
            return Err(Error::conflict(format!(
                "turn {id} has {there} events: number {first} would leave a gap"
            )));
        }
        if first + events.len() as u64 <= there {
            return Ok(());
        }
        let turn = state.running(account, id)?;
        turn.events = first + events.len() as u64;
        turn.output_offset = turn.output_offset.max(output_offset);
        let new = events[(there - first) as usize..].to_vec();
        state.events.entry(id).or_default().extend(new);
        Ok(())
    }

    async fn event_sizes(&self, account: AccountId, id: TurnId, from: u64, limit: u32) -> Result<Vec<u64>> {
        let events = Turns::events(self, account, id, from, limit).await?;
        Ok(events.iter().map(|event| event.data.len() as u64).collect())
    }

    async fn events(&self, account: AccountId, id: TurnId, from: u64, limit: u32) -> Result<Vec<TurnEvent>> {
        let mut state = self.state();
        state.turn(account, id)?;
        if state.summaries.contains_key(&id) {
            return Err(events_gone(id));
        }
        let all = (0..).zip(state.events.get(&id).into_iter().flatten());
        let wanted = all.skip_while(|(number, _)| *number < from).take(limit as usize);
        Ok(wanted.map(|(number, data)| TurnEvent { number, data: data.clone() }).collect())
    }

    async fn running(&self, page: &Page) -> Result<Paged<RunningTurn>> {
        let state = self.state();
        let found = state.turns.values().filter(|(_, turn)| turn.state == TurnState::Running);
        let row = |(account, turn): &(AccountId, Turn)| RunningTurn {
            id: turn.id,
            account_id: *account,
            sandbox_id: turn.sandbox_id,
            created_at: turn.created_at,
        };
        let place = |turn: &RunningTurn| Cursor::at(turn.created_at, turn.id.as_uuid().as_u128());
        oldest(found.map(row).map(|turn| (place(&turn), turn)).collect(), page)
    }

    async fn running_in(&self, account: AccountId, sandbox: SandboxId) -> Result<Option<TurnId>> {
        let state = self.state();
        let runs = |(owner, turn): &&(AccountId, Turn)| {
            *owner == account && turn.sandbox_id == Some(sandbox) && turn.state == TurnState::Running
        };
        Ok(state.turns.values().find(runs).map(|(_, turn)| turn.id))
    }

    async fn summary(&self, account: AccountId, id: TurnId) -> Result<Option<String>> {
        let mut state = self.state();
        state.turn(account, id)?;
        Ok(state.summaries.get(&id).cloned())
    }

    async fn boot(&self, account: AccountId, id: TurnId) -> Result<Option<String>> {
        let mut state = self.state();
        state.turn(account, id)?;
        Ok(state.boots.get(&id).cloned())
    }
}

fn size(message: &Message) -> u64 {
    serde_json::to_string(message).map_or(0, |text| text.len() as u64)
}

#[async_trait]
impl Messages for MemoryStore {
    async fn put(&self, account: AccountId, messages: &[Message]) -> Result<()> {
        let mut state = self.state();
        messages.iter().for_each(|message| state.put(account, message));
        Ok(())
    }

    async fn get(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<Message> {
        let state = self.state();
        let found =
            state.messages.iter().find(|((a, c, _, m), _)| (*a, *c, *m) == (account, conversation, id));
        let none = || Error::not_found(format!("there is no message {id}"));
        found.map(|(_, message)| message.clone()).ok_or_else(none)
    }

    async fn size(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<u64> {
        Ok(size(&Messages::get(self, account, conversation, id).await?))
    }

    async fn sizes(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Vec<u64>> {
        let found = Messages::list(self, account, conversation, direction, page).await?;
        Ok(found.items.iter().map(size).collect())
    }

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Paged<Message>> {
        let state = self.state();
        let found = state.messages.iter().filter(|((a, c, ..), _)| (*a, *c) == (account, conversation));
        let all =
            found.map(|((_, _, at, id), m)| (Cursor::at(*at, id.as_uuid().as_u128()), m.clone())).collect();
        match direction {
            Direction::OldestFirst => oldest(all, page),
            Direction::NewestFirst => newest(all, page),
        }
    }

    async fn delete_all(&self, account: AccountId, conversation: ConversationId) -> Result<()> {
        let mut state = self.state();
        state.messages.retain(|(a, c, ..), _| (*a, *c) != (account, conversation));
        Ok(())
    }
}
