//! PostgreSQL: a pool of connections. What may pass is tried again.

use super::{
    db::{Tx, Work, postgres_rows, postgres_run},
    errors::from_sqlx,
    gate::Gate,
    migrate::{self, Migrated},
    statement::Sql,
    value::{Row, Value},
};
use seawall_core::{Error, Result};
use sqlx::{
    ConnectOptions as _,
    postgres::{PgConnectOptions, PgPool, PgPoolOptions},
};
use std::{str::FromStr, time::Duration};
use tokio::time::{Instant, sleep};

/// How long a call is tried again while the server restarts.
const PATIENCE: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const CONNECTIONS: u32 = 20;

#[derive(Debug, Clone)]
pub struct Postgres {
    pool: PgPool,
    gate: Gate,
    migrated: Migrated,
}

impl Postgres {
    /// Connects, and brings the database up to date.
    pub async fn open(url: &str) -> Result<Postgres> {
        let mut postgres = Postgres::connect(url)?;
        let mut tx = postgres.tx().await?;
        postgres.migrated = migrate::postgres(&mut tx).await?;
        tx.commit().await?;
        Ok(postgres)
    }

    fn connect(url: &str) -> Result<Postgres> {
        let options = PgConnectOptions::from_str(url)
            .map_err(|error| {
                Error::invalid(
                    "this is no address of PostgreSQL: postgres://user:password@host:5432/database",
                )
                .with_source(error)
            })?
            .application_name("seawall")
            // Whoever stops in the middle must not keep others from what it has locked.
            .options([("lock_timeout", "10s"), ("idle_in_transaction_session_timeout", "20s")])
            .disable_statement_logging();
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            // The first statement shows as well whether it lives, and is tried again.
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Ok(Postgres { pool, gate: Gate::postgres(CONNECTIONS), migrated: Migrated { from: 0, to: 0 } })
    }

    pub(super) fn migrated(&self) -> Migrated {
        self.migrated
    }

    pub(super) async fn close(self) {
        self.pool.close().await;
    }

    async fn tx(&self) -> Result<Tx> {
        Ok(Tx::Postgres(self.pool.begin().await.map_err(from_sqlx)?))
    }

    pub(super) async fn rows(&self, sql: &'static Sql, values: Vec<Value>) -> Result<Vec<Row>> {
        let _share = self.gate.read().await;
        let mut patience = Patience::new();
        loop {
            match self.rows_once(sql, values.clone()).await {
                Ok(rows) => return Ok(rows),
                Err(error) => patience.after(error).await?,
            }
        }
    }

    async fn rows_once(&self, sql: &'static Sql, values: Vec<Value>) -> Result<Vec<Row>> {
        let mut connection = self.pool.acquire().await.map_err(from_sqlx)?;
        postgres_rows(&mut connection, sql.postgres, values).await.map_err(from_sqlx)
    }

    pub(super) async fn run(&self, sql: &'static Sql, values: Vec<Value>) -> Result<u64> {
        let _share = self.gate.write().await;
        let mut patience = Patience::new();
        loop {
            match self.run_once(sql, values.clone()).await {
                Ok(changed) => return Ok(changed),
                Err(error) => patience.after(error).await?,
            }
        }
    }

    async fn run_once(&self, sql: &'static Sql, values: Vec<Value>) -> Result<u64> {
        let mut connection = self.pool.acquire().await.map_err(from_sqlx)?;
        postgres_run(&mut connection, sql.postgres, values).await.map_err(from_sqlx)
    }

    pub(super) async fn write<A, T>(&self, args: &A, work: &impl Work<A, T>) -> Result<T>
    where
        A: Send + Sync,
        T: Send,
    {
        let _share = self.gate.write().await;
        let mut patience = Patience::new();
        loop {
            match self.write_once(args, work).await {
                Ok(done) => return Ok(done),
                Err(error) => patience.after(error).await?,
            }
        }
    }

    async fn write_once<A, T>(&self, args: &A, work: &impl Work<A, T>) -> Result<T>
    where
        A: Send + Sync,
        T: Send,
    {
        let mut tx = self.tx().await?;
        // Where this is dropped in between, so is the transaction: the pool undoes it before anybody else gets the
        // connection.
        let done = work(&mut tx, args).await?;
        tx.commit().await?;
        Ok(done)
    }
}

/// What fails in passing is tried again for a while. Every call may be repeated.
struct Patience {
    began: Instant,
    pause: Duration,
}

impl Patience {
    fn new() -> Patience {
        Patience { began: Instant::now(), pause: FIRST_PAUSE }
    }

    /// Returns when it is time to try again, or the error where that makes no sense.
    async fn after(&mut self, error: Error) -> Result<()> {
        if !error.is_retryable() || self.began.elapsed() + self.pause > PATIENCE {
            return Err(error);
        }
        tracing::debug!(error = %error.chain(), "the database is tried again");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
