//! Conversations. Their totals are changed by turns, and by what hooks used.

use super::{
    SqlStore, conversation_bytes,
    db::Tx,
    outbox, sandboxes,
    statement::{Sql, statement},
    tokens,
    value::{Row, Value, id, maybe_id, page_values, values},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ConversationId, SandboxId,
    conversation::{Conversation, Stats},
};
use seawall_core::{
    Error, Result,
    ports::store::{
        ConversationFilter, Conversations, Cursor, Day, HookUsage, NewConversation, Page, Paged, SortBy,
        Task, all_tokens,
    },
};

/// Adds one list for each filter that has an index and each order. Further filters are applied to what it finds.
macro_rules! with_lists {
    ([$($name:ident $condition:literal $by:literal;)+] $($rest:tt)*) => {
        statement! {
            listed;
            $($name: [
                "SELECT id, account_id, organization_id, agent_id, sandbox_id, template, messages_exchanged, input_tokens,
                    output_tokens, cache_tokens, created_at, updated_at FROM conversations WHERE account_id = $1 AND ",
                $condition, " AND (", $by, ", id) < ($5, $6) ORDER BY ", $by, " DESC, id DESC LIMIT $7"
            ];)+
            $($rest)*
        }
    };
}

with_lists! {
    [
        ALL_BY_UPDATE "($2 IS NULL OR organization_id = $2) AND ($3 IS NULL OR agent_id = $3) AND ($4 IS NULL OR sandbox_id = $4)" "updated_at";
        ALL_BY_AGE "($2 IS NULL OR organization_id = $2) AND ($3 IS NULL OR agent_id = $3) AND ($4 IS NULL OR sandbox_id = $4)" "created_at";
        ORGANIZATION_BY_UPDATE "organization_id = $2 AND ($3 IS NULL OR agent_id = $3) AND ($4 IS NULL OR sandbox_id = $4)" "updated_at";
        ORGANIZATION_BY_AGE "organization_id = $2 AND ($3 IS NULL OR agent_id = $3) AND ($4 IS NULL OR sandbox_id = $4)" "created_at";
        AGENT_BY_UPDATE "agent_id = $3 AND ($2 IS NULL OR organization_id = $2) AND ($4 IS NULL OR sandbox_id = $4)" "updated_at";
        AGENT_BY_AGE "agent_id = $3 AND ($2 IS NULL OR organization_id = $2) AND ($4 IS NULL OR sandbox_id = $4)" "created_at";
        SANDBOX_BY_UPDATE "sandbox_id = $4 AND ($2 IS NULL OR organization_id = $2) AND ($3 IS NULL OR agent_id = $3)" "updated_at";
        SANDBOX_BY_AGE "sandbox_id = $4 AND ($2 IS NULL OR organization_id = $2) AND ($3 IS NULL OR agent_id = $3)" "created_at";
    ]
    INSERT: ["INSERT INTO conversations (id, account_id, organization_id, agent_id, sandbox_id, template, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT (id) DO NOTHING"];
    GET: ["SELECT id, account_id, organization_id, agent_id, sandbox_id, template, messages_exchanged, input_tokens,
        output_tokens, cache_tokens, created_at, updated_at FROM conversations WHERE id = $2 AND account_id = $1"];
    LOCK: ["SELECT id, account_id, organization_id, agent_id, sandbox_id, template, messages_exchanged, input_tokens,
        output_tokens, cache_tokens, created_at, updated_at FROM conversations WHERE id = $2 AND account_id = $1", FOR_UPDATE];
    COUNT: ["SELECT CAST(COUNT(*) AS BIGINT) FROM conversations WHERE account_id = $1"];
    SET_TEMPLATE: ["UPDATE conversations SET template = $3, updated_at = ", GREATEST, "(updated_at, $4)
        WHERE id = $2 AND account_id = $1"];
    LINK: ["UPDATE conversations SET sandbox_id = $3, updated_at = ", GREATEST, "(updated_at, $4)
        WHERE id = $2 AND account_id = $1"];
    IS_BUSY: ["SELECT id FROM turns WHERE conversation_id = $1 AND state = 'running'"];
    DELETE_EVENTS: ["DELETE FROM turn_events WHERE turn_id IN (SELECT id FROM turns WHERE conversation_id = $2 AND account_id = $1)"];
    DELETE_TURNS: ["DELETE FROM turns WHERE conversation_id = $2 AND account_id = $1"];
    DELETE_USAGE: ["DELETE FROM turn_usage WHERE conversation_id = $2 AND account_id = $1"];
    DELETE_HOOK_USAGE: ["DELETE FROM hook_usage WHERE conversation_id = $2 AND account_id = $1"];
    ADD_USAGE: ["INSERT INTO hook_usage (conversation_id, name, account_id, input_tokens, output_tokens, cache_tokens, created_at)
        VALUES ($2, $3, $1, $4, $5, $6, $7) ON CONFLICT (conversation_id, name) DO NOTHING"];
    ADD_TOTALS: ["UPDATE conversations SET input_tokens = input_tokens + $3, output_tokens = output_tokens + $4,
        cache_tokens = cache_tokens + $5, updated_at = ", GREATEST, "(updated_at, $6) WHERE id = $2 AND account_id = $1"];
    DELETE_MESSAGES: ["DELETE FROM messages WHERE account_id = $1 AND conversation_id = $2"];
    DELETE: ["DELETE FROM conversations WHERE id = $2 AND account_id = $1 RETURNING stored_bytes"];
}

/// The statement that finds the fewest rows.
fn list_of(filter: &ConversationFilter) -> &'static Sql {
    let by_update = filter.sort == SortBy::Updated;
    let pick = |update, age| if by_update { update } else { age };
    match filter {
        ConversationFilter { sandbox_id: Some(_), .. } => pick(SANDBOX_BY_UPDATE, SANDBOX_BY_AGE),
        ConversationFilter { agent_id: Some(_), .. } => pick(AGENT_BY_UPDATE, AGENT_BY_AGE),
        ConversationFilter { organization_id: Some(_), .. } => {
            pick(ORGANIZATION_BY_UPDATE, ORGANIZATION_BY_AGE)
        }
        _ => pick(ALL_BY_UPDATE, ALL_BY_AGE),
    }
}

fn conversation(row: &Row) -> Result<Conversation> {
    Ok(Conversation {
        id: row.id(0)?,
        account_id: row.id(1)?,
        organization_id: row.maybe_text(2)?,
        agent_id: row.maybe_text(3)?,
        sandbox_id: row.maybe_id(4)?,
        template: row.maybe_text(5)?,
        stats: Stats {
            messages_exchanged: row.count(6)?,
            total_input_tokens: row.count(7)?,
            total_output_tokens: row.count(8)?,
            total_cache_tokens: row.count(9)?,
        },
        created_at: row.time(10)?,
        updated_at: row.time(11)?,
    })
}

pub fn no_conversation(id: ConversationId) -> Error {
    Error::not_found(format!("there is no conversation {id}"))
}

/// The conversation as it is now; nobody else changes it until the transaction has ended.
pub async fn lock(tx: &mut Tx, account: AccountId, wanted: ConversationId) -> Result<Conversation> {
    let row = tx.row(LOCK, vec![id(account), id(wanted)]).await?;
    conversation(&row.ok_or_else(|| no_conversation(wanted))?)
}

async fn link(
    tx: &mut Tx,
    args: &(AccountId, ConversationId, [Option<SandboxId>; 2], Timestamp),
) -> Result<()> {
    let (account, wanted, [expected, sandbox], at) = *args;
    let linked = lock(tx, account, wanted).await?.sandbox_id;
    if linked == sandbox {
        return Ok(());
    }
    if linked != expected {
        let linked = linked.map_or("none".to_owned(), |id| id.to_string());
        return Err(Error::conflict(format!("conversation {wanted} is linked to another sandbox: {linked}")));
    }
    tx.run(LINK, vec![id(account), id(wanted), maybe_id(sandbox), Value::from(at)]).await.map(drop)
}

async fn add_usage(tx: &mut Tx, args: &(AccountId, HookUsage)) -> Result<bool> {
    let (account, used) = args;
    let (wanted, usage) = (used.conversation_id, used.usage.capped());
    lock(tx, *account, wanted).await?;
    let key = vec![id(*account), id(wanted)];
    let counts = values![usage.input_tokens, usage.output_tokens, usage.cache_tokens, used.at];
    let row = [key.clone(), values![used.name.as_str()], counts.clone()].concat();
    if tx.run(ADD_USAGE, row).await? == 0 {
        return Ok(false);
    }
    tx.run(ADD_TOTALS, [key, counts].concat()).await?;
    sandboxes::add_usage(tx, *account, used.sandbox_id, &usage).await?;
    tokens::add(tx, *account, Day::of(used.at), all_tokens(&usage)).await?;
    Ok(true)
}

async fn delete(tx: &mut Tx, args: &(AccountId, ConversationId, bool)) -> Result<()> {
    let (account, wanted, messages_here) = *args;
    let key = || vec![id(account), id(wanted)];
    if tx.row(LOCK, key()).await?.is_none() {
        return Ok(());
    }
    if tx.row(IS_BUSY, vec![id(wanted)]).await?.is_some() {
        return Err(Error::conflict(format!("a turn of conversation {wanted} runs: cancel it first")));
    }
    tx.run(DELETE_EVENTS, key()).await?;
    tx.run(DELETE_TURNS, key()).await?;
    tx.run(DELETE_USAGE, key()).await?;
    tx.run(DELETE_HOOK_USAGE, key()).await?;
    match messages_here {
        true => tx.run(DELETE_MESSAGES, key()).await.map(drop)?,
        // What is on its way to its store arrives first.
        false => outbox::replace(tx, wanted, &Task::DeleteMessages { account, conversation: wanted }).await?,
    }
    match tx.row(DELETE, key()).await? {
        Some(row) => conversation_bytes::remove(tx, account, row.count(0)?).await,
        None => Ok(()),
    }
}

#[async_trait]
impl Conversations for SqlStore {
    async fn ensure(&self, account: AccountId, new: &NewConversation) -> Result<(Conversation, bool)> {
        let values = vec![
            id(new.id),
            id(account),
            Value::from(&new.organization_id),
            Value::from(&new.agent_id),
            maybe_id(new.sandbox_id),
            Value::from(&new.template),
            Value::from(new.created_at),
        ];
        let made = self.db.run(INSERT, values).await? == 1;
        Ok((Conversations::get(self, account, new.id).await?, made))
    }

    async fn get(&self, account: AccountId, wanted: ConversationId) -> Result<Conversation> {
        let row = self.db.row(GET, vec![id(account), id(wanted)]).await?;
        conversation(&row.ok_or_else(|| no_conversation(wanted))?)
    }

    async fn count(&self, account: AccountId) -> Result<u64> {
        let row = self.db.row(COUNT, vec![id(account)]).await?;
        row.map_or(Ok(0), |row| row.count(0))
    }

    async fn list(
        &self,
        account: AccountId,
        filter: &ConversationFilter,
        page: &Page,
    ) -> Result<Paged<Conversation>> {
        page.check()?;
        let mut values = vec![
            id(account),
            Value::from(&filter.organization_id),
            Value::from(&filter.agent_id),
            maybe_id(filter.sandbox_id),
        ];
        values.extend(page_values(page, Cursor::NEWEST));
        let rows = self.db.rows(list_of(filter), values).await?;
        let found = rows.iter().map(conversation).collect::<Result<Vec<_>>>()?;
        let by_update = filter.sort == SortBy::Updated;
        Ok(Paged::cut(found, page.limit, |conversation| {
            let time = if by_update { conversation.updated_at } else { conversation.created_at };
            Cursor::at(time, conversation.id.as_uuid().as_u128())
        }))
    }

    async fn set_template(
        &self,
        account: AccountId,
        wanted: ConversationId,
        template: Option<&str>,
        at: Timestamp,
    ) -> Result<()> {
        let values = vec![id(account), id(wanted), Value::from(template), Value::from(at)];
        match self.db.run(SET_TEMPLATE, values).await? {
            0 => Err(no_conversation(wanted)),
            _ => Ok(()),
        }
    }

    async fn link(
        &self,
        account: AccountId,
        wanted: ConversationId,
        expected: Option<SandboxId>,
        sandbox: Option<SandboxId>,
        at: Timestamp,
    ) -> Result<()> {
        let args = (account, wanted, [expected, sandbox], at);
        self.db.write(args, |tx, args| Box::pin(link(tx, args))).await
    }

    async fn add_usage(&self, account: AccountId, used: &HookUsage) -> Result<bool> {
        self.db.write((account, used.clone()), |tx, args| Box::pin(add_usage(tx, args))).await
    }

    async fn delete(&self, account: AccountId, wanted: ConversationId) -> Result<()> {
        let args = (account, wanted, self.messages_here);
        self.db.write(args, |tx, args| Box::pin(delete(tx, args))).await
    }
}
