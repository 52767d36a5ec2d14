//! Sessions.

use super::{
    SqlStore,
    statement::statement,
    value::{Row, Value, id},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::AccountId;
use seawall_core::{
    Error, Result,
    ports::store::{Session, SessionScope, Sessions},
};

statement! {
    listed;
    INSERT: ["INSERT INTO sessions (account_id, scope, scope_id, sandbox_id, image, created_at, last_used_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (account_id, scope, scope_id) DO NOTHING"];
    GET: ["SELECT account_id, scope, scope_id, sandbox_id, image, created_at, last_used_at FROM sessions
        WHERE account_id = $1 AND scope = $2 AND scope_id = $3"];
    TOUCH: ["UPDATE sessions SET last_used_at = ", GREATEST, "(last_used_at, $4)
        WHERE account_id = $1 AND scope = $2 AND scope_id = $3"];
    END: ["DELETE FROM sessions WHERE account_id = $1 AND scope = $2 AND scope_id = $3
        RETURNING account_id, scope, scope_id, sandbox_id, image, created_at, last_used_at"];
    EXPIRED: ["SELECT account_id, scope, scope_id, sandbox_id, image, created_at, last_used_at FROM sessions
        WHERE last_used_at < $1 OR created_at < $2 LIMIT $3"];
}

fn session(row: &Row) -> Result<Session> {
    let scope = match row.text(1)?.as_str() {
        "workflow" => SessionScope::Workflow,
        "agent" => SessionScope::Agent,
        other => return Err(Error::internal(format!("`{other}` is no scope of a session"))),
    };
    Ok(Session {
        account_id: row.id(0)?,
        scope,
        scope_id: row.text(2)?,
        sandbox_id: row.id(3)?,
        image: row.maybe_text(4)?,
        created_at: row.time(5)?,
        last_used_at: row.time(6)?,
    })
}

fn key(account: AccountId, scope: SessionScope, scope_id: &str) -> Vec<Value> {
    vec![id(account), Value::from(scope.as_str()), Value::from(scope_id)]
}

fn no_session(scope: SessionScope, scope_id: &str) -> Error {
    Error::not_found(format!("there is no session of {} `{scope_id}`", scope.as_str()))
}

#[async_trait]
impl Sessions for SqlStore {
    async fn open(&self, new: &Session) -> Result<(Session, bool)> {
        let mut values = key(new.account_id, new.scope, &new.scope_id);
        values.extend([
            id(new.sandbox_id),
            Value::from(&new.image),
            Value::from(new.created_at),
            Value::from(new.last_used_at),
        ]);
        let made = self.db.run(INSERT, values).await? == 1;
        let there = Sessions::get(self, new.account_id, new.scope, &new.scope_id).await?;
        // One whose answer was lost made it too.
        let made = made || there.sandbox_id == new.sandbox_id;
        Ok((there, made))
    }

    async fn get(&self, account: AccountId, scope: SessionScope, scope_id: &str) -> Result<Session> {
        let row = self.db.row(GET, key(account, scope, scope_id)).await?;
        session(&row.ok_or_else(|| no_session(scope, scope_id))?)
    }

    async fn touch(
        &self,
        account: AccountId,
        scope: SessionScope,
        scope_id: &str,
        at: Timestamp,
    ) -> Result<()> {
        let values = [key(account, scope, scope_id), vec![Value::from(at)]].concat();
        match self.db.run(TOUCH, values).await? {
            0 => Err(no_session(scope, scope_id)),
            _ => Ok(()),
        }
    }

    async fn end(&self, account: AccountId, scope: SessionScope, scope_id: &str) -> Result<Option<Session>> {
        let key = key(account, scope, scope_id);
        self.db
            .write(key, |tx, key| {
                Box::pin(async move { tx.row(END, key.clone()).await?.as_ref().map(session).transpose() })
            })
            .await
    }

    async fn expired(&self, used: Timestamp, made: Timestamp, limit: u32) -> Result<Vec<Session>> {
        let values = vec![Value::from(used), Value::from(made), Value::from(limit)];
        self.db.rows(EXPIRED, values).await?.iter().map(session).collect()
    }
}
