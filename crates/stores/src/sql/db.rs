//! A database: how statements and transactions get to it.

use super::{
    errors::from_sqlx,
    migrate::Migrated,
    postgres::Postgres,
    sqlite::Sqlite,
    statement::Sql,
    value::{Row, Value},
};
use futures::future::BoxFuture;
use seawall_core::Result;
use sqlx::{Executor as _, PgConnection, SqliteConnection};
use std::path::Path;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub enum Db {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// A transaction that is under way. Whoever runs it ends it.
#[derive(Debug)]
pub enum Tx {
    Sqlite(Box<SqliteConnection>),
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
}

/// What a transaction does. It may be run again, so it changes nothing but the database.
pub trait Work<A, T>:
    for<'t> Fn(&'t mut Tx, &'t A) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static
{
}

impl<A, T, F> Work<A, T> for F where
    F: for<'t> Fn(&'t mut Tx, &'t A) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static
{
}

impl Db {
    /// A file of SQLite, made where it is missing and brought up to date.
    pub async fn sqlite(path: &Path) -> Result<Db> {
        Sqlite::open(path).await.map(Db::Sqlite)
    }

    /// A database of PostgreSQL by its address, brought up to date.
    pub async fn postgres(url: &str) -> Result<Db> {
        Postgres::open(url).await.map(Db::Postgres)
    }

    /// A read on its own.
    pub async fn rows(&self, sql: &'static Sql, values: Vec<Value>) -> Result<Vec<Row>> {
        match self {
            Db::Sqlite(db) => db.rows(sql, values).await,
            Db::Postgres(db) => db.rows(sql, values).await,
        }
    }

    pub async fn row(&self, sql: &'static Sql, values: Vec<Value>) -> Result<Option<Row>> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// One statement as a transaction. How many rows it changed.
    pub async fn run(&self, sql: &'static Sql, values: Vec<Value>) -> Result<u64> {
        match self {
            Db::Sqlite(db) => db.run(sql, values).await,
            Db::Postgres(db) => db.run(sql, values).await,
        }
    }

    /// A transaction. Durable when this returns; an error undoes it.
    pub async fn write<A, T>(&self, args: A, work: impl Work<A, T>) -> Result<T>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        match self {
            Db::Sqlite(db) => db.write(args, work, false).await,
            Db::Postgres(db) => db.write(&args, &work).await,
        }
    }

    /// As [`Db::write`], but on SQLite it is on the disk only with the next write that is not lazy.
    pub async fn write_lazily<A, T>(&self, args: A, work: impl Work<A, T>) -> Result<T>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        match self {
            Db::Sqlite(db) => db.write(args, work, true).await,
            Db::Postgres(db) => db.write(&args, &work).await,
        }
    }

    /// What opening it did to its tables.
    pub fn migrated(&self) -> Migrated {
        match self {
            Db::Sqlite(db) => db.migrated(),
            Db::Postgres(db) => db.migrated(),
        }
    }

    /// Finishes what was begun, and lets go.
    pub async fn close(self) {
        match self {
            Db::Sqlite(db) => db.close().await,
            Db::Postgres(db) => db.close().await,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Db::Sqlite(_) => "sqlite",
            Db::Postgres(_) => "postgres",
        }
    }
}

impl Tx {
    pub async fn rows(&mut self, sql: &'static Sql, values: Vec<Value>) -> Result<Vec<Row>> {
        match self {
            Tx::Sqlite(connection) => sqlite_rows(connection, sql.sqlite, values).await,
            Tx::Postgres(connection) => postgres_rows(connection, sql.postgres, values).await,
        }
        .map_err(from_sqlx)
    }

    pub async fn row(&mut self, sql: &'static Sql, values: Vec<Value>) -> Result<Option<Row>> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    pub async fn run(&mut self, sql: &'static Sql, values: Vec<Value>) -> Result<u64> {
        match self {
            Tx::Sqlite(connection) => sqlite_run(connection, sql.sqlite, values).await,
            Tx::Postgres(connection) => postgres_run(connection, sql.postgres, values).await,
        }
        .map_err(from_sqlx)
    }

    /// On PostgreSQL: what was done is durable. On SQLite its writer says when.
    pub async fn commit(self) -> Result<()> {
        match self {
            Tx::Sqlite(_) => Ok(()),
            Tx::Postgres(transaction) => transaction.commit().await.map_err(from_sqlx),
        }
    }

    /// A script, or a word such as `BEGIN`.
    pub async fn raw(&mut self, text: &'static str) -> Result<()> {
        let done = match self {
            Tx::Sqlite(connection) => connection.execute(sqlx::raw_sql(text)).await.map(drop),
            Tx::Postgres(connection) => connection.execute(sqlx::raw_sql(text)).await.map(drop),
        };
        done.map_err(from_sqlx)
    }
}

macro_rules! bound {
    ($text:expr, $values:expr) => {{
        let mut query = sqlx::query($text);
        for value in $values {
            query = match value {
                Value::Int(number) => query.bind(number),
                Value::Text(text) => query.bind(text),
                Value::Bytes(bytes) => query.bind(bytes),
            };
        }
        query
    }};
}

pub async fn sqlite_rows(
    connection: &mut SqliteConnection,
    text: &'static str,
    values: Vec<Value>,
) -> sqlx::Result<Vec<Row>> {
    let found = connection.fetch_all(bound!(text, values)).await?;
    Ok(found.into_iter().map(Row::Sqlite).collect())
}

pub async fn sqlite_run(
    connection: &mut SqliteConnection,
    text: &'static str,
    values: Vec<Value>,
) -> sqlx::Result<u64> {
    Ok(connection.execute(bound!(text, values)).await?.rows_affected())
}

pub async fn postgres_rows(
    connection: &mut PgConnection,
    text: &'static str,
    values: Vec<Value>,
) -> sqlx::Result<Vec<Row>> {
    let found = connection.fetch_all(bound!(text, values)).await?;
    Ok(found.into_iter().map(Row::Postgres).collect())
}

pub async fn postgres_run(
    connection: &mut PgConnection,
    text: &'static str,
    values: Vec<Value>,
) -> sqlx::Result<u64> {
    Ok(connection.execute(bound!(text, values)).await?.rows_affected())
}
