//! Bringing a database up to date. Forward only; of several processes at once one does it, and the others wait.

use super::{
    db::Tx,
    statement::statement,
    value::{Value, values},
};
use seawall_core::{Error, Result};

/// One step, in both dialects. A step that was ever released never changes.
struct Migration {
    name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

macro_rules! migration {
    ($name:literal) => {
        Migration {
            name: $name,
            sqlite: include_str!(concat!("../../migrations/sqlite/", $name, ".sql")),
            postgres: include_str!(concat!("../../migrations/postgres/", $name, ".sql")),
        }
    };
}

/// The first is version 1.
const MIGRATIONS: &[Migration] = &[
    migration!("0001_first"),
    migration!("0002_turns_per_account"),
    migration!("0003_turns"),
    migration!("0004_endings"),
    migration!("0005_hooks"),
    migration!("0006_rounds"),
    migration!("0007_accounts"),
    migration!("0008_stored"),
    migration!("0009_tokens"),
    migration!("0010_ended_records"),
    migration!("0011_conversation_bytes"),
];

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    pub from: u64,
    pub to: u64,
}

/// The version that this program makes and knows.
pub fn newest_version() -> u64 {
    MIGRATIONS.len() as u64
}

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS schema_versions (
    version BIGINT PRIMARY KEY, name TEXT NOT NULL, applied_at BIGINT NOT NULL)";
/// Any number that nobody else takes.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7305788392814)";

statement! {
    listed;
    VERSION: ["SELECT CAST(COALESCE(MAX(version), 0) AS BIGINT) FROM schema_versions"];
    APPLIED: ["INSERT INTO schema_versions (version, name, applied_at) VALUES ($1, $2, ", NOW, ")"];
}

pub async fn sqlite(tx: &mut Tx) -> Result<Migrated> {
    let newest = newest_version();
    // Mostly there is nothing to do, and looking stands in nobody's way. A new file has no such table.
    if let Ok(Some(row)) = tx.row(VERSION, Vec::new()).await
        && row.count(0)? == newest
    {
        return Ok(Migrated { from: newest, to: newest });
    }
    tx.raw("BEGIN IMMEDIATE").await?;
    match apply(tx, |migration| migration.sqlite).await {
        Ok(done) => tx.raw("COMMIT").await.map(|()| done),
        Err(error) => {
            tx.raw("ROLLBACK").await?;
            Err(error)
        }
    }
}

/// Whoever calls commits.
pub async fn postgres(tx: &mut Tx) -> Result<Migrated> {
    tx.raw(LOCK).await?;
    apply(tx, |migration| migration.postgres).await
}

async fn apply(tx: &mut Tx, text: fn(&Migration) -> &'static str) -> Result<Migrated> {
    tx.raw(VERSIONS).await?;
    let from = match tx.row(VERSION, Vec::<Value>::new()).await? {
        Some(row) => row.count(0)?,
        None => 0,
    };
    let newest = newest_version();
    if from > newest {
        return Err(Error::conflict(format!(
            "the database has version {from}, and this seawall knows {newest}: it was used by a newer one; use that, or restore a backup"
        )));
    }
    for (version, migration) in (1..).zip(MIGRATIONS).skip(from as usize) {
        tx.raw(text(migration)).await?;
        tx.run(APPLIED, values![version as u64, migration.name]).await?;
        tracing::info!(version, name = migration.name, "database brought up to date");
    }
    Ok(Migrated { from, to: newest })
}
