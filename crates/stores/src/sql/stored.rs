//! Bytes in buckets, by account and place. The row `conversations` of an account is no place: see `conversation_bytes`.

use super::{
    SqlStore,
    db::Tx,
    statement::statement,
    value::{Row, Value, id, values},
};
use async_trait::async_trait;
use seawall_api::AccountId;
use seawall_core::{
    Error, Result,
    ports::store::{Stored, StoredPlace},
};
use uuid::Uuid;

statement! {
    listed;
    ADD: ["INSERT INTO stored_bytes (account_id, place, bytes, listings) VALUES ($1, $2, ", GREATEST, "(0, CAST($3 AS BIGINT)), 0)
        ON CONFLICT (account_id, place) DO UPDATE SET bytes = ", GREATEST, "(0, stored_bytes.bytes + CAST($3 AS BIGINT)) RETURNING listings"];
    SET: ["INSERT INTO stored_bytes (account_id, place, bytes, listings) VALUES ($1, $2, $3, 1)
        ON CONFLICT (account_id, place) DO UPDATE SET bytes = excluded.bytes, listings = stored_bytes.listings + 1"];
    TOTAL: ["SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM stored_bytes WHERE account_id = $1"];
    PLACES: ["SELECT account_id, place, bytes FROM stored_bytes WHERE account_id = $1 AND place > $2
        AND place <> 'conversations' ORDER BY place LIMIT $3"];
    ALL_PLACES: ["SELECT account_id, place, bytes FROM stored_bytes WHERE (account_id, place) > ($1, $2)
        AND place <> 'conversations' ORDER BY account_id, place LIMIT $3"];
    FORGET: ["DELETE FROM stored_bytes WHERE account_id = $1 AND place = $2"];
}

async fn add(tx: &mut Tx, (account, place, delta): &(AccountId, String, i64)) -> Result<u64> {
    let row = tx.row(ADD, vec![id(*account), Value::from(place.as_str()), Value::from(*delta)]).await?;
    row.ok_or_else(|| Error::internal("a count that was made is not there"))?.count(0)
}

fn place(row: &Row) -> Result<StoredPlace> {
    Ok(StoredPlace { account: row.id(0)?, place: row.text(1)?, bytes: row.count(2)? })
}

#[async_trait]
impl Stored for SqlStore {
    async fn add(&self, account: AccountId, place: &str, delta: i64) -> Result<u64> {
        let args = (account, place.to_owned(), delta);
        self.db.write_lazily(args, |tx, args| Box::pin(add(tx, args))).await
    }

    async fn set(&self, account: AccountId, place: &str, bytes: u64) -> Result<()> {
        self.db.run(SET, vec![id(account), Value::from(place), Value::from(bytes)]).await.map(drop)
    }

    async fn total(&self, account: AccountId) -> Result<u64> {
        match self.db.row(TOTAL, vec![id(account)]).await? {
            Some(row) => row.count(0),
            None => Ok(0),
        }
    }

    async fn places(&self, account: AccountId, after: Option<&str>, limit: u32) -> Result<Vec<StoredPlace>> {
        let values = vec![id(account), Value::from(after.unwrap_or_default()), Value::from(limit)];
        self.db.rows(PLACES, values).await?.iter().map(place).collect()
    }

    async fn all_places(&self, after: Option<&StoredPlace>, limit: u32) -> Result<Vec<StoredPlace>> {
        let (account, name) = match after {
            Some(after) => (after.account.as_uuid(), after.place.as_str()),
            None => (Uuid::nil(), ""),
        };
        self.db.rows(ALL_PLACES, values![account, name, limit]).await?.iter().map(place).collect()
    }

    async fn forget(&self, account: AccountId, place: &str) -> Result<()> {
        self.db.run(FORGET, vec![id(account), Value::from(place)]).await.map(drop)
    }
}
