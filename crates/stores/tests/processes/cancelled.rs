//! Writes that nobody waits for any more.

use super::kit::{account, conversation, open, postgres, runtime};
use crate::postgres::psql;
use anyhow::{Result, ensure};
use seawall_api::{ConversationId, SandboxId};
use seawall_stores::SqlStore;
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// As many as the pool has connections, and more.
const MANY: usize = 30;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn leaves_nothing_behind() -> Result<()> {
    let database = postgres()?;
    runtime().block_on(async {
        let stores = SqlStore::new(open(&database.address).await?).stores();
        let id = ConversationId::generate();
        stores.conversations.ensure(account(), &conversation(id)).await?;
        // Somebody else has the row, and all writes wait for it in the middle of their transactions.
        let hold = "BEGIN; SELECT id FROM conversations FOR UPDATE; SELECT pg_sleep(30)";
        let mut holder = Command::new("psql").args(["-qXAt", "-c", hold, &database.address]).spawn()?;
        let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
        while count(&database.address, waits)? == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let writes: Vec<_> = (0..MANY)
            .map(|_| {
                let stores = stores.clone();
                let sandbox = Some(SandboxId::generate());
                let at = jiff::Timestamp::now();
                tokio::spawn(async move { stores.conversations.link(account(), id, None, sandbox, at).await })
            })
            .collect();
        let blocked = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while count(&database.address, blocked)? < 10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        writes.iter().for_each(tokio::task::JoinHandle::abort);
        holder.kill()?;
        holder.wait()?;
        // What is written from now on is not part of anything that was begun before.
        let others: Vec<_> = (0..MANY).map(|_| conversation(ConversationId::generate())).collect();
        for other in &others {
            stores.conversations.ensure(account(), other).await?;
        }
        let fresh = SqlStore::new(open(&database.address).await?).stores();
        for other in &others {
            fresh.conversations.get(account(), other.id).await?;
        }
        ensure!(fresh.conversations.get(account(), id).await?.sandbox_id.is_none(), "a cancelled write happened");
        let open = "SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND datname = current_database()";
        // A backend whose client is gone notices when it has the row, and goes.
        let begun = Instant::now();
        while count(&database.address, open)? != 0 {
            ensure!(begun.elapsed() < PATIENCE, "transactions are left open");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
}

fn count(address: &str, sql: &str) -> Result<u64> {
    Ok(psql(address, &["-c", sql])?.trim().parse()?)
}
