//! Maintenance of the database behind the stores.

use crate::Result;
use async_trait::async_trait;
use seawall_api::http::DatabaseCheck;
use std::path::Path;

#[async_trait]
pub trait Database: Send + Sync {
    /// Compares all totals with the rows that they come from.
    async fn check(&self) -> Result<DatabaseCheck>;

    /// Writes a complete copy to a new file while the database is in use, and checks the copy. Returns `unsupported` for a
    /// database with backup tools of its own.
    async fn backup(&self, to: &Path) -> Result<DatabaseCheck>;
}
