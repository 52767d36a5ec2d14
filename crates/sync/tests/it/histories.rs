//! Random histories: edits on several workspaces, syncs, prunes, crashes, lost replies, broken state files, clocks.
//!
//! The promise that holds after each step: every byte written and not deleted by its user is in a reachable version
//! or in a live workspace. And in the end, with nothing failing, all workspaces are the newest version.

use crate::world::World;
use proptest::prelude::*;
use seawall_api::files::FileName;
use seawall_sync::{
    bucket::MemoryBucket,
    testing::{Fault, Faults, MemoryTurnstile},
    tree::{Node, Tree},
};
use std::{fs, sync::Arc};

const PATHS: [&str; 8] = ["a", "b.txt", "d", "d/x", "d/e/y", "a/z", ".git/HEAD", ".git/index"];
const REPLICAS: usize = 3;

#[derive(Debug, Clone)]
enum Op {
    Write(usize, usize),
    Link(usize, usize),
    Dir(usize, usize),
    Delete(usize, usize),
    Chmod(usize, usize, u32),
    Rename(usize, usize, usize),
    Sync(usize),
    FaultySync(usize, u64, Fault),
    Prune(usize, usize),
    FaultyPrune(usize, usize, u64, Fault),
    /// The guest forgets; the state file is cut, becomes nonsense, or goes.
    Restart(usize),
    Cut(usize, usize),
    Nonsense(usize),
    Forget(usize),
    Clock(usize, i64),
}

fn fault() -> impl Strategy<Value = Fault> {
    (0..4usize).prop_map(|at| Fault::ALL[at])
}

fn op() -> impl Strategy<Value = Op> {
    let (replica, path) = (0..REPLICAS, 0..PATHS.len());
    let mode = prop_oneof![Just(0o644u32), Just(0o755), Just(0o700)];
    prop_oneof![
        8 => (replica.clone(), path.clone()).prop_map(|(r, p)| Op::Write(r, p)),
        1 => (replica.clone(), path.clone()).prop_map(|(r, p)| Op::Link(r, p)),
        1 => (replica.clone(), path.clone()).prop_map(|(r, p)| Op::Dir(r, p)),
        3 => (replica.clone(), path.clone()).prop_map(|(r, p)| Op::Delete(r, p)),
        1 => (replica.clone(), path.clone(), mode).prop_map(|(r, p, m)| Op::Chmod(r, p, m)),
        2 => (replica.clone(), path.clone(), path).prop_map(|(r, p, q)| Op::Rename(r, p, q)),
        10 => replica.clone().prop_map(Op::Sync),
        5 => (replica.clone(), 0..40u64, fault()).prop_map(|(r, at, f)| Op::FaultySync(r, at, f)),
        2 => (replica.clone(), 1..4usize).prop_map(|(r, keep)| Op::Prune(r, keep)),
        1 => (replica.clone(), 1..4usize, 0..25u64, fault()).prop_map(|(r, k, at, f)| Op::FaultyPrune(r, k, at, f)),
        1 => replica.clone().prop_map(Op::Restart),
        1 => (replica.clone(), 0..400usize).prop_map(|(r, at)| Op::Cut(r, at)),
        1 => replica.clone().prop_map(Op::Nonsense),
        1 => replica.clone().prop_map(Op::Forget),
        1 => (replica, -700_000..700_000i64).prop_map(|(r, by)| Op::Clock(r, by)),
    ]
}

async fn apply(world: &mut World, op: &Op) -> Result<(), String> {
    let told = |error: seawall_sync::Error| error.to_string();
    match *op {
        Op::Write(r, p) => drop(world.write(r, PATHS[p])),
        Op::Link(r, p) => world.link(r, PATHS[p]),
        Op::Dir(r, p) => world.dir(r, PATHS[p]),
        Op::Delete(r, p) => world.delete(r, PATHS[p]),
        Op::Chmod(r, p, mode) => world.chmod(r, PATHS[p], mode),
        Op::Rename(r, from, to) => world.rename(r, PATHS[from], PATHS[to]),
        Op::Sync(r) => drop(world.sync(r).await.map_err(told)?),
        // It may fail, or die: what must not happen is that something is lost.
        Op::FaultySync(r, at, fault) => drop(world.sync_with_faults(r, &Faults::at(at, fault)).await),
        Op::Prune(r, keep) => drop(world.prune(r, keep).await.map_err(told)?),
        Op::FaultyPrune(r, keep, at, fault) => {
            drop(world.prune_with_faults(r, keep, &Faults::at(at, fault)).await);
        }
        Op::Restart(r) => world.replicas[r].restart(),
        Op::Cut(r, at) => {
            let state = world.replicas[r].path(".sandbox-state");
            if let Ok(text) = fs::read(&state) {
                fs::write(&state, &text[..at.min(text.len())]).unwrap();
            }
        }
        Op::Nonsense(r) => fs::write(world.replicas[r].path(".sandbox-state"), "{\"version\": 7").unwrap(),
        // As `git clean -fdx` does.
        Op::Forget(r) => {
            for own in
                [".sandbox-state", ".sandbox-state.next", ".sandbox-state.fresh", ".sandbox-state.lock"]
            {
                let _ = fs::remove_file(world.replicas[r].path(own));
            }
        }
        Op::Clock(r, by) => world.replicas[r].clock.advance(by),
    }
    Ok(())
}

/// Time passes by itself where somebody waits.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(work)
}

async fn step(world: &mut World, op: &Op) -> Result<(), TestCaseError> {
    apply(world, op).await.map_err(|why| TestCaseError::fail(format!("{op:?}: {why}")))
}

fn run(mut world: World, ops: &[Op]) -> Result<(), TestCaseError> {
    block_on(async {
        for op in ops {
            step(&mut world, op).await?;
            world
                .nothing_is_lost()
                .await
                .map_err(|why| TestCaseError::fail(format!("after {op:?}: {why}")))?;
        }
        world.converges().await.map_err(TestCaseError::fail)
    })
}

/// On one workspace, with a look at what it was before each step and is after it.
async fn alone(
    ops: &[Op],
    look: impl Fn(&Op, &Tree, &Tree) -> Result<(), TestCaseError>,
) -> Result<World, TestCaseError> {
    let mut world = World::new(1);
    for op in ops {
        let before = world.replicas[0].tree();
        step(&mut world, op).await?;
        look(op, &before, &world.replicas[0].tree())?;
    }
    Ok(world)
}

/// `SEAWALL_HISTORIES` for a long run.
fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("SEAWALL_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    ProptestConfig { cases, max_shrink_iters: 3000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(1500))]
    #[test]
    fn s4_no_byte_is_lost_and_replicas_converge(ops in proptest::collection::vec(op(), 1..30)) {
        run(World::new(REPLICAS), &ops)?;
    }
}

proptest! {
    #![proptest_config(cases(700))]
    #[test]
    fn s9_nor_on_a_store_that_refuses_nothing(ops in proptest::collection::vec(op(), 1..30)) {
        let mut world = World::on(Arc::new(MemoryBucket::careless()), REPLICAS);
        world.turnstile = Some(Arc::new(MemoryTurnstile::default()));
        world.holes = true;
        run(world, &ops)?;
    }
}

/// What one user does with one workspace, and what may happen to its syncs. The state file stays as it is: without
/// one nobody can know what was deleted.
fn own_op() -> impl Strategy<Value = Op> {
    let path = 0..PATHS.len();
    prop_oneof![
        8 => path.clone().prop_map(|p| Op::Write(0, p)),
        3 => path.clone().prop_map(|p| Op::Delete(0, p)),
        2 => (path.clone(), path).prop_map(|(p, q)| Op::Rename(0, p, q)),
        4 => Just(Op::Sync(0)),
        8 => (0..30u64, fault()).prop_map(|(at, f)| Op::FaultySync(0, at, f)),
        1 => Just(Op::Restart(0)),
        1 => Just(Op::Prune(0, 1)),
    ]
}

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn s4_a_workspace_that_nobody_else_has_is_never_changed_by_its_syncs(
        ops in proptest::collection::vec(own_op(), 1..30)
    ) {
        block_on(async {
            let world = alone(&ops, |op, before, after| {
                if matches!(op, Op::Sync(_) | Op::FaultySync(..) | Op::Restart(_) | Op::Prune(..)) {
                    prop_assert!(after.same(before), "{op:?} made {before:#?} {after:#?}");
                }
                Ok(())
            });
            world.await?.converges().await.map_err(TestCaseError::fail)
        })?;
    }
}

/// What one user does with one workspace, state file or not.
fn careless_op() -> impl Strategy<Value = Op> {
    let path = 0..PATHS.len();
    let mode = prop_oneof![Just(0o644u32), Just(0o755), Just(0o700)];
    prop_oneof![
        8 => path.clone().prop_map(|p| Op::Write(0, p)),
        1 => path.clone().prop_map(|p| Op::Link(0, p)),
        1 => path.clone().prop_map(|p| Op::Dir(0, p)),
        3 => path.clone().prop_map(|p| Op::Delete(0, p)),
        1 => (path.clone(), mode).prop_map(|(p, m)| Op::Chmod(0, p, m)),
        2 => (path.clone(), path).prop_map(|(p, q)| Op::Rename(0, p, q)),
        6 => Just(Op::Sync(0)),
        1 => Just(Op::Prune(0, 1)),
        4 => Just(Op::Forget(0)),
    ]
}

proptest! {
    #![proptest_config(cases(700))]
    #[test]
    fn s3_a_deleted_state_file_changes_nothing_that_is_there(
        ops in proptest::collection::vec(careless_op(), 1..30)
    ) {
        block_on(async {
            let world = alone(&ops, |op, before, after| {
                if !matches!(op, Op::Sync(_)) {
                    return Ok(());
                }
                // What was deleted may come back; what is there stays as it is.
                let stays = |path: &FileName, node: &Node| after.get(path).is_some_and(|now| now.same(node));
                let changed: Vec<_> = before.iter().filter(|(path, node)| !stays(path, node)).collect();
                prop_assert!(changed.is_empty(), "{op:?} changed {changed:#?}: {before:#?} {after:#?}");
                let is_copy = |path: &FileName| path.to_string().contains(".conflict-");
                prop_assert!(!after.iter().any(|(path, _)| is_copy(path)), "{op:?} made {after:#?}");
                Ok(())
            });
            world.await?.nothing_is_lost().await.map_err(TestCaseError::fail)
        })?;
    }
}
