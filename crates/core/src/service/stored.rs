//! All that accounts have in buckets: deleted with the account, and expired by a policy.

use super::SandboxService;
use crate::{
    Result,
    ports::store::{MAX_PAGE, Page, SandboxFilter, SandboxRow, StoredPlace, WHOLE_ROWS},
    templates::SyncPart,
    workspaces::{Names, Workspaces},
};
use seawall_api::{AccountId, sandbox::SandboxState};
use seawall_sync::versions::{Keep, Pruned};
use std::{collections::BTreeSet, time::Duration};

/// How long the server's own rounds wait for an account's syncs before they go on to the next place. What they leave is
/// tried again in a later round.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How many places a deletion remembers so as not to empty them twice. To empty one again costs a listing.
const REMEMBERED: usize = 10_000;
/// How many places that could not be emptied are named.
const NAMED: usize = 100;

/// What was deleted of an account's files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountFiles {
    /// Places that held something.
    pub places: u64,
    pub objects: u64,
    pub bytes: u64,
    /// Places that could not be emptied now, and why, at most 100 of them. Where there is one, the account still has files.
    pub left: Vec<(String, String)>,
    /// Places in buckets that no setting and no template names any more: whoever took those away has what is in them.
    pub unknown: Vec<String>,
}

/// What a round over versions did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expired {
    pub places: u64,
    pub versions: u64,
    pub bytes: u64,
    /// Places that could not be looked at; the log says why.
    pub failed: u64,
    /// Where the next round goes on. None: all places were looked at.
    pub next: Option<StoredPlace>,
}

impl SandboxService {
    /// Buckets that templates name, beside the server's own.
    fn buckets(&self) -> BTreeSet<String> {
        self.templates.all().filter_map(|template| template.sync.bucket.clone()).collect()
    }

    /// Deletes every object that an account has in any bucket: what its sandboxes have, the ended ones too, and what
    /// was ever counted for it. Whoever calls this has ended its sandboxes and lets it make no others. It can be called
    /// again where it was cut off, and goes on with what is left; the account has no files any more when it
    /// returns without [`AccountFiles::left`].
    pub async fn delete_files_of(&self, account: AccountId) -> Result<AccountFiles> {
        let (mut done, mut seen) = (AccountFiles::default(), BTreeSet::new());
        for state in [None, Some(SandboxState::Terminated)] {
            let (filter, mut page) =
                (SandboxFilter { state, ..SandboxFilter::default() }, Page::first(WHOLE_ROWS));
            loop {
                let found = self.rows.list(account, &filter, &page).await?;
                for row in &found.items {
                    self.delete_files_at(row, &mut done, &mut seen).await?;
                }
                let Some(next) = found.next else { break };
                page.after = Some(next);
            }
        }
        self.delete_counted(account, &mut done).await?;
        Ok(done)
    }

    async fn delete_files_at(
        &self,
        row: &SandboxRow,
        done: &mut AccountFiles,
        seen: &mut BTreeSet<String>,
    ) -> Result<()> {
        for workspaces in self.places_of(row).await {
            let place = workspaces.address(row.id)?;
            if seen.len() >= REMEMBERED {
                seen.clear();
            }
            if seen.insert(place.clone()) {
                let prefix = workspaces.prefix(row.id);
                let erased = workspaces.with_patience(PATIENCE).erase(&prefix).await;
                self.erased(row.account_id, &place, erased, done).await?;
            }
        }
        Ok(())
    }

    /// Where the files of a sandbox may be: as its template says now, and as one without a template has them. What neither
    /// names was counted when it was stored.
    async fn places_of(&self, row: &SandboxRow) -> Vec<Workspaces> {
        let by_template = async {
            let wanted = self.wanted_of(row).await?;
            self.workspaces(&wanted).await
        };
        let names = Names {
            account: row.account_id,
            conversation: None,
            agent: None,
            volume: row.spec.volume.clone(),
        };
        let plain = SyncPart::default();
        let (named, default) = (by_template.await, self.workspaces.at(&plain, &names).await);
        let found = |place: Result<Option<Workspaces>>| {
            place.unwrap_or_else(|error| {
                tracing::warn!(sandbox = %row.id, error = %error.chain(), "where its files are cannot be said");
                None
            })
        };
        [found(named), found(default)].into_iter().flatten().collect()
    }

    async fn delete_counted(&self, account: AccountId, done: &mut AccountFiles) -> Result<()> {
        let Some(stored) = self.workspaces.stored() else { return Ok(()) };
        let (buckets, mut after) = (self.buckets(), None::<String>);
        loop {
            let page = stored.places(account, after.as_deref(), MAX_PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.place.clone());
            for StoredPlace { place, .. } in page {
                let erased = match self.workspaces.find(&buckets, account, &place).await {
                    Ok(Some((workspaces, prefix))) => workspaces.with_patience(PATIENCE).erase(&prefix).await,
                    Ok(None) => {
                        tracing::warn!(%account, place, "no bucket of the settings or of a template has it");
                        done.unknown.push(place);
                        continue;
                    }
                    Err(error) => Err(error),
                };
                self.erased(account, &place, erased, done).await?;
            }
        }
    }

    /// A place that is empty is forgotten.
    async fn erased(
        &self,
        account: AccountId,
        place: &str,
        erased: Result<Pruned>,
        done: &mut AccountFiles,
    ) -> Result<()> {
        match erased {
            Ok(Pruned { objects_deleted: objects, bytes_deleted: bytes, .. }) => {
                done.places += u64::from(objects > 0);
                done.objects += objects;
                done.bytes += bytes;
                match self.workspaces.stored() {
                    Some(stored) => stored.forget(account, place).await,
                    None => Ok(()),
                }
            }
            Err(error) => {
                tracing::error!(%account, place, error = %error.chain(), "files of a deleted account stay");
                if done.left.len() < NAMED {
                    done.left.push((place.to_owned(), error.chain()));
                }
                Ok(())
            }
        }
    }

    /// Drops versions that a policy does not keep, of all accounts, at so many places after one. The newest of each
    /// workspace always stays. A place that was never counted is not looked at. A place whose account keeps its slots
    /// occupied for longer than [`PATIENCE`] counts as failed.
    pub async fn expire_versions(
        &self,
        keep: Keep,
        after: Option<&StoredPlace>,
        limit: u32,
    ) -> Result<Expired> {
        let mut expired = Expired::default();
        let Some(stored) = self.workspaces.stored() else { return Ok(expired) };
        let (buckets, page) = (self.buckets(), stored.all_places(after, limit).await?);
        expired.next = page.last().filter(|_| page.len() == limit as usize).cloned();
        for StoredPlace { account, place, .. } in page {
            expired.places += 1;
            let pruned = match self.workspaces.find(&buckets, account, &place).await {
                Ok(Some((workspaces, prefix))) => {
                    workspaces.with_patience(PATIENCE).prune_at(&prefix, keep).await
                }
                Ok(None) => Ok(Pruned::default()),
                Err(error) => Err(error),
            };
            match pruned {
                Ok(pruned) => {
                    expired.versions += pruned.dropped.len() as u64;
                    expired.bytes += pruned.bytes_deleted;
                }
                Err(error) => {
                    expired.failed += 1;
                    tracing::warn!(%account, place, error = %error.chain(), "its versions could not be expired");
                }
            }
        }
        Ok(expired)
    }
}
