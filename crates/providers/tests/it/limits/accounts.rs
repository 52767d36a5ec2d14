//! Totals of an account: they hold for all of its boxes together, and for nobody else's.

use super::world::{World, sh};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    exec::{ExitReason, StartProcess},
    sandbox::{Limits, SandboxSpec},
};
use seawall_core::ports::{AccountTotals, BoxState, Provider};
use seawall_jail::cgroup::Cgroups;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

fn plain() -> SandboxSpec {
    SandboxSpec::default()
}

/// Keeps so many MiB until it is killed.
fn hoard(mb: u32) -> StartProcess {
    let script = format!("x = bytearray({mb} << 20); open('/tmp/has', 'w'); import time; time.sleep(600)");
    StartProcess::new(["python3", "-c", script.as_str()])
}

async fn until(mut is: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never came to that");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Groups whose names have this in them.
fn groups(part: &str) -> Vec<String> {
    Cgroups::find().names().into_iter().filter(|name| name.contains(part)).collect()
}

#[tokio::test]
async fn k8_memory_of_an_account_is_bounded_and_its_end_is_nobody_elses() {
    let world = World::new();
    if !world.can("account_memory", world.provider.capabilities().limits.memory) {
        return;
    }
    let (mine, other) = (AccountId::generate(), AccountId::generate());
    let totals = AccountTotals { memory_mb: Some(128), ..AccountTotals::default() };
    world.provider.set_account_totals(mine, &totals).await.unwrap();
    let (first, holds) = world.sandbox_of(mine, plain()).await;
    let (second, wants) = world.sandbox_of(mine, plain()).await;
    let (neighbour, theirs) = world.sandbox_of(other, plain()).await;
    for guest in [&holds, &theirs] {
        guest.start_detached(hoard(48)).await.unwrap();
        until(async || sh(guest, "test -e /tmp/has").await.0.code == Some(0)).await;
    }
    // Each box may have 2 GiB, and both together 128 MiB.
    let hog = "exec python3 -c 'x = bytearray(300 << 20); print(len(x))'";
    let (status, out) = sh(&wants, hog).await;
    assert_eq!(status.reason, ExitReason::Oom, "{out}");
    let (status, out) = sh(&theirs, hog).await;
    assert_eq!(status.code, Some(0), "another account's box was hit: {out}");
    let alive = "kill -0 $(pgrep -f bytearray | head -1)";
    assert_eq!(sh(&theirs, alive).await.0.code, Some(0), "another account's process was killed");
    // More of it while it runs: then the same fits.
    let more = AccountTotals { memory_mb: Some(1024), ..AccountTotals::default() };
    world.provider.set_account_totals(mine, &more).await.unwrap();
    assert_eq!(sh(&wants, hog).await.0.code, Some(0));
    for id in [first, second, neighbour] {
        world.remove(id).await;
    }
}

#[tokio::test]
async fn k8_processes_of_an_account_are_bounded() {
    let world = World::new();
    if !world.can("account_processes", world.provider.capabilities().limits.processes) {
        return;
    }
    let (mine, other) = (AccountId::generate(), AccountId::generate());
    let (first, one) = world.sandbox_of(mine, plain()).await;
    let (second, two) = world.sandbox_of(mine, plain()).await;
    let (neighbour, theirs) = world.sandbox_of(other, plain()).await;
    // Also for boxes that run already.
    let totals = AccountTotals { max_processes: Some(60), ..AccountTotals::default() };
    world.provider.set_account_totals(mine, &totals).await.unwrap();
    // A shell that cannot fork ends before it says how many.
    let fork = |count: u32| format!("for i in $(seq {count}); do sleep 600 & done; echo {count}");
    assert_eq!(sh(&one, &fork(30)).await.1.trim(), "30");
    let (_, out) = sh(&two, &fork(50)).await;
    assert!(!out.ends_with("50\n"), "{out}");
    assert_eq!(sh(&theirs, &fork(90)).await.1.trim(), "90");
    for id in [first, second, neighbour] {
        world.remove(id).await;
    }
}

#[tokio::test]
async fn k8_processor_time_of_an_account_is_bounded_also_while_its_boxes_run() {
    let world = World::new();
    if !world.can("account_cpus", world.provider.capabilities().limits.cpus) {
        return;
    }
    let mine = AccountId::generate();
    let (first, one) = world.sandbox_of(mine, plain()).await;
    let (second, two) = world.sandbox_of(mine, plain()).await;
    // Less than each of them has for itself.
    for cpus in [1.0, 0.25] {
        let totals = AccountTotals { cpus: Some(cpus), ..AccountTotals::default() };
        world.provider.set_account_totals(mine, &totals).await.unwrap();
    }
    let script = "exec python3 -c 'import time\nb = time.time()\nwhile time.time() - b < 2: pass\nprint(time.process_time())'";
    let used = tokio::join!(sh(&one, script), sh(&two, script));
    let used: f64 = [used.0.1, used.1.1].iter().map(|out| out.trim().parse::<f64>().unwrap()).sum();
    assert!(used < 1.0, "half a second was allowed, and {used} s were used");
    // A box that starts below a total gets its own limit back when the total goes.
    world.provider.set_account_totals(mine, &AccountTotals::default()).await.unwrap();
    let quota = Path::new("/sys/fs/cgroup/cpu").join(format!("seawall-{}", groups(&format!("/{first}"))[0]));
    if let Ok(text) = fs::read_to_string(quota.join("cpu.cfs_quota_us")) {
        assert_ne!(text.trim(), "5000");
    }
    for id in [first, second] {
        world.remove(id).await;
    }
}

#[tokio::test]
async fn k8_an_accounts_group_goes_with_its_last_box_and_a_crash_leaves_none() {
    let world = World::new();
    if !world.can("account_groups", world.provider.capabilities().limits.processes) {
        return;
    }
    let account = AccountId::generate();
    let named = account.to_string();
    let (first, _) = world.sandbox_of(account, plain()).await;
    let (second, _) = world.sandbox_of(account, plain()).await;
    world.remove(first).await;
    let left = groups(&named);
    assert!(left.iter().any(|name| name.ends_with(&second.to_string())), "{left:?}");
    assert!(!left.iter().any(|name| name.ends_with(&first.to_string())), "{left:?}");
    let group = left.iter().find(|name| !name.contains('/')).unwrap().clone();
    world.remove(second).await;
    assert_eq!(groups(&named), Vec::<String>::new());
    // What a crash left: a group without boxes, and a box without a folder.
    for folder in folders_of(&group) {
        fs::create_dir(folder).unwrap();
    }
    let (lost, _) = world.sandbox_of(AccountId::generate(), plain()).await;
    let pid = world.provider.get(lost).await.unwrap().pid.unwrap();
    fs::remove_dir_all(world.data().join(format!("native/boxes/{lost}"))).unwrap();
    world.provider.list().await.unwrap();
    assert_eq!(groups(&named), Vec::<String>::new());
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the box without a folder lives on");
    assert!(!groups(&lost.to_string()).iter().any(|name| name.ends_with(&lost.to_string())));
    world.provider.list().await.unwrap();
    assert_eq!(groups(&lost.to_string()), Vec::<String>::new());
}

/// The folders that a group with this name has on this machine.
fn folders_of(group: &str) -> Vec<PathBuf> {
    let trees = ["cpu/seawall-", "memory/seawall/", "pids/seawall/", "blkio/seawall/", "seawall/"];
    let folders = trees.iter().map(|tree| PathBuf::from(format!("/sys/fs/cgroup/{tree}{group}")));
    folders.filter(|folder| folder.parent().unwrap().join("cgroup.procs").exists()).collect()
}

#[tokio::test]
async fn k8_disk_io_of_an_account_is_bounded() {
    let world = World::new();
    if !world.can("account_disk_io", world.provider.capabilities().limits.disk_io) {
        return;
    }
    let (mine, other) = (AccountId::generate(), AccountId::generate());
    let totals = AccountTotals { disk_io_mb_s: Some(8), ..AccountTotals::default() };
    world.provider.set_account_totals(mine, &totals).await.unwrap();
    let limits =
        Limits { disk_mb: world.provider.capabilities().limits.disk.then_some(64), ..Limits::default() };
    let (first, one) = world.sandbox_of(mine, plain()).await;
    let (second, two) = world.sandbox_of(mine, SandboxSpec { limits, ..plain() }).await;
    let (neighbour, theirs) = world.sandbox_of(other, plain()).await;
    let write = "dd if=/dev/zero of=/work/big bs=1M count=8 conv=fsync 2>&1";
    let begun = Instant::now();
    let (one, two) = tokio::join!(sh(&one, write), sh(&two, write));
    assert!(one.0.code == Some(0) && two.0.code == Some(0), "{one:?} {two:?}");
    let taken = begun.elapsed();
    assert!(taken > Duration::from_millis(1500), "16 MiB at 8 MiB a second took {taken:?}");
    let begun = Instant::now();
    sh(&theirs, write).await;
    assert!(begun.elapsed() < taken, "another account was slowed down: {:?}", begun.elapsed());
    for id in [first, second, neighbour] {
        world.remove(id).await;
    }
}

#[tokio::test]
async fn k8_the_operator_has_no_totals_and_its_boxes_stay_where_they_were() {
    let world = World::new();
    let can = world.provider.capabilities().limits;
    let totals = AccountTotals { max_processes: Some(1), ..AccountTotals::default() };
    world.provider.set_account_totals(AccountId::LOCAL, &totals).await.unwrap();
    let (id, guest) = world.sandbox(Limits::default()).await;
    assert_eq!(sh(&guest, "true").await.0.code, Some(0));
    let named = groups(&id.to_string());
    assert!(named.iter().all(|name| !name.contains('/')) && named.is_empty() != can.processes, "{named:?}");
    world.remove(id).await;
    // Where a total cannot hold, whoever sets it is told.
    let refused = world.provider.set_account_totals(AccountId::generate(), &totals).await;
    assert_eq!(
        refused.as_ref().err().map(|error| error.kind()),
        (!can.processes).then_some(ErrorKind::LimitUnenforceable)
    );
}

#[tokio::test]
async fn an_account_is_remembered_by_the_next_host_process() {
    let world = World::new();
    if !world.can("account_groups", world.provider.capabilities().limits.processes) {
        return;
    }
    let account = AccountId::generate();
    let (id, _) = world.sandbox_of(account, plain()).await;
    world.provider.stop(id, Duration::ZERO).await.unwrap();
    let world = world.reopen(Default::default());
    world.provider.start(id).await.unwrap();
    assert_eq!(groups(&account.to_string()).iter().filter(|name| name.ends_with(&id.to_string())).count(), 1);
    // One of a version that did not note it is the operator's.
    let old: SandboxId = SandboxId::generate();
    world.provider.create(old, &plain(), account).await.unwrap();
    let path = world.data().join(format!("native/boxes/{old}/box.json"));
    let mut intent: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    intent.as_object_mut().unwrap().remove("account").unwrap();
    fs::write(&path, serde_json::to_vec(&intent).unwrap()).unwrap();
    assert_eq!(world.provider.start(old).await.unwrap().state, BoxState::Running);
    assert!(groups(&old.to_string()).iter().all(|name| !name.contains('/')));
    for id in [id, old] {
        world.remove(id).await;
    }
    assert_eq!(groups(&account.to_string()), Vec::<String>::new());
}
