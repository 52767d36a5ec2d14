//! What accounts are charged for models.

use super::{
    SqlStore,
    db::Tx,
    statement::statement,
    value::{Value, id, values},
};
use async_trait::async_trait;
use seawall_api::{AccountId, TurnId, conversation::Usage};
use seawall_core::{
    Error, Result,
    ports::store::{Day, TokenCharge, TokenTotals, Tokens, all_tokens},
};

/// In the place of a turn's id: the sum of all that has ended.
const ENDED: [u8; 16] = [0; 16];

statement! {
    listed;
    SET: ["INSERT INTO token_charges (account_id, day, turn_id, run, tokens) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (account_id, day, turn_id, run) DO UPDATE SET tokens = excluded.tokens"];
    ADD: ["INSERT INTO token_charges (account_id, day, turn_id, run, tokens) VALUES ($1, $2, $3, 0, $4)
        ON CONFLICT (account_id, day, turn_id, run) DO UPDATE SET tokens = token_charges.tokens + excluded.tokens"];
    FORGET: ["DELETE FROM token_charges WHERE account_id = $1 AND day < $2"];
    SUMS: ["SELECT CAST(COALESCE(SUM(CASE WHEN day = $2 THEN tokens ELSE 0 END), 0) AS BIGINT),
        CAST(COALESCE(SUM(tokens), 0) AS BIGINT) FROM token_charges WHERE account_id = $1 AND day >= $3 AND day <= $4"];
    OF_TURN: ["SELECT day, CAST(SUM(tokens) AS BIGINT) FROM token_charges WHERE account_id = $1 AND turn_id = $2 GROUP BY day ORDER BY day"];
    DELETE_OF_TURN: ["DELETE FROM token_charges WHERE account_id = $1 AND turn_id = $2"];
}

/// Adds to the sum of what has ended.
pub async fn add(tx: &mut Tx, account: AccountId, day: Day, tokens: u64) -> Result<()> {
    if tokens == 0 {
        return Ok(());
    }
    let values = vec![id(account), Value::from(day.0), Value::from(&ENDED[..]), Value::from(tokens)];
    tx.run(ADD, values).await.map(drop)
}

/// What the runs of a turn were charged, and what the turn used beyond that, becomes part of the sums.
pub async fn close(tx: &mut Tx, account: AccountId, turn: TurnId, usage: &Usage, ended: Day) -> Result<()> {
    let key = || vec![id(account), id(turn)];
    let open = tx.rows(OF_TURN, key()).await?;
    let mut charged: u64 = 0;
    for row in &open {
        let tokens = row.count(1)?;
        charged = charged.saturating_add(tokens);
        add(tx, account, Day(row.int(0)?), tokens).await?;
    }
    if !open.is_empty() {
        tx.run(DELETE_OF_TURN, key()).await?;
    }
    add(tx, account, ended, all_tokens(usage).saturating_sub(charged)).await
}

async fn charge(tx: &mut Tx, args: &(AccountId, Vec<TokenCharge>, Day)) -> Result<TokenTotals> {
    let (account, charges, today) = args;
    for charge in charges {
        let run = values![charge.run, charge.tokens];
        let key = vec![id(*account), Value::from(charge.day.0), id(charge.turn)];
        tx.run(SET, [key, run].concat()).await?;
    }
    tx.run(FORGET, vec![id(*account), Value::from(today.oldest_kept().0)]).await?;
    let row = tx.row(SUMS, sums(*account, *today)).await?;
    totals(row)
}

fn sums(account: AccountId, today: Day) -> Vec<Value> {
    let (first, last) = today.month();
    let mut values = vec![id(account)];
    values.extend([today, first, last].map(|day| Value::from(day.0)));
    values
}

fn totals(row: Option<super::value::Row>) -> Result<TokenTotals> {
    let row = row.ok_or_else(|| Error::internal("a sum without a row"))?;
    Ok(TokenTotals { day: row.count(0)?, month: row.count(1)? })
}

#[async_trait]
impl Tokens for SqlStore {
    async fn charge(&self, account: AccountId, charges: &[TokenCharge], today: Day) -> Result<TokenTotals> {
        if charges.is_empty() {
            return totals(self.db.row(SUMS, sums(account, today)).await?);
        }
        let args = (account, charges.to_vec(), today);
        self.db.write(args, |tx, args| Box::pin(charge(tx, args))).await
    }
}
