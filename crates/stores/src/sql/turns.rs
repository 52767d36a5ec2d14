//! Turns and the ledger.

use super::{
    SqlStore, conversation_bytes,
    conversations::lock,
    db::Tx,
    leases, messages, outbox, sandboxes,
    statement::statement,
    tokens,
    value::{Row, Value, id, maybe_id, page_values, values},
};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, ErrorKind, SandboxId, TurnId,
    conversation::{Conversation, Message, Turn, TurnState, Usage},
};
use seawall_core::{
    Error, Result,
    ports::store::{
        BeginTurn, Cursor, Day, EndTurn, Fence, Page, Paged, RunningTurn, Task, TurnEvent, Turns,
        events_gone, just_after, to_micros,
    },
};

statement! {
    listed;
    GET: ["SELECT t.id, t.conversation_id, t.sandbox_id, t.template, t.number, t.state, t.error, t.prompt_id, t.answer_id,
        t.output_offset, t.events, t.created_at, t.ended_at, t.account_id, u.input_tokens, u.output_tokens, u.cache_tokens, t.cancel_at
        FROM turns t LEFT JOIN turn_usage u ON u.turn_id = t.id WHERE t.id = $2 AND t.account_id = $1"];
    LOCK: ["SELECT conversation_id, state, events, sandbox_id, prompt_bytes + event_bytes FROM turns WHERE id = $2 AND account_id = $1", FOR_UPDATE];
    // The last number, and whether the turn is there already.
    BEFORE: ["SELECT CAST(COALESCE((SELECT MAX(number) FROM turns WHERE conversation_id = $3), 0) AS BIGINT),
        CAST((SELECT COUNT(*) FROM turns WHERE id = $2 AND account_id = $1) AS BIGINT)"];
    INSERT: ["INSERT INTO turns (id, account_id, conversation_id, sandbox_id, template, number, state, prompt_id, answer_id, created_at, events,
        boot, prompt_bytes, event_bytes) VALUES ($1, $2, $3, $4, $5, $6, 'running', $7, $8, $9, $10, $11, $12, $13)"];
    COUNT_MESSAGE: ["UPDATE conversations SET messages_exchanged = messages_exchanged + 1, updated_at = ", GREATEST, "(updated_at, $3)
        WHERE id = $2 AND account_id = $1"];
    END: ["UPDATE turns SET state = $3, error = $4, ended_at = $5 WHERE id = $2 AND account_id = $1"];
    CANCEL: ["UPDATE turns SET cancel_at = COALESCE(cancel_at, $3) WHERE id = $2 AND account_id = $1 AND state = 'running'"];
    ADD_USAGE: ["INSERT INTO turn_usage (turn_id, account_id, conversation_id, input_tokens, output_tokens, cache_tokens, answered, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (turn_id) DO NOTHING"];
    ADD_TOTALS: ["UPDATE conversations SET input_tokens = input_tokens + $3, output_tokens = output_tokens + $4,
        cache_tokens = cache_tokens + $5, messages_exchanged = messages_exchanged + $6, updated_at = ", GREATEST, "(updated_at, $7),
        stored_bytes = stored_bytes + $8 WHERE id = $2 AND account_id = $1"];
    LIST: ["SELECT t.id, t.conversation_id, t.sandbox_id, t.template, t.number, t.state, t.error, t.prompt_id, t.answer_id,
        t.output_offset, t.events, t.created_at, t.ended_at, t.account_id, u.input_tokens, u.output_tokens, u.cache_tokens, t.cancel_at
        FROM turns t LEFT JOIN turn_usage u ON u.turn_id = t.id
        WHERE t.conversation_id = $2 AND t.account_id = $1 AND t.number < $3 ORDER BY t.number DESC LIMIT $4"];
    ADD_EVENT: ["INSERT INTO turn_events (turn_id, number, data) VALUES ($1, $2, $3)"];
    SET_EVENTS: ["UPDATE turns SET events = $3, output_offset = ", GREATEST, "(output_offset, $4), event_bytes = event_bytes + $5 WHERE id = $2 AND account_id = $1"];
    EVENTS: ["SELECT e.number, e.data FROM turn_events e WHERE e.turn_id = $2 AND e.number >= $3
        AND EXISTS (SELECT 1 FROM turns t WHERE t.id = $2 AND t.account_id = $1 AND t.summary IS NULL) ORDER BY e.number LIMIT $4"];
    SUMMARY: ["SELECT summary FROM turns WHERE id = $2 AND account_id = $1"];
    RUNNING: ["SELECT id, account_id, sandbox_id, created_at FROM turns WHERE state = 'running' AND (created_at, id) > ($1, $2)
        ORDER BY created_at, id LIMIT $3"];
    RUNNING_IN: ["SELECT id FROM turns WHERE account_id = $1 AND sandbox_id = $2 AND state = 'running'"];
    BOOT: ["SELECT boot FROM turns WHERE id = $2 AND account_id = $1"];
    EVENT_SIZES: ["SELECT CAST(OCTET_LENGTH(e.data) AS BIGINT) FROM turn_events e WHERE e.turn_id = $2 AND e.number >= $3
        AND EXISTS (SELECT 1 FROM turns t WHERE t.id = $2 AND t.account_id = $1) ORDER BY e.number LIMIT $4"];
}

fn turn(row: &Row) -> Result<Turn> {
    let usage = match row.maybe_int(14)? {
        Some(_) => Some(Usage {
            input_tokens: row.count(14)?,
            output_tokens: row.count(15)?,
            cache_tokens: row.count(16)?,
        }),
        None => None,
    };
    Ok(Turn {
        id: row.id(0)?,
        conversation_id: row.id(1)?,
        sandbox_id: row.maybe_id(2)?,
        template: row.maybe_text(3)?,
        number: row.count(4)?,
        state: row.word(5)?,
        error: row.maybe_text(6)?,
        prompt_id: row.id(7)?,
        answer_id: row.id(8)?,
        usage,
        output_offset: row.count(9)?,
        events: row.count(10)?,
        created_at: row.time(11)?,
        ended_at: row.maybe_time(12)?,
        cancelling: row.maybe_int(17)?.is_some(),
    })
}

fn running(row: &Row) -> Result<RunningTurn> {
    Ok(RunningTurn {
        id: row.id(0)?,
        account_id: row.id(1)?,
        sandbox_id: row.maybe_id(2)?,
        created_at: row.time(3)?,
    })
}

fn no_turn(turn: TurnId) -> Error {
    Error::not_found(format!("there is no turn {turn}"))
}

/// What a transaction of a turn is about.
struct Args<T> {
    account: AccountId,
    fence: Option<Fence>,
    messages_here: bool,
    what: T,
}

impl<T> Args<T> {
    /// A message into its table, or on its way to its store.
    async fn store(&self, tx: &mut Tx, message: &Message) -> Result<()> {
        match self.messages_here {
            true => messages::put(tx, self.account, message).await,
            false => {
                let task = Task::PutMessage { account: self.account, message: Box::new(message.clone()) };
                outbox::add(tx, Some(message.conversation_id), &task).await.map(drop)
            }
        }
    }
}

async fn begin(tx: &mut Tx, args: &Args<BeginTurn>) -> Result<Turn> {
    let (account, new) = (args.account, &args.what);
    let key = || vec![id(account), id(new.id)];
    leases::check(tx, args.fence.as_ref()).await?;
    // Turns of one conversation come one after the other from here on.
    let conversation = lock(tx, account, new.conversation_id).await?;
    let before = tx.row(BEFORE, [key(), vec![id(new.conversation_id)]].concat()).await?;
    let before = before.ok_or_else(|| Error::internal("a query without an answer"))?;
    if before.count(1)? > 0 {
        let there = tx.row(GET, key()).await?;
        return same_turn(new, turn(&there.ok_or_else(|| no_turn(new.id))?)?);
    }
    let number = before.count(0)? + 1;
    let new = &behind(&conversation, new);
    insert(tx, account, number, new).await?;
    let counted = vec![id(account), id(new.conversation_id), Value::from(new.created_at)];
    tx.run(COUNT_MESSAGE, counted).await?;
    args.store(tx, &new.prompt).await?;
    if let Some(lease) = &new.lease {
        // Nobody else has one of a turn that was not there.
        leases::acquire(tx, &lease.name, &lease.holder, lease.time).await?;
    }
    Ok(begun(number, new))
}

/// A turn with times behind all that was said in its conversation.
fn behind(conversation: &Conversation, new: &BeginTurn) -> BeginTurn {
    if conversation.stats.messages_exchanged == 0 {
        return new.clone();
    }
    let least = just_after(conversation.updated_at);
    let prompt = Message { created_at: to_micros(new.prompt.created_at).max(least), ..new.prompt.clone() };
    BeginTurn { created_at: to_micros(new.created_at).max(least), prompt, ..new.clone() }
}

async fn insert(tx: &mut Tx, account: AccountId, number: u64, new: &BeginTurn) -> Result<()> {
    let values = vec![
        id(new.id),
        id(account),
        id(new.conversation_id),
        maybe_id(new.sandbox_id),
        Value::from(&new.template),
        Value::from(number),
        id(new.prompt.id),
        id(new.answer_id),
        Value::from(new.created_at),
        Value::from(new.first_event.is_some()),
        Value::from(&new.boot),
        Value::from(messages::bytes(&new.prompt)?),
        Value::from(new.first_event.as_ref().map_or(0, |event| event.len() as u64)),
    ];
    match tx.run(INSERT, values).await {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(Error::conflict(
                "a turn of this conversation, or with its sandbox, runs: wait for it, or cancel it",
            ));
        }
        other => other.map(drop)?,
    }
    match &new.first_event {
        Some(event) => tx
            .run(ADD_EVENT, vec![id(new.id), Value::from(0_u64), Value::from(event.as_ref())])
            .await
            .map(drop),
        None => Ok(()),
    }
}

/// As its row is.
fn begun(number: u64, new: &BeginTurn) -> Turn {
    Turn {
        id: new.id,
        conversation_id: new.conversation_id,
        sandbox_id: new.sandbox_id,
        template: new.template.clone(),
        number,
        state: TurnState::Running,
        error: None,
        usage: None,
        prompt_id: new.prompt.id,
        answer_id: new.answer_id,
        output_offset: 0,
        events: u64::from(new.first_event.is_some()),
        created_at: to_micros(new.created_at),
        ended_at: None,
        cancelling: false,
    }
}

fn same_turn(new: &BeginTurn, there: Turn) -> Result<Turn> {
    let same = (there.conversation_id, there.prompt_id) == (new.conversation_id, new.prompt.id);
    match same {
        true => Ok(there),
        false => Err(Error::conflict(format!("turn {} exists with another prompt", new.id))),
    }
}

async fn end(tx: &mut Tx, args: &Args<EndTurn>) -> Result<Conversation> {
    let (account, end) = (args.account, &args.what);
    let key = || vec![id(account), id(end.id)];
    leases::check(tx, args.fence.as_ref()).await?;
    let row = tx.row(LOCK, key()).await?.ok_or_else(|| no_turn(end.id))?;
    let (conversation, sandbox): (ConversationId, Option<SandboxId>) = (row.id(0)?, row.maybe_id(3)?);
    let stored = row.count(4)? + end.answer.as_ref().map_or(Ok(0), messages::bytes)?;
    if end.answer.as_ref().is_some_and(|answer| answer.conversation_id != conversation) {
        return Err(Error::invalid("the answer is of another conversation than its turn"));
    }
    // The totals are for a conversation what the row is for its turn.
    let totals = vec![
        id(account),
        id(conversation),
        Value::from(end.usage.input_tokens),
        Value::from(end.usage.output_tokens),
        Value::from(end.usage.cache_tokens),
        Value::from(end.answer.is_some()),
        Value::from(end.ended_at),
    ];
    let row = [vec![id(end.id)], totals.clone()].concat();
    if tx.run(ADD_USAGE, row).await? == 1 {
        tx.run(ADD_TOTALS, [totals, values![stored]].concat()).await?;
        let state = [key(), values![end.state.as_str(), &end.error, end.ended_at]].concat();
        tx.run(END, state).await?;
        if let Some(sandbox) = sandbox {
            sandboxes::add_usage(tx, account, sandbox, &end.usage).await?;
        }
        tokens::close(tx, account, end.id, &end.usage, Day::of(end.ended_at)).await?;
        if let Some(answer) = &end.answer {
            args.store(tx, answer).await?;
        }
        conversation_bytes::add(tx, account, stored).await?;
    }
    lock(tx, account, conversation).await
}

async fn save_answer(tx: &mut Tx, args: &Args<(TurnId, Message)>) -> Result<()> {
    let (turn, answer) = &args.what;
    leases::check(tx, args.fence.as_ref()).await?;
    let row = tx.row(LOCK, vec![id(args.account), id(*turn)]).await?.ok_or_else(|| no_turn(*turn))?;
    if row.id::<ConversationId>(0)? != answer.conversation_id {
        return Err(Error::invalid("the answer is of another conversation than its turn"));
    }
    is_running(*turn, &row)?;
    args.store(tx, answer).await
}

fn is_running(turn: TurnId, row: &Row) -> Result<()> {
    match row.word(1)? {
        TurnState::Running => Ok(()),
        state => Err(Error::conflict(format!("turn {turn} has ended: {state}"))),
    }
}

/// Events from a number on, and how far output was read.
type Appended = (TurnId, u64, Vec<Bytes>, u64);

async fn append_events(tx: &mut Tx, args: &Args<Appended>) -> Result<()> {
    let (turn, first, events, output_offset) = &args.what;
    let key = vec![id(args.account), id(*turn)];
    leases::check(tx, args.fence.as_ref()).await?;
    let row = tx.row(LOCK, key.clone()).await?.ok_or_else(|| no_turn(*turn))?;
    let (there, after) = (row.count(2)?, first.saturating_add(events.len() as u64));
    if *first > there {
        return Err(Error::conflict(format!(
            "turn {turn} has {there} events: number {first} would leave a gap"
        )));
    }
    if after <= there {
        return Ok(());
    }
    is_running(*turn, &row)?;
    let mut bytes = 0;
    for (number, data) in (*first..).zip(events).skip((there - first) as usize) {
        bytes += data.len() as u64;
        tx.run(ADD_EVENT, vec![id(*turn), Value::from(number), Value::from(data.as_ref())]).await?;
    }
    tx.run(SET_EVENTS, [key, values![after, *output_offset, bytes]].concat()).await.map(drop)
}

impl SqlStore {
    fn args<T>(&self, account: AccountId, fence: Option<&Fence>, what: T) -> Args<T> {
        Args { account, fence: fence.cloned(), messages_here: self.messages_here, what }
    }
}

#[async_trait]
impl Turns for SqlStore {
    async fn begin(&self, account: AccountId, fence: Option<&Fence>, turn: &BeginTurn) -> Result<Turn> {
        check_prompt(turn)?;
        let args = self.args(account, fence, turn.clone());
        self.db.write(args, |tx, args| Box::pin(begin(tx, args))).await
    }

    async fn end(&self, account: AccountId, fence: Option<&Fence>, what: &EndTurn) -> Result<Conversation> {
        if what.state == TurnState::Running {
            return Err(Error::invalid("a turn does not end as `running`"));
        }
        check_answer(what)?;
        let args = self.args(account, fence, EndTurn { usage: what.usage.capped(), ..what.clone() });
        self.db.write(args, |tx, args| Box::pin(end(tx, args))).await
    }

    async fn request_cancel(&self, account: AccountId, wanted: TurnId, at: Timestamp) -> Result<bool> {
        match self.db.run(CANCEL, vec![id(account), id(wanted), Value::from(at)]).await? {
            // Over already, or not this account's.
            0 => Turns::get(self, account, wanted).await.map(|_| false),
            _ => Ok(true),
        }
    }

    async fn save_answer(&self, account: AccountId, fence: Option<&Fence>, answer: &Message) -> Result<()> {
        let turn = answer.turn_id.ok_or_else(|| Error::invalid("the answer names no turn"))?;
        let args = self.args(account, fence, (turn, answer.clone()));
        self.db.write(args, |tx, args| Box::pin(save_answer(tx, args))).await
    }

    async fn get(&self, account: AccountId, wanted: TurnId) -> Result<Turn> {
        let row = self.db.row(GET, vec![id(account), id(wanted)]).await?;
        turn(&row.ok_or_else(|| no_turn(wanted))?)
    }

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        page: &Page,
    ) -> Result<Paged<Turn>> {
        page.check()?;
        let before = page.after.map_or(i64::MAX, |cursor| cursor.key);
        let values = vec![id(account), id(conversation), Value::from(before), Value::from(page.limit + 1)];
        let rows = self.db.rows(LIST, values).await?;
        let turns = rows.iter().map(turn).collect::<Result<Vec<_>>>()?;
        let place = |turn: &Turn| Cursor::number(turn.number);
        Ok(Paged::cut(turns, page.limit, place))
    }

    async fn append_events(
        &self,
        account: AccountId,
        fence: Option<&Fence>,
        turn: TurnId,
        first: u64,
        events: &[Bytes],
        output_offset: u64,
    ) -> Result<()> {
        let args = self.args(account, fence, (turn, first, events.to_vec(), output_offset));
        // Waiting for the disk would hold up each word of an answer. The end of the turn brings them there.
        self.db.write_lazily(args, |tx, args| Box::pin(append_events(tx, args))).await
    }

    async fn event_sizes(&self, account: AccountId, turn: TurnId, from: u64, limit: u32) -> Result<Vec<u64>> {
        let values = vec![id(account), id(turn), Value::from(from), Value::from(limit)];
        self.db.rows(EVENT_SIZES, values).await?.iter().map(|row| row.count(0)).collect()
    }

    async fn events(
        &self,
        account: AccountId,
        turn: TurnId,
        from: u64,
        limit: u32,
    ) -> Result<Vec<TurnEvent>> {
        let values = vec![id(account), id(turn), Value::from(from), Value::from(limit)];
        let rows = self.db.rows(EVENTS, values).await?;
        // None yet, or gone, or not this account's.
        if rows.is_empty() && self.summary(account, turn).await?.is_some() {
            return Err(events_gone(turn));
        }
        rows.iter().map(|row| Ok(TurnEvent { number: row.count(0)?, data: row.bytes(1)?.into() })).collect()
    }

    async fn running(&self, page: &Page) -> Result<Paged<RunningTurn>> {
        page.check()?;
        let rows = self.db.rows(RUNNING, page_values(page, Cursor::OLDEST).to_vec()).await?;
        let found = rows.iter().map(running).collect::<Result<Vec<_>>>()?;
        Ok(Paged::cut(found, page.limit, |turn| Cursor::at(turn.created_at, turn.id.as_uuid().as_u128())))
    }

    async fn running_in(&self, account: AccountId, sandbox: SandboxId) -> Result<Option<TurnId>> {
        let row = self.db.row(RUNNING_IN, vec![id(account), id(sandbox)]).await?;
        row.map(|row| row.id(0)).transpose()
    }

    async fn summary(&self, account: AccountId, wanted: TurnId) -> Result<Option<String>> {
        let row = self.db.row(SUMMARY, vec![id(account), id(wanted)]).await?;
        row.ok_or_else(|| no_turn(wanted))?.maybe_text(0)
    }

    async fn boot(&self, account: AccountId, wanted: TurnId) -> Result<Option<String>> {
        let row = self.db.row(BOOT, vec![id(account), id(wanted)]).await?;
        row.ok_or_else(|| no_turn(wanted))?.maybe_text(0)
    }
}

fn check_answer(end: &EndTurn) -> Result<()> {
    match &end.answer {
        Some(answer) if answer.turn_id != Some(end.id) => {
            Err(Error::invalid("the answer is of another turn"))
        }
        _ => Ok(()),
    }
}

fn check_prompt(new: &BeginTurn) -> Result<()> {
    let prompt = &new.prompt;
    match prompt.conversation_id == new.conversation_id && prompt.turn_id == Some(new.id) {
        true => Ok(()),
        false => Err(Error::invalid("the prompt is of another conversation or turn")),
    }
}
