//! Accounts and keys.

use super::{
    SqlStore,
    db::Tx,
    statement::statement,
    value::{Row, Value, id, json, page_values, values},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ErrorKind, KeyId,
    account::{Account, ApiKey},
};
use seawall_core::{
    Error, Result,
    ports::store::{Accounts, Cursor, KeyHash, KeyLimits, Page, Paged},
};
use serde_json::Value as Json;

statement! {
    listed;
    INSERT: ["INSERT INTO accounts (id, name, settings, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO NOTHING"];
    GET: ["SELECT id, name, settings, created_at, suspended_at, deleting_at FROM accounts WHERE id = $1"];
    LIST: ["SELECT id, name, settings, created_at, suspended_at, deleting_at FROM accounts WHERE (created_at, id) > ($1, $2)
        ORDER BY created_at, id LIMIT $3"];
    SUSPEND: ["UPDATE accounts SET suspended_at = $2 WHERE id = $1"];
    DELETING: ["UPDATE accounts SET deleting_at = COALESCE(deleting_at, $2), suspended_at = COALESCE(suspended_at, $2) WHERE id = $1"];
    ERASE_HOOK_RUNS: ["DELETE FROM hook_runs WHERE id IN (SELECT id FROM hook_runs WHERE account_id = $1 LIMIT $2)"];
    ERASE_IDEMPOTENCY: ["DELETE FROM idempotency_keys WHERE account_id = $1 AND name IN
        (SELECT name FROM idempotency_keys WHERE account_id = $1 LIMIT $2)"];
    ERASE_SESSIONS: ["DELETE FROM sessions WHERE account_id = $1 AND scope_id IN
        (SELECT scope_id FROM sessions WHERE account_id = $1 LIMIT $2)"];
    ERASE_TOKENS: ["DELETE FROM token_charges WHERE account_id = $1 AND day IN
        (SELECT day FROM token_charges WHERE account_id = $1 LIMIT $2)"];
    ERASE_STORED: ["DELETE FROM stored_bytes WHERE account_id = $1 AND place IN
        (SELECT place FROM stored_bytes WHERE account_id = $1 LIMIT $2)"];
    HAS_SANDBOX: ["SELECT id FROM sandboxes WHERE account_id = $1 AND state <> 'terminated' LIMIT 1"];
    HAS_ENDED: ["SELECT id FROM sandboxes WHERE account_id = $1 AND state = 'terminated' LIMIT 1"];
    HAS_CONVERSATION: ["SELECT id FROM conversations WHERE account_id = $1 LIMIT 1"];
    REMOVE_KEYS: ["DELETE FROM api_keys WHERE account_id = $1"];
    REMOVE: ["DELETE FROM accounts WHERE id = $1"];
    SET_SETTINGS: ["UPDATE accounts SET settings = $2 WHERE id = $1"];
    ADD_KEY: ["INSERT INTO api_keys (id, account_id, name, prefix, hash, scopes, created_at, expires_at, revoked_at, last_used_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"];
    KEYS: ["SELECT id, account_id, name, prefix, scopes, created_at, expires_at, revoked_at, last_used_at, hash
        FROM api_keys WHERE account_id = $1 ORDER BY created_at, id"];
    KEY: ["SELECT id, account_id, name, prefix, scopes, created_at, expires_at, revoked_at, last_used_at, hash
        FROM api_keys WHERE id = $1"];
    FIND_KEY: ["SELECT id, account_id, name, prefix, scopes, created_at, expires_at, revoked_at, last_used_at, hash
        FROM api_keys WHERE hash = $1"];
    LOCK: ["SELECT id FROM accounts WHERE id = $1", FOR_UPDATE];
    COUNT_KEYS: ["SELECT CAST(COUNT(*) AS BIGINT), CAST(COALESCE(SUM(CASE WHEN (revoked_at IS NULL OR revoked_at > $2)
        AND (expires_at IS NULL OR expires_at > $2) THEN 1 ELSE 0 END), 0) AS BIGINT) FROM api_keys WHERE account_id = $1"];
    FORGET_KEYS: ["DELETE FROM api_keys WHERE account_id = $1 AND (revoked_at <= $2 OR expires_at <= $2)"];
    // Fewer are asked for by naming one of them several times.
    GOOD_KEYS: ["SELECT id FROM api_keys WHERE id IN ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
        AND (revoked_at IS NULL OR revoked_at > $1) AND (expires_at IS NULL OR expires_at > $1)
        AND EXISTS (SELECT 1 FROM accounts a WHERE a.id = api_keys.account_id AND a.suspended_at IS NULL)"];
    REVOKE: ["UPDATE api_keys SET revoked_at = CASE WHEN revoked_at < $3 THEN revoked_at ELSE $3 END WHERE id = $2 AND account_id = $1"];
    TOUCH: ["UPDATE api_keys SET last_used_at = ", GREATEST, "(COALESCE(last_used_at, $3), $3) WHERE id = $2 AND account_id = $1"];
}

/// Keys of one look: the parameters of `GOOD_KEYS`.
const ASKED: usize = 16;

fn account(row: &Row) -> Result<Account> {
    Ok(Account {
        id: row.id(0)?,
        name: row.text(1)?,
        settings: row.json(2)?,
        created_at: row.time(3)?,
        suspended_at: row.maybe_time(4)?,
        deleting_at: row.maybe_time(5)?,
    })
}

fn key(row: &Row) -> Result<ApiKey> {
    Ok(ApiKey {
        id: row.id(0)?,
        account_id: row.id(1)?,
        name: row.text(2)?,
        prefix: row.text(3)?,
        scopes: row.json(4)?,
        created_at: row.time(5)?,
        expires_at: row.maybe_time(6)?,
        revoked_at: row.maybe_time(7)?,
        last_used_at: row.maybe_time(8)?,
    })
}

fn no_account(account: AccountId) -> Error {
    Error::not_found(format!("there is no account {account}"))
}

async fn remove(tx: &mut Tx, account: AccountId) -> Result<()> {
    for sql in [HAS_SANDBOX, HAS_ENDED, HAS_CONVERSATION] {
        if tx.row(sql, vec![id(account)]).await?.is_some() {
            return Err(Error::conflict(format!("account {account} still has sandboxes or conversations")));
        }
    }
    tx.run(REMOVE_KEYS, vec![id(account)]).await?;
    tx.run(REMOVE, vec![id(account)]).await.map(drop)
}

async fn add_key(tx: &mut Tx, new: &ApiKey, hash: &KeyHash, limits: &KeyLimits) -> Result<()> {
    // Keys of one account come one after the other from here on.
    tx.row(LOCK, vec![id(new.account_id)]).await?.ok_or_else(|| no_account(new.account_id))?;
    if let Some(row) = tx.row(KEY, vec![id(new.id)]).await? {
        // A call whose answer was lost.
        let same = key(&row)?.account_id == new.account_id && row.bytes(9)? == hash;
        let taken = || Error::new(ErrorKind::AlreadyExists, format!("key {} exists already", new.id));
        return if same { Ok(()) } else { Err(taken()) };
    }
    let now = Value::from(new.created_at);
    let mut counted = count_keys(tx, new.account_id, now.clone()).await?;
    if counted.0 >= limits.all {
        let before = new.created_at - limits.keep_over;
        tx.run(FORGET_KEYS, vec![id(new.account_id), Value::from(before)]).await?;
        counted = count_keys(tx, new.account_id, now).await?;
    }
    limits.check(counted.1, counted.0)?;
    let values = vec![
        id(new.id),
        id(new.account_id),
        Value::from(new.name.as_str()),
        Value::from(new.prefix.as_str()),
        Value::from(hash.as_slice()),
        json(&new.scopes)?,
        Value::from(new.created_at),
        Value::from(new.expires_at),
        Value::from(new.revoked_at),
        Value::from(new.last_used_at),
    ];
    tx.run(ADD_KEY, values).await.map(drop)
}

/// All keys of an account, and those that are good at a time.
async fn count_keys(tx: &mut Tx, account: AccountId, at: Value) -> Result<(u64, u64)> {
    let row = tx.row(COUNT_KEYS, vec![id(account), at]).await?;
    let row = row.ok_or_else(|| Error::internal("a query without an answer"))?;
    Ok((row.count(0)?, row.count(1)?))
}

#[async_trait]
impl Accounts for SqlStore {
    async fn create(&self, new: &Account) -> Result<()> {
        let settings = json(&new.settings)?;
        let values = vec![id(new.id), Value::from(new.name.as_str()), settings, Value::from(new.created_at)];
        if self.db.run(INSERT, values).await? == 1 {
            return Ok(());
        }
        let there = Accounts::get(self, new.id).await?;
        match (there.name == new.name, there.settings == new.settings) {
            (true, true) => Ok(()),
            _ => Err(Error::new(ErrorKind::AlreadyExists, format!("account {} exists already", new.id))),
        }
    }

    async fn get(&self, account_id: AccountId) -> Result<Account> {
        let row = self.db.row(GET, vec![id(account_id)]).await?;
        account(&row.ok_or_else(|| no_account(account_id))?)
    }

    async fn list(&self, page: &Page) -> Result<Paged<Account>> {
        page.check()?;
        let rows = self.db.rows(LIST, page_values(page, Cursor::OLDEST).into()).await?;
        let accounts = rows.iter().map(account).collect::<Result<Vec<_>>>()?;
        let place = |account: &Account| Cursor::at(account.created_at, account.id.as_uuid().as_u128());
        Ok(Paged::cut(accounts, page.limit, place))
    }

    async fn set_settings(&self, account: AccountId, settings: &serde_json::Map<String, Json>) -> Result<()> {
        match self.db.run(SET_SETTINGS, vec![id(account), json(settings)?]).await? {
            0 => Err(no_account(account)),
            _ => Ok(()),
        }
    }

    async fn set_suspended(&self, account: AccountId, at: Option<Timestamp>) -> Result<()> {
        match self.db.run(SUSPEND, vec![id(account), Value::from(at)]).await? {
            0 => Err(no_account(account)),
            _ => Ok(()),
        }
    }

    async fn begin_deletion(&self, account: AccountId, at: Timestamp) -> Result<()> {
        match self.db.run(DELETING, vec![id(account), Value::from(at)]).await? {
            0 => Err(no_account(account)),
            _ => Ok(()),
        }
    }

    async fn erase(&self, account: AccountId, limit: u32) -> Result<u64> {
        let mut gone = 0;
        for sql in [ERASE_HOOK_RUNS, ERASE_IDEMPOTENCY, ERASE_SESSIONS, ERASE_TOKENS, ERASE_STORED] {
            gone += self.db.run(sql, vec![id(account), Value::from(u64::from(limit))]).await?;
        }
        Ok(gone)
    }

    async fn remove(&self, account: AccountId) -> Result<()> {
        self.db.write(account, |tx, account| Box::pin(remove(tx, *account))).await
    }

    async fn add_key(&self, new: &ApiKey, hash: &KeyHash, limits: &KeyLimits) -> Result<()> {
        let args = (new.clone(), *hash, *limits);
        self.db.write(args, |tx, (new, hash, limits)| Box::pin(add_key(tx, new, hash, limits))).await
    }

    async fn keys(&self, account: AccountId) -> Result<Vec<ApiKey>> {
        self.db.rows(KEYS, vec![id(account)]).await?.iter().map(key).collect()
    }

    async fn find_key(&self, hash: &KeyHash) -> Result<Option<ApiKey>> {
        self.db.row(FIND_KEY, values![hash.as_slice()]).await?.as_ref().map(key).transpose()
    }

    async fn good_keys(&self, keys: &[KeyId], at: Timestamp) -> Result<Vec<KeyId>> {
        let mut good = Vec::with_capacity(keys.len());
        for some in keys.chunks(ASKED) {
            let ids = some.iter().cycle().take(ASKED).map(|key| id(*key));
            let values = std::iter::once(Value::from(at)).chain(ids).collect();
            let rows = self.db.rows(GOOD_KEYS, values).await?;
            good.extend(rows.iter().map(|row| row.id(0)).collect::<Result<Vec<KeyId>>>()?);
        }
        Ok(good)
    }

    async fn revoke_key(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()> {
        match self.db.run(REVOKE, vec![id(account), id(key), Value::from(at)]).await? {
            0 => Err(Error::not_found(format!("there is no key {key}"))),
            _ => Ok(()),
        }
    }

    async fn touch_key(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()> {
        match self.db.run(TOUCH, vec![id(account), id(key), Value::from(at)]).await? {
            0 => Err(Error::not_found(format!("there is no key {key}"))),
            _ => Ok(()),
        }
    }
}
