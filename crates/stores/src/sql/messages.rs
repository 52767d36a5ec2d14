//! Messages in SQL.

use super::{
    SqlStore,
    db::Tx,
    statement::{Sql, statement},
    value::{Row, Value, id, json, page_values},
};
use async_trait::async_trait;
use seawall_api::{AccountId, ConversationId, MessageId, conversation::Message};
use seawall_core::{
    Error, Result,
    ports::store::{Cursor, Direction, Messages, Page, Paged},
};

statement! {
    listed;
    PUT: ["INSERT INTO messages (account_id, conversation_id, created_at, id, revision, content)
        VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (account_id, conversation_id, created_at, id)
        DO UPDATE SET revision = excluded.revision, content = excluded.content WHERE excluded.revision > messages.revision"];
    GET: ["SELECT content FROM messages WHERE account_id = $1 AND conversation_id = $2 AND id = $3"];
    SIZE: ["SELECT CAST(OCTET_LENGTH(content) AS BIGINT) FROM messages WHERE account_id = $1 AND conversation_id = $2 AND id = $3"];
    OLDEST_SIZES: ["SELECT CAST(OCTET_LENGTH(content) AS BIGINT) FROM messages WHERE account_id = $1 AND conversation_id = $2
        AND (created_at, id) > ($3, $4) ORDER BY created_at, id LIMIT $5"];
    NEWEST_SIZES: ["SELECT CAST(OCTET_LENGTH(content) AS BIGINT) FROM messages WHERE account_id = $1 AND conversation_id = $2
        AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5"];
    OLDEST_FIRST: ["SELECT content FROM messages WHERE account_id = $1 AND conversation_id = $2 AND (created_at, id) > ($3, $4)
        ORDER BY created_at, id LIMIT $5"];
    NEWEST_FIRST: ["SELECT content FROM messages WHERE account_id = $1 AND conversation_id = $2 AND (created_at, id) < ($3, $4)
        ORDER BY created_at DESC, id DESC LIMIT $5"];
    DELETE_ALL: ["DELETE FROM messages WHERE account_id = $1 AND conversation_id = $2"];
}

fn row_of(account: AccountId, message: &Message) -> Result<Vec<Value>> {
    Ok(vec![
        id(account),
        id(message.conversation_id),
        Value::from(message.created_at),
        id(message.id),
        Value::from(message.revision),
        json(message)?,
    ])
}

/// How many bytes the row of a message has.
pub fn bytes(message: &Message) -> Result<u64> {
    match json(message)? {
        Value::Text(Some(text)) => Ok(text.len() as u64),
        _ => Err(Error::internal("a message is stored as text")),
    }
}

fn message(row: &Row) -> Result<Message> {
    row.json(0)
}

fn no_message(id: MessageId) -> Error {
    Error::not_found(format!("there is no message {id}"))
}

pub async fn put(tx: &mut Tx, account: AccountId, message: &Message) -> Result<()> {
    tx.run(PUT, row_of(account, message)?).await.map(drop)
}

#[async_trait]
impl Messages for SqlStore {
    async fn put(&self, account: AccountId, messages: &[Message]) -> Result<()> {
        if let [message] = messages {
            return self.db.run(PUT, row_of(account, message)?).await.map(drop);
        }
        self.db
            .write((account, messages.to_vec()), |tx, (account, messages)| {
                Box::pin(async move {
                    for message in messages {
                        put(tx, *account, message).await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn get(
        &self,
        account: AccountId,
        conversation: ConversationId,
        wanted: MessageId,
    ) -> Result<Message> {
        let row = self.db.row(GET, vec![id(account), id(conversation), id(wanted)]).await?;
        message(&row.ok_or_else(|| no_message(wanted))?)
    }

    async fn size(&self, account: AccountId, conversation: ConversationId, wanted: MessageId) -> Result<u64> {
        let row = self.db.row(SIZE, vec![id(account), id(conversation), id(wanted)]).await?;
        row.ok_or_else(|| no_message(wanted))?.count(0)
    }

    async fn sizes(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Vec<u64>> {
        let (sql, beginning): (&'static Sql, _) = match direction {
            Direction::OldestFirst => (OLDEST_SIZES, Cursor::OLDEST),
            Direction::NewestFirst => (NEWEST_SIZES, Cursor::NEWEST),
        };
        self.sizes_of(sql, vec![id(account), id(conversation)], beginning, page).await
    }

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Paged<Message>> {
        page.check()?;
        let (sql, beginning): (&'static Sql, _) = match direction {
            Direction::OldestFirst => (OLDEST_FIRST, Cursor::OLDEST),
            Direction::NewestFirst => (NEWEST_FIRST, Cursor::NEWEST),
        };
        let mut values = vec![id(account), id(conversation)];
        values.extend(page_values(page, beginning));
        let rows = self.db.rows(sql, values).await?;
        let found = rows.iter().map(message).collect::<Result<Vec<_>>>()?;
        Ok(Paged::cut(found, page.limit, |message| {
            Cursor::at(message.created_at, message.id.as_uuid().as_u128())
        }))
    }

    async fn delete_all(&self, account: AccountId, conversation: ConversationId) -> Result<()> {
        self.db.run(DELETE_ALL, vec![id(account), id(conversation)]).await.map(drop)
    }
}
