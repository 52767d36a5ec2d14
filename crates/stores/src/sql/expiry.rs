//! Retention: each statement removes a bounded number of rows that an index finds.

use super::{
    SqlStore, conversation_bytes,
    db::Tx,
    statement::statement,
    value::{Row, Value, id, micros, page_values, values},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ConversationId, MessageId, SandboxId, TurnId};
use seawall_core::{
    Error, Result,
    ports::store::{Cursor, Expiry, Page, Paged, Walked},
};
use std::{collections::BTreeMap, time::Duration};
use uuid::Uuid;

/// How many conversations one batch looks for messages in.
const LOOKED_AT: u32 = 100;

statement! {
    listed;
    ENDED_LEASES: ["DELETE FROM leases WHERE name IN (SELECT name FROM leases WHERE expires_at > 0 AND expires_at < (SELECT ", NOW, ") - $1
        ORDER BY expires_at LIMIT $2) AND expires_at > 0 AND expires_at < ", NOW, " - $1"];
    // What was given back has the time of that, below zero.
    RELEASED_LEASES: ["DELETE FROM leases WHERE name IN (SELECT name FROM leases WHERE expires_at <= 0 AND expires_at > $1 - (SELECT ", NOW, ")
        ORDER BY expires_at DESC LIMIT $2) AND expires_at <= 0 AND expires_at > $1 - ", NOW];
    HOOK_RUNS: ["DELETE FROM hook_runs WHERE id IN (SELECT id FROM hook_runs WHERE began_at < $1 ORDER BY began_at LIMIT $2)"];
    SESSIONS: ["DELETE FROM sessions WHERE (account_id, scope, scope_id) IN
        (SELECT account_id, scope, scope_id FROM sessions WHERE last_used_at < $1 ORDER BY last_used_at LIMIT $2) AND last_used_at < $1"];
    ENDED_SANDBOXES: ["SELECT s.id, s.ended_at, CAST(CASE WHEN EXISTS (SELECT 1 FROM conversations c WHERE c.account_id = s.account_id
        AND c.sandbox_id = s.id) OR s.has_versions = 1 THEN 1 ELSE 0 END AS BIGINT) FROM sandboxes s WHERE s.state = 'terminated'
        AND s.ended_at < (SELECT ", NOW, ") - $1 AND (s.ended_at, s.id) > ($2, $3) ORDER BY s.ended_at, s.id LIMIT $4"];
    // It may have been made again meanwhile.
    REMOVE_SANDBOX: ["DELETE FROM sandboxes WHERE id = $1 AND state = 'terminated' AND ended_at = $2"];
    TURNS: ["SELECT account_id, id FROM turns WHERE ended_at IS NOT NULL AND forgotten = 0 AND ended_at < $1 ORDER BY ended_at, id LIMIT $2"];
    SUMMARIZE: ["UPDATE turns SET summary = COALESCE(summary, $3) WHERE id = $2 AND account_id = $1 AND ended_at IS NOT NULL
        RETURNING event_bytes"];
    OF_TURN: ["SELECT conversation_id FROM turns WHERE id = $2 AND account_id = $1"];
    EVENTS: ["DELETE FROM turn_events WHERE turn_id = $1 AND number IN
        (SELECT number FROM turn_events WHERE turn_id = $1 ORDER BY number LIMIT $2)"];
    FORGOTTEN: ["UPDATE turns SET forgotten = 1, event_bytes = 0 WHERE id = $2 AND account_id = $1"];
    CONVERSATIONS: ["SELECT account_id, id, updated_at FROM conversations WHERE updated_at < $1 AND (updated_at, id) > ($2, $3)
        ORDER BY updated_at, id LIMIT $4"];
    WITH_MESSAGES: ["SELECT account_id, id FROM conversations WHERE id > $1 ORDER BY id LIMIT $2"];
    HAS_OLD: ["SELECT id FROM messages WHERE account_id = $1 AND conversation_id = $2 AND created_at < $3 LIMIT 1"];
    MESSAGES: ["DELETE FROM messages WHERE account_id = $1 AND conversation_id = $2 AND (created_at, id) IN
        (SELECT created_at, id FROM messages WHERE account_id = $1 AND conversation_id = $2 AND created_at < $3
        ORDER BY created_at, id LIMIT $4) RETURNING id, CAST(OCTET_LENGTH(content) AS BIGINT)"];
    RUNNING: ["SELECT prompt_id, answer_id FROM turns WHERE conversation_id = $1 AND state = 'running'"];
    WITHOUT_PROMPT: ["UPDATE turns SET prompt_bytes = 0 WHERE conversation_id = $1 AND state = 'running'"];
    WITH_VERSIONS: ["SELECT s.account_id, s.id, s.ended_at FROM sandboxes s WHERE s.state = 'terminated'
        AND s.ended_at < (SELECT ", NOW, ") - $1 AND (s.ended_at, s.id) > ($2, $3) AND s.has_versions = 1
        AND NOT EXISTS (SELECT 1 FROM conversations c WHERE c.account_id = s.account_id AND c.sandbox_id = s.id)
        ORDER BY s.ended_at, s.id LIMIT $4"];
}

fn pair<A: TryFrom<Uuid>, B: TryFrom<Uuid>>(row: &Row) -> Result<(A, B)> {
    Ok((row.id(0)?, row.id(1)?))
}

/// Of rows with an account, an id and a time.
fn paged<T: TryFrom<Uuid>>(
    rows: &[Row],
    limit: u32,
    number: impl Fn(&T) -> Uuid,
) -> Result<Paged<(AccountId, T)>> {
    let found = rows.iter().map(|row| Ok((row.int(2)?, pair(row)?))).collect::<Result<Vec<_>>>()?;
    let place = |(at, (_, id)): &(i64, (AccountId, T))| Cursor { key: *at, id: number(id).as_u128() };
    let paged = Paged::cut(found, limit, place);
    Ok(Paged { items: paged.items.into_iter().map(|(_, found)| found).collect(), next: paged.next })
}

/// Age, where the batch begins, and its size.
type Batch = (u64, Cursor, u32);

async fn expire_sandboxes(tx: &mut Tx, (age, after, limit): &Batch) -> Result<Walked> {
    let place = [Value::from(after.key), Value::from(after.id.to_be_bytes().as_slice())];
    let rows =
        tx.rows(ENDED_SANDBOXES, [&[Value::from(*age)], &place[..], &[Value::from(*limit)]].concat()).await?;
    let mut walked = Walked::default();
    for row in &rows {
        let (ended, ended_at): (SandboxId, i64) = (row.id(0)?, row.int(1)?);
        if !row.flag(2)? {
            walked.removed += tx.run(REMOVE_SANDBOX, vec![id(ended), Value::from(ended_at)]).await?;
        }
        walked.next = Some(Cursor { key: ended_at, id: ended.as_uuid().as_u128() });
    }
    if rows.len() < *limit as usize {
        walked.next = None;
    }
    Ok(walked)
}

async fn forget(tx: &mut Tx, args: &(AccountId, TurnId, String, u32)) -> Result<u64> {
    let (account, turn, summary, limit) = args;
    let key = vec![id(*account), id(*turn)];
    let unfit = || Error::conflict(format!("turn {turn} is not there, or still runs"));
    let row = tx.row(OF_TURN, key.clone()).await?.ok_or_else(unfit)?;
    // Before the turn, as a deletion of the conversation does.
    let conversation = conversation_bytes::lock(tx, *account, row.id(0)?).await?.ok_or_else(unfit)?;
    let row = tx.row(SUMMARIZE, [key.clone(), values![summary.as_str()]].concat()).await?;
    let bytes = row.ok_or_else(unfit)?.count(0)?;
    let removed = tx.run(EVENTS, vec![id(*turn), Value::from(*limit)]).await?;
    if removed < u64::from(*limit) {
        tx.run(FORGOTTEN, key).await?;
        let taken = conversation.take(tx, bytes).await?;
        conversation_bytes::remove(tx, *account, taken).await?;
    }
    Ok(removed)
}

/// Time, the conversation before, and how many.
type Older = (Timestamp, u128, u32);

async fn expire_messages(tx: &mut Tx, (before, after, limit): &Older) -> Result<Walked> {
    let place = vec![Value::from(after.to_be_bytes().as_slice()), Value::from(LOOKED_AT)];
    let rows = tx.rows(WITH_MESSAGES, place).await?;
    let mut walked = Walked { removed: 0, next: Some(Cursor { key: 0, id: *after }) };
    // In the order of accounts, in which every transaction locks their rows.
    let (mut freed, mut is_full) = (BTreeMap::<AccountId, u64>::new(), false);
    for row in &rows {
        let (account, conversation): (AccountId, ConversationId) = pair(row)?;
        let left = u64::from(*limit).saturating_sub(walked.removed);
        let (removed, bytes) = remove_messages(tx, account, conversation, *before, left).await?;
        walked.removed += removed;
        *freed.entry(account).or_default() += bytes;
        // There may be more of it.
        is_full = removed == left;
        if is_full {
            break;
        }
        walked.next = Some(Cursor { key: 0, id: conversation.as_uuid().as_u128() });
    }
    if rows.len() < LOOKED_AT as usize && !is_full {
        walked.next = None;
    }
    for (account, bytes) in freed {
        conversation_bytes::remove(tx, account, bytes).await?;
    }
    Ok(walked)
}

/// Removes up to `limit` messages of a conversation from before a time. Returns how many, and what they counted.
async fn remove_messages(
    tx: &mut Tx,
    account: AccountId,
    conversation: ConversationId,
    before: Timestamp,
    limit: u64,
) -> Result<(u64, u64)> {
    let old = [vec![id(account), id(conversation)], values![before]].concat();
    if tx.row(HAS_OLD, old.clone()).await?.is_none() {
        return Ok((0, 0));
    }
    // It may have been deleted meanwhile.
    let Some(locked) = conversation_bytes::lock(tx, account, conversation).await? else { return Ok((0, 0)) };
    let running = tx.row(RUNNING, vec![id(conversation)]).await?;
    let running = running.map(|row| pair::<MessageId, MessageId>(&row)).transpose()?;
    let removed = tx.rows(MESSAGES, [old, values![limit]].concat()).await?;
    let mut bytes = 0;
    for row in &removed {
        let message: MessageId = row.id(0)?;
        match running {
            // What a running turn has is counted at its end, and its prompt is not there then.
            Some((prompt, _)) if prompt == message => {
                tx.run(WITHOUT_PROMPT, vec![id(conversation)]).await?;
            }
            Some((_, answer)) if answer == message => {}
            _ => bytes += row.count(1)?,
        }
    }
    Ok((removed.len() as u64, locked.take(tx, bytes).await?))
}

#[async_trait]
impl Expiry for SqlStore {
    async fn expire_leases(&self, age: Duration, limit: u32) -> Result<u64> {
        let values = values![micros(age), limit];
        let ended = self.db.run(ENDED_LEASES, values.clone()).await?;
        Ok(ended + self.db.run(RELEASED_LEASES, values).await?)
    }

    async fn expire_hook_runs(&self, before: Timestamp, limit: u32) -> Result<u64> {
        self.db.run(HOOK_RUNS, values![before, limit]).await
    }

    async fn expire_sessions(&self, before: Timestamp, limit: u32) -> Result<u64> {
        self.db.run(SESSIONS, values![before, limit]).await
    }

    async fn expire_sandboxes(&self, age: Duration, after: Option<Cursor>, limit: u32) -> Result<Walked> {
        let batch = (micros(age), after.unwrap_or(Cursor::OLDEST), limit);
        self.db.write(batch, |tx, batch| Box::pin(expire_sandboxes(tx, batch))).await
    }

    async fn turns_with_events(&self, before: Timestamp, limit: u32) -> Result<Vec<(AccountId, TurnId)>> {
        self.db.rows(TURNS, values![before, limit]).await?.iter().map(pair).collect()
    }

    async fn forget_events(
        &self,
        account: AccountId,
        turn: TurnId,
        summary: &str,
        limit: u32,
    ) -> Result<u64> {
        let args = (account, turn, summary.to_owned(), limit);
        self.db.write(args, |tx, args| Box::pin(forget(tx, args))).await
    }

    async fn idle_conversations(
        &self,
        before: Timestamp,
        page: &Page,
    ) -> Result<Paged<(AccountId, ConversationId)>> {
        page.check()?;
        let values = [&values![before][..], &page_values(page, Cursor::OLDEST)].concat();
        let rows = self.db.rows(CONVERSATIONS, values).await?;
        paged(&rows, page.limit, ConversationId::as_uuid)
    }

    async fn expire_messages(&self, before: Timestamp, after: Option<Cursor>, limit: u32) -> Result<Walked> {
        let args = (before, after.map_or(0, |cursor| cursor.id), limit);
        self.db.write(args, |tx, args| Box::pin(expire_messages(tx, args))).await
    }

    async fn ended_with_versions(&self, age: Duration, page: &Page) -> Result<Paged<(AccountId, SandboxId)>> {
        page.check()?;
        let values = [&values![micros(age)][..], &page_values(page, Cursor::OLDEST)].concat();
        paged(&self.db.rows(WITH_VERSIONS, values).await?, page.limit, SandboxId::as_uuid)
    }
}
