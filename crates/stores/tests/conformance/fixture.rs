//! The stores that the suite runs on.

use super::kit::Cx;
use crate::postgres::{self, Database};
use anyhow::Result;
use futures::future::BoxFuture;
use seawall_core::{ports::store::Stores, testing::MemoryStore};
use seawall_stores::{
    Db, SqlStore,
    dynamodb::{DynamoMessages, DynamoSettings},
};
use std::sync::Arc;

/// A store, and how a fresh one is made for each case.
#[derive(Clone)]
pub struct Store {
    pub name: &'static str,
    /// The groups of cases that are about it; none: all.
    pub only: Option<&'static [&'static str]>,
    /// Why it cannot be used here.
    pub missing: Option<String>,
    pub make: fn() -> BoxFuture<'static, Result<Cx>>,
}

pub fn all() -> Vec<Store> {
    let postgres = (!postgres::is_there()).then(|| postgres::MISSING.to_owned());
    let dynamodb = match std::env::var("SEAWALL_TEST_DYNAMODB") {
        Ok(_) => None,
        Err(_) => {
            Some("no DynamoDB: SEAWALL_TEST_DYNAMODB is not set (`make test` starts moto's)".to_owned())
        }
    };
    vec![
        Store { name: "memory", only: None, missing: None, make: || Box::pin(memory()) },
        Store { name: "sqlite", only: None, missing: None, make: || Box::pin(sqlite()) },
        Store { name: "postgres", only: None, missing: postgres, make: || Box::pin(postgres_database()) },
        Store {
            name: "dynamodb",
            only: Some(&["messages"]),
            missing: dynamodb,
            make: || Box::pin(dynamodb_table()),
        },
    ]
}

async fn memory() -> Result<Cx> {
    Cx::new(MemoryStore::new().stores(), None).await
}

/// Messages there, and the rest in memory.
async fn dynamodb_table() -> Result<Cx> {
    let settings = DynamoSettings {
        table: "seawall-conformance".into(),
        endpoint: Some(std::env::var("SEAWALL_TEST_DYNAMODB")?),
        region: Some("us-east-1".into()),
        make_table: true,
    };
    let messages = Arc::new(DynamoMessages::open(&settings).await?);
    Cx::new(Stores { messages, ..MemoryStore::new().stores() }, None).await
}

async fn sqlite() -> Result<Cx> {
    let folder = tempfile::tempdir()?;
    let db = Db::sqlite(&folder.path().join("seawall.db")).await?;
    Cx::new(SqlStore::new(db).stores(), Some(Arc::new(folder))).await
}

/// One database for each case: some things are the whole server's.
async fn postgres_database() -> Result<Cx> {
    let database = Database::new()?;
    let db = Db::postgres(&database.url).await?;
    Cx::new(SqlStore::new(db).stores(), Some(Arc::new(database))).await
}
