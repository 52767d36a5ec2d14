//! Many rows at once, to measure and to look at plans with.

use super::{
    Db,
    statement::statement,
    value::{Value, id},
};
use seawall_api::AccountId;
use seawall_core::Result;

statement! {
    CONVERSATIONS: ["INSERT INTO conversations (id, account_id, organization_id, agent_id, created_at, updated_at)
        SELECT ", RANDOM_ID, ", $1, 'org-' || (i % 100), 'agent-' || (i % 1000), 1800000000000000 + i, 1800000000000000 + i FROM ", NUMBERS];
    ANALYZE: ["ANALYZE"];
}

/// So many conversations of one account.
pub async fn conversations(db: &Db, account: AccountId, count: u64) -> Result<()> {
    db.run(CONVERSATIONS, vec![id(account), Value::from(count)]).await?;
    db.run(ANALYZE, Vec::new()).await.map(drop)
}
