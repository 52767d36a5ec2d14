//! Bytes that conversations store: messages, and events of turns.
//!
//! `conversations.stored_bytes` counts them for each conversation, and one row of `stored_bytes` counts their sum for each
//! account. Both change by the same number in the transaction that stores or removes the bytes, so that the row of an
//! account is the sum of its conversations at any time. A turn is counted when it ends: appending its events changes no
//! row that other turns share.
//!
//! Deletion and retention lock a conversation before its turns and messages. The row of an account is the last that any
//! transaction locks, because all turns of the account wait for it.

use super::{
    db::Tx,
    statement::statement,
    value::{Value, id},
};
use seawall_api::{AccountId, ConversationId};
use seawall_core::{Error, Result};

statement! {
    listed;
    COUNT: ["INSERT INTO stored_bytes (account_id, place, bytes, listings) VALUES ($1, 'conversations', ", GREATEST, "(0, CAST($2 AS BIGINT)), 0)
        ON CONFLICT (account_id, place) DO UPDATE SET bytes = ", GREATEST, "(0, stored_bytes.bytes + CAST($2 AS BIGINT))"];
    LOCK: ["SELECT stored_bytes FROM conversations WHERE id = $2 AND account_id = $1", FOR_UPDATE];
    TAKE: ["UPDATE conversations SET stored_bytes = stored_bytes - $3 WHERE id = $2 AND account_id = $1"];
}

/// Adds to the count of an account what its conversations store from now on.
pub async fn add(tx: &mut Tx, account: AccountId, bytes: u64) -> Result<()> {
    change(tx, account, i64::try_from(bytes).unwrap_or(i64::MAX)).await
}

/// Takes from the count of an account what was taken from its conversations.
pub async fn remove(tx: &mut Tx, account: AccountId, bytes: u64) -> Result<()> {
    change(tx, account, i64::try_from(bytes).map_or(i64::MIN, |bytes| -bytes)).await
}

async fn change(tx: &mut Tx, account: AccountId, delta: i64) -> Result<()> {
    match delta {
        0 => Ok(()),
        _ => tx.run(COUNT, vec![id(account), Value::from(delta)]).await.map(drop),
    }
}

/// A conversation that no other transaction changes, and what is counted of it.
pub struct Locked {
    account: AccountId,
    conversation: ConversationId,
    bytes: u64,
}

/// Locks a conversation. `None` where it is gone.
pub async fn lock(tx: &mut Tx, account: AccountId, conversation: ConversationId) -> Result<Option<Locked>> {
    let row = tx.row(LOCK, vec![id(account), id(conversation)]).await?;
    row.map(|row| Ok(Locked { account, conversation, bytes: row.count(0)? })).transpose()
}

impl Locked {
    /// Takes bytes from what the conversation counts, at most all of it, and returns how many: those that the caller has
    /// to [`remove`] from the account. Fewer are counted where messages came into the table past the turns.
    pub async fn take(self, tx: &mut Tx, bytes: u64) -> Result<u64> {
        let taken = bytes.min(self.bytes);
        if taken > 0 {
            let values = vec![id(self.account), id(self.conversation), Value::from(taken)];
            match tx.run(TAKE, values).await? {
                1 => {}
                _ => return Err(Error::internal("a conversation that is locked is gone")),
            }
        }
        Ok(taken)
    }
}
