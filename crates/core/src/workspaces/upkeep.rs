//! Versions in the bucket: listed, compared, dropped, verified.

use super::{Chain, Workspaces, newest_or};
use crate::Result;
use seawall_api::{SandboxId, files::FileName};
use seawall_sync::{
    tree::{Node, Tree},
    versions::{Keep, Pruned, Verified, VersionInfo},
};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// A path that two versions have differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub path: FileName,
    pub change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Added,
    Changed,
    Removed,
}

impl Workspaces {
    /// Where the versions of a sandbox lie, in one word.
    pub(crate) fn place(&self, workspace: SandboxId) -> Result<String> {
        let hash = Sha256::digest(self.address(workspace)?);
        Ok(hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Where the versions of a sandbox lie: the address of the bucket and the prefix behind it.
    pub(crate) fn address(&self, workspace: SandboxId) -> Result<String> {
        Ok(self.scoped(workspace)?.place())
    }

    /// Whether there is anything to restore.
    pub async fn has_versions(&self, workspace: SandboxId) -> Result<bool> {
        Ok(self.chain(workspace).await?.versions.head().await?.version.is_some())
    }

    /// Oldest first.
    pub async fn versions(&self, workspace: SandboxId) -> Result<Vec<VersionInfo>> {
        Ok(self.chain(workspace).await?.versions.log().await?.iter().map(VersionInfo::from).collect())
    }

    /// How two versions differ; without a second one the newest is compared with.
    pub async fn diff(&self, workspace: SandboxId, from: i64, to: Option<i64>) -> Result<Vec<Difference>> {
        let Chain { versions, held: _held, .. } = self.chain(workspace).await?;
        let (from, to) = (newest_or(&versions, Some(from)).await?, newest_or(&versions, to).await?);
        Ok(differences(&versions.tree(&from).await?, &versions.tree(&to).await?))
    }

    /// Drops all versions but those to keep.
    pub async fn prune(&self, workspace: SandboxId, keep: Keep) -> Result<Pruned> {
        let chain = self.chain(workspace).await?;
        let pruned = chain.dropped(chain.versions.prune(keep).await).await?;
        tracing::info!(
            sandbox = %workspace, kept = pruned.kept, dropped = pruned.dropped.len(),
            objects = pruned.objects_deleted, bytes = pruned.bytes_deleted, "versions pruned"
        );
        Ok(pruned)
    }

    /// Drops one version, by its timestamp or number. The newest stays.
    pub async fn delete_version(&self, workspace: SandboxId, version: i64) -> Result<Pruned> {
        let chain = self.chain(workspace).await?;
        let deleted = chain.dropped(chain.versions.delete(version).await).await?;
        tracing::info!(sandbox = %workspace, version, bytes = deleted.bytes_deleted, "version deleted");
        Ok(deleted)
    }

    /// Drops every version, and deletes all that is stored for them. Waits for syncs that are under way here.
    pub async fn delete_versions(&self, workspace: SandboxId) -> Result<Pruned> {
        let chain = self.chain_alone(self.scoped(workspace)?).await?;
        let deleted = chain.dropped(chain.versions.delete_all().await).await?;
        tracing::info!(
            sandbox = %workspace, versions = deleted.dropped.len(), objects = deleted.objects_deleted,
            bytes = deleted.bytes_deleted, "all versions deleted"
        );
        Ok(deleted)
    }

    /// Where the versions of a sandbox lie in the bucket.
    pub(crate) fn prefix(&self, workspace: SandboxId) -> String {
        self.settings.prefix(workspace)
    }

    /// Deletes all that is beneath a prefix, whatever it is: for an account that is deleted.
    pub(crate) async fn erase(&self, prefix: &str) -> Result<Pruned> {
        Ok(self.uncounted_alone(self.beneath(prefix)?).await?.erase().await?)
    }

    /// As [`Workspaces::prune`], of the versions beneath a prefix.
    pub(crate) async fn prune_at(&self, prefix: &str, keep: Keep) -> Result<Pruned> {
        let chain = self.chain_of(self.beneath(prefix)?).await?;
        let pruned = chain.versions.prune(keep).await;
        // Mostly nothing goes, and then nothing has to be counted anew.
        match pruned {
            Ok(pruned) if pruned.objects_deleted == 0 => Ok(pruned),
            other => chain.dropped(other).await,
        }
    }

    /// Reads every body of every version again. `moved` hears of the bytes.
    pub async fn verify(&self, workspace: SandboxId, moved: impl FnMut(u64) + Send) -> Result<Verified> {
        let chain = self.chain(workspace).await?;
        let verified = chain.versions.verify(moved).await;
        chain.recount().await;
        let verified = verified?;
        for damage in &verified.damage {
            tracing::error!(sandbox = %workspace, object = damage.object, why = damage.why, "a version is damaged");
        }
        Ok(verified)
    }
}

fn differences(from: &Tree, to: &Tree) -> Vec<Difference> {
    let change = |path: &FileName, change: Change| Difference { path: path.clone(), change };
    let mut all: Vec<Difference> = to
        .iter()
        .filter_map(|(path, node)| match from.get(path) {
            None => Some(change(path, Change::Added)),
            Some(was) if !Node::same(was, node) => Some(change(path, Change::Changed)),
            Some(_) => None,
        })
        .collect();
    let removed = from.iter().filter(|(path, _)| to.get(path).is_none());
    all.extend(removed.map(|(path, _)| change(path, Change::Removed)));
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}
