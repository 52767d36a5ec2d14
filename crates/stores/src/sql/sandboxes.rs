//! Rows of sandboxes.

use super::{
    SqlStore,
    db::Tx,
    statement::{Sql, statement},
    value::{Row, Value, id, json, page_values},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{AccountId, ErrorKind, SandboxId, conversation::Usage, sandbox::SandboxState};
use seawall_core::{
    Error, Result,
    ports::{
        RecordHead,
        store::{
            Cursor, Page, Paged, SandboxFilter, SandboxRow, SandboxRows, has_versions, merge_metadata,
            to_micros,
        },
    },
};
use serde_json::{Map, Value as Json};

macro_rules! with_lists {
    ([$($name:ident $rest_of_it:literal;)+] $($rest:tt)*) => {
        statement! {
            listed;
            $($name: [
                "SELECT id, account_id, name, provider, node, template, spec, state, reason, removing, unsynced, unsynced_why, metadata,
                    created_at, started_at, last_used_at, version FROM sandboxes WHERE ", $rest_of_it
            ];)+
            $($rest)*
        }
    };
}

with_lists! {
    [
        OF_ACCOUNT "account_id = $1 AND state <> 'terminated' AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4";
        BY_STATE "account_id = $1 AND state = $2 AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5";
        BY_NAME "account_id = $1 AND name = $2 AND state <> 'terminated' AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5";
        OF_NODE "node = $1 AND state <> 'terminated' AND (created_at, id) > ($2, $3) ORDER BY created_at, id LIMIT $4";
        OF_NO_NODE "node IS NULL AND state <> 'terminated' AND (created_at, id) > ($1, $2) ORDER BY created_at, id LIMIT $3";
    ]
    SIZES_OF_ACCOUNT: ["SELECT CAST(OCTET_LENGTH(metadata) + OCTET_LENGTH(spec) AS BIGINT) FROM sandboxes WHERE account_id = $1
        AND state <> 'terminated' AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4"];
    SIZES_BY_STATE: ["SELECT CAST(OCTET_LENGTH(metadata) + OCTET_LENGTH(spec) AS BIGINT) FROM sandboxes WHERE account_id = $1
        AND state = $2 AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5"];
    SIZES_BY_NAME: ["SELECT CAST(OCTET_LENGTH(metadata) + OCTET_LENGTH(spec) AS BIGINT) FROM sandboxes WHERE account_id = $1
        AND name = $2 AND state <> 'terminated' AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5"];
    INSERT: ["INSERT INTO sandboxes (id, account_id, name, provider, node, template, spec, state, reason, removing, unsynced, unsynced_why, metadata,
        created_at, started_at, last_used_at, version, timeouts, volume, ended_at, has_versions) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $15,
        $16, $17, $18, 1, $13, $14, CASE WHEN $8 = 'terminated' THEN ", NOW, " END, $19) ON CONFLICT DO NOTHING"];
    GET: ["SELECT id, account_id, name, provider, node, template, spec, state, reason, removing, unsynced, unsynced_why, metadata,
        created_at, started_at, last_used_at, version FROM sandboxes WHERE id = $2 AND account_id = $1"];
    LOCK: ["SELECT id, account_id, name, provider, node, template, spec, state, reason, removing, unsynced, unsynced_why, metadata,
        created_at, started_at, last_used_at, version FROM sandboxes WHERE id = $2 AND account_id = $1", FOR_UPDATE];
    FIND: ["SELECT id, account_id, name, provider, node, template, spec, state, reason, removing, unsynced, unsynced_why, metadata,
        created_at, started_at, last_used_at, version FROM sandboxes WHERE id = $1"];
    SETTLE: ["UPDATE sandboxes SET version = version WHERE id = $1"];
    TAKEN: ["SELECT account_id FROM sandboxes WHERE id = $1"];
    UPDATE: ["UPDATE sandboxes SET name = $3, provider = $4, node = $5, template = $6, spec = $7, state = $8, reason = $9, removing = $10,
        unsynced = $11, unsynced_why = $12, timeouts = $13, volume = $14, started_at = $15,
        last_used_at = ", GREATEST, "(last_used_at, $16), version = version + 1,
        ended_at = CASE WHEN $8 = 'terminated' THEN COALESCE(ended_at, ", NOW, ") END
        WHERE id = $2 AND account_id = $1"];
    SET_METADATA: ["UPDATE sandboxes SET metadata = $3, has_versions = $4, version = version + 1 WHERE id = $2 AND account_id = $1"];
    TOUCH: ["UPDATE sandboxes SET last_used_at = ", GREATEST, "(last_used_at, $3) WHERE id = $2 AND account_id = $1"];
    ENDED_BYTES: ["SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM sandboxes WHERE account_id = $1 AND state = 'terminated'"];
    // It may have been made again meanwhile: then it has no such time.
    REMOVE_ENDED: ["DELETE FROM sandboxes WHERE ended_at IS NOT NULL AND id IN (SELECT s.id FROM sandboxes s WHERE s.account_id = $1
        AND s.state = 'terminated' AND s.has_versions = 0 AND NOT EXISTS (SELECT 1 FROM conversations c
        WHERE c.account_id = s.account_id AND c.sandbox_id = s.id) ORDER BY s.ended_at, s.id LIMIT $2)"];
    REMOVE: ["DELETE FROM sandboxes WHERE id = $2 AND account_id = $1"];
}

fn sandbox(row: &Row) -> Result<SandboxRow> {
    let word = |index| -> Result<Option<Json>> { Ok(row.maybe_text(index)?.map(Json::String)) };
    let broken = |error| Error::internal("a row of a sandbox is damaged").with_source(error);
    Ok(SandboxRow {
        id: row.id(0)?,
        account_id: row.id(1)?,
        name: row.maybe_text(2)?,
        provider: row.text(3)?,
        node: row.maybe_text(4)?,
        template: row.maybe_text(5)?,
        spec: row.json(6)?,
        state: serde_json::from_value(Json::String(row.text(7)?)).map_err(broken)?,
        reason: word(8)?.map(serde_json::from_value).transpose().map_err(broken)?,
        removing: word(9)?.map(serde_json::from_value).transpose().map_err(broken)?,
        unsynced: match row.flag(10)? {
            true => Some(row.maybe_text(11)?.unwrap_or_default()),
            false => None,
        },
        metadata: row.json(12)?,
        created_at: row.time(13)?,
        started_at: row.maybe_time(14)?,
        last_used_at: row.time(15)?,
        version: row.count(16)?,
    })
}

/// As one word, and not as JSON: people read these columns.
fn word(value: &impl serde::Serialize) -> Result<Value> {
    match serde_json::to_value(value) {
        Ok(Json::String(text)) => Ok(Value::Text(Some(text))),
        Ok(Json::Null) => Ok(Value::Text(None)),
        other => Err(Error::internal(format!("{other:?} is not one word"))),
    }
}

fn no_sandbox(id: SandboxId) -> Error {
    Error::not_found(format!("there is no sandbox {id}"))
}

async fn locked(tx: &mut Tx, account: AccountId, wanted: SandboxId) -> Result<SandboxRow> {
    let row = tx.row(LOCK, vec![id(account), id(wanted)]).await?;
    sandbox(&row.ok_or_else(|| no_sandbox(wanted))?)
}

fn name_taken(error: Error, row: &SandboxRow) -> Error {
    match (error.kind(), &row.name) {
        (ErrorKind::AlreadyExists, Some(name)) => {
            Error::conflict(format!("another sandbox is called `{name}`"))
        }
        _ => error,
    }
}

/// What both an insertion and an update write, in their order.
fn common(row: &SandboxRow) -> Result<[Value; 12]> {
    Ok([
        Value::from(&row.name),
        Value::from(row.provider.as_str()),
        Value::from(&row.node),
        Value::from(&row.template),
        json(&row.spec)?,
        word(&row.state)?,
        word(&row.reason)?,
        word(&row.removing)?,
        Value::from(row.unsynced.is_some()),
        Value::from(&row.unsynced),
        json(&row.spec.timeouts)?,
        Value::from(&row.spec.volume),
    ])
}

async fn insert(tx: &mut Tx, new: &SandboxRow) -> Result<SandboxRow> {
    let mut values = vec![id(new.id), id(new.account_id)];
    values.extend(common(new)?);
    values.extend([
        json(&new.metadata)?,
        Value::from(new.created_at),
        Value::from(new.started_at),
        Value::from(new.last_used_at),
        Value::from(has_versions(&new.metadata)),
    ]);
    // Mostly nothing is in its way.
    if tx.run(INSERT, values).await? == 1 {
        return Ok(SandboxRow { version: 1, ..new.kept() });
    }
    if let Some(row) = tx.row(GET, vec![id(new.account_id), id(new.id)]).await? {
        let there = sandbox(&row)?;
        // A call whose answer was lost.
        if there == (SandboxRow { version: 1, ..new.kept() }) {
            return Ok(there);
        }
    }
    if tx.row(TAKEN, vec![id(new.id)]).await?.is_some() {
        let message = format!("sandbox {} exists already", new.id);
        return Err(Error::new(ErrorKind::AlreadyExists, message));
    }
    let name = new.name.as_deref().unwrap_or_default();
    Err(Error::conflict(format!("another sandbox is called `{name}`")))
}

async fn update(tx: &mut Tx, new: &SandboxRow) -> Result<SandboxRow> {
    let there = locked(tx, new.account_id, new.id).await?;
    // Done already, by a call whose answer was lost.
    let done = SandboxRow {
        version: new.version + 1,
        metadata: there.metadata.clone(),
        created_at: there.created_at,
        last_used_at: there.last_used_at.max(to_micros(new.last_used_at)),
        ..new.kept()
    };
    if there == done {
        return Ok(there);
    }
    if there.version != new.version {
        let message = format!("sandbox {} was changed by somebody else meanwhile", new.id);
        return Err(Error::conflict(message));
    }
    let mut values = vec![id(new.account_id), id(new.id)];
    values.extend(common(new)?);
    values.extend([Value::from(new.started_at), Value::from(new.last_used_at)]);
    tx.run(UPDATE, values).await.map_err(|error| name_taken(error, new))?;
    Ok(done)
}

async fn set_metadata(
    tx: &mut Tx,
    account: AccountId,
    wanted: SandboxId,
    metadata: &Map<String, Json>,
) -> Result<()> {
    let values = vec![id(account), id(wanted), json(metadata)?, Value::from(has_versions(metadata))];
    tx.run(SET_METADATA, values).await.map(drop)
}

async fn merge(tx: &mut Tx, args: &(AccountId, SandboxId, Map<String, Json>)) -> Result<SandboxRow> {
    let (account, wanted, changes) = args;
    let mut metadata = locked(tx, *account, *wanted).await?.metadata;
    merge_metadata(&mut metadata, changes)?;
    set_metadata(tx, *account, *wanted, &metadata).await?;
    locked(tx, *account, *wanted).await
}

/// V6: what turns used, among a sandbox's metadata. One that is gone has none.
pub(super) async fn add_usage(
    tx: &mut Tx,
    account: AccountId,
    wanted: SandboxId,
    usage: &Usage,
) -> Result<()> {
    let Some(row) = tx.row(LOCK, vec![id(account), id(wanted)]).await? else { return Ok(()) };
    let mut metadata = sandbox(&row)?.metadata;
    usage.add_to(&mut metadata);
    set_metadata(tx, account, wanted, &metadata).await
}

impl SqlStore {
    /// The one column of a statement with these values and a page, as sizes.
    pub(super) async fn sizes_of(
        &self,
        sql: &'static Sql,
        mut values: Vec<Value>,
        beginning: Cursor,
        page: &Page,
    ) -> Result<Vec<u64>> {
        page.check()?;
        values.extend(page_values(page, beginning));
        let mut sizes: Vec<u64> =
            self.db.rows(sql, values).await?.iter().map(|row| row.count(0)).collect::<Result<_>>()?;
        // One more was asked for than the page has.
        sizes.truncate(page.limit as usize);
        Ok(sizes)
    }

    /// Rows that a statement finds with these values and a page.
    async fn listed(
        &self,
        sql: &'static Sql,
        mut values: Vec<Value>,
        beginning: Cursor,
        page: &Page,
    ) -> Result<Paged<SandboxRow>> {
        page.check()?;
        values.extend(page_values(page, beginning));
        let rows = self.db.rows(sql, values).await?;
        let found = rows.iter().map(sandbox).collect::<Result<Vec<_>>>()?;
        Ok(Paged::cut(found, page.limit, |row| Cursor::at(row.created_at, row.id.as_uuid().as_u128())))
    }
}

#[async_trait]
impl SandboxRows for SqlStore {
    async fn insert(&self, row: &SandboxRow) -> Result<SandboxRow> {
        self.db.write(row.clone(), |tx, row| Box::pin(insert(tx, row))).await
    }

    async fn insert_soon(&self, row: &SandboxRow) -> Result<SandboxRow> {
        self.db.write_lazily(row.clone(), |tx, row| Box::pin(insert(tx, row))).await
    }

    /// Any write to the row brings those before it to the disk.
    async fn settle(&self, wanted: SandboxId) -> Result<()> {
        self.db.run(SETTLE, vec![id(wanted)]).await.map(drop)
    }

    async fn get(&self, account: AccountId, wanted: SandboxId) -> Result<SandboxRow> {
        let row = self.db.row(GET, vec![id(account), id(wanted)]).await?;
        sandbox(&row.ok_or_else(|| no_sandbox(wanted))?)
    }

    async fn find(&self, wanted: SandboxId) -> Result<Option<SandboxRow>> {
        self.db.row(FIND, vec![id(wanted)]).await?.as_ref().map(sandbox).transpose()
    }

    async fn sizes(&self, account: AccountId, filter: &SandboxFilter, page: &Page) -> Result<Vec<u64>> {
        let (sql, values): (&'static Sql, _) = match (&filter.name, filter.state) {
            (Some(name), None) => (SIZES_BY_NAME, vec![id(account), Value::from(name.as_str())]),
            (_, Some(state)) => (SIZES_BY_STATE, vec![id(account), Value::from(state.as_str())]),
            (None, None) => (SIZES_OF_ACCOUNT, vec![id(account)]),
        };
        self.sizes_of(sql, values, Cursor::NEWEST, page).await
    }

    async fn list(
        &self,
        account: AccountId,
        filter: &SandboxFilter,
        page: &Page,
    ) -> Result<Paged<SandboxRow>> {
        let account = id(account);
        let (sql, values): (&'static Sql, _) = match (&filter.name, filter.state) {
            (Some(name), None) => (BY_NAME, vec![account, Value::from(name.as_str())]),
            (_, Some(state)) => (BY_STATE, vec![account, Value::from(state.as_str())]),
            (None, None) => (OF_ACCOUNT, vec![account]),
        };
        let mut found = self.listed(sql, values, Cursor::NEWEST, page).await?;
        // Of a state and a name a page may have few, and more may follow.
        found.items.retain(|row| filter.name.is_none() || row.name == filter.name);
        Ok(found)
    }

    async fn update(&self, row: &SandboxRow) -> Result<SandboxRow> {
        self.db.write(row.clone(), |tx, row| Box::pin(update(tx, row))).await
    }

    async fn merge_metadata(
        &self,
        account: AccountId,
        wanted: SandboxId,
        changes: &Map<String, Json>,
    ) -> Result<SandboxRow> {
        let args = (account, wanted, changes.clone());
        self.db.write_lazily(args, |tx, args| Box::pin(merge(tx, args))).await
    }

    async fn touch(&self, account: AccountId, wanted: SandboxId, at: Timestamp) -> Result<()> {
        match self.db.run(TOUCH, vec![id(account), id(wanted), Value::from(at)]).await? {
            0 => Err(no_sandbox(wanted)),
            _ => Ok(()),
        }
    }

    async fn remove(&self, account: AccountId, wanted: SandboxId) -> Result<()> {
        self.db.run(REMOVE, vec![id(account), id(wanted)]).await.map(drop)
    }

    async fn of_node(&self, node: Option<&str>, page: &Page) -> Result<Paged<SandboxRow>> {
        match node {
            Some(node) => self.listed(OF_NODE, vec![Value::from(node)], Cursor::OLDEST, page).await,
            None => self.listed(OF_NO_NODE, Vec::new(), Cursor::OLDEST, page).await,
        }
    }

    async fn heads_of_node(&self, node: Option<&str>, page: &Page) -> Result<Paged<RecordHead>> {
        self.page_of_heads(node, page).await
    }

    async fn heads_of_account(
        &self,
        account: AccountId,
        state: Option<SandboxState>,
        page: &Page,
    ) -> Result<Paged<RecordHead>> {
        self.heads_of(account, state, page).await
    }

    async fn ended_bytes(&self, account: AccountId) -> Result<u64> {
        self.db.row(ENDED_BYTES, vec![id(account)]).await?.map_or(Ok(0), |row| row.count(0))
    }

    async fn remove_ended(&self, account: AccountId, limit: u32) -> Result<u64> {
        self.db.run(REMOVE_ENDED, vec![id(account), Value::from(limit)]).await
    }

    async fn head(&self, wanted: SandboxId) -> Result<Option<RecordHead>> {
        self.one_head(wanted).await
    }
}
