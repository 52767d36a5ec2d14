//! What is durable: the ports of `seawall_core::ports::store` in SQLite and PostgreSQL, and messages in DynamoDB.
//!
//! One implementation serves both SQL databases ([`sql`]): the statements are the same but for a word or two, and
//! [`sql::Db`] hides how a transaction gets to the disk. Start with [`sql::SqlStore`].

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
pub mod sql;

pub use sql::{Db, SqlStore};
