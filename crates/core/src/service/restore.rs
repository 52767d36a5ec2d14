//! The files of a sandbox: brought in when it is made, looked at when they are stale, pushed.

use super::{
    FILES_OF, IN_PART, LAST_PLACE, LAST_SYNCED, LAST_VERSION, READY, Ready, SandboxService, Wanted,
    owned::NO_TEMPLATE,
};
use crate::{
    Error, Result,
    workspaces::{Names, Restore, Staleness, Workspaces, staleness},
};
use seawall_api::{AccountId, SandboxId, sandbox::SandboxState};
use seawall_sync::{
    engine::{Options, Silent, SyncReport},
    state::CommitRef,
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

impl SandboxService {
    /// The default of a cold start (H3). `empty`: it has nothing that was there before. `is_new`: nor has its volume.
    pub(super) async fn restore_files(
        &self,
        wanted: &Wanted,
        empty: bool,
        is_new: bool,
    ) -> Result<Option<i64>> {
        let sync = &wanted.template.sync;
        if !sync.init_from_bucket {
            return Ok(None);
        }
        let Some(workspaces) = self.workspaces(wanted).await? else { return Ok(None) };
        // Before, since a pull that fails leaves a mark too.
        let row = self.rows.find(wanted.sandbox).await?;
        let in_part = row.as_ref().is_some_and(|row| row.metadata.contains_key(IN_PART));
        let had_work = !is_new && !in_part && row.is_some_and(|row| row.unsynced.is_some());
        let report = match self.pull(wanted, &workspaces).await {
            Ok(Some(report)) => report,
            Ok(None) if empty => return self.never_synced(wanted, &workspaces).await.map(|()| None),
            Ok(None) => return Ok(None),
            // H8: what is here is newer than all that a bucket could have, so work goes on with it.
            Err(error) if error.is_retryable() && had_work => {
                tracing::error!(sandbox = %wanted.sandbox, error = %error.chain(), "the bucket is away; work goes on with the files that are here");
                return Ok(None);
            }
            Err(error) => {
                if !had_work {
                    self.note_in_part(wanted, is_new).await;
                }
                return Err(error);
            }
        };
        self.note_synced(wanted, &workspaces, report.version.as_ref()).await;
        Ok(report.version.map(|version| version.timestamp))
    }

    /// What came of a pull that failed is no work of anybody's that could be gone on with.
    async fn note_in_part(&self, wanted: &Wanted, is_new: bool) {
        if !is_new {
            return self.note(wanted, IN_PART, Value::Bool(true)).await;
        }
        // The volume goes with the box. Where that cannot be noted both are kept.
        if let Err(error) = self.sandboxes.give_up_unsynced(wanted.sandbox).await {
            tracing::error!(sandbox = %wanted.sandbox, error = %error.chain(), "a mark could not be taken back");
        }
    }

    /// An empty workspace in place of one that was saved would look like a loss, and be saved as one.
    async fn never_synced(&self, wanted: &Wanted, workspaces: &Workspaces) -> Result<()> {
        let metadata = self.rows.find(wanted.sandbox).await?.map(|row| row.metadata).unwrap_or_default();
        // Another template may have another bucket, or another prefix.
        let place = Value::from(workspaces.place(wanted.sandbox)?);
        let known = metadata.get(LAST_VERSION).and_then(Value::as_i64);
        match known.filter(|_| metadata.get(LAST_PLACE) == Some(&place)) {
            None => Ok(()),
            Some(version) => Err(Error::conflict(format!(
                "the bucket has no version of sandbox {} any more, and it had version {version}: is its disk mounted, is it \
                 the right one? Bring it back; or, to begin with no files, set `sync.init_from_bucket = false` in the template",
                wanted.sandbox
            ))),
        }
    }

    /// The version that the template names, or the newest. None: there is none.
    async fn pull(&self, wanted: &Wanted, workspaces: &Workspaces) -> Result<Option<SyncReport>> {
        Ok(Some(match wanted.template.sync.version {
            Some(version) => {
                let what = Restore { version: Some(version), ..Restore::default() };
                workspaces.restore(wanted.sandbox, &what, Arc::new(Silent)).await?.report
            }
            // The first version is that of the first turn, not of an empty folder.
            None if !workspaces.has_versions(wanted.sandbox).await? => return Ok(None),
            None => workspaces.sync_files(wanted.sandbox, Options::default()).await?,
        }))
    }

    /// Where its files go; none: nowhere. A sandbox that other templates use stays where its first version is: elsewhere
    /// would be another history, and older.
    pub async fn workspaces(&self, wanted: &Wanted) -> Result<Option<Workspaces>> {
        let row = self.rows.find(wanted.sandbox).await?;
        if row.as_ref().is_some_and(|row| row.spec.has_host_workspace()) {
            return Ok(None);
        }
        let mut sync = wanted.template.sync.clone();
        let first = row.as_ref().and_then(|row| row.metadata.get(FILES_OF)).and_then(Value::as_str);
        if let Some(first) = first.filter(|first| *first != wanted.template.name) {
            let theirs = self.files_of(wanted, first)?;
            (sync.enabled, sync.bucket, sync.key_prefix) = theirs;
        }
        let names = Names { volume: row.and_then(|row| row.spec.volume), ..wanted.names() };
        self.workspaces.at(&sync, &names).await
    }

    fn files_of(&self, wanted: &Wanted, first: &str) -> Result<(bool, Option<String>, Option<String>)> {
        let found = self.templates.get(first).map_err(|error| {
            let message = format!(
                "the files of sandbox {} are where the template `{first}` says, and it is not there any more: bring its \
                 file back, or end the sandbox by force",
                wanted.sandbox
            );
            Error::conflict(message).with_code(NO_TEMPLATE).with_source(error)
        })?;
        Ok((found.sync.enabled, found.sync.bucket.clone(), found.sync.key_prefix.clone()))
    }

    /// S7: what was synced too long ago is looked at before it is used.
    pub(super) async fn freshen(&self, wanted: &Wanted, metadata: &Map<String, Value>) -> Result<Ready> {
        let last = metadata.get(LAST_SYNCED).and_then(Value::as_i64);
        let stale_after = self.workspaces.settings().stale_after;
        let is_fresh = staleness(last, self.clock.now().as_second(), stale_after) == Staleness::Fresh;
        if !wanted.template.sync.enabled || is_fresh && !wanted.moved {
            return Ok(Ready::default());
        }
        let Some(workspaces) = self.workspaces(wanted).await? else { return Ok(Ready::default()) };
        let refreshed = match wanted.moved {
            true => workspaces.sync_files(wanted.sandbox, Options::default()).await.map(Some),
            false => workspaces.refresh(wanted.sandbox).await.map(|(_, report)| report),
        };
        match refreshed {
            Ok(report) => {
                let version = report.and_then(|report| report.version);
                self.note_synced(wanted, &workspaces, version.as_ref()).await;
                let version = version.map(|version| version.timestamp);
                Ok(Ready { cold: false, version })
            }
            Err(error) if wanted.moved => {
                let message = "the files of the conversation's last sandbox cannot be had now; try again";
                Err(Error::new(error.kind(), message).with_code("sync_failed").with_source(error))
            }
            // The files are here; that others may have newer ones is no reason to refuse work.
            Err(error) => {
                tracing::error!(sandbox = %wanted.sandbox, error = %error.chain(), "a stale workspace could not be refreshed");
                Ok(Ready::default())
            }
        }
    }

    /// Pushes what changed (S6). None: its files go nowhere.
    pub async fn push(&self, wanted: &Wanted) -> Result<Option<SyncReport>> {
        self.push_within(wanted, None).await
    }

    /// As [`SandboxService::push`], and stores nothing that brings the account above so many bytes.
    pub(crate) async fn push_within(&self, wanted: &Wanted, most: Option<u64>) -> Result<Option<SyncReport>> {
        let Some(workspaces) = self.workspaces(wanted).await? else { return Ok(None) };
        let workspaces = workspaces.within(most);
        // A sync is large, and so would be whoever waits for it.
        let report = Box::pin(workspaces.sync_files(wanted.sandbox, Options::default())).await?;
        self.note_synced(wanted, &workspaces, report.version.as_ref()).await;
        Ok(Some(report))
    }

    /// Makes a box run on its volume, to save what is there. What is made anew is not ready for anything else.
    pub(crate) async fn start_to_save(&self, account: AccountId, id: SandboxId) -> Result<()> {
        if self.sandboxes.get(id).await?.state != SandboxState::Stopped {
            let not_ready = Map::from_iter([(READY.to_owned(), Value::Bool(false))]);
            self.note_of(account, id, &not_ready).await;
        }
        self.sandboxes.start_to_save(id).await.map(drop)
    }

    /// V6: what was synced last, and when.
    pub async fn note_synced(&self, wanted: &Wanted, workspaces: &Workspaces, version: Option<&CommitRef>) {
        let mut notes = Map::from_iter([
            (LAST_SYNCED.to_owned(), json!(self.clock.now().as_second())),
            (IN_PART.to_owned(), Value::Null),
        ]);
        if let (Some(version), Ok(place)) = (version, workspaces.place(wanted.sandbox)) {
            notes.insert(LAST_VERSION.to_owned(), json!(version.timestamp));
            notes.insert(LAST_PLACE.to_owned(), json!(place));
            // Whose template it was first.
            let row = self.rows.find(wanted.sandbox).await.ok().flatten();
            if row.is_some_and(|row| !row.metadata.contains_key(FILES_OF)) {
                notes.insert(FILES_OF.to_owned(), json!(wanted.template.name));
            }
        }
        self.note_all(wanted, &notes).await;
    }

    pub(super) async fn note(&self, wanted: &Wanted, key: &str, value: Value) {
        self.note_all(wanted, &Map::from_iter([(key.to_owned(), value)])).await;
    }

    /// V6. What cannot be noted is done again.
    pub(super) async fn note_all(&self, wanted: &Wanted, notes: &Map<String, Value>) {
        self.note_of(wanted.account, wanted.sandbox, notes).await;
    }

    async fn note_of(&self, account: AccountId, id: SandboxId, notes: &Map<String, Value>) {
        if let Err(error) = self.rows.merge_metadata(account, id, notes).await {
            tracing::warn!(sandbox = %id, ?notes, error = %error.chain(), "it could not be noted");
        }
    }
}
