//! Rows of sandboxes: the intent before the box, and what is known of it later.

use super::{Page, Paged, to_micros};
use crate::{
    Error, Result,
    hooks::is_own_key,
    ports::{RecordHead, Volumes},
};
use async_trait::async_trait;
use jiff::Timestamp;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxSpec, SandboxState},
};
use serde_json::{Map, Value};

/// What users and hooks may keep in a sandbox's metadata: bytes of JSON, and keys. The service's own keys do not count.
pub const MAX_METADATA: usize = 64 << 10;
pub const MAX_METADATA_KEYS: usize = 256;

/// Sandboxes or conversations on a page of whole rows that the server reads for itself, beside the byte budget of requests. A row
/// may have 144 KiB.
pub const WHOLE_ROWS: u32 = 50;
/// Heads on a page that the server reads for itself. A head of a row from before version 6 of the database may come with its spec.
pub const HEADS: u32 = 200;

/// Sets keys, and takes away those whose value is null. `too_large` where that is more than [`MAX_METADATA`] or
/// [`MAX_METADATA_KEYS`] allow, unless it is less than there was before.
pub fn merge_metadata(metadata: &mut Map<String, Value>, changes: &Map<String, Value>) -> Result<()> {
    let grows = changes.iter().any(|(key, value)| !value.is_null() && !is_own_key(key));
    let before = if grows { users_part(metadata) } else { (0, 0) };
    for (key, value) in changes {
        match value {
            Value::Null => drop(metadata.remove(key)),
            value => drop(metadata.insert(key.clone(), value.clone())),
        }
    }
    let after = if grows { users_part(metadata) } else { (0, 0) };
    let exceeds = |after: usize, before: usize, most: usize| after > most && after > before;
    if exceeds(after.0, before.0, MAX_METADATA) || exceeds(after.1, before.1, MAX_METADATA_KEYS) {
        let message = format!(
            "metadata would have {} bytes and {} keys, the limits are {MAX_METADATA} and {MAX_METADATA_KEYS}: remove keys, or \
             keep what is large in a file",
            after.0, after.1
        );
        return Err(Error::new(ErrorKind::TooLarge, message).with_code("metadata_too_large"));
    }
    Ok(())
}

/// The key of the metadata that says where the versions of a sandbox are. A sandbox without it has none.
pub(crate) const LAST_PLACE: &str = "last_place";

/// Returns whether a sandbox with this metadata has versions.
pub fn has_versions(metadata: &Map<String, Value>) -> bool {
    metadata.contains_key(LAST_PLACE)
}

/// Bytes and keys of what is not the service's own.
fn users_part(metadata: &Map<String, Value>) -> (usize, usize) {
    let theirs = metadata.iter().filter(|(key, _)| !is_own_key(key));
    theirs.fold((2, 0), |(bytes, keys), (key, value)| {
        // Each key has quotes, a colon and a comma.
        let text = serde_json::to_string(value).map_or(0, |text| text.len());
        (bytes + key.len() + text + 4, keys + 1)
    })
}

/// A sandbox as its row says. The box may have moved on.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRow {
    pub id: SandboxId,
    pub account_id: AccountId,
    pub name: Option<String>,
    pub provider: String,
    /// The machine whose box it is. None: any can reach it.
    pub node: Option<String>,
    pub template: Option<String>,
    pub spec: SandboxSpec,
    pub state: SandboxState,
    pub reason: Option<EndReason>,
    /// It is being removed, and this becomes of its volume.
    pub removing: Option<Volumes>,
    /// Its files have changes that no version has, and why (H8).
    pub unsynced: Option<String>,
    /// `last_synced_at`, `last_version`, token totals, and what hooks put there.
    pub metadata: Map<String, Value>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub last_used_at: Timestamp,
    /// Grows with each change.
    pub version: u64,
}

impl SandboxRow {
    /// The part that background rounds read.
    pub fn head(&self) -> RecordHead {
        RecordHead {
            id: self.id,
            account_id: self.account_id,
            provider: self.provider.clone(),
            template: self.template.clone(),
            state: self.state,
            reason: self.reason.clone(),
            removing: self.removing,
            unsynced: self.unsynced.clone(),
            timeouts: self.spec.timeouts,
            volume: self.spec.volume.clone(),
            created_at: self.created_at,
            started_at: self.started_at,
        }
    }

    /// As stores keep it: see [`to_micros`].
    pub fn kept(&self) -> SandboxRow {
        SandboxRow {
            created_at: to_micros(self.created_at),
            started_at: self.started_at.map(to_micros),
            last_used_at: to_micros(self.last_used_at),
            ..self.clone()
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxFilter {
    pub name: Option<String>,
    /// None: all but the terminated ones.
    pub state: Option<SandboxState>,
}

#[async_trait]
pub trait SandboxRows: Send + Sync {
    /// The intent, before its box is made. `already_exists` where the id is taken by another row, `conflict` where the name is taken by
    /// another of the account's that is not terminated. The version of a new row is 1, whatever it says.
    async fn insert(&self, row: &SandboxRow) -> Result<SandboxRow>;

    /// As [`SandboxRows::insert`], but a loss of power may undo it until [`SandboxRows::settle`] has returned.
    async fn insert_soon(&self, row: &SandboxRow) -> Result<SandboxRow> {
        self.insert(row).await
    }

    /// What was inserted soon is durable.
    async fn settle(&self, _id: SandboxId) -> Result<()> {
        Ok(())
    }

    async fn get(&self, account: AccountId, id: SandboxId) -> Result<SandboxRow>;

    /// Whoever it belongs to: for the machine that has its box.
    async fn find(&self, id: SandboxId) -> Result<Option<SandboxRow>>;

    /// Estimates what each row of a page of [`SandboxRows::list`] takes in memory, in bytes. A page may be shorter.
    async fn sizes(&self, account: AccountId, filter: &SandboxFilter, page: &Page) -> Result<Vec<u64>>;

    /// Newest first.
    async fn list(
        &self,
        account: AccountId,
        filter: &SandboxFilter,
        page: &Page,
    ) -> Result<Paged<SandboxRow>>;

    /// Replaces a row whose version is still the one given, and returns it with the next. `conflict` where somebody
    /// changed it in between: then what is in memory is not the truth, and has to be read again. Metadata is changed
    /// by [`SandboxRows::merge_metadata`] alone.
    async fn update(&self, row: &SandboxRow) -> Result<SandboxRow>;

    /// Changes the metadata as [`merge_metadata`] does, whatever others do meanwhile: its bounds hold for what is there then.
    async fn merge_metadata(
        &self,
        account: AccountId,
        id: SandboxId,
        changes: &Map<String, Value>,
    ) -> Result<SandboxRow>;

    /// Any use counts. Not part of the version; an older time changes nothing.
    async fn touch(&self, account: AccountId, id: SandboxId, at: Timestamp) -> Result<()>;

    /// Removing what is gone succeeds.
    async fn remove(&self, account: AccountId, id: SandboxId) -> Result<()>;

    /// Rows of one machine, of all accounts, oldest first, without the terminated ones. `None`: those of no machine.
    async fn of_node(&self, node: Option<&str>, page: &Page) -> Result<Paged<SandboxRow>>;

    /// As [`SandboxRows::of_node`], but only what background rounds need: neither specs nor metadata are read.
    async fn heads_of_node(&self, node: Option<&str>, page: &Page) -> Result<Paged<RecordHead>>;

    /// A page of heads of an account's sandboxes in a state (`None`: all but the terminated ones), newest first. For work that goes
    /// through all sandboxes of an account: neither specs nor metadata are read.
    async fn heads_of_account(
        &self,
        account: AccountId,
        state: Option<SandboxState>,
        page: &Page,
    ) -> Result<Paged<RecordHead>>;

    /// Bytes of the specs and metadata of an account's sandboxes that were ended.
    async fn ended_bytes(&self, account: AccountId) -> Result<u64>;

    /// Removes up to `limit` records of an account's sandboxes that were ended, the earliest first, and returns how many. Those that
    /// [`Expiry::expire_sandboxes`](super::Expiry::expire_sandboxes) calls needed stay.
    async fn remove_ended(&self, account: AccountId, limit: u32) -> Result<u64>;

    /// As [`SandboxRows::find`], of the same part.
    async fn head(&self, id: SandboxId) -> Result<Option<RecordHead>>;
}
