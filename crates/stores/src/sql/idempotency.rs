//! Idempotency keys.

use super::{
    SqlStore,
    db::Tx,
    outbox::receipt,
    statement::statement,
    value::{Value, id, json, micros, values},
};
use async_trait::async_trait;
use seawall_api::AccountId;
use seawall_core::{
    Error, Result,
    ports::store::{Begun, Idempotency},
};
use std::time::Duration;

statement! {
    listed;
    INSERT: ["INSERT INTO idempotency_keys (account_id, name, request, receipt, busy_until, keep_until)
        VALUES ($1, $2, $3, $4, ", NOW, " + $5, ", NOW, " + $6) ON CONFLICT (account_id, name) DO NOTHING"];
    GET: ["SELECT request, receipt, answer, CAST(CASE WHEN busy_until > ", NOW, " THEN 1 ELSE 0 END AS BIGINT),
        CAST(CASE WHEN keep_until > ", NOW, " THEN 1 ELSE 0 END AS BIGINT) FROM idempotency_keys
        WHERE account_id = $1 AND name = $2", FOR_UPDATE];
    RETAKE: ["UPDATE idempotency_keys SET request = $3, receipt = $4, busy_until = ", NOW, " + $5, keep_until = ", NOW, " + $6,
        answer = NULL WHERE account_id = $1 AND name = $2"];
    RENEW: ["UPDATE idempotency_keys SET busy_until = ", NOW, " + $2, keep_until = ", GREATEST, "(keep_until, ", NOW, " + $3)
        WHERE answer IS NULL AND receipt IN ", EACH_NUMBER];
    FINISH: ["UPDATE idempotency_keys SET answer = $4 WHERE account_id = $1 AND name = $2 AND receipt = $3 AND answer IS NULL"];
    FINISHED: ["SELECT answer FROM idempotency_keys WHERE account_id = $1 AND name = $2 AND receipt = $3"];
    ABANDON: ["DELETE FROM idempotency_keys WHERE account_id = $1 AND name = $2 AND receipt = $3 AND answer IS NULL"];
    KEPT: ["SELECT CAST(COUNT(*) AS BIGINT), CAST(COALESCE(SUM(OCTET_LENGTH(answer)), 0) AS BIGINT) FROM idempotency_keys
        WHERE account_id = $1"];
    CLOSE_ALL: ["UPDATE idempotency_keys SET answer = $1 WHERE answer IS NULL AND busy_until > 0"];
    EXPIRE: ["DELETE FROM idempotency_keys WHERE (account_id, name) IN (SELECT account_id, name FROM idempotency_keys
        WHERE keep_until <= (SELECT ", NOW, ") AND answer IS NOT NULL ORDER BY keep_until LIMIT $1)
        AND keep_until <= ", NOW, " AND answer IS NOT NULL"];
}

struct Wanted {
    account: AccountId,
    key: String,
    request: [u8; 32],
    receipt: u64,
    hold: u64,
    keep: u64,
}

async fn begin(tx: &mut Tx, wanted: &Wanted) -> Result<Begun> {
    let key = vec![id(wanted.account), Value::from(wanted.key.as_str())];
    let all =
        [key.clone(), values![wanted.request.as_slice(), wanted.receipt, wanted.hold, wanted.keep]].concat();
    let ours = Begun::New { receipt: wanted.receipt };
    if tx.run(INSERT, all.clone()).await? == 1 {
        return Ok(ours);
    }
    let Some(row) = tx.row(GET, key).await? else {
        // Abandoned in between; the next call finds it free.
        return Err(Error::unavailable("the idempotency key was just given up"));
    };
    let (request, holder, answer) = (row.bytes(0)?, row.count(1)?, row.maybe_bytes(2)?);
    if answer.is_some() && !row.flag(4)? {
        tx.run(RETAKE, all).await?;
        return Ok(ours);
    }
    if request != wanted.request {
        return Err(Error::conflict("the idempotency key was used for another request; use a new one"));
    }
    match answer {
        Some(answer) => Ok(Begun::Done(answer.into())),
        // A call of ours whose answer was lost.
        None if holder == wanted.receipt => Ok(ours),
        None if row.flag(3)? => Ok(Begun::Running),
        None => Ok(Begun::Lost),
    }
}

#[async_trait]
impl Idempotency for SqlStore {
    async fn begin(
        &self,
        account: AccountId,
        key: &str,
        request: &[u8; 32],
        hold: Duration,
        keep: Duration,
    ) -> Result<Begun> {
        let (receipt, keep, hold) = (receipt(), micros(keep.max(hold)), micros(hold));
        let wanted = Wanted { account, key: key.to_owned(), request: *request, receipt, hold, keep };
        self.db.write(wanted, |tx, wanted| Box::pin(begin(tx, wanted))).await
    }

    async fn renew(&self, receipts: &[u64], hold: Duration, keep: Duration) -> Result<u64> {
        let values = vec![json(&receipts)?, Value::from(micros(hold)), Value::from(micros(keep.max(hold)))];
        self.db.run(RENEW, values).await
    }

    async fn finish(&self, account: AccountId, key: &str, receipt: u64, answer: &[u8]) -> Result<()> {
        let place = vec![id(account), Value::from(key), Value::from(receipt)];
        if self.db.run(FINISH, [place.clone(), values![answer]].concat()).await? == 1 {
            return Ok(());
        }
        let there = self.db.row(FINISHED, place).await?;
        match there.map(|row| row.maybe_bytes(0)).transpose()?.flatten() {
            Some(there) if there == answer => Ok(()),
            _ => Err(Error::conflict("the idempotency key was another's meanwhile")),
        }
    }

    async fn abandon(&self, account: AccountId, key: &str, receipt: u64) -> Result<()> {
        self.db.run(ABANDON, vec![id(account), Value::from(key), Value::from(receipt)]).await.map(drop)
    }

    async fn kept(&self, account: AccountId) -> Result<(u64, u64)> {
        let row = self.db.row(KEPT, vec![id(account)]).await?;
        let row = row.ok_or_else(|| Error::internal("a query without an answer"))?;
        Ok((row.count(0)?, row.count(1)?))
    }

    async fn close_all(&self, answer: &[u8]) -> Result<u64> {
        self.db.run(CLOSE_ALL, values![answer]).await
    }

    async fn expire(&self, limit: u32) -> Result<u64> {
        self.db.run(EXPIRE, values![limit]).await
    }
}
