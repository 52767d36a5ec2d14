//! The versions of a sandbox's files, by account.

use super::{SandboxService, Wanted, coded, owned::NO_TEMPLATE};
use crate::{
    Error, Result,
    ports::store::SandboxRow,
    workspaces::{Difference, Restore, Workspaces},
};
use jiff::Timestamp;
use seawall_api::{
    AccountId, SandboxId,
    files::FileName,
    http::{RestoreVersion, Version},
};
use seawall_sync::{
    engine::{DryRun, Options, Restored, Silent, SyncReport},
    versions::Keep,
};
use std::sync::Arc;

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

    /// S7.
    pub async fn sync(&self, account: AccountId, id: SandboxId, options: Options) -> Result<SyncReport> {
        self.guest(account, id).await?;
        let row = self.live_row(account, id).await?;
        let (wanted, workspaces) = self.wanted_place(&row).await?;
        let synced = workspaces.sync_files(id, options).await;
        let report = synced.map_err(|error| not_synced(id, error))?;
        self.note_synced(&wanted, &workspaces, report.version.as_ref()).await;
        Ok(report)
    }

    /// What a sync would do.
    pub async fn dry_run(&self, account: AccountId, id: SandboxId, options: Options) -> Result<DryRun> {
        self.guest(account, id).await?;
        let row = self.live_row(account, id).await?;
        self.place_of(&row).await?.dry_run(id, options).await.map_err(|error| not_synced(id, error))
    }

    /// Oldest first; also of a sandbox that was ended.
    pub async fn versions(&self, account: AccountId, id: SandboxId) -> Result<Vec<Version>> {
        let row = self.row(account, id).await?;
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
        self.place_of(&row).await?.diff(id, from, to).await
    }

    /// Brings a version back, or a part of it.
    pub async fn restore(&self, account: AccountId, id: SandboxId, ask: &RestoreVersion) -> Result<Restored> {
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
        let restored = workspaces.restore(id, &what, Arc::new(Silent)).await;
        let restored = restored.map_err(|error| not_synced(id, error))?;
        self.note_synced(&wanted, &workspaces, restored.report.version.as_ref()).await;
        Ok(restored)
    }
}

impl SandboxService {
    /// Drops the versions of a sandbox that a rule does not keep, and returns how many. Where its files go nowhere there are none.
    pub(crate) async fn expire_versions(&self, account: AccountId, id: SandboxId, keep: Keep) -> Result<u64> {
        let row = self.row(account, id).await?;
        let wanted = match self.wanted_of(&row).await {
            Err(error) if error.code() == NO_TEMPLATE => return Ok(0),
            found => found?,
        };
        let Some(workspaces) = self.workspaces(&wanted).await? else { return Ok(0) };
        Ok(workspaces.prune(id, keep).await?.dropped.len() as u64)
    }
}

fn not_synced(id: SandboxId, error: Error) -> Error {
    coded("sync_failed", format!("the files of sandbox {id} could not be synced"), error)
}
