//! Back to an older version, or one file of it. Nothing is lost by it: what is in the workspace becomes a version
//! first, and the older one is committed anew on top.

use super::{Direction, Engine, SyncReport, SyncStats};
use crate::{
    Error, Result,
    diff::{Note, Sides, Step, diff, steps},
    tree::{Delta, Node, Tree},
    versions::{Committed, VersionRecord},
    workspace::Agree,
};
use seawall_api::files::FileName;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The version that was asked for.
    pub from: i64,
    /// What happened before, so that nothing is lost.
    pub saved: SyncReport,
    /// What both sides agree on now.
    pub report: SyncReport,
}

const TRIES: u32 = 8;

impl Engine<'_> {
    /// Makes the workspace what a version was.
    pub async fn restore(&self, wanted: i64) -> Result<Restored> {
        let version = self.versions.find(wanted).await?;
        let scan = self.workspace.scan(super::ScanAsk::default()).await?;
        // An empty workspace has nothing to lose, and its newest version may be the one that is damaged.
        let fresh = scan.base.is_none() && scan.delta.is_empty();
        let saved = if fresh { SyncReport::default() } else { self.sync().await? };
        for _ in 0..TRIES {
            if let Some(report) = self.try_restore(&version, fresh).await? {
                return Ok(Restored { from: version.timestamp, saved, report });
            }
            self.sync().await?;
        }
        Err(Error::unavailable("others change the workspace all the time; try again").during("restoring"))
    }

    /// None where somebody was faster, or something changed here.
    async fn try_restore(&self, version: &VersionRecord, fresh: bool) -> Result<Option<SyncReport>> {
        let scan = self.workspace.scan(super::ScanAsk::default()).await?;
        let head = self.versions.head().await?;
        let Some(newest) = &head.version else { return Ok(None) };
        let empty = fresh && scan.base.is_none();
        let synced = scan.base.as_ref().is_some_and(|base| base.id == newest.id && !base.partial);
        if !scan.delta.is_empty() || !(empty || synced) {
            return Ok(None);
        }
        // Still there after the head was read: whoever prunes it from now on takes our number.
        let version = &self.versions.find(version.timestamp).await?;
        let now = if empty { Tree::default() } else { self.versions.tree(newest).await? };
        let then = self.versions.tree(version).await?;
        let mut report = SyncReport { version: Some(newest.commit_ref()), ..SyncReport::default() };
        if synced && now.same(&then) {
            return Ok(Some(report));
        }
        let steps = steps(&now, &[], &then);
        report.direction = Direction::Both;
        report.stats = counted(&steps, &now, &then);
        // What only goes, goes last: until all bodies are here nothing is decided.
        let only_goes = |step: &Step| matches!(step, Step::Remove { path } if then.get(path).is_none());
        let (last, first): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(only_goes);
        let done = self.carry_out(first).await?;
        report.stats.bytes_transferred = done.bytes;
        if let Some((_, why)) = done.damaged.into_iter().next() {
            return Err(Error::invalid(why));
        }
        if !done.refused.is_empty() {
            return Ok(None);
        }
        let id = self.versions.ids.next();
        let committed = self.versions.commit_version(&head, &id, (&then, then.digest())).await?;
        let Committed::Done(record) = committed else { return Ok(None) };
        let Some(made) = record.version() else { return Ok(None) };
        if !self.carry_out(last).await?.refused.is_empty() {
            return Ok(None);
        }
        self.agree_on(made, (!empty).then_some(&now), &then).await?;
        report.version = Some(made.commit_ref());
        Ok(Some(report))
    }

    async fn agree_on(&self, version: &VersionRecord, before: Option<&Tree>, after: &Tree) -> Result<()> {
        let (commit, now) = (version.commit_ref(), self.versions.clock.now_ms().div_euclid(1000));
        let delta = Delta::between(before.unwrap_or(&Tree::default()), after);
        self.workspace.agree(Agree { commit, now, from_base: before.is_some(), delta }).await
    }

    /// Brings the files of another workspace's version in, as if a user had written them. What is there stays.
    pub async fn copy_in(&self, version: &VersionRecord, path: Option<&FileName>) -> Result<Vec<Note>> {
        let mut theirs = self.versions.tree(version).await?;
        if let Some(path) = path {
            theirs = part(&theirs, path).ok_or_else(|| lacks(version, path))?;
        }
        for _ in 0..TRIES {
            let ask = super::ScanAsk { regenerate: true, ..super::ScanAsk::default() };
            let local: Tree = self.workspace.scan(ask).await?.delta.changed.into_iter().collect();
            let plan = diff(Sides { base: None, local: &local, remote: &theirs });
            let done = self.carry_out(steps(&local, &plan.moves, &plan.merged)).await?;
            if let Some((_, why)) = done.damaged.into_iter().next() {
                return Err(Error::invalid(format!("{why}; the other files were brought")));
            }
            if done.refused.is_empty() {
                return Ok(plan.notes);
            }
        }
        Err(Error::unavailable("the workspace changes all the time; try again").during("restoring"))
    }

    /// Brings one file, or all beneath a directory, back from a version.
    pub async fn restore_path(&self, wanted: i64, path: &FileName) -> Result<Restored> {
        crate::path::check(path.as_bytes()).map_err(|why| Error::invalid(why).on(path))?;
        let saved = self.sync().await?;
        let version = self.versions.find(wanted).await?;
        let then = self.versions.tree(&version).await?;
        if then.get(path).is_none() {
            return Err(lacks(&version, path));
        }
        for _ in 0..TRIES {
            if self.try_restore_path(&then, path).await? {
                let report = self.sync().await?;
                return Ok(Restored { from: version.timestamp, saved, report });
            }
            self.sync().await?;
        }
        Err(Error::unavailable("others change the workspace all the time; try again").during("restoring"))
    }

    async fn try_restore_path(&self, then: &Tree, path: &FileName) -> Result<bool> {
        let scan = self.workspace.scan(super::ScanAsk::default()).await?;
        let head = self.versions.head().await?;
        let Some(newest) = &head.version else { return Ok(false) };
        if scan.base.as_ref().is_none_or(|base| base.id != newest.id) || !scan.delta.is_empty() {
            return Ok(false);
        }
        let now = self.versions.tree(newest).await?;
        let mut after = now.clone();
        let replaced: Vec<FileName> =
            after.beneath(path).map(|(path, _)| path.clone()).chain([path.clone()]).collect();
        for path in replaced {
            after.0.remove(&path);
        }
        let back = then.0.get_key_value(path).into_iter().chain(then.beneath(path));
        after.0.extend(back.map(|(path, node)| (path.clone(), node.clone())));
        make_way(&mut after, path);
        after.add_parents();
        let done = self.carry_out(steps(&now, &[], &after)).await?;
        match done.damaged.into_iter().next() {
            Some((_, why)) => Err(Error::invalid(why)),
            None => Ok(done.refused.is_empty()),
        }
    }
}

/// What going from one tree to another does to files.
fn counted(steps: &[Step], now: &Tree, then: &Tree) -> SyncStats {
    let is_file = |path: &FileName| now.get(path).is_some_and(|node| !node.is_dir());
    let count = |wanted: &dyn Fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count() as u64;
    let files = then.iter().filter(|(_, node)| !node.is_dir()).count() as u64;
    let downloaded = count(&|step| matches!(step, Step::File { .. } | Step::Link { .. }));
    SyncStats {
        files_downloaded: downloaded,
        files_deleted: count(&|step| matches!(step, Step::Remove { path } if is_file(path))),
        files_skipped: files.saturating_sub(downloaded),
        ..SyncStats::default()
    }
}

fn lacks(version: &VersionRecord, path: &FileName) -> Error {
    let why = format!("version {} does not have it; `seawall diff` shows what changed", version.timestamp);
    Error::not_found(why).during("restoring").on(path)
}

/// What a tree has at a path and beneath it, with the directories above.
fn part(tree: &Tree, path: &FileName) -> Option<Tree> {
    let (own, node) = tree.0.get_key_value(path)?;
    let all = std::iter::once((own, node)).chain(tree.beneath(path));
    let mut part: Tree = all.map(|(path, node)| (path.clone(), node.clone())).collect();
    part.add_parents();
    Some(part)
}

/// A file where a directory is needed now makes room for it; it is in the version that was saved.
fn make_way(tree: &mut Tree, path: &FileName) {
    for above in crate::path::ancestors(path.as_bytes()) {
        let above = FileName(above.to_vec());
        if tree.get(&above).is_some_and(|node: &Node| !node.is_dir()) {
            tree.0.remove(&above);
        }
    }
}
