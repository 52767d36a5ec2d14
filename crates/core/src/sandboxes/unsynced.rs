//! H8: a sandbox with work that no bucket has is neither stopped nor removed without force.

use super::Sandboxes;
use crate::{Error, Result, error::cut, ports::Record};
use seawall_api::SandboxId;

/// How much of a reason is kept, in characters: rounds read it of every sandbox that is marked.
const MOST_WHY: usize = 1000;

pub fn check(record: &Record) -> Result<()> {
    match &record.unsynced {
        None => Ok(()),
        Some(why) => Err(Error::conflict(format!(
            "sandbox {} has work that is not in its bucket ({why}); bring it there with `seawall sync` (at the limit \
             `stored_mb` delete versions or conversations first), or use force",
            record.id
        ))),
    }
}

impl Sandboxes {
    /// Marks a sandbox, with the reason, or takes the mark away.
    pub async fn mark_unsynced(&self, id: SandboxId, why: Option<String>) -> Result<()> {
        let why = why.map(|why| why.chars().take(MOST_WHY).collect());
        let _claim = self.inner.records.claim(id).await?;
        let mut record = self.record(id).await?;
        let why = why.map(cut);
        if record.unsynced != why {
            record.unsynced = why;
            self.inner.records.update(&record).await?;
        }
        Ok(())
    }

    /// Force: whatever is not in the bucket may go.
    pub async fn give_up_unsynced(&self, id: SandboxId) -> Result<()> {
        self.mark_unsynced(id, None).await
    }

    /// Why its work is not in the bucket, where that is so.
    pub async fn unsynced(&self, id: SandboxId) -> Result<Option<String>> {
        Ok(self.record(id).await?.unsynced)
    }
}
