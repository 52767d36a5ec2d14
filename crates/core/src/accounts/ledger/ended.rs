//! The bound on records of ended sandboxes (`ended_records_mb`).
//!
//! The record of an ended sandbox stays, so that a turn of its conversation can make the sandbox again and its owner finds its
//! versions. It keeps the spec and the metadata for that, which are up to 144 KiB of the owner's choice, and an account can end
//! as many sandboxes as it likes. So their bytes are bounded: above the limit the oldest records go that neither a
//! conversation nor a version needs, before their time in `[retention]` is over. Only an account that is above it with needed
//! records alone gets no new sandbox. No version and no conversation is lost.
//!
//! An account can be above the limit by the records of sandboxes that were not ended when it was looked at, whose number
//! `sandboxes` bounds.

use super::{Ledger, Limit};
use crate::{Result, ports::store::MAX_METADATA};
use seawall_api::{AccountId, sandbox::SandboxSpec};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Records that one statement removes, and statements of one request. Later requests go on.
const BATCH: u32 = 500;
const MOST_BATCHES: u32 = 20;
/// What the service itself notes in the metadata, at the most.
const OWN_NOTES: u64 = 16 << 10;

/// How many bytes the records of each account may grow by before they have to be summed again.
#[derive(Debug, Default)]
pub(super) struct Unread(Mutex<HashMap<AccountId, u64>>);

impl Unread {
    /// Takes what a new record may come to. False where the sum has to be read first.
    fn take(&self, account: AccountId, most: u64) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = all.get(&account).and_then(|left| left.checked_sub(most));
        match rest {
            Some(rest) => all.insert(account, rest),
            None => all.remove(&account),
        };
        rest.is_some()
    }

    fn set(&self, account: AccountId, left: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(account, left);
    }

    pub(super) fn forget(&self, account: AccountId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&account);
    }
}

impl Ledger {
    /// Refuses one more record to an account whose ended sandboxes have all the bytes of records that they may have, after what
    /// is not needed was removed.
    pub async fn refuse_record(&self, account: AccountId, spec: &SandboxSpec) -> Result<()> {
        if account == AccountId::LOCAL {
            return Ok(());
        }
        let limits = self.0.catalog.settings(account).await?.limits;
        let Some(most_mb) = limits.get(Limit::EndedRecordsMb) else { return Ok(()) };
        let spec = serde_json::to_vec(spec).map_or(0, |text| text.len() as u64);
        let record = spec + MAX_METADATA as u64 + OWN_NOTES;
        if self.0.unread.take(account, record) {
            return Ok(());
        }
        let most = most_mb.saturating_mul(1 << 20);
        let used = self.shrink_records(account, most).await?;
        if used >= most {
            let what =
                "the sandbox is refused before conversations, or versions of ended sandboxes, are deleted";
            return Err(Limit::EndedRecordsMb.reached(most_mb, used.div_ceil(1 << 20), what));
        }
        self.0.unread.set(account, (most - used).saturating_sub(record));
        Ok(())
    }

    /// Returns the bytes of an account's ended records, after the oldest that nothing needs were removed where they were too many.
    async fn shrink_records(&self, account: AccountId, most: u64) -> Result<u64> {
        let mut used = self.0.rows.ended_bytes(account).await?;
        for _ in 0..MOST_BATCHES {
            if used < most {
                break;
            }
            let removed = self.0.rows.remove_ended(account, BATCH).await?;
            if removed == 0 {
                break;
            }
            tracing::info!(%account, removed, "records of ended sandboxes went before their time: they were too large");
            used = self.0.rows.ended_bytes(account).await?;
        }
        Ok(used)
    }
}
