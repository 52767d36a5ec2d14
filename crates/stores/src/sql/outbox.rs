//! The outbox.

use super::{
    SqlStore,
    db::Tx,
    statement::statement,
    value::{Row, Value, id, json, maybe_id, micros, values},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::ConversationId;
use seawall_core::{
    Result,
    ports::store::{Delivery, Outbox, OutboxEntry, Task},
};
use std::time::Duration;

statement! {
    listed;
    ADD_NOW: ["INSERT INTO outbox (conversation_id, task, due) VALUES ($1, $2, ", NOW, ") RETURNING id"];
    ADD: ["INSERT INTO outbox (conversation_id, task, due) VALUES ($1, $2, $3) RETURNING id"];
    ADD_AFTER: ["INSERT INTO outbox (conversation_id, task, due) VALUES ($1, $2, ", GREATEST, "(", NOW, ", $3))"];
    FORGET: ["DELETE FROM outbox WHERE conversation_id = $1 RETURNING due"];
    TAKE: ["UPDATE outbox SET due = ", NOW, " + $2, receipt = $3, attempts = attempts + 1
        WHERE id IN (SELECT id FROM outbox WHERE due <= (SELECT ", NOW, ")
            AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.conversation_id = outbox.conversation_id AND o.id < outbox.id)
            ORDER BY due, id LIMIT $1", SKIP_LOCKED, ")
        RETURNING id, task, attempts, last_error"];
    DONE: ["DELETE FROM outbox WHERE id = $1 AND receipt = $2"];
    FAILED: ["UPDATE outbox SET due = ", NOW, " + $3, last_error = $4, receipt = 0 WHERE id = $1 AND receipt = $2"];
    WAITING: ["SELECT CAST(COUNT(*) AS BIGINT), MIN(due) FROM outbox"];
}

pub async fn add(tx: &mut Tx, conversation: Option<ConversationId>, task: &Task) -> Result<u64> {
    let row = tx.row(ADD_NOW, vec![maybe_id(conversation), json(task)?]).await?;
    row.map_or(Ok(0), |row| row.count(0))
}

/// Instead of everything that waits for a conversation, and after what of that is just being done.
pub async fn replace(tx: &mut Tx, conversation: ConversationId, task: &Task) -> Result<()> {
    // Those that somebody has taken are due when they are free again; until then they may still arrive.
    let mut last = 0;
    for row in tx.rows(FORGET, vec![id(conversation)]).await? {
        last = last.max(row.int(0)?);
    }
    tx.run(ADD_AFTER, vec![id(conversation), json(task)?, Value::from(last)]).await.map(drop)
}

fn delivery(row: &Row, receipt: u64) -> Result<Delivery> {
    let entry = OutboxEntry {
        id: row.count(0)?,
        task: row.json(1)?,
        attempts: u32::try_from(row.count(2)?).unwrap_or(u32::MAX),
        last_error: row.maybe_text(3)?,
    };
    Ok(Delivery { entry, receipt })
}

/// What nobody else has. Not zero, and not below it.
pub fn receipt() -> u64 {
    (uuid::Uuid::now_v7().as_u128() as u64 >> 1).max(1)
}

async fn take(tx: &mut Tx, (limit, time, receipt): &(u32, u64, u64)) -> Result<Vec<Delivery>> {
    let rows = tx.rows(TAKE, values![*limit, *time, *receipt]).await?;
    let mut taken = rows.iter().map(|row| delivery(row, *receipt)).collect::<Result<Vec<_>>>()?;
    taken.sort_by_key(|delivery| delivery.entry.id);
    Ok(taken)
}

#[async_trait]
impl Outbox for SqlStore {
    async fn add(&self, task: &Task, due: Timestamp) -> Result<u64> {
        let values = vec![maybe_id(task.line()), json(task)?, Value::from(due)];
        self.db
            .write(values, |tx, values| {
                Box::pin(async move {
                    let row = tx.row(ADD, values.clone()).await?;
                    row.map_or(Ok(0), |row| row.count(0))
                })
            })
            .await
    }

    async fn take(&self, limit: u32, time: Duration) -> Result<Vec<Delivery>> {
        let args = (limit, micros(time), receipt());
        self.db.write(args, |tx, args| Box::pin(take(tx, args))).await
    }

    async fn done(&self, delivery: &Delivery) -> Result<bool> {
        Ok(self.db.run(DONE, values![delivery.entry.id, delivery.receipt]).await? == 1)
    }

    async fn failed(&self, delivery: &Delivery, error: &str, again_in: Duration) -> Result<bool> {
        let values = values![delivery.entry.id, delivery.receipt, micros(again_in), error];
        Ok(self.db.run(FAILED, values).await? == 1)
    }

    async fn waiting(&self) -> Result<(u64, Option<Timestamp>)> {
        match self.db.row(WAITING, Vec::new()).await? {
            Some(row) => Ok((row.count(0)?, row.maybe_time(1)?)),
            None => Ok((0, None)),
        }
    }
}
