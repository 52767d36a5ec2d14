//! Runs of hooks.

use super::{
    SqlStore,
    statement::{Sql, statement},
    value::{Row, Value, id, maybe_id, page_values},
};
use async_trait::async_trait;
use seawall_api::{AccountId, HookRunId, SandboxId};
use seawall_core::{
    Error, Result,
    ports::store::{Cursor, HookOutcome, HookRun, HookRuns, Page, Paged},
};

statement! {
    listed;
    BEGIN: ["INSERT INTO hook_runs (id, account_id, kind, template, conversation_id, sandbox_id, began_at, ended_at, error, name, turn_id)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (id) DO NOTHING"];
    END: ["UPDATE hook_runs SET error = CASE WHEN ended_at IS NULL THEN $4 ELSE error END, ended_at = COALESCE(ended_at, $3)
        WHERE id = $2 AND account_id = $1"];
    LIST: ["SELECT id, kind, template, conversation_id, sandbox_id, began_at, ended_at, error, name, turn_id FROM hook_runs
        WHERE account_id = $1 AND (began_at, id) < ($2, $3) ORDER BY began_at DESC, id DESC LIMIT $4"];
    LIST_OF_SANDBOX: ["SELECT id, kind, template, conversation_id, sandbox_id, began_at, ended_at, error, name, turn_id FROM hook_runs
        WHERE account_id = $1 AND sandbox_id = $2 AND (began_at, id) < ($3, $4) ORDER BY began_at DESC, id DESC LIMIT $5"];
}

fn run(row: &Row) -> Result<HookRun> {
    let error = row.maybe_text(7)?;
    Ok(HookRun {
        id: row.id(0)?,
        kind: row.text(1)?,
        name: row.maybe_text(8)?,
        turn_id: row.maybe_id(9)?,
        template: row.maybe_text(2)?,
        conversation_id: row.maybe_id(3)?,
        sandbox_id: row.maybe_id(4)?,
        began_at: row.time(5)?,
        outcome: row.maybe_time(6)?.map(|ended_at| HookOutcome { ended_at, error }),
    })
}

#[async_trait]
impl HookRuns for SqlStore {
    async fn begin(&self, account: AccountId, new: &HookRun) -> Result<()> {
        let outcome = new.outcome.as_ref();
        let values = vec![
            id(new.id),
            id(account),
            Value::from(new.kind.as_str()),
            Value::from(&new.template),
            maybe_id(new.conversation_id),
            maybe_id(new.sandbox_id),
            Value::from(new.began_at),
            Value::from(outcome.map(|outcome| outcome.ended_at)),
            Value::from(outcome.and_then(|outcome| outcome.error.as_deref())),
            Value::from(&new.name),
            maybe_id(new.turn_id),
        ];
        // For looking: nobody waits for the disk.
        self.db.write_lazily(values, |tx, values| Box::pin(tx.run(BEGIN, values.clone()))).await.map(drop)
    }

    async fn end(&self, account: AccountId, wanted: HookRunId, outcome: &HookOutcome) -> Result<()> {
        let values = vec![
            id(account),
            id(wanted),
            Value::from(outcome.ended_at),
            Value::from(outcome.error.as_deref()),
        ];
        match self.db.run(END, values).await? {
            0 => Err(Error::not_found(format!("there is no run {wanted} of a hook"))),
            _ => Ok(()),
        }
    }

    async fn list(
        &self,
        account: AccountId,
        sandbox: Option<SandboxId>,
        page: &Page,
    ) -> Result<Paged<HookRun>> {
        page.check()?;
        let (sql, mut values): (&'static Sql, _) = match sandbox {
            Some(sandbox) => (LIST_OF_SANDBOX, vec![id(account), id(sandbox)]),
            None => (LIST, vec![id(account)]),
        };
        values.extend(page_values(page, Cursor::NEWEST));
        let runs = self.db.rows(sql, values).await?.iter().map(run).collect::<Result<Vec<_>>>()?;
        Ok(Paged::cut(runs, page.limit, |run| Cursor::at(run.began_at, run.id.as_uuid().as_u128())))
    }
}
