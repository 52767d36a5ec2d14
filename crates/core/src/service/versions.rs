//! The versions of a sandbox's files, by account.

use super::{LAST_PLACE, LAST_SYNCED, LAST_VERSION, SandboxService, Wanted, coded, stored::PATIENCE};
use crate::{
    Error, Result,
    accounts::Limit,
    ports::{
        RecordHead,
        store::{HEADS, Page, SandboxRow},
    },
    workspaces::{Difference, Restore, Workspaces},
};
use jiff::Timestamp;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    files::FileName,
    http::{DroppedVersions, PruneVersions, RestoreVersion, SyncProgress, Version},
    sandbox::SandboxState,
};
use seawall_sync::{
    engine::{DryRun, Options, Restored, SyncReport},
    versions::{Keep, Pruned, Verified},
};
use serde_json::{Map, Value};

impl SandboxService {
    /// Where the files of a sandbox go; an error where that is nowhere.
    async fn place_of(&self, row: &SandboxRow) -> Result<Workspaces> {
        Ok(self.wanted_place(row).await?.1)
    }

    async fn wanted_place(&self, row: &SandboxRow) -> Result<(Wanted, Workspaces)> {
        let wanted = self.wanted_of(row).await?;
        let found = self.workspaces(&wanted).await?.ok_or_else(|| {
            let template = row.template.as_deref().unwrap_or("shell");
            let why = "there is no bucket, or its template says `sync.enabled = false`";
            Error::invalid(format!(
                "the files of sandbox {} (template `{template}`) go nowhere: {why}",
                row.id
            ))
        })?;
        Ok((wanted, found))
    }

    /// Reads every body of every version again, and reports damaged ones. Also of a sandbox that was ended.
    pub async fn verify(&self, account: AccountId, id: SandboxId) -> Result<Verified> {
        let row = self.row(account, id).await?;
        let workspaces = self.place_of(&row).await?;
        let _permit = self.heavy.files.enter(account).await;
        workspaces.verify(id, |_| ()).await
    }

    /// S7.
    pub async fn sync(&self, account: AccountId, id: SandboxId, options: Options) -> Result<SyncReport> {
        let most = self.sandboxes.refuse_full(account).await?;
        self.guest(account, id).await?;
        let row = self.live_row(account, id).await?;
        let (wanted, workspaces) = self.wanted_place(&row).await?;
        let workspaces = workspaces.within(most);
        let _permit = self.heavy.files.enter(account).await;
        let synced = workspaces.sync_with_progress(id, options, self.syncing.follow(id)).await;
        let report = match synced {
            Err(error) => return Err(self.not_stored(account, id, most, error).await),
            Ok(report) => report,
        };
        self.note_synced(&wanted, &workspaces, report.version.as_ref()).await;
        Ok(report)
    }

    /// How far the sync or restore of a sandbox is that runs now.
    pub async fn progress(&self, account: AccountId, id: SandboxId) -> Result<SyncProgress> {
        self.row(account, id).await?;
        Ok(self.syncing.of(id).unwrap_or_default())
    }

    /// What a sync would do.
    pub async fn dry_run(&self, account: AccountId, id: SandboxId, options: Options) -> Result<DryRun> {
        self.guest(account, id).await?;
        let row = self.live_row(account, id).await?;
        let _permit = self.heavy.files.enter(account).await;
        self.place_of(&row).await?.dry_run(id, options).await.map_err(|error| not_synced(id, error))
    }

    /// Oldest first; also of a sandbox that was ended.
    pub async fn versions(&self, account: AccountId, id: SandboxId) -> Result<Vec<Version>> {
        let row = self.row(account, id).await?;
        let _permit = self.heavy.files.enter(account).await;
        let found = self.place_of(&row).await?.versions(id).await?;
        let shown = |version: seawall_sync::versions::VersionInfo| Version {
            version: version.timestamp,
            sequence: version.seq,
            created_at: Timestamp::from_millisecond(version.timestamp).unwrap_or_default(),
            files: version.files,
            bytes: version.bytes,
        };
        Ok(found.into_iter().map(shown).collect())
    }

    pub async fn diff(
        &self,
        account: AccountId,
        id: SandboxId,
        from: i64,
        to: Option<i64>,
    ) -> Result<Vec<Difference>> {
        let row = self.row(account, id).await?;
        let _permit = self.heavy.files.enter(account).await;
        self.place_of(&row).await?.diff(id, from, to).await
    }

    /// Drops old versions; also of a sandbox that was ended. A version stays where either rule keeps it.
    pub async fn prune_versions(
        &self,
        account: AccountId,
        id: SandboxId,
        ask: &PruneVersions,
    ) -> Result<DroppedVersions> {
        if ask.keep.is_none() && ask.keep_for_seconds.is_none() {
            return Err(Error::invalid("say what stays: `keep`, `keep_for_seconds`, or both"));
        }
        let bounds = [
            ("keep", ask.keep, PruneVersions::MOST_KEPT),
            ("keep_for_seconds", ask.keep_for_seconds, PruneVersions::LONGEST_KEPT_SECONDS),
        ];
        for (name, asked, most) in bounds {
            if asked.is_some_and(|asked| asked > most) {
                return Err(Error::invalid(format!("`{name}` is at most {most}")));
            }
        }
        let row = self.row(account, id).await?;
        let millis = |seconds: u64| i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX);
        let keep = Keep {
            newest: usize::try_from(ask.keep.unwrap_or(1)).unwrap_or(usize::MAX),
            younger_than: ask.keep_for_seconds.map(millis),
        };
        self.place_of(&row).await?.prune(id, keep).await.map(told)
    }

    /// Drops one version; also of a sandbox that was ended. The newest stays.
    pub async fn delete_version(
        &self,
        account: AccountId,
        id: SandboxId,
        version: i64,
    ) -> Result<DroppedVersions> {
        let row = self.row(account, id).await?;
        self.place_of(&row).await?.delete_version(id, version).await.map(told)
    }

    /// Where all versions of a sandbox are that shall be deleted. None where its files go nowhere. Those of a volume that
    /// another sandbox uses are not its own.
    pub(super) async fn deletable(&self, row: &SandboxRow) -> Result<Option<Workspaces>> {
        if let Some(volume) = &row.spec.volume
            && let Some(other) = self.other_user(row, volume).await?
        {
            let message = format!(
                "sandbox {other} uses the volume of sandbox {} too, and its versions: end that one first, or prune them",
                row.id
            );
            return Err(Error::conflict(message).with_code("volume_in_use"));
        }
        let wanted = self.wanted_of(row).await?;
        self.workspaces(&wanted).await
    }

    async fn other_user(&self, row: &SandboxRow, volume: &str) -> Result<Option<SandboxId>> {
        let mut page = Page::first(HEADS);
        loop {
            let found = self.rows.heads_of_account(row.account_id, None, &page).await?;
            let uses = |other: &&RecordHead| other.id != row.id && other.volume.as_deref() == Some(volume);
            if let Some(other) = found.items.iter().find(uses) {
                return Ok(Some(other.id));
            }
            match found.next {
                Some(next) => page.after = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// Deletes all versions. The next life of the sandbox begins without files, and knows that it should.
    pub(super) async fn delete_versions(&self, row: &SandboxRow, workspaces: &Workspaces) -> Result<()> {
        workspaces.delete_versions(row.id).await?;
        self.forget_versions(row).await
    }

    async fn forget_versions(&self, row: &SandboxRow) -> Result<()> {
        let gone = [LAST_VERSION, LAST_PLACE, LAST_SYNCED].map(|key| (key.to_owned(), Value::Null));
        match self.rows.merge_metadata(row.account_id, row.id, &Map::from_iter(gone)).await {
            // One without a template leaves no row.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done.map(drop),
        }
    }

    /// Why files were not synced. Where that is the account's limit, its value and what is in use are told.
    async fn not_stored(&self, account: AccountId, id: SandboxId, most: Option<u64>, error: Error) -> Error {
        let (Some(most), ErrorKind::Denied, Some(stored)) = (most, error.kind(), self.workspaces.stored())
        else {
            return not_synced(id, error);
        };
        let used = stored.total(account).await.unwrap_or(most);
        let what = format!("not all files of sandbox {id} were synced");
        Limit::StoredMb.reached(most >> 20, used.div_ceil(1 << 20), &what).with_source(error)
    }

    /// Brings a version back, or a part of it.
    pub async fn restore(&self, account: AccountId, id: SandboxId, ask: &RestoreVersion) -> Result<Restored> {
        let most = self.sandboxes.refuse_full(account).await?;
        let from = match ask.from {
            // It must be theirs too.
            Some(from) => Some(self.row(account, from).await?),
            None => None,
        };
        self.guest(account, id).await?;
        let row = self.live_row(account, id).await?;
        let from = match from {
            Some(from) => Some((from.id, self.place_of(&from).await?)),
            None => None,
        };
        let what = Restore { version: ask.version, path: ask.path.as_deref().map(FileName::from), from };
        let (wanted, workspaces) = self.wanted_place(&row).await?;
        let workspaces = workspaces.within(most);
        let _permit = self.heavy.files.enter(account).await;
        let restored = workspaces.restore(id, &what, self.syncing.follow(id)).await;
        let restored = match restored {
            Err(error) => return Err(self.not_stored(account, id, most, error).await),
            Ok(restored) => restored,
        };
        self.note_synced(&wanted, &workspaces, restored.report.version.as_ref()).await;
        Ok(restored)
    }
}

impl SandboxService {
    /// Deletes all versions of a sandbox that was ended, and the count of its place: nobody will use that again. Not where
    /// syncs of its account are in the way for longer than [`PATIENCE`].
    pub(crate) async fn expire_ended(&self, account: AccountId, id: SandboxId) -> Result<()> {
        let row = self.row(account, id).await?;
        match self.deletable(&row).await? {
            Some(workspaces) if row.state == SandboxState::Terminated => {
                let place = workspaces.address(id)?;
                let workspaces = workspaces.with_patience(PATIENCE);
                workspaces.erase(&workspaces.prefix(id)).await?;
                if let Some(stored) = self.workspaces.stored() {
                    stored.forget(account, &place).await?;
                }
                self.forget_versions(&row).await
            }
            _ => Ok(()),
        }
    }
}

fn told(pruned: Pruned) -> DroppedVersions {
    let Pruned { kept, dropped, objects_deleted, bytes_deleted } = pruned;
    DroppedVersions { kept: kept as u64, dropped, objects_deleted, bytes_deleted }
}

fn not_synced(id: SandboxId, error: Error) -> Error {
    coded("sync_failed", format!("the files of sandbox {id} could not be synced"), error)
}
