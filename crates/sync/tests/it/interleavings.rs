//! Two pushes and a prune at once, in every order in which a store can serve their calls.
//!
//! A call waits until it is let through, so one happens at a time, and whoever chooses sees all that wait. The choices
//! are a tree; it is walked depth first, each run from the start. Three things make it small. Runs that come to one
//! state (what is in the bucket, what each was told, what waits) go on alike, so only the first goes on. Of two calls
//! that do not touch the same objects one order is enough, and the other sleeps (Godefroid's sleep sets). And what
//! nobody else can make different is let through without a choice: [`History::is_free`].

use crate::world::{NOW, World};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, channel::oneshot, future::LocalBoxFuture};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use seawall_api::ErrorKind;
use seawall_sync::{
    Error, Result,
    bucket::{self, Bodies, Bucket, MemoryBucket, Object},
    disk::LocalWorkspace,
    engine::Engine,
    testing::{Fault, Faults, MemoryTurnstile},
    versions::{Keep, Memory, Turnstile, Versions, What},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    fmt::Debug,
    fs,
    future::poll_fn,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    task::Poll,
};

const COMMITS: &str = ".commits/";
const CANDIDATES: &str = ".candidates/";
const PACKS: &str = ".packs/";
const PROBES: &str = ".probe/";
/// The replica that wrote the two versions before.
const WRITER: usize = 3;
/// With more runs than this it would not end.
const MOST_RUNS: usize = 200_000;

fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
// One module in two files.
include!("interleavings/gate.rs");

/// Whether the store refuses a second create was found out before.
struct Known(bool);

#[async_trait]
impl Memory for Known {
    async fn refuses_second_create(&self, _: &str) -> Option<bool> {
        Some(self.0)
    }
}

/// The same in each run, so that what is made of it is the same too.
fn write(path: &Path, body: &str, (tv_sec, tv_nsec): (i64, i64)) {
    match body.starts_with("to ") {
        true => symlink(body, path).unwrap(),
        false => fs::write(path, body).unwrap(),
    }
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A push for the third version dies as soon as its pack is stored.
async fn leave(world: &World, bucket: &MemoryBucket, body: &str) {
    fs::write(world.replicas[2].path("dead"), body).unwrap();
    let stored = || bucket.keys().iter().any(|key| key.starts_with(&format!("{PACKS}{:020}-", 3)));
    for call in 0.. {
        drop(world.sync_with_faults(2, &Faults::at(call, Fault::CrashBefore)).await);
        if stored() {
            return;
        }
    }
}

/// Two versions of one file, on which all workspaces agree.
struct History {
    stage: Stage,
    objects: Vec<(String, Bytes)>,
    /// What the first version alone needs.
    old: BTreeSet<String>,
    state: Vec<u8>,
    shared: String,
    time: (i64, i64),
}

impl History {
    async fn of(stage: Stage) -> History {
        let bucket = stage.bucket();
        let mut world = World::on(bucket.clone(), WRITER + 1);
        if stage.careless {
            world.turnstile = Some(Arc::new(MemoryTurnstile::default()));
        }
        world.replicas[WRITER].clock.set(NOW - 60_000);
        world.write(WRITER, "shared");
        world.sync(WRITER).await.unwrap();
        let old = bucket.keys().into_iter().filter(|key| !key.starts_with(COMMITS)).collect();
        let shared = world.write(WRITER, "shared");
        world.sync(WRITER).await.unwrap();
        if stage.left {
            leave(&world, &bucket, stage.pushes[0].1).await;
        }
        let mut objects = Vec::new();
        for key in bucket.keys() {
            let body = bucket::read(&*bucket, &key, u64::MAX).await.unwrap();
            objects.push((key, body));
        }
        let state = fs::read(world.replicas[WRITER].path(".sandbox-state")).unwrap();
        let found = fs::metadata(world.replicas[WRITER].path("shared")).unwrap();
        History { stage, objects, old, state, shared, time: (found.mtime(), found.mtime_nsec()) }
    }

    /// The world before anybody does anything.
    async fn world(&self) -> (World, Arc<MemoryBucket>) {
        let bucket = self.stage.bucket();
        for (key, body) in &self.objects {
            bucket.put(key, body.clone()).await.unwrap();
        }
        let mut world = World::on(bucket.clone(), self.stage.actors());
        if self.stage.careless {
            world.turnstile = Some(Arc::new(MemoryTurnstile::default()));
        }
        for replica in &world.replicas {
            fs::write(replica.path(".sandbox-state"), &self.state).unwrap();
            write(&replica.path("shared"), &self.shared, self.time);
            if self.stage.same_time {
                replica.clock.set(NOW);
            }
        }
        world.written.insert(self.shared.clone());
        for (number, (path, body)) in self.stage.pushes.iter().enumerate() {
            write(&world.replicas[number].path(path), body, (1_600_000_000, number as i64 + 1));
            world.written.insert((*body).to_owned());
        }
        (world, bucket)
    }

    /// Whether a call is the same whenever it is served, and to all others.
    fn is_free(&self, (actor, call): &Label, pruning: bool) -> bool {
        let prunes = *actor == self.stage.pruner();
        match call {
            Call::Older => true,
            // Records stay as they are, and of all else only a prune takes something away.
            Call::Get(key, _) => prunes || !pruning || key.starts_with(COMMITS),
            // To a version's folder nobody adds, and other folders are empty here.
            Call::List(prefix, _) => {
                prunes && prefix != COMMITS && prefix != PACKS && !(self.stage.probes && prefix == PROBES)
            }
            // Each has names of its own for these, and only a prune looks at all of them.
            Call::Create(key) | Call::Delete(key) if key.starts_with(PROBES) => {
                !pruning || key.starts_with(&format!("{PROBES}r{}-", self.stage.pruner()))
            }
            Call::Delete(key) => self.old.contains(key),
            // Under a lease a manifest has a name of its own, and is read when its record is there.
            Call::Put(key) => {
                !pruning && ![COMMITS, PACKS, CANDIDATES].iter().any(|prefix| key.starts_with(prefix))
            }
            _ => false,
        }
    }
}

/// All actors of one run, and how each ended.
struct Run<'a> {
    history: &'a History,
    gate: Arc<Gate>,
    works: Vec<Option<LocalBoxFuture<'a, Result<()>>>>,
    ended: Vec<Option<Result<()>>>,
}

impl<'a> Run<'a> {
    fn new(history: &'a History, world: &'a World, store: &Arc<MemoryBucket>) -> Run<'a> {
        let stage = history.stage;
        let objects = history.objects.iter().map(|(key, body)| (key.clone(), hash(body))).collect();
        let told = (0..stage.actors()).map(|_| Told::default()).collect();
        let inner = Inner { objects, told, ..Inner::default() };
        let gate = Arc::new(Gate { stage, inner: Mutex::new(inner) });
        let work = |actor: usize| {
            let seat = Seat { gate: gate.clone(), actor };
            let versions = versions_of(stage, world, Scheduled { inner: store.clone(), seat });
            // Tokio would interrupt them now and then, to be fair.
            Some(tokio::task::coop::unconstrained(act(world, actor, stage, versions)).boxed_local())
        };
        let works = (0..stage.actors()).map(work).collect();
        Run { history, gate, works, ended: (0..stage.actors()).map(|_| None).collect() }
    }

    /// Goes on with an actor until it waits at the gate, or has ended. Nobody else runs meanwhile.
    async fn settle(&mut self, actor: usize) {
        let (work, ended, gate) = (&mut self.works[actor], &mut self.ended[actor], &self.gate);
        poll_fn(|context| {
            let Some(running) = work.as_mut() else { return Poll::Ready(()) };
            match running.as_mut().poll(context) {
                Poll::Ready(result) => {
                    (*work, *ended) = (None, Some(result));
                    Poll::Ready(())
                }
                Poll::Pending if gate.waiting().iter().any(|(who, _)| *who == actor) => Poll::Ready(()),
                // It sleeps. Time is not real: it passes when nobody has anything to do.
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
    }

    async fn step(&mut self, label: &Label) {
        self.gate.let_through(label);
        self.settle(label.0).await;
    }

    /// What there is to choose from, when all is let through that needs no choice.
    async fn choices(&mut self) -> Vec<Label> {
        loop {
            let stage = self.history.stage;
            let pruning = stage.prunes && self.ended[stage.pruner()].is_none();
            let waiting = self.gate.waiting();
            let free = waiting.iter().find(|label| self.history.is_free(label, pruning)).cloned();
            match free {
                Some(label) => self.step(&label).await,
                None => return waiting,
            }
        }
    }

    fn state(&self, waiting: &[Label]) -> u64 {
        let ended: Vec<Option<bool>> =
            self.ended.iter().map(|ended| ended.as_ref().map(|result| result.is_ok())).collect();
        let inner = self.gate.lock();
        hash(&(&inner.objects, &inner.told, waiting, ended))
    }
}

fn versions_of(stage: Stage, world: &World, bucket: Scheduled) -> Versions {
    let seat = bucket.seat.clone();
    let mut versions = world.versions_on(Arc::new(bucket), seat.actor);
    if !stage.probes {
        versions = versions.with_memory(Arc::new(Known(!stage.careless)));
    }
    match world.turnstile.clone() {
        Some(lease) => versions.with_turnstile(Some(Arc::new(Decides(lease, seat)))),
        None => versions,
    }
}

async fn act(world: &World, actor: usize, stage: Stage, versions: Versions) -> Result<()> {
    if actor == stage.pruner() {
        return versions.prune(Keep { newest: 1, younger_than: None }).await.map(drop);
    }
    let workspace = LocalWorkspace(world.replicas[actor].disk.clone());
    let lock = workspace.0.try_lock().unwrap();
    assert!(lock.is_some(), "nobody else syncs it");
    Engine::new(&versions, &workspace).sync().await.map(drop)
}

/// A way that is still to be gone: to a state, then on with the last step of the path.
struct Branch {
    path: Vec<Label>,
    from: u64,
    /// Calls that need not come next, since the same comes of another order.
    sleep: BTreeSet<Label>,
}

#[derive(Default)]
struct Book {
    /// What slept when a state was left.
    seen: HashMap<u64, BTreeSet<Label>>,
    todo: Vec<Branch>,
    ends: usize,
    sent_back: usize,
    wrong: Vec<String>,
}

impl Book {
    /// What has to come next in a state. Nothing, where it was seen and nothing slept that is awake now.
    fn next(&mut self, state: u64, waiting: &[Label], sleep: &mut BTreeSet<Label>) -> Vec<Label> {
        let awake = waiting.iter().filter(|label| !sleep.contains(*label));
        match self.seen.entry(state) {
            Entry::Vacant(new) => {
                let next = awake.cloned().collect();
                new.insert(sleep.clone());
                next
            }
            Entry::Occupied(mut seen) => {
                let next = awake.filter(|label| seen.get().contains(*label)).cloned().collect();
                sleep.retain(|label| seen.get().contains(label));
                seen.insert(sleep.clone());
                next
            }
        }
    }
}

/// Goes one way to its end, or to a state that was seen, and notes the ways beside it.
async fn go(history: &History, book: &mut Book, branch: Branch) {
    let (world, store) = history.world().await;
    let mut run = Run::new(history, &world, &store);
    for actor in 0..history.stage.actors() {
        run.settle(actor).await;
    }
    let Branch { mut path, from, mut sleep } = branch;
    for (at, label) in path.iter().enumerate() {
        let waiting = run.choices().await;
        if at + 1 == path.len() {
            assert_eq!(run.state(&waiting), from, "a run is not like the one before it: {path:#?}");
        }
        run.step(label).await;
    }
    loop {
        let waiting = run.choices().await;
        sleep.retain(|label| waiting.contains(label));
        let state = run.state(&waiting);
        let is_new = !book.seen.contains_key(&state);
        let next = book.next(state, &waiting, &mut sleep);
        if waiting.is_empty() && is_new {
            return end(history, book, &world, run, &path).await;
        }
        let mut branches = Vec::new();
        for label in next {
            let still = sleep.iter().filter(|other| !other.1.matters_to(&label.1)).cloned().collect();
            let path = [&path[..], std::slice::from_ref(&label)].concat();
            branches.push(Branch { path, from: state, sleep: still });
            sleep.insert(label);
        }
        let mut branches = branches.into_iter();
        let Some(first) = branches.next() else { return };
        book.todo.extend(branches.rev());
        run.step(&first.path[first.path.len() - 1]).await;
        (path, sleep) = (first.path, first.sleep);
    }
}

async fn end(history: &History, book: &mut Book, world: &World, run: Run<'_>, path: &[Label]) {
    let Run { gate, ended, .. } = run;
    let ended: Vec<Result<()>> = ended.into_iter().flatten().collect();
    book.ends += 1;
    book.sent_back += usize::from(ended.iter().any(|result| result.is_err()));
    let broken = std::mem::take(&mut gate.lock().broken);
    let verdict = match broken.first() {
        Some(broken) => Err(broken.clone()),
        None => verdict(history.stage, world, &ended).await,
    };
    if let Err(why) = verdict {
        let steps: Vec<String> = path.iter().map(|(actor, call)| format!("  {actor}: {call:?}")).collect();
        book.wrong.push(format!("{why}, after\n{}", steps.join("\n")));
    }
}

async fn verdict(stage: Stage, world: &World, ended: &[Result<()>]) -> Result<(), String> {
    let told = |error: Error| format!("a version cannot be read: {error}");
    let there = world.bodies_in_versions().await.map_err(told)?;
    for (actor, result) in ended.iter().enumerate() {
        let pushed = stage.pushes.get(actor).map(|(_, body)| *body);
        match (result, pushed) {
            // What was pushed is in a version, whatever others did at the same time.
            (Ok(()), Some(body)) if !there.contains(body) => {
                return Err(format!("{body:?} was pushed, and is in no version"));
            }
            (Ok(()), _) => {}
            // What it was about to read was pruned: it has to sync again.
            (Err(error), Some(_)) if stage.prunes && error.kind() == ErrorKind::NotFound => {}
            (Err(error), _) => return Err(format!("{actor} failed: {error}")),
        }
    }
    let condemned = condemned(world).await.map_err(told)?;
    if !condemned.is_empty() {
        return Err(format!("versions need what was condemned: {condemned:?}"));
    }
    world.nothing_is_lost().await?;
    world.converges().await
}

/// Bodies of versions that lie where a prune decided that nothing is needed.
async fn condemned(world: &World) -> Result<BTreeSet<Arc<str>>> {
    let versions = world.versions(0);
    let mut condemned = BTreeSet::new();
    for record in versions.records_after(0).await? {
        if let What::Condemned { objects, .. } = record.what {
            condemned.extend(objects);
        }
    }
    let mut needed = BTreeSet::new();
    for version in versions.log().await? {
        let tree = versions.tree(&version).await?;
        needed.extend(tree.files().filter_map(|(_, file)| Some(file.place.as_ref()?.object.clone())));
    }
    Ok(condemned.intersection(&needed).cloned().collect())
}

fn explore(what: &str, stage: Stage, least_states: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let (book, runs) = runtime.unwrap().block_on(async {
        let history = History::of(stage).await;
        let mut book = Book::default();
        book.todo.push(Branch { path: Vec::new(), from: 0, sleep: BTreeSet::new() });
        let mut runs = 0;
        while let Some(branch) = book.todo.pop() {
            runs += 1;
            assert!(runs <= MOST_RUNS, "{what}: not all was explored in {MOST_RUNS} runs");
            go(&history, &mut book, branch).await;
        }
        (book, runs)
    });
    let Book { seen, ends, sent_back, wrong, .. } = book;
    let states = seen.len();
    println!("{what}: {states} states, {runs} runs, {ends} complete, {sent_back} with a sync to repeat");
    assert!(wrong.is_empty(), "{what}: {} of {ends} ends are wrong: {}", wrong.len(), wrong[0]);
    assert!(states > least_states, "{what}: there were only {states} states");
}

const TWO: &[(&str, &str)] = &[("a", "by the first"), ("b", "by the second")];
const ONE_PATH: &[(&str, &str)] = &[("note", "by the first"), ("note", "by the second")];
const ONE_BODY: &[(&str, &str)] = &[("a", "by both"), ("b", "by both")];
/// With a link, since two packs beside a prune are ten times as many states.
const AND_LINK: &[(&str, &str)] = &[("a", "by the first"), ("b", "to the second")];
const ONE_PATH_AND_LINK: &[(&str, &str)] = &[("note", "by the first"), ("note", "to the second")];

const PUSHES: Stage =
    Stage { pushes: TWO, prunes: false, same_time: false, careless: false, probes: false, left: false };

#[test]
fn s4_two_pushes_and_a_prune_lose_nothing() {
    let stage = Stage { pushes: AND_LINK, prunes: true, ..PUSHES };
    explore("two pushes and a prune", stage, 1000);
}

#[test]
fn s4_two_pushes_that_want_one_manifest_and_a_prune_lose_nothing() {
    let stage = Stage { pushes: ONE_PATH_AND_LINK, prunes: true, same_time: true, ..PUSHES };
    explore("two pushes of one path at one time, and a prune", stage, 1000);
}

#[test]
fn s9_two_pushes_are_serialised_by_the_commit() {
    explore("two pushes", PUSHES, 30);
    explore("two pushes at one time", Stage { pushes: ONE_PATH, same_time: true, ..PUSHES }, 30);
    explore("two pushes of one body", Stage { pushes: ONE_BODY, ..PUSHES }, 30);
}

#[test]
fn s9_two_pushes_are_serialised_by_a_database() {
    explore("two pushes, a database decides", Stage { careless: true, ..PUSHES }, 100);
}

#[test]
fn s9_two_pushes_that_want_one_manifest_are_serialised_by_a_database() {
    let stage = Stage { pushes: ONE_PATH, careless: true, same_time: true, ..PUSHES };
    explore("two pushes of one path at one time, under a lease", stage, 100);
}

/// The packs of a dead push are taken up by the next one, or pruned, but not both.
#[test]
fn s10_a_push_that_takes_up_what_is_pruned_loses_nothing() {
    let stage = Stage { pushes: &[("a", "by the first")], prunes: true, left: true, ..PUSHES };
    explore("a prune, and a push where one died before", stage, 50);
}

/// A store that refuses a second create is known as such, whatever is pruned while it is asked.
#[test]
fn s9_a_prune_does_not_make_a_store_look_careless() {
    let stage = Stage { pushes: &[("a", "by the first")], prunes: true, probes: true, ..PUSHES };
    explore("a prune, and a push that asks what the store can do", stage, 100);
}
