//! What the requirements' tests share: words for what a user does, and a bucket that is watched.

use crate::world::World;
use async_trait::async_trait;
use bytes::Bytes;
use seawall_api::{ErrorKind, files::FileName};
use seawall_sync::{
    Error, Result,
    bucket::{self, Bodies, Bucket, MemoryBucket, Object, SharedBucket},
    disk::LocalWorkspace,
    engine::{DryRun, Engine, Restored, SyncReport},
    path::STATE,
    state::{Limits, StateFile},
    tree::Tree,
    versions::Versions,
    workspace::Workspace,
};
use std::{
    fs,
    io::Write as _,
    ops::Range,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, UNIX_EPOCH},
};

/// Workspaces, and a bucket whose inside can be seen.
pub fn open_world(replicas: usize) -> (World, Arc<MemoryBucket>) {
    let memory = Arc::new(MemoryBucket::default());
    (World::on(memory.clone(), replicas), memory)
}

/// Workspaces, and a bucket that tells what it was asked for.
pub fn watched_world(replicas: usize) -> (World, Arc<Watched>) {
    let watched = Watched::new(Arc::new(MemoryBucket::default()));
    (World::on(watched.clone(), replicas), watched)
}

/// These files in the bucket and in all workspaces.
pub async fn share(world: &World, files: &[(&str, &str)]) {
    for (path, body) in files {
        write(world, 0, path, body);
    }
    for replica in 0..world.replicas.len() {
        world.sync(replica).await.unwrap();
    }
}

pub fn name(path: &str) -> FileName {
    FileName::from(path)
}

pub fn write(world: &World, replica: usize, path: &str, body: &str) {
    let full = world.replicas[replica].path(path);
    fs::create_dir_all(full.parent().unwrap()).unwrap();
    fs::write(full, body).unwrap();
}

pub fn read(world: &World, replica: usize, path: &str) -> String {
    let full = world.replicas[replica].path(path);
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()))
}

pub fn remove(world: &World, replica: usize, path: &str) {
    fs::remove_file(world.replicas[replica].path(path)).unwrap();
}

/// Whether something is there, be it a link to nowhere.
pub fn exists(world: &World, replica: usize, path: &str) -> bool {
    fs::symlink_metadata(world.replicas[replica].path(path)).is_ok()
}

pub fn set_mtime(path: &Path, secs: u64, nanos: u32) {
    fs::File::open(path).unwrap().set_modified(UNIX_EPOCH + Duration::new(secs, nanos)).unwrap();
}

/// Until a file written before could not change again without showing it. The time of its last change (ctime) cannot
/// be set, so it has to be waited for: twice the 20 ms that the scan allows a kernel's clock.
pub fn let_time_pass() {
    std::thread::sleep(Duration::from_millis(40));
}

/// Past the harness, which shows nothing of a test that passes: whoever counts sees it.
pub fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped requirements::{test}: {why}");
}

/// The state file of a workspace, which must be one that the next sync believes.
pub fn state(world: &World, replica: usize) -> StateFile {
    let json = fs::read(world.replicas[replica].path(STATE)).unwrap();
    StateFile::parse_local(&json, &Limits::default()).unwrap()
}

/// The newest version in the bucket.
pub async fn newest(world: &World) -> Tree {
    let versions = world.versions(0);
    let head = versions.head().await.unwrap();
    versions.tree(&head.version.unwrap()).await.unwrap()
}

pub fn paths(tree: &Tree) -> Vec<String> {
    tree.iter().map(|(path, _)| path.to_string()).collect()
}

pub fn workspace(world: &World, replica: usize) -> LocalWorkspace {
    LocalWorkspace(world.replicas[replica].disk.clone())
}

/// A sync with versions or a workspace of the test's own.
pub async fn sync_through(versions: &Versions, workspace: &dyn Workspace) -> Result<SyncReport> {
    Engine::new(versions, workspace).sync().await
}

pub async fn dry_run(world: &World, replica: usize) -> Result<DryRun> {
    let (versions, workspace) = (world.versions(replica), workspace(world, replica));
    Engine::new(&versions, &workspace).dry_run().await
}

pub async fn restore(world: &World, replica: usize, version: i64) -> Result<Restored> {
    let (versions, workspace) = (world.versions(replica), workspace(world, replica));
    Engine::new(&versions, &workspace).restore(version).await
}

pub async fn restore_path(world: &World, replica: usize, version: i64, path: &str) -> Result<Restored> {
    let (versions, workspace) = (world.versions(replica), workspace(world, replica));
    Engine::new(&versions, &workspace).restore_path(version, &name(path)).await
}

/// Pushes, and tells the version's time.
pub async fn push(world: &World, replica: usize) -> i64 {
    world.sync(replica).await.unwrap().version.unwrap().timestamp
}

pub fn keys(memory: &MemoryBucket, beginning: &str) -> Vec<String> {
    memory.keys().into_iter().filter(|key| key.starts_with(beginning)).collect()
}

/// What the objects have together.
pub async fn size(memory: &MemoryBucket, beginning: &str) -> u64 {
    memory.list(beginning, None).await.unwrap().iter().map(|object| object.size).sum()
}

pub async fn object(memory: &MemoryBucket, key: &str) -> Vec<u8> {
    bucket::read(memory, key, u64::MAX).await.unwrap().to_vec()
}

/// What disks and networks do to an object.
pub async fn damage(memory: &MemoryBucket, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut body = object(memory, key).await;
    change(&mut body);
    memory.put(key, body.into()).await.unwrap();
}

pub type Objects = Vec<(String, Bytes)>;

/// A bucket that writes down every call as `verb key`, refuses what it is told to, and lets others be faster.
#[derive(Debug)]
pub struct Watched {
    inner: SharedBucket,
    calls: Mutex<Vec<String>>,
    /// How the calls begin that fail, and how.
    refused: Mutex<Option<(String, ErrorKind)>>,
    /// How the call begins before which somebody else stores these.
    meanwhile: Mutex<Option<(String, Objects)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    pub fn new(inner: SharedBucket) -> Arc<Watched> {
        let (calls, refused, meanwhile) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Watched { inner, calls, refused, meanwhile })
    }

    pub fn calls(&self) -> Vec<String> {
        locked(&self.calls).clone()
    }

    pub fn count(&self, beginning: &str) -> usize {
        locked(&self.calls).iter().filter(|call| call.starts_with(beginning)).count()
    }

    /// Counts from now on.
    pub fn forget(&self) {
        locked(&self.calls).clear();
    }

    pub fn refuse(&self, beginning: &str, kind: ErrorKind) {
        *locked(&self.refused) = Some((beginning.to_owned(), kind));
    }

    pub fn mend(&self) {
        *locked(&self.refused) = None;
    }

    pub fn meanwhile(&self, beginning: &str, objects: Objects) {
        *locked(&self.meanwhile) = Some((beginning.to_owned(), objects));
    }

    async fn call(&self, verb: &str, key: &str) -> Result<()> {
        // Others get their turn, as with a store that is far away.
        tokio::task::yield_now().await;
        let call = format!("{verb} {key}");
        locked(&self.calls).push(call.clone());
        let happened = locked(&self.meanwhile).take_if(|(beginning, _)| call.starts_with(beginning.as_str()));
        for (key, body) in happened.map(|(_, objects)| objects).unwrap_or_default() {
            self.inner.put(&key, body).await?;
        }
        let refused = locked(&self.refused).clone();
        match refused {
            Some((beginning, kind)) if call.starts_with(&beginning) => {
                Err(Error::new(kind, "a test refused it"))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Bucket for Watched {
    fn place(&self) -> String {
        self.inner.place()
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        self.call("create", key).await?;
        self.inner.create(key, body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.call("put", key).await?;
        self.inner.put(key, body).await
    }

    async fn upload(&self, key: &str, body: Bodies) -> Result<()> {
        self.call("upload", key).await?;
        self.inner.upload(key, body).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies> {
        self.call("get", key).await?;
        self.inner.get(key, range).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>> {
        self.call("list", prefix).await?;
        self.inner.list(prefix, after).await
    }

    async fn folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.call("folders", prefix).await?;
        self.inner.folders(prefix).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.call("delete", key).await?;
        self.inner.delete(key).await
    }
}
