//! The part of sandboxes' rows that background rounds read: columns whose size no user decides.

use super::{
    SqlStore,
    statement::{Sql, statement},
    value::{Row, Value, id, page_values},
};
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{SandboxSpec, SandboxState, Timeouts},
};
use seawall_core::{
    Error, Result,
    ports::{
        RecordHead,
        store::{Cursor, Page, Paged},
    },
};
use serde_json::Value as Json;

macro_rules! heads {
    ($($name:ident $condition:literal;)+) => {
        statement! {
            listed;
            // The spec only of rows from before there was a column for its timeouts.
            $($name: [
                "SELECT id, account_id, provider, template, state, reason, removing, unsynced, unsynced_why, timeouts, volume,
                    CASE WHEN timeouts IS NULL THEN spec END, created_at, started_at FROM sandboxes WHERE ", $condition
            ];)+
        }
    };
}

heads! {
    OF_NODE "node = $1 AND state <> 'terminated' AND (created_at, id) > ($2, $3) ORDER BY created_at, id LIMIT $4";
    OF_NO_NODE "node IS NULL AND state <> 'terminated' AND (created_at, id) > ($1, $2) ORDER BY created_at, id LIMIT $3";
    OF_ACCOUNT "account_id = $1 AND state <> 'terminated' AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4";
    BY_STATE "account_id = $1 AND state = $2 AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5";
    ONE "id = $1";
}

fn head(row: &Row) -> Result<RecordHead> {
    let broken = |error| Error::internal("a row of a sandbox is damaged").with_source(error);
    let word = |index| -> Result<Option<Json>> { Ok(row.maybe_text(index)?.map(Json::String)) };
    let (timeouts, volume): (Timeouts, _) = match row.maybe_text(9)? {
        Some(text) => (serde_json::from_str(&text).map_err(broken)?, row.maybe_text(10)?),
        None => {
            let spec: SandboxSpec = row.json(11)?;
            (spec.timeouts, spec.volume)
        }
    };
    Ok(RecordHead {
        id: row.id(0)?,
        account_id: row.id(1)?,
        provider: row.text(2)?,
        template: row.maybe_text(3)?,
        state: serde_json::from_value(Json::String(row.text(4)?)).map_err(broken)?,
        reason: word(5)?.map(serde_json::from_value).transpose().map_err(broken)?,
        removing: word(6)?.map(serde_json::from_value).transpose().map_err(broken)?,
        unsynced: match row.flag(7)? {
            true => Some(row.maybe_text(8)?.unwrap_or_default()),
            false => None,
        },
        timeouts,
        volume,
        created_at: row.time(12)?,
        started_at: row.maybe_time(13)?,
    })
}

impl SqlStore {
    pub(super) async fn page_of_heads(&self, node: Option<&str>, page: &Page) -> Result<Paged<RecordHead>> {
        let (sql, values): (&'static Sql, _) = match node {
            Some(node) => (OF_NODE, vec![Value::from(node)]),
            None => (OF_NO_NODE, Vec::new()),
        };
        self.heads_on(sql, values, Cursor::OLDEST, page).await
    }

    pub(super) async fn heads_of(
        &self,
        account: AccountId,
        state: Option<SandboxState>,
        page: &Page,
    ) -> Result<Paged<RecordHead>> {
        let (sql, values): (&'static Sql, _) = match state {
            Some(state) => (BY_STATE, vec![id(account), Value::from(state.as_str())]),
            None => (OF_ACCOUNT, vec![id(account)]),
        };
        self.heads_on(sql, values, Cursor::NEWEST, page).await
    }

    async fn heads_on(
        &self,
        sql: &'static Sql,
        mut values: Vec<Value>,
        beginning: Cursor,
        page: &Page,
    ) -> Result<Paged<RecordHead>> {
        page.check()?;
        values.extend(page_values(page, beginning));
        let found = self.db.rows(sql, values).await?.iter().map(head).collect::<Result<Vec<_>>>()?;
        Ok(Paged::cut(found, page.limit, |head| Cursor::at(head.created_at, head.id.as_uuid().as_u128())))
    }

    pub(super) async fn one_head(&self, wanted: SandboxId) -> Result<Option<RecordHead>> {
        self.db.row(ONE, vec![id(wanted)]).await?.as_ref().map(head).transpose()
    }
}
