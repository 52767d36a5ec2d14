//! The workspace service on real guests: the sync's engine over the wire, on `local` and on `native`.

#![allow(clippy::unwrap_used)] // Helpers beside the tests are tests too.

use seawall_api::{ErrorKind, SandboxId, sandbox::SandboxState};
use seawall_core::{
    ExecRequest, NewSandbox, Providers, Sandboxes, Workspaces,
    ports::{Provider, Volumes},
    testing::{Faults as WireFaults, FaultyProvider, ManualClock, MemoryRecords},
    workspaces::{Restore, Staleness, WorkspaceSettings, staleness},
};
use seawall_providers::{
    local::LocalProvider,
    native::{NativeProvider, NativeSettings},
};
use seawall_sync::{
    bucket::{MemoryBucket, SharedBucket},
    engine::{Direction, Options, Silent},
    testing::{Fault, Faults, FaultyBucket},
    versions::Keep,
};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

struct World {
    sandboxes: Sandboxes,
    workspaces: Workspaces,
    bucket: SharedBucket,
    clock: ManualClock,
    wire: WireFaults,
    _data: TempDir,
}

impl World {
    fn new(name: &str) -> World {
        let data = tempfile::tempdir().unwrap();
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(data.path(), open).unwrap();
        let provider: Arc<dyn Provider> = match name {
            "local" => Arc::new(LocalProvider::open(data.path()).unwrap()),
            _ => Arc::new(NativeProvider::open(data.path(), NativeSettings::default()).unwrap()),
        };
        let faulty = FaultyProvider::new(provider);
        let wire = faulty.faults();
        let providers = Providers::new(name, vec![Arc::new(faulty)]).unwrap();
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let sandboxes = Sandboxes::new(providers, Arc::new(MemoryRecords::new()), Arc::new(clock.clone()));
        let bucket: SharedBucket = Arc::new(MemoryBucket::default());
        let workspaces = service(&sandboxes, bucket.clone(), &clock);
        World { sandboxes, workspaces, bucket, clock, wire, _data: data }
    }

    async fn sandbox(&self, id: SandboxId) -> SandboxId {
        let (info, _) =
            self.sandboxes.launch(NewSandbox { id: Some(id), ..NewSandbox::default() }).await.unwrap();
        assert_eq!(info.state, SandboxState::Running);
        id
    }

    async fn fresh(&self) -> SandboxId {
        self.sandbox(SandboxId::generate()).await
    }

    async fn sh(&self, id: SandboxId, script: &str) -> String {
        let output = self.sandboxes.exec(id, ExecRequest::new(["sh", "-c", script])).await.unwrap();
        assert_eq!(output.status.code, Some(0), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    async fn sync(&self, id: SandboxId) -> seawall_sync::engine::SyncReport {
        self.workspaces.sync_files(id, Options::default()).await.unwrap()
    }

    /// The box and its volume die, and come again with nothing.
    async fn lose(&self, id: SandboxId) {
        self.sandboxes.give_up_unsynced(id).await.unwrap();
        self.sandboxes.remove(id, Volumes::Delete).await.unwrap();
        self.sandbox(id).await;
    }

    async fn end(&self) {
        for info in self.sandboxes.list().await.unwrap() {
            self.sandboxes.purge(info.id, Volumes::Delete).await.unwrap();
        }
    }
}

fn service(sandboxes: &Sandboxes, bucket: SharedBucket, clock: &ManualClock) -> Workspaces {
    let settings =
        WorkspaceSettings { lock_wait: Duration::from_millis(200), ..WorkspaceSettings::default() };
    Workspaces::new(sandboxes.clone(), bucket, Arc::new(clock.clone()), settings)
}

const PROVIDERS: [&str; 2] = ["local", "native"];

#[tokio::test]
async fn s8_a_workspace_comes_back_as_it_was() {
    for provider in PROVIDERS {
        let world = World::new(provider);
        let id = world.fresh().await;
        world
            .sh(id, "mkdir -p d/e empty && echo one > d/e/a && ln -s ../nowhere l && chmod 640 d/e/a && chmod 750 d && touch -d @1234567890.25 d/e/a && head -c 300000 /dev/zero > big && head -c 6000000 /dev/urandom > huge && : > nothing && cksum huge > sum")
            .await;
        let pushed = world.sync(id).await;
        assert_eq!((pushed.direction, pushed.stats.files_uploaded), (Direction::Pushed, 6), "{provider}");
        world.lose(id).await;
        let pulled = world.sync(id).await;
        assert_eq!((pulled.direction, pulled.stats.files_downloaded), (Direction::Pulled, 6), "{provider}");
        let look = "stat -c '%n %a %s %.2Y' d/e/a; stat -c '%n %a' d; readlink l; ls -d empty; wc -c < nothing; cksum huge | cmp - sum && echo same; id -un; stat -c %U d d/e/a l";
        let found = world.sh(id, look).await;
        let user = found.lines().nth(6).unwrap().to_owned();
        let expected = format!(
            "d/e/a 640 4 1234567890.25\nd 750\n../nowhere\nempty\n0\nsame\n{user}\n{user}\n{user}\n{user}\n"
        );
        assert_eq!(found, expected, "{provider}");
        let again = world.sync(id).await;
        assert_eq!(again.direction, Direction::Nothing, "{provider}: {again:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn s4_two_sandboxes_that_lost_touch_lose_nothing() {
    for provider in PROVIDERS {
        let world = World::new(provider);
        let id = world.fresh().await;
        world.sh(id, "echo base > both; echo base > deleted; echo base > kept").await;
        world.sync(id).await;
        // A second box of the same workspace, elsewhere.
        let other = World::new(provider);
        let elsewhere = service(&other.sandboxes, world.bucket.clone(), &world.clock);
        other.sandbox(id).await;
        elsewhere.sync_files(id, Options::default()).await.unwrap();
        other.sh(id, "echo theirs > both; rm deleted; echo new > theirs").await;
        elsewhere.sync_files(id, Options::default()).await.unwrap();
        world.sh(id, "echo ours > both; echo changed > deleted; echo new > ours").await;
        let merged = world.sync(id).await;
        assert_eq!(merged.direction, Direction::Both);
        assert_eq!(merged.notes.len(), 2, "{:?}", merged.notes);
        let expected = "theirs\nours\nchanged\nbase\nnew\nnew\n";
        assert_eq!(world.sh(id, "cat both both.conflict-* deleted kept ours theirs").await, expected);
        elsewhere.sync_files(id, Options::default()).await.unwrap();
        assert_eq!(other.sh(id, "cat both both.conflict-* deleted kept ours theirs").await, expected);
        world.end().await;
        other.end().await;
    }
}

#[tokio::test]
async fn s9_a_second_sync_waits_and_then_says_so() {
    let world = World::new("local");
    let id = world.fresh().await;
    let guest = world.sandboxes.guest(id).await.unwrap();
    let (held, _) = guest.open_sync(Duration::ZERO).await.unwrap();
    let error = world.workspaces.sync_files(id, Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    drop(held);
    // H8: what was not synced is marked; the next one takes the mark away.
    assert!(world.sandboxes.unsynced(id).await.unwrap().is_some());
    world.sync(id).await;
    assert_eq!(world.sandboxes.unsynced(id).await.unwrap(), None);
    world.end().await;
}

#[tokio::test]
async fn h8_a_failed_push_marks_the_sandbox() {
    let world = World::new("local");
    let id = world.fresh().await;
    world.sh(id, "echo work > a").await;
    // The fourth call and all behind it: the store is away.
    let faults = Faults::at(3, Fault::CrashBefore);
    let away = service(
        &world.sandboxes,
        Arc::new(FaultyBucket::new(world.bucket.clone(), faults.clone())),
        &world.clock,
    );
    let dead = tokio::select! {
        _ = away.sync_files(id, Options::default()) => false,
        () = faults.crash() => true,
    };
    assert!(dead, "the store was asked less than four times");
    world.sandboxes.mark_unsynced(id, Some("the store was away".into())).await.unwrap();
    for refused in [
        world.sandboxes.stop(id, Duration::ZERO).await.map(drop),
        world.sandboxes.remove(id, Volumes::Keep).await,
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("seawall sync"), "{error}");
    }
    world.sync(id).await;
    world.sandboxes.stop(id, Duration::ZERO).await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn s7_stale_is_what_was_not_looked_at_for_an_hour() {
    let hour = Duration::from_secs(3600);
    assert_eq!(staleness(None, 10_000, hour), Staleness::Cold);
    assert_eq!(staleness(Some(0), 10_000, hour), Staleness::Cold);
    assert_eq!(staleness(Some(9_999), 10_000, hour), Staleness::Fresh);
    assert_eq!(staleness(Some(6_400), 10_000, hour), Staleness::Fresh);
    assert_eq!(staleness(Some(6_399), 10_000, hour), Staleness::Stale);
    assert_eq!(staleness(Some(10_001), 10_000, hour), Staleness::Stale, "from the future");

    let world = World::new("local");
    let id = world.fresh().await;
    let (found, synced) = world.workspaces.refresh(id).await.unwrap();
    assert!(found == Staleness::Cold && synced.is_some());
    assert_eq!(world.workspaces.refresh(id).await.unwrap(), (Staleness::Fresh, None));
    world.clock.advance(Duration::from_secs(3601));
    let (found, synced) = world.workspaces.refresh(id).await.unwrap();
    assert!(found == Staleness::Stale && synced.is_some());
    assert_eq!(world.workspaces.refresh(id).await.unwrap().0, Staleness::Fresh);
    world.end().await;
}

/// Every connection dies after so many bytes: the sync fails, and the next one ends it.
#[tokio::test]
async fn s10_a_wire_that_breaks_anywhere_loses_nothing() {
    let world = World::new("local");
    let id = world.fresh().await;
    world.sh(id, "for i in $(seq 40); do head -c 2000 /dev/urandom > f$i; done; cksum f* > ../sums").await;
    let mut cut = 50;
    let mut failed = 0;
    while cut < 400_000 {
        world.sandboxes.guest(id).await.unwrap().disconnect().await;
        world.wire.cut_after(cut);
        failed += u32::from(world.workspaces.sync_files(id, Options::default()).await.is_err());
        world.wire.heal();
        world.sandboxes.guest(id).await.unwrap().disconnect().await;
        world.sync(id).await;
        assert_eq!(world.sh(id, "cksum f* | cmp - ../sums && echo same").await, "same\n");
        world.sh(id, &format!("echo {cut} > f1; cksum f* > ../sums")).await;
        cut = cut * 5 / 3;
    }
    assert!(failed > 5, "only {failed} syncs were cut");
    world.end().await;
}

#[tokio::test]
async fn s6_versions_are_listed_restored_and_pruned() {
    let world = World::new("local");
    let id = world.fresh().await;
    for number in 0..4 {
        world.sh(id, &format!("echo {number} > a; echo {number} > f{number}")).await;
        world.sync(id).await;
        world.clock.advance(Duration::from_secs(60));
    }
    let versions = world.workspaces.versions(id).await.unwrap();
    let times: Vec<i64> = versions.iter().map(|version| version.timestamp).collect();
    assert!(times.is_sorted() && times.len() == 4, "{times:?}");
    let second = Restore { version: Some(times[1]), ..Restore::default() };
    world.workspaces.restore(id, &second, Arc::new(Silent)).await.unwrap();
    assert_eq!(world.sh(id, "cat a; ls").await, "1\na\nf0\nf1\n");
    let pruned = world.workspaces.prune(id, Keep { newest: 1, younger_than: Some(130_000) }).await.unwrap();
    assert_eq!((pruned.kept, pruned.dropped.len()), (3, 2), "{pruned:?}");
    let verified = world.workspaces.verify(id, |_| {}).await.unwrap();
    assert!(verified.damage.is_empty(), "{verified:?}");
    world.lose(id).await;
    world.sync(id).await;
    assert_eq!(world.sh(id, "cat a; ls").await, "1\na\nf0\nf1\n");
    world.end().await;
}
