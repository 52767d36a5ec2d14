//! One try of a sync: from a scan to an agreement, or to the reason why it has to be tried again.

use super::{
    BEYOND, Budget, Engine, Phase,
    push::agreed_so_far,
    stats::{Direction, DryRun, SyncReport},
    upload::{Missed, Uploads, can_heal},
};
use crate::{
    Error, Result,
    diff::{Plan, Sides, Step, diff, steps},
    disk::{Refused, ScanAsk, ScanReport},
    state::CommitRef,
    tree::{Delta, Node, Tree},
    versions::{BaseIs, Committed, Head, News, VersionRecord, condemned, quarantined},
    workspace::Agree,
};
use seawall_api::files::FileName;
use std::collections::{BTreeMap, BTreeSet};

/// What came of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Synced,
    /// Somebody else committed first.
    Lost,
    /// Files changed while they were looked at.
    Disturbed,
    /// The state file tells of a version that is not in the chain: all is looked at anew.
    Void,
}

/// How old an agreement may be before a sync that changes nothing writes it anew.
const FRESH: i64 = 60;
/// More records than this are not read only to learn of damaged bodies.
const MAX_NEWS: usize = 64;

/// What is known from one try to the next.
pub struct Round {
    ask: ScanAsk,
    pub uploads: Uploads,
    /// Files that cannot be had, with the reason: they count as the base has them.
    held: BTreeMap<FileName, String>,
    busy: BTreeSet<FileName>,
    pub report: SyncReport,
}

impl Round {
    pub fn new(ask: ScanAsk, budget: &Budget) -> Round {
        let (uploads, report) = (Uploads::new(budget), SyncReport::default());
        Round { ask, uploads, held: BTreeMap::new(), busy: BTreeSet::new(), report }
    }

    pub fn too_busy(&self) -> Error {
        let error = Error::unavailable("it changes all the time; stop what writes it").during("syncing");
        match self.busy.first() {
            Some(path) => error.on(path),
            None => error,
        }
    }

    fn hold(&mut self, path: &FileName, why: impl Into<String>) {
        self.held.entry(path.clone()).or_insert_with(|| why.into());
    }

    /// Files that changed since the scan: once more they are looked at, then left for the next sync. Those that are more
    /// than one sync takes are left at once.
    pub(super) fn missed(&mut self, missed: Missed) {
        for path in missed.beyond {
            self.hold(&path, BEYOND);
        }
        for path in missed.changed {
            if self.busy.contains(&path) {
                self.hold(&path, "it changes while it is read; stop what writes it, or sync again");
            }
            self.busy.insert(path);
        }
    }

    /// Paths at which something is that the scan did not see: a rule leaves it out, and it stands in the way.
    fn refused(&mut self, refused: Vec<Refused>) {
        for Refused { path, why } in refused {
            tracing::debug!(%path, %why, "a step was refused");
            self.busy.insert(path.clone());
            self.ask.also.push(path);
        }
    }
}

/// All that a sync is about to do.
pub struct Planned {
    scan: ScanReport,
    news: News,
    head: Head,
    base: Option<Tree>,
    local: Tree,
    remote: Tree,
    plan: Plan,
}

impl Engine<'_> {
    /// What is here and what is new there. None where it has to be looked at anew.
    async fn look(&self, round: &mut Round) -> Result<Option<(ScanReport, News)>> {
        self.progress.phase(Phase::Scanning);
        let scan = self.workspace.scan(round.ask.clone()).await?;
        self.progress.phase(Phase::Looking);
        if let Some(pending) = &scan.pending {
            self.settle(pending).await?;
            return Ok(None);
        }
        let news = self.versions.news(scan.base.as_ref()).await?;
        if scan.base.is_some() && news.base == BaseIs::Void && !round.ask.regenerate {
            round.start_over();
            return Ok(None);
        }
        Ok(Some((scan, news)))
    }

    pub(super) async fn round(&self, round: &mut Round) -> Result<Done> {
        let Some((scan, news)) = self.look(round).await? else { return Ok(Done::Void) };
        let whole = scan.base.as_ref().is_some_and(|base| !base.partial);
        if whole && news.base == BaseIs::Head && scan.delta.is_empty() && round.held.is_empty() {
            return match self.versions.is_anothers(&news, scan.base.as_ref()).await {
                true => self.whole_round(round, scan, news).await,
                false => self.nothing_to_do(round, scan).await,
            };
        }
        if whole && news.base == BaseIs::Head && round.held.is_empty() && round.ask.also.is_empty() {
            match self.push_only(round, scan, &news).await? {
                Ok(done) => return Ok(done),
                // It is not that simple.
                Err(told) => return self.whole_round(round, told, news).await,
            }
        }
        self.whole_round(round, scan, news).await
    }

    async fn whole_round(&self, round: &mut Round, scan: ScanReport, news: News) -> Result<Done> {
        let Some(mut planned) = self.planned(round, scan, news).await? else { return Ok(Done::Void) };
        let version = match self.push(round, &mut planned).await? {
            Pushed::Done(version) => version,
            Pushed::Not(done) => return Ok(done),
        };
        self.pull(round, planned, version).await
    }

    /// A sync died between its commit and its agreement: the bucket knows whether it was a version.
    async fn settle(&self, pending: &CommitRef) -> Result<()> {
        let commit = self.versions.committed(pending).await?;
        let now = self.versions.clock.now_ms().div_euclid(1000);
        self.workspace.settle(commit, now).await
    }

    async fn nothing_to_do(&self, round: &mut Round, scan: ScanReport) -> Result<Done> {
        let now = self.versions.clock.now_ms().div_euclid(1000);
        let is_there = scan.state_bytes.is_some();
        let fresh =
            is_there && scan.last_synced_at.is_some_and(|at| (at..=at.saturating_add(FRESH)).contains(&now));
        round.report.version = scan.base.clone();
        round.report.stats.files_skipped = scan.scanned;
        round.took(&scan);
        if let (false, Some(commit)) = (fresh, scan.base) {
            self.workspace.agree(Agree { commit, now, from_base: true, delta: Delta::default() }).await?;
        }
        Ok(Done::Synced)
    }

    /// As far as nothing is changed. None where it has to be looked at anew.
    pub(super) async fn plan(&self, round: &mut Round) -> Result<Option<Planned>> {
        let Some((scan, news)) = self.look(round).await? else { return Ok(None) };
        self.planned(round, scan, news).await
    }

    async fn planned(&self, round: &mut Round, scan: ScanReport, news: News) -> Result<Option<Planned>> {
        let head = self.versions.head_of(&news, scan.base.as_ref()).await?;
        if !self.knows_base(&scan, &news, &head).await? {
            round.start_over();
            return Ok(None);
        }
        if let Some(since) = round.uploads.since().filter(|since| *since < head.seq) {
            round.uploads.forget(&condemned(&self.versions.records_after(since).await?));
            round.uploads.known_until(head.seq);
        }
        let remote = match &head.version {
            Some(version) => match self.versions.tree(version).await {
                Ok(tree) => tree,
                Err(error) => match self.without_manifest(round, &scan, error)? {
                    Some(nothing) => nothing,
                    None => return Ok(None),
                },
            },
            None => Tree::default(),
        };
        let Some(base) = self.base(&scan, &head, &remote).await? else {
            round.start_over();
            return Ok(None);
        };
        let base = base.map(Tree::without_places);
        let mut local = base.clone().unwrap_or_default();
        scan.delta.clone().apply(&mut local);
        // Only a version knows where bodies are. What an older one knew may be pruned.
        let mut local = local.without_places();
        if let Some(path) = local.misplaced() {
            let why = "the sandbox tells of something beneath what is no directory";
            return Err(Error::new(seawall_api::ErrorKind::Protocol, why).on(path));
        }
        self.budget.check(&local)?;
        self.hold_back(round, &mut local, base.as_ref());
        let plan = diff(Sides { base: base.as_ref(), local: &local, remote: &remote });
        Ok(Some(Planned { scan, news, head, base, local, remote, plan }))
    }

    async fn knows_base(&self, scan: &ScanReport, news: &News, head: &Head) -> Result<bool> {
        match (&scan.base, news.base) {
            (None, _) => Ok(true),
            // All versions were deleted since: nothing in it says that anybody deleted a file.
            (Some(base), _) if base.seq < head.began => Ok(false),
            (Some(base), BaseIs::Head) => {
                Ok(head.version.as_ref().is_some_and(|version| version.id == base.id))
            }
            (Some(base), _) => self.versions.knows(base).await,
        }
    }

    /// The newest version's manifest is gone. A workspace that has files becomes a version of its own;
    /// none where it has to be looked at whole first.
    fn without_manifest(&self, round: &mut Round, scan: &ScanReport, error: Error) -> Result<Option<Tree>> {
        // One that is there and makes no sense is no accident.
        let is_gone = error.kind() == seawall_api::ErrorKind::NotFound;
        if is_gone && scan.base.is_some() && !round.ask.regenerate {
            round.start_over();
            round.report.state_problem = Some(error.to_string());
            return Ok(None);
        }
        if !is_gone || scan.delta.changed.is_empty() {
            return Err(error);
        }
        tracing::error!(%error, "the newest version cannot be read; the workspace is stored anew on top of it");
        Ok(Some(Tree::default()))
    }

    /// What the delta starts from: the outer none where it cannot be had, the inner where there is none.
    async fn base(&self, scan: &ScanReport, head: &Head, remote: &Tree) -> Result<Option<Option<Tree>>> {
        let Some(commit) = &scan.base else { return Ok(Some(None)) };
        let is_head = |version: &VersionRecord| version.id == commit.id && version.tree == commit.tree;
        if head.version.as_ref().is_some_and(is_head) {
            return Ok(Some(Some(remote.clone())));
        }
        let state = self.workspace.base().await?;
        // What a workspace says of itself is checked: a wrong base deletes.
        let state = state.filter(|state| state.commit.as_ref() == Some(commit));
        Ok(state.filter(|state| state.tree.digest() == commit.tree).map(|state| Some(state.tree)))
    }

    /// Files that cannot be had, or are too large, count as unchanged.
    fn hold_back(&self, round: &mut Round, local: &mut Tree, base: Option<&Tree>) {
        let most = self.versions.limits.max_file_size;
        let large: Vec<FileName> =
            local.files().filter(|(_, file)| file.size > most).map(|(path, _)| path.clone()).collect();
        for path in large {
            round.hold(&path, format!("it is larger than {most} bytes, the limit for a file"));
        }
        for path in round.held.keys() {
            match base.and_then(|base| base.get(path)) {
                Some(node) => drop(local.0.insert(path.clone(), node.clone())),
                None => drop(local.0.remove(path)),
            }
        }
    }

    /// Uploads what is new and commits it. The version that the workspace will have.
    async fn push(&self, round: &mut Round, planned: &mut Planned) -> Result<Pushed> {
        let same = planned.plan.merged.same(&planned.remote);
        self.heed(round, planned, same).await?;
        if same && !can_heal(&round.uploads, &planned.plan, &planned.local) {
            // Exactly: what both sides agree on is what the manifest says.
            planned.plan.merged = planned.remote.clone();
            if let Some(version) = planned.head.version.clone() {
                return Ok(Pushed::Done(version));
            }
        }
        let Planned { head, plan, local, remote, .. } = planned;
        let missed = self.upload(&mut round.uploads, head, plan, (local, remote)).await?;
        if !missed.is_empty() {
            round.missed(missed);
            return Ok(Pushed::Not(Done::Disturbed));
        }
        self.progress.phase(Phase::Committing);
        let id = self.versions.ids.next();
        self.prepare(planned, &id).await?;
        match self
            .versions
            .commit_version(&planned.head, &id, (&planned.plan.merged, planned.plan.merged.digest()))
            .await?
        {
            Committed::Lost => Ok(Pushed::Not(Done::Lost)),
            Committed::Done(record) => match record.version() {
                Some(version) => Ok(Pushed::Done(version.clone())),
                None => Err(Error::new(seawall_api::ErrorKind::Internal, "a version became something else")),
            },
        }
    }

    /// What others found since: bodies that are damaged. Asked only by who has something to do with them.
    async fn heed(&self, round: &mut Round, planned: &Planned, same: bool) -> Result<()> {
        let Planned { scan, news, remote, .. } = planned;
        if news.records == 0 || news.records > MAX_NEWS || (same && scan.base.is_none()) {
            return Ok(());
        }
        let after = scan.base.as_ref().map_or(0, |base| base.seq);
        let damaged = quarantined(&self.versions.records_after(after).await?);
        for (_, file) in remote.files().filter(|_| !damaged.is_empty()) {
            let is_damaged = file.place.as_ref().is_some_and(|place| {
                damaged.iter().any(|body| body.object == place.object && body.offset == place.offset)
            });
            if is_damaged {
                round.uploads.distrust(file);
            }
        }
        Ok(())
    }

    /// What this workspace has of the version that is about to be: for whoever comes after us, should we die.
    async fn prepare(&self, planned: &Planned, id: &str) -> Result<()> {
        let Planned { head, base, local, plan, .. } = planned;
        let had = agreed_so_far(base.as_ref(), local, &plan.merged);
        let now = self.versions.clock.now_ms();
        let (seq, id) = (head.seq + 1, id.to_owned());
        let commit = CommitRef { seq, id, timestamp: now, tree: had.digest(), seen: None, partial: true };
        let delta = Delta::between(base.as_ref().unwrap_or(&Tree::default()), &had);
        let (now, from_base) = (now.div_euclid(1000), base.is_some());
        self.workspace.prepare(Agree { commit, now, from_base, delta }).await
    }

    /// Brings the workspace to what was merged, and agrees on it.
    async fn pull(&self, round: &mut Round, planned: Planned, version: VersionRecord) -> Result<Done> {
        let Planned { scan, head, base, local, remote, plan, .. } = planned;
        let mut steps = steps(&local, &plan.moves, &plan.merged);
        // What is held back is not as this plan thinks: nobody touches it.
        steps.retain(|step| !round.held.contains_key(step.path()));
        for step in &steps {
            tracing::debug!(path = %step.path(), ?step, "a change of the workspace");
        }
        let pushed = version.seq > head.seq;
        round.count(&steps, &local, &remote, &plan.merged, pushed);
        let moved = self.carry_out(steps).await?;
        round.report.stats.bytes_transferred += moved.bytes + round.uploads.take_bytes();
        if !moved.refused.is_empty() {
            round.refused(moved.refused);
            return Ok(Done::Disturbed);
        }
        self.progress.phase(Phase::Agreeing);
        round.report.damaged = moved.damaged;
        let mut commit = version.commit_ref();
        commit.seen = (head.seq > commit.seq).then_some(head.seq);
        let agreed = round.agreed(&mut commit, base.as_ref(), plan.merged);
        let delta = Delta::between(base.as_ref().unwrap_or(&Tree::default()), &agreed);
        let now = self.versions.clock.now_ms().div_euclid(1000);
        round.report.version = Some(commit.clone());
        self.workspace.agree(Agree { commit, now, from_base: base.is_some(), delta }).await?;
        round.report.notes.extend(plan.notes);
        round.took(&scan);
        Ok(Done::Synced)
    }
}

enum Pushed {
    Done(VersionRecord),
    Not(Done),
}

impl Round {
    fn start_over(&mut self) {
        tracing::warn!(
            "the state file tells of a version that the bucket does not have; all is compared anew"
        );
        self.ask.regenerate = true;
        self.report.state_problem = Some("the bucket does not have the version it tells of".to_owned());
    }

    /// What the workspace has of the version: all, but for what was held back.
    fn agreed(&self, commit: &mut CommitRef, base: Option<&Tree>, merged: Tree) -> Tree {
        let mut agreed = merged;
        for path in self.held.keys().chain(self.report.damaged.iter().map(|(path, _)| path)) {
            let was = base.and_then(|base| base.get(path));
            commit.partial |= agreed.get(path).map(Node::mtime) != was.map(Node::mtime)
                || agreed.get(path).map(Node::size) != was.map(Node::size);
            match was {
                Some(node) => drop(agreed.0.insert(path.clone(), node.clone())),
                None => drop(agreed.0.remove(path)),
            }
        }
        if commit.partial {
            agreed.add_parents();
            commit.tree = agreed.digest();
        }
        agreed
    }

    pub(super) fn took(&mut self, scan: &ScanReport) {
        let stats = &mut self.report.stats;
        (stats.scanned, stats.hashed) = (scan.scanned, stats.hashed + scan.hashed);
        (stats.ignored, stats.special) = (scan.ignored_count, scan.special);
        self.report.problems = scan.problems.clone();
        self.report.problems.extend(std::mem::take(&mut self.held));
        if self.report.state_problem.is_none() {
            self.report.state_problem = scan.base_problem.clone();
        }
    }

    fn count(&mut self, steps: &[Step], local: &Tree, remote: &Tree, merged: &Tree, pushed: bool) {
        let stats = &mut self.report.stats;
        let is_file = |node: &Node| !node.is_dir();
        let gone = |from: &Tree, to: &Tree| {
            from.iter().filter(|(path, node)| is_file(node) && to.get(path).is_none()).count() as u64
        };
        let is_new = |path: &FileName, node: &Node| remote.get(path).is_none_or(|there| !there.same(node));
        let uploaded =
            merged.iter().filter(|(path, node)| is_file(node) && is_new(path, node)).count() as u64;
        let downloads = |step: &&Step| matches!(step, Step::File { .. } | Step::Link { .. });
        let downloaded = steps.iter().filter(downloads).count() as u64;
        let moved: BTreeSet<&FileName> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Move { from, .. } => Some(from),
                _ => None,
            })
            .collect();
        let deleted = steps
            .iter()
            .filter(|step| match step {
                Step::Remove { path } => local.get(path).is_some_and(is_file) && !moved.contains(path),
                _ => false,
            })
            .count() as u64;
        stats.files_uploaded = uploaded;
        stats.files_downloaded += downloaded;
        stats.files_deleted += deleted;
        stats.files_deleted_remotely = gone(remote, merged);
        let all = merged.iter().filter(|(_, node)| is_file(node)).count() as u64;
        stats.files_skipped = all.saturating_sub(uploaded + downloaded);
        self.report.direction = match (pushed, steps.is_empty(), self.report.direction) {
            (_, _, Direction::Both) => Direction::Both,
            (true, true, Direction::Nothing | Direction::Pushed) => Direction::Pushed,
            (true, _, _) => Direction::Both,
            (false, true, before) => before,
            (false, false, Direction::Pushed) => Direction::Both,
            (false, false, _) => Direction::Pulled,
        };
    }
}

impl Planned {
    pub fn into_dry_run(self, round: &Round) -> DryRun {
        let Planned { scan, local, remote, plan, .. } = self;
        let steps = steps(&local, &plan.moves, &plan.merged);
        let is_new =
            |(path, node): &(&FileName, &Node)| remote.get(path).is_none_or(|there| !there.same(node));
        let mut dry = DryRun {
            upload: plan.merged.iter().filter(is_new).map(|(path, _)| path.clone()).collect(),
            delete_there: remote.0.keys().filter(|path| plan.merged.get(path).is_none()).cloned().collect(),
            notes: plan.notes,
            problems: scan.problems,
            ignored: scan.ignored,
            ignored_count: scan.ignored_count,
            special: scan.special,
            state_problem: round.report.state_problem.clone().or(scan.base_problem),
            ..DryRun::default()
        };
        dry.problems.extend(round.held.clone());
        for step in steps {
            match step {
                Step::Remove { path } => dry.delete_here.push(path),
                Step::Move { .. } | Step::Finish { .. } => {}
                Step::Dir { path, .. }
                | Step::Link { path, .. }
                | Step::File { path, .. }
                | Step::Meta { path, .. } => {
                    dry.download.push(path);
                }
            }
        }
        dry
    }
}
