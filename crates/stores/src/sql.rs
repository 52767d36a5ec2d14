//! SQLite and PostgreSQL.
//!
//! Each noun has a file with its statements and methods (`accounts`, `conversations`, `turns`, …). `db` groups
//! commits, `gate` shares the connections among accounts, `migrate` only moves forward, `expiry` is retention, and
//! `conversation_bytes` counts stored bytes in the transaction that stores or removes them.

mod accounts;
mod check;
mod conversation_bytes;
mod conversations;
mod db;
mod errors;
mod expiry;
pub mod fill;
mod gate;
mod heads;
mod hook_runs;
mod idempotency;
mod leases;
mod messages;
mod migrate;
mod outbox;
mod postgres;
mod restore;
mod sandboxes;
mod sessions;
mod sqlite;
mod statement;
mod stored;
mod tokens;
mod turns;
mod value;

pub use check::{Check, check};
pub use db::Db;
pub use migrate::{Migrated, newest_version};
pub use restore::{backup, restore};
pub use statement::Sql;

use seawall_core::ports::store::Stores;
use std::sync::Arc;

/// Everything in one database.
#[derive(Debug, Clone)]
pub struct SqlStore {
    db: Db,
    /// Messages are written with their turn. Else they go through the outbox to another store.
    messages_here: bool,
}

impl SqlStore {
    pub fn new(db: Db) -> SqlStore {
        SqlStore { db, messages_here: true }
    }

    /// Messages are in another store, which the outbox feeds.
    pub fn with_messages_elsewhere(db: Db) -> SqlStore {
        SqlStore { db, messages_here: false }
    }

    pub fn db(&self) -> &Db {
        &self.db
    }

    /// All ports on this database.
    pub fn stores(&self) -> Stores {
        Stores::of(Arc::new(self.clone()))
    }
}

/// How SQLite would run a statement, a line for each step.
pub async fn plan(db: &Db, sql: &'static Sql) -> seawall_core::Result<Vec<String>> {
    match db {
        Db::Sqlite(sqlite) => sqlite.plan(sql).await,
        Db::Postgres(_) => Err(seawall_core::Error::invalid("PostgreSQL's plans are read with psql")),
    }
}

/// Every statement of a request, for the test that reads their plans.
pub fn statements() -> Vec<&'static Sql> {
    [
        accounts::ALL,
        conversation_bytes::ALL,
        conversations::ALL,
        expiry::ALL,
        heads::ALL,
        hook_runs::ALL,
        idempotency::ALL,
        leases::ALL,
        messages::ALL,
        migrate::ALL,
        outbox::ALL,
        sandboxes::ALL,
        sessions::ALL,
        stored::ALL,
        tokens::ALL,
        turns::ALL,
    ]
    .concat()
}
