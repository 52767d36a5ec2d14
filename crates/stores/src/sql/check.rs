//! Whether what is in a database agrees with itself. Reads everything: for operators, not for requests.

use super::{Db, statement::statement};
use seawall_api::{AccountId, ConversationId, TurnId};
use seawall_core::Result;

// The ledger: totals are the sums of the rows they come from.
statement! {
    TOTALS: ["SELECT c.id FROM conversations c
        LEFT JOIN (SELECT conversation_id, SUM(input_tokens) AS i, SUM(output_tokens) AS o, SUM(cache_tokens) AS k, SUM(answered) AS a
            FROM (SELECT conversation_id, input_tokens, output_tokens, cache_tokens, answered FROM turn_usage
                UNION ALL SELECT conversation_id, input_tokens, output_tokens, cache_tokens, 0 FROM hook_usage) r GROUP BY conversation_id) u ON u.conversation_id = c.id
        LEFT JOIN (SELECT conversation_id, COUNT(*) AS n FROM turns GROUP BY conversation_id) t ON t.conversation_id = c.id
        WHERE c.input_tokens <> COALESCE(u.i, 0) OR c.output_tokens <> COALESCE(u.o, 0) OR c.cache_tokens <> COALESCE(u.k, 0)
        OR c.messages_exchanged <> COALESCE(t.n, 0) + COALESCE(u.a, 0)"];
    // A turn has ended exactly when its usage is there.
    ENDS: ["SELECT t.id FROM turns t LEFT JOIN turn_usage u ON u.turn_id = t.id
        WHERE (t.state = 'running') <> (u.turn_id IS NULL) OR (t.ended_at IS NULL) <> (u.turn_id IS NULL)"];
    EVENTS: ["SELECT t.id FROM turns t LEFT JOIN (SELECT turn_id, COUNT(*) AS n, MAX(number) AS last, SUM(OCTET_LENGTH(data)) AS b FROM turn_events GROUP BY turn_id) e
        ON e.turn_id = t.id WHERE t.summary IS NULL AND (t.events <> COALESCE(e.n, 0) OR t.events <> COALESCE(e.last, -1) + 1
        OR t.event_bytes <> COALESCE(e.b, 0))"];
    STORED: ["SELECT account_id FROM (SELECT account_id, stored_bytes AS b FROM conversations
        UNION ALL SELECT account_id, -bytes FROM stored_bytes WHERE place = 'conversations') r GROUP BY account_id HAVING SUM(b) <> 0"];
    STRAYS: ["SELECT u.turn_id FROM turn_usage u LEFT JOIN turns t ON t.id = u.turn_id WHERE t.id IS NULL"];
    COUNTS: ["SELECT CAST(COUNT(*) AS BIGINT), CAST(COALESCE(SUM(messages_exchanged), 0) AS BIGINT) FROM conversations"];
    TURNS: ["SELECT CAST(COUNT(*) AS BIGINT) FROM turns"];
}

/// What was looked at, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Check {
    pub conversations: u64,
    pub turns: u64,
    /// In words; none: all agrees.
    pub wrong: Vec<String>,
}

/// Looks at everything.
pub async fn check(db: &Db) -> Result<Check> {
    let mut found = Check::default();
    if let Some(row) = db.row(COUNTS, Vec::new()).await? {
        found.conversations = row.count(0)?;
    }
    if let Some(row) = db.row(TURNS, Vec::new()).await? {
        found.turns = row.count(0)?;
    }
    for row in db.rows(TOTALS, Vec::new()).await? {
        let id: ConversationId = row.id(0)?;
        found.wrong.push(format!("the totals of conversation {id} are not the sums of its turns and hooks"));
    }
    for row in db.rows(STORED, Vec::new()).await? {
        let id: AccountId = row.id(0)?;
        found.wrong.push(format!("account {id} has other bytes in conversations than are counted"));
    }
    for (sql, what) in [
        (ENDS, "has ended without a usage row, or has one and runs"),
        (EVENTS, "has other events than it says"),
        (STRAYS, "is gone, and its usage row is not"),
    ] {
        for row in db.rows(sql, Vec::new()).await? {
            found.wrong.push(format!("turn {} {what}", row.id::<TurnId>(0)?));
        }
    }
    if let Db::Sqlite(sqlite) = db {
        found.wrong.extend(sqlite.damage().await?);
    }
    Ok(found)
}
