//! Versions of files over HTTP: deleted and pruned by their owner, and by nobody else. What is stored is counted.
//!
//! The mock's guest has no files, so versions are pushed from folders of this machine to where a sandbox's lie.

use crate::world::{ME, Setup, World, template};
use async_trait::async_trait;
use bytes::Bytes;
use seawall_api::{AccountId, SandboxId};
use seawall_core::{
    retention::{Keep as RetentionKeep, Retention},
    templates::{SyncPart, Template},
};
use seawall_sync::{
    bucket::{Bodies, Bucket, MemoryBucket, Object, Scoped},
    disk::{Disk, LocalWorkspace},
    engine::Engine,
    versions::{Clock, Keep, Versions},
};
use serde_json::{Value, json};
use std::{
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

struct Later(AtomicI64);

impl Clock for Later {
    fn now_ms(&self) -> i64 {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }
}

/// A bucket that never answers about keys below one prefix, once that is set.
#[derive(Debug, Default)]
struct Stuck {
    memory: Arc<MemoryBucket>,
    prefix: OnceLock<String>,
}

impl Stuck {
    async fn pass(&self, key: &str) {
        if self.prefix.get().is_some_and(|prefix| key.starts_with(prefix)) {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl Bucket for Stuck {
    fn place(&self) -> String {
        self.memory.place()
    }

    async fn create(&self, key: &str, body: Bytes) -> seawall_sync::Result<bool> {
        self.memory.create(key, body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> seawall_sync::Result<()> {
        self.memory.put(key, body).await
    }

    async fn upload(&self, key: &str, body: Bodies) -> seawall_sync::Result<()> {
        self.memory.upload(key, body).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> seawall_sync::Result<Bodies> {
        self.pass(key).await;
        self.memory.get(key, range).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> seawall_sync::Result<Vec<Object>> {
        self.pass(prefix).await;
        self.memory.list(prefix, after).await
    }

    async fn folders(&self, prefix: &str) -> seawall_sync::Result<Vec<String>> {
        self.pass(prefix).await;
        self.memory.folders(prefix).await
    }

    async fn delete(&self, key: &str) -> seawall_sync::Result<()> {
        self.memory.delete(key).await
    }
}

struct Kept {
    world: World,
    memory: Arc<MemoryBucket>,
    stuck: Arc<Stuck>,
}

impl Kept {
    async fn new() -> Kept {
        let stuck = Arc::new(Stuck::default());
        let memory = stuck.memory.clone();
        let with = |name: &str, sync: SyncPart| Template { sync, ..template(name) };
        let shared = SyncPart { volume: Some("all".to_owned()), ..SyncPart::default() };
        let setup = Setup {
            templates: vec![with("kept", SyncPart::default()), with("shared", shared)],
            bucket: Some(stuck.clone()),
            ..Setup::default()
        };
        Kept { world: World::with(setup).await, memory, stuck }
    }

    async fn make(&self, template: &str, key: &str) -> SandboxId {
        let ask = Some(json!({"template": template}));
        let (status, made) = self.world.json("POST", "/sandboxes", key, ask).await;
        assert_eq!(status, 201, "{made}");
        made["id"].as_str().unwrap().parse().unwrap()
    }

    /// One version for each body, as syncs of a sandbox would make them.
    async fn push(&self, prefix: &str, bodies: &[&str]) -> Vec<i64> {
        let folder = tempfile::tempdir().unwrap();
        let bucket = Arc::new(Scoped::new(self.memory.clone(), prefix).unwrap());
        let versions = Versions::new(bucket, Arc::new(Later(AtomicI64::new(1_700_000_000_000))));
        let workspace = LocalWorkspace(Arc::new(Disk::open(folder.path(), None).unwrap()));
        let mut made = Vec::new();
        for body in bodies {
            std::fs::write(folder.path().join(format!("{body}.txt")), body.repeat(100)).unwrap();
            let report = Engine::new(&versions, &workspace).sync().await.unwrap();
            made.push(report.version.unwrap().timestamp);
        }
        made
    }

    async fn call(&self, method: &str, path: &str, key: &str, body: Option<Value>) -> (u16, Value) {
        let (status, answer) = self.world.json(method, path, key, body).await;
        (status.as_u16(), answer)
    }

    async fn listed(&self, id: SandboxId) -> Vec<i64> {
        let listed = self.world.get(&format!("/sandboxes/{id}/versions")).await;
        listed["items"].as_array().unwrap().iter().map(|one| one["version"].as_i64().unwrap()).collect()
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        self.memory.keys().into_iter().filter(|key| key.starts_with(&format!("{prefix}/"))).collect()
    }

    async fn there(&self, prefix: &str) -> u64 {
        let listed = self.memory.list(&format!("{prefix}/"), None).await.unwrap();
        listed.iter().map(|object| object.size).sum()
    }

    async fn counted(&self, account: AccountId) -> u64 {
        self.world.stores.stored.total(account).await.unwrap()
    }
}

fn prefix(account: AccountId, id: SandboxId) -> String {
    match account {
        ME => format!("docs/local/{id}"),
        other => format!("docs/{other}/{id}"),
    }
}

#[tokio::test(start_paused = true)]
async fn k8_an_owner_deletes_a_version_and_it_is_counted() {
    let kept = Kept::new().await;
    let id = kept.make("kept", &kept.world.mine).await;
    let made = kept.push(&prefix(ME, id), &["one", "two", "three"]).await;
    let path = |version: i64| format!("/sandboxes/{id}/versions/{version}");
    // Nobody else's business, and no version of it is told.
    assert_eq!(kept.call("DELETE", &path(made[0]), &kept.world.theirs, None).await.0, 404);
    assert_eq!(kept.listed(id).await, made);
    let (status, gone) = kept.call("DELETE", &path(made[0]), &kept.world.mine, None).await;
    assert_eq!((status, &gone["dropped"], &gone["kept"]), (200, &json!([made[0]]), &json!(2)), "{gone}");
    assert_eq!(kept.listed(id).await, made[1..]);
    assert_eq!(kept.counted(ME).await, kept.there(&prefix(ME, id)).await);
    // By its number; what is gone is not there; the newest stays.
    assert_eq!(kept.call("DELETE", &path(2), &kept.world.mine, None).await.0, 200);
    for missing in [made[0], 1, 77] {
        let (status, told) = kept.call("DELETE", &path(missing), &kept.world.mine, None).await;
        assert_eq!((status, told["code"].as_str()), (404, Some("not_found")), "{told}");
    }
    let (status, told) = kept.call("DELETE", &path(made[2]), &kept.world.mine, None).await;
    assert_eq!(status, 409, "{told}");
    assert!(told["detail"].as_str().unwrap().contains("the newest version stays"), "{told}");
    assert_eq!(kept.listed(id).await, made[2..]);
    assert_eq!(
        kept.call("DELETE", &format!("/sandboxes/{id}/versions/x"), &kept.world.mine, None).await.0,
        400
    );
}

#[tokio::test(start_paused = true)]
async fn k8_an_owner_prunes_also_after_the_end() {
    let kept = Kept::new().await;
    let id = kept.make("kept", &kept.world.mine).await;
    let made = kept.push(&prefix(ME, id), &["one", "two", "three", "four"]).await;
    let path = format!("/sandboxes/{id}/versions/prune");
    let too_large = [json!({"keep": 1_000_000_001u64}), json!({"keep": 0, "keep_for_seconds": 1u64 << 63})];
    let malformed = [json!({}), json!({"keep": -1}), json!({"kepe": 1}), json!({"keep": "all"})];
    for bad in malformed.into_iter().chain(too_large) {
        assert_eq!(kept.call("POST", &path, &kept.world.mine, Some(bad.clone())).await.0, 400, "{bad}");
    }
    let three = || Some(json!({"keep": 3}));
    assert_eq!(kept.call("POST", &path, &kept.world.theirs, three()).await.0, 404);
    assert_eq!(kept.listed(id).await, made);
    let (status, pruned) = kept.call("POST", &path, &kept.world.mine, three()).await;
    assert_eq!((status, &pruned["dropped"]), (200, &json!([made[0]])), "{pruned}");
    assert!(pruned["bytes_deleted"].as_u64().unwrap() > 300, "{pruned}");
    let end = format!("/sandboxes/{id}?sync=false");
    assert_eq!(kept.call("DELETE", &end, &kept.world.mine, None).await.0, 200);
    let long = Some(json!({"keep_for_seconds": 1}));
    assert_eq!(kept.call("POST", &path, &kept.world.mine, long).await.0, 200);
    assert_eq!(kept.listed(id).await, made[3..]);
    assert_eq!(kept.counted(ME).await, kept.there(&prefix(ME, id)).await);
}

#[tokio::test(start_paused = true)]
async fn k8_deleting_a_sandbox_with_its_versions_leaves_nothing_of_its_files() {
    let kept = Kept::new().await;
    let (id, other) = (kept.make("kept", &kept.world.mine).await, kept.make("kept", &kept.world.mine).await);
    for id in [id, other] {
        kept.push(&prefix(ME, id), &["one", "two"]).await;
    }
    let with_versions = format!("/sandboxes/{id}?versions=delete");
    assert_eq!(kept.call("DELETE", &with_versions, &kept.world.theirs, None).await.0, 404);
    let bad = format!("/sandboxes/{id}?versions=gone");
    assert_eq!(kept.call("DELETE", &bad, &kept.world.mine, None).await.0, 400);
    assert_eq!(kept.listed(id).await.len(), 2);
    let (status, ended) = kept.call("DELETE", &with_versions, &kept.world.mine, None).await;
    assert_eq!((status, ended["state"].as_str()), (200, Some("terminated")), "{ended}");
    assert_eq!(kept.keys(&prefix(ME, id)).len(), 1, "a record of what was");
    assert!(kept.there(&prefix(ME, id)).await < 300);
    assert_eq!(kept.listed(id).await, [] as [i64; 0]);
    assert_eq!(kept.listed(other).await.len(), 2, "another's are its own");
    // Once more, and of one that was ended before.
    assert_eq!(kept.call("DELETE", &with_versions, &kept.world.mine, None).await.0, 200);
    let end = format!("/sandboxes/{other}?sync=false");
    assert_eq!(kept.call("DELETE", &end, &kept.world.mine, None).await.0, 200);
    assert_eq!(kept.listed(other).await.len(), 2, "an end alone keeps them");
    let later = format!("/sandboxes/{other}?versions=delete");
    assert_eq!(kept.call("DELETE", &later, &kept.world.mine, None).await.0, 200);
    assert_eq!(kept.keys(&prefix(ME, other)).len(), 1);
    assert!(kept.counted(ME).await < 600);
}

/// A next life of the sandbox does not look for what its owner deleted.
#[tokio::test(start_paused = true)]
async fn v2_a_sandbox_whose_versions_were_deleted_forgets_them() {
    let kept = Kept::new().await;
    let id = kept.make("kept", &kept.world.mine).await;
    let made = kept.push(&prefix(ME, id), &["one"]).await;
    let known = json!({"last_version": made[0], "last_synced_at": 1, "last_place": "x"});
    let rows = &kept.world.stores.sandboxes;
    rows.merge_metadata(ME, id, known.as_object().unwrap()).await.unwrap();
    let path = format!("/sandboxes/{id}?versions=delete");
    assert_eq!(kept.call("DELETE", &path, &kept.world.mine, None).await.0, 200);
    let metadata = rows.get(ME, id).await.unwrap().metadata;
    for key in ["last_version", "last_synced_at", "last_place"] {
        assert!(!metadata.contains_key(key), "{metadata:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s12_versions_of_a_volume_that_others_use_are_not_deleted() {
    let kept = Kept::new().await;
    let [one, two] =
        [kept.make("shared", &kept.world.mine).await, kept.make("shared", &kept.world.mine).await];
    let prefix = "docs/local/local.all";
    let made = kept.push(prefix, &["one", "two"]).await;
    assert_eq!(kept.listed(one).await, made);
    let path = |id: SandboxId| format!("/sandboxes/{id}?versions=delete");
    let (status, told) = kept.call("DELETE", &path(one), &kept.world.mine, None).await;
    assert_eq!((status, told["code"].as_str()), (409, Some("volume_in_use")), "{told}");
    assert!(told["detail"].as_str().unwrap().contains(&two.to_string()), "{told}");
    assert_eq!(kept.world.get(&format!("/sandboxes/{one}")).await["state"], "running", "nothing was ended");
    let end = format!("/sandboxes/{two}?sync=false");
    assert_eq!(kept.call("DELETE", &end, &kept.world.mine, None).await.0, 200);
    assert_eq!(kept.call("DELETE", &path(one), &kept.world.mine, None).await.0, 200);
    assert_eq!(kept.keys(prefix).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn k10_all_files_of_an_account_can_be_deleted() {
    let kept = Kept::new().await;
    let (mine, other) = (&kept.world.mine, kept.world.other);
    let [live, ended] =
        [kept.make("kept", &kept.world.theirs).await, kept.make("kept", &kept.world.theirs).await];
    let ours = kept.make("kept", mine).await;
    for id in [live, ended] {
        kept.push(&prefix(other, id), &["one", "two"]).await;
    }
    kept.push(&prefix(ME, ours), &["ours"]).await;
    // Of one that left no row only the count tells, and of one bucket nobody knows any more.
    let forgotten = format!("docs/{other}/forgotten");
    kept.push(&forgotten, &["old"]).await;
    let stored = &kept.world.stores.stored;
    for place in [format!("memory:/{forgotten}"), "s3://gone/docs/x".to_owned()] {
        stored.add(other, &place, 100).await.unwrap();
    }
    let end = format!("/sandboxes/{ended}?sync=false");
    assert_eq!(kept.call("DELETE", &end, &kept.world.theirs, None).await.0, 200);
    let service = &kept.world.services().sandboxes;
    let done = service.delete_files_of(other).await.unwrap();
    assert_eq!(done.places, 3, "{done:?}");
    assert!(done.bytes > 500 && done.objects > 10, "{done:?}");
    assert!(done.left.is_empty() && done.unknown == ["s3://gone/docs/x"], "{done:?}");
    assert!(
        kept.memory.keys().iter().all(|key| key.starts_with(&prefix(ME, ours))),
        "{:?}",
        kept.memory.keys()
    );
    assert_eq!(kept.listed(ours).await.len(), 1);
    // Again: nothing is left but what could not be reached, and that is still counted.
    let again = service.delete_files_of(other).await.unwrap();
    assert_eq!((again.places, again.objects, again.unknown.len()), (0, 0, 1), "{again:?}");
    assert_eq!(kept.counted(other).await, 100);
}

#[tokio::test(start_paused = true)]
async fn k11_versions_expire_by_a_policy_in_small_rounds() {
    let kept = Kept::new().await;
    let mut all = Vec::new();
    for _ in 0..3 {
        let id = kept.make("kept", &kept.world.mine).await;
        kept.push(&prefix(ME, id), &["one", "two", "three"]).await;
        kept.world.stores.stored.add(ME, &format!("memory:/{}", prefix(ME, id)), 1).await.unwrap();
        all.push(id);
    }
    let (service, keep) = (&kept.world.services().sandboxes, Keep { newest: 2, younger_than: None });
    let first = service.expire_versions(keep, None, 2).await.unwrap();
    assert_eq!((first.places, first.versions, first.failed), (2, 2, 0), "{first:?}");
    let rest = service.expire_versions(keep, first.next.as_ref(), 2).await.unwrap();
    assert_eq!((rest.places, rest.versions, &rest.next), (1, 1, &None), "{rest:?}");
    for id in all {
        assert_eq!(kept.listed(id).await.len(), 2);
    }
    // There is nothing left to do, and the newest always stays.
    let nothing = service.expire_versions(keep, None, 10).await.unwrap();
    assert_eq!((nothing.places, nothing.versions, nothing.bytes), (3, 0, 0));
    let none = Keep { newest: 0, younger_than: Some(0) };
    assert_eq!(service.expire_versions(none, None, 10).await.unwrap().versions, 3);
}

/// The tenant's own calls at one place take all its slots and do not end. Retention passes over its other places, and goes on to
/// those of others.
#[tokio::test(start_paused = true)]
async fn k11_a_tenant_that_keeps_its_slots_does_not_hold_up_retention() {
    let kept = Kept::new().await;
    let (theirs, other) = (&kept.world.theirs, kept.world.other);
    let (busy, idle) = (kept.make("kept", theirs).await, kept.make("kept", theirs).await);
    let ours = kept.make("kept", &kept.world.mine).await;
    for (account, id) in [(other, busy), (other, idle), (ME, ours)] {
        kept.push(&prefix(account, id), &["one", "two"]).await;
    }
    for (account, id) in [(other, idle), (ME, ours)] {
        kept.world.stores.stored.add(account, &format!("memory:/{}", prefix(account, id)), 1).await.unwrap();
    }
    kept.stuck.prefix.set(prefix(other, busy)).unwrap();
    let path = format!("/sandboxes/{busy}/versions/prune");
    let prune = || kept.call("POST", &path, theirs, Some(json!({"keep": 1})));
    let hanging = futures::future::join_all((0..20).map(|_| prune()));
    let service = &kept.world.services().sandboxes;
    let round = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        service.expire_versions(Keep { newest: 1, younger_than: None }, None, 10).await.unwrap()
    };
    let round = tokio::time::timeout(Duration::from_secs(60), round);
    let expired = tokio::select! {
        expired = round => expired.expect("retention waits for a tenant"),
        answers = hanging => panic!("{answers:?}"),
    };
    assert_eq!((expired.places, expired.failed, expired.versions), (2, 1, 1), "{expired:?}");
    assert_eq!(kept.listed(ours).await.len(), 1);
}

/// What an ended sandbox left can be deleted as long as it is there: by its owner, and by the policy. Then its record goes too.
#[tokio::test(start_paused = true)]
async fn k11_an_ended_sandbox_keeps_its_record_for_its_versions() {
    let kept = Kept::new().await;
    let (ended, lives) =
        (kept.make("kept", &kept.world.mine).await, kept.make("kept", &kept.world.mine).await);
    let (rows, note) = (&kept.world.stores.sandboxes, json!({"last_place": "memory:/docs"}));
    for id in [ended, lives] {
        kept.push(&prefix(ME, id), &["one", "two"]).await;
        rows.merge_metadata(ME, id, note.as_object().unwrap()).await.unwrap();
    }
    assert_eq!(
        kept.call("DELETE", &format!("/sandboxes/{ended}?sync=false"), &kept.world.mine, None).await.0,
        200
    );
    let minute = Duration::from_secs(60);
    tokio::time::sleep(minute * 40).await;
    let round = async |versions| {
        let ended_sandboxes = Some(minute * 30);
        let keep = RetentionKeep { versions, ended_sandboxes, ..RetentionKeep::default() };
        Retention::new(kept.world.services(), keep).round().await.unwrap()
    };
    assert_eq!(round(None).await.sandboxes, 0);
    assert_eq!(kept.listed(ended).await.len(), 2);
    assert_eq!(round(Some(minute * 41)).await.sandboxes, 0);
    assert_eq!(kept.listed(ended).await.len(), 2);
    // The record of one without versions goes, in this round or in the next.
    let removed = round(Some(minute * 39)).await.sandboxes + round(Some(minute * 39)).await.sandboxes;
    assert_eq!(removed, 1);
    assert!(rows.find(ended).await.unwrap().is_none());
    let left = kept.memory.keys();
    assert!(left.iter().all(|key| key.starts_with(&prefix(ME, lives))), "{left:?}");
    let places = kept.world.stores.stored.places(ME, None, 10).await.unwrap();
    assert!(
        places.iter().all(|place| !place.place.contains(&ended.to_string())),
        "nothing is counted for it: {places:?}"
    );
    assert_eq!(kept.listed(lives).await.len(), 2);
}
