//! The push that comes after most turns: nobody else committed since, so the version is the last one with what
//! changed here. What [`crate::diff`] would find is known beforehand, and nothing but what changed is looked at.

use super::{
    Engine, Phase,
    round::{Done, Round},
    stats::Direction,
};
use crate::{
    Result,
    diff::Plan,
    disk::ScanReport,
    state::CommitRef,
    tree::{Node, Tree},
    versions::{Committed, News},
    workspace::Agree,
};
use seawall_api::{ErrorKind, files::FileName};

impl Engine<'_> {
    /// The scan comes back where there is more to do than that.
    pub(super) async fn push_only(
        &self,
        round: &mut Round,
        scan: ScanReport,
        news: &News,
    ) -> Result<Result<Done, ScanReport>> {
        let head = self.versions.head_of(news, scan.base.as_ref()).await?;
        let (Some(base), Some(version)) = (&scan.base, &head.version) else { return Ok(Err(scan)) };
        if version.id != base.id || version.tree != base.tree || base.seen.is_some() {
            return Ok(Err(scan));
        }
        let remote = match self.versions.tree(version).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Err(scan)),
            read => read?,
        };
        let was_file = |path: &FileName| remote.get(path).is_some_and(is_file);
        let gone = scan.delta.removed.iter().filter(|path| was_file(path)).count() as u64;
        let files = remote.iter().filter(|(_, node)| is_file(node)).count() as u64;
        let replaced = scan.delta.changed.iter().filter(|(path, _)| was_file(path)).count() as u64;
        let Some(merged) = self.changed(&remote, &scan) else { return Ok(Err(scan)) };
        self.budget.check(&merged)?;
        let local: Tree = scan.delta.changed.iter().cloned().collect();
        let mut plan = Plan { merged, ..Plan::default() };
        let missed = self.upload(&mut round.uploads, &head, &mut plan, (&local, &remote)).await?;
        if !missed.is_empty() {
            round.missed(missed);
            return Ok(Ok(Done::Disturbed));
        }
        self.progress.phase(Phase::Committing);
        let (id, now) = (self.versions.ids.next(), self.versions.clock.now_ms().div_euclid(1000));
        let digest = plan.merged.digest();
        let commit = CommitRef {
            seq: head.seq + 1,
            id: id.clone(),
            timestamp: 0,
            tree: digest,
            seen: None,
            partial: true,
        };
        let delta = scan.delta.clone();
        self.workspace.prepare(Agree { commit, now, from_base: true, delta }).await?;
        let Committed::Done(record) =
            self.versions.commit_version(&head, &id, (&plan.merged, digest)).await?
        else {
            return Ok(Ok(Done::Lost));
        };
        let Some(made) = record.version() else { return Ok(Ok(Done::Lost)) };
        self.progress.phase(Phase::Agreeing);
        let commit = made.commit_ref();
        let delta = scan.delta.clone();
        self.workspace.agree(Agree { commit: commit.clone(), now, from_base: true, delta }).await?;
        let uploaded = local.iter().filter(|(_, node)| is_file(node)).count() as u64;
        let report = &mut round.report;
        report.direction = Direction::Pushed;
        report.version = Some(commit);
        report.stats.files_uploaded = uploaded;
        report.stats.files_deleted_remotely = gone;
        report.stats.files_skipped = files.saturating_sub(gone + replaced);
        report.stats.bytes_transferred += round.uploads.take_bytes();
        round.took(&scan);
        Ok(Ok(Done::Synced))
    }

    /// The last version with what changed here. None where that is no tree, or not all of it may be pushed.
    fn changed(&self, remote: &Tree, scan: &ScanReport) -> Option<Tree> {
        let most = self.versions.limits.max_file_size;
        if scan.delta.changed.iter().any(|(_, node)| node.size() > most) {
            return None;
        }
        let mut merged = remote.clone();
        scan.delta.clone().apply(&mut merged);
        let fits = |(path, node): &(FileName, Node)| {
            let above = crate::path::parent(path.as_bytes());
            let is_dir = |above: &[u8]| merged.get(&FileName(above.to_vec())).is_some_and(Node::is_dir);
            above.is_none_or(is_dir) && (node.is_dir() || merged.beneath(path).next().is_none())
        };
        let emptied = |path: &FileName| merged.beneath(path).next().is_none();
        let whole = scan.delta.changed.iter().all(fits) && scan.delta.removed.iter().all(emptied);
        whole.then_some(merged)
    }
}

fn is_file(node: &Node) -> bool {
    !node.is_dir()
}

/// Returns what the workspace will have agreed on once the merged tree is a version: paths at which both are the same,
/// and the base elsewhere.
pub(super) fn agreed_so_far(base: Option<&Tree>, local: &Tree, merged: &Tree) -> Tree {
    let mut agreed = base.cloned().unwrap_or_default();
    for (path, node) in merged.iter() {
        match local.get(path) {
            Some(here) if here.same(node) => drop(agreed.0.insert(path.clone(), node.clone())),
            // The base has the mode that the workspace has, so that the other mode counts as the version's change.
            Some(here) if here.is_dir() && node.is_dir() => {
                agreed.0.entry(path.clone()).or_insert_with(|| here.clone());
            }
            _ => {}
        }
    }
    agreed.0.retain(|path, _| local.get(path).is_some() || merged.get(path).is_some());
    agreed
}
