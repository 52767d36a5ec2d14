//! Workspaces on real disks, one bucket, and the books about every byte that a user wrote.
#![allow(dead_code, reason = "each test program uses its part of it")]

use seawall_api::files::FileName;
use seawall_sync::{
    Error, Result,
    bucket::{self, MemoryBucket, SharedBucket},
    disk::{Disk, DiskLock, LocalWorkspace, ScanAsk},
    engine::{Engine, Options, SyncReport},
    sparse::{Decoder, Part},
    testing::{CountedIds, Faults, FaultyBucket, FaultyWorkspace, ManualClock},
    tree::{Node, Place, Tree},
    versions::{Keep, Pruned, Turnstile, Versions},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A place in memory, where there is one: thousands of histories wear out no disk.
pub fn folder() -> tempfile::TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

/// A sandbox's workspace and the process that syncs it.
pub struct Replica {
    pub folder: tempfile::TempDir,
    pub disk: Arc<Disk>,
    pub clock: Arc<ManualClock>,
    pub ids: Arc<CountedIds>,
}

impl Replica {
    fn new(name: &str, now: i64) -> Replica {
        let folder = folder();
        let disk = Arc::new(Disk::open(folder.path(), None).unwrap());
        Replica { folder, disk, clock: ManualClock::at(now), ids: CountedIds::of(name) }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// The guest died: what it remembered is gone.
    pub fn restart(&mut self) {
        self.disk = Arc::new(Disk::open(self.folder.path(), None).unwrap());
    }

    /// The bodies of all files.
    pub fn bodies(&self) -> BTreeSet<String> {
        let mut bodies = BTreeSet::new();
        let mut dirs = vec![self.folder.path().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name();
                if dir == self.folder.path() && seawall_sync::path::is_own(name.as_encoded_bytes()) {
                    continue;
                }
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    dirs.push(entry.path());
                } else if kind.is_symlink() {
                    bodies.insert(fs::read_link(entry.path()).unwrap().to_string_lossy().into_owned());
                } else {
                    bodies.insert(fs::read_to_string(entry.path()).unwrap());
                }
            }
        }
        bodies
    }

    pub fn tree(&self) -> Tree {
        // With eyes that remember nothing.
        let fresh = Disk::open(self.folder.path(), None).unwrap();
        let report = fresh.scan(&ScanAsk { regenerate: true, ..ScanAsk::default() });
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        report.delta.changed.into_iter().collect()
    }
}

pub struct World {
    pub bucket: SharedBucket,
    pub replicas: Vec<Replica>,
    pub turnstile: Option<Arc<dyn Turnstile>>,
    /// Bodies that a user wrote, and those that a user deleted or replaced.
    pub written: BTreeSet<String>,
    pub dead: BTreeSet<String>,
    /// Files that are written from now on have holes.
    pub holes: bool,
    next: u64,
}

pub const NOW: i64 = 1_700_000_000_000;

impl World {
    pub fn new(replicas: usize) -> World {
        World::on(Arc::new(MemoryBucket::default()), replicas)
    }

    pub fn on(bucket: SharedBucket, replicas: usize) -> World {
        // Their clocks are ten minutes apart.
        let replica = |n: usize| Replica::new(&format!("r{n}-"), NOW + 600_000 * n as i64);
        World {
            bucket,
            replicas: (0..replicas).map(replica).collect(),
            turnstile: None,
            written: BTreeSet::new(),
            dead: BTreeSet::new(),
            holes: false,
            next: 0,
        }
    }

    pub fn versions(&self, replica: usize) -> Versions {
        self.versions_on(self.bucket.clone(), replica)
    }

    pub fn versions_on(&self, bucket: SharedBucket, replica: usize) -> Versions {
        let Replica { clock, ids, .. } = &self.replicas[replica];
        Versions::new(bucket, clock.clone()).with_ids(ids.clone()).with_turnstile(self.turnstile.clone())
    }

    pub async fn sync(&self, replica: usize) -> Result<SyncReport> {
        self.sync_with(replica, Options::default()).await
    }

    pub async fn sync_with(&self, replica: usize, options: Options) -> Result<SyncReport> {
        let workspace = LocalWorkspace(self.replicas[replica].disk.clone());
        let versions = self.versions(replica);
        let lock = workspace.0.try_lock().unwrap();
        assert!(lock.is_some(), "the lock of a dead process is free");
        Engine::new(&versions, &workspace).with_options(options).sync().await
    }

    /// A sync to which something happens. None where the process died.
    pub async fn sync_with_faults(&self, replica: usize, faults: &Arc<Faults>) -> Option<Result<SyncReport>> {
        let disk = self.replicas[replica].disk.clone();
        let lock = disk.try_lock().unwrap();
        assert!(lock.is_some(), "the lock of a dead process is free");
        let workspace = FaultyWorkspace::new(LocalWorkspace(disk), faults.clone());
        let bucket = Arc::new(FaultyBucket::new(self.bucket.clone(), faults.clone()));
        let versions = self.versions_on(bucket, replica);
        let engine = Engine::new(&versions, &workspace);
        let done = tokio::select! {
            done = engine.sync() => Some(done),
            () = faults.crash() => None,
        };
        if done.is_none() {
            // The guest died too, so that only its records on the disk help.
            lock.into_iter().for_each(DiskLock::abandon);
        }
        done
    }

    pub async fn prune(&self, replica: usize, keep: usize) -> Result<Pruned> {
        self.versions(replica).prune(Keep { newest: keep, younger_than: None }).await
    }

    pub async fn prune_with_faults(
        &self,
        replica: usize,
        keep: usize,
        faults: &Arc<Faults>,
    ) -> Option<Result<Pruned>> {
        let bucket = Arc::new(FaultyBucket::new(self.bucket.clone(), faults.clone()));
        let versions = self.versions_on(bucket, replica);
        let keep = Keep { newest: keep, younger_than: None };
        tokio::select! {
            done = versions.prune(keep) => Some(done),
            () = faults.crash() => None,
        }
    }

    /// Everything goes. None where the process died.
    pub async fn delete_all_with_faults(
        &self,
        replica: usize,
        faults: &Arc<Faults>,
    ) -> Option<Result<Pruned>> {
        let bucket = Arc::new(FaultyBucket::new(self.bucket.clone(), faults.clone()));
        let versions = self.versions_on(bucket, replica);
        tokio::select! {
            done = versions.delete_all() => Some(done),
            () = faults.crash() => None,
        }
    }

    /// A body that nobody wrote before.
    fn body(&mut self) -> String {
        self.next += 1;
        let holes = if self.holes { "\0".repeat(5000) } else { String::new() };
        let body = format!("body {}{holes}", self.next);
        self.written.insert(body.clone());
        body
    }

    /// What a user does away with at a path: whatever is there.
    fn bury(&mut self, path: &Path) {
        let Ok(found) = fs::symlink_metadata(path) else { return };
        if found.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.bury(&entry.unwrap().path());
            }
            fs::remove_dir(path).unwrap();
            return;
        }
        let body = match found.is_symlink() {
            true => fs::read_link(path).unwrap().to_string_lossy().into_owned(),
            false => fs::read_to_string(path).unwrap(),
        };
        self.dead.insert(body);
        fs::remove_file(path).unwrap();
    }

    fn room(&mut self, replica: usize, path: &str) -> PathBuf {
        let full = self.replicas[replica].path(path);
        let root = self.replicas[replica].folder.path().to_owned();
        for above in full.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            if above.starts_with(&root) && above != root && !is_real_dir(above) {
                self.bury(above);
                fs::create_dir(above).unwrap();
            }
        }
        full
    }

    /// A user writes a file; what was at the path is replaced.
    pub fn write(&mut self, replica: usize, path: &str) -> String {
        let full = self.room(replica, path);
        self.bury(&full);
        let body = self.body();
        fs::write(&full, &body).unwrap();
        body
    }

    pub fn link(&mut self, replica: usize, path: &str) {
        let full = self.room(replica, path);
        self.bury(&full);
        // A target is text.
        let holes = std::mem::take(&mut self.holes);
        let body = self.body();
        self.holes = holes;
        symlink(body, &full).unwrap();
    }

    pub fn dir(&mut self, replica: usize, path: &str) {
        let full = self.room(replica, path);
        if !is_real_dir(&full) {
            self.bury(&full);
            fs::create_dir(&full).unwrap();
        }
    }

    pub fn delete(&mut self, replica: usize, path: &str) {
        let full = self.replicas[replica].path(path);
        self.bury(&full);
    }

    pub fn chmod(&mut self, replica: usize, path: &str, mode: u32) {
        let full = self.replicas[replica].path(path);
        if fs::symlink_metadata(&full).is_ok_and(|found| !found.is_symlink()) {
            fs::set_permissions(&full, fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    pub fn rename(&mut self, replica: usize, from: &str, to: &str) {
        let (old, root) =
            (self.replicas[replica].path(from), self.replicas[replica].folder.path().to_owned());
        if fs::symlink_metadata(&old).is_err() || to.starts_with(&format!("{from}/")) || from.starts_with(to)
        {
            return;
        }
        let new = self.room(replica, to);
        if fs::symlink_metadata(&old).is_err() || !new.starts_with(&root) {
            return;
        }
        self.bury(&new);
        fs::rename(old, new).unwrap();
    }

    /// What every reachable version has, read back from the bucket.
    pub async fn bodies_in_versions(&self) -> Result<BTreeSet<String>> {
        let versions = self.versions(0);
        let mut known: BTreeMap<(String, u64), String> = BTreeMap::new();
        let mut bodies = BTreeSet::new();
        for version in versions.log().await? {
            let tree = versions.tree(&version).await?;
            for (path, node) in tree.iter() {
                match node {
                    Node::File(file) if file.size > 0 => {
                        let place = file.place.clone().unwrap();
                        let key = (place.object.to_string(), place.offset);
                        if !known.contains_key(&key) {
                            let body = self.stored(path, &place, file.size).await?;
                            known.insert(key.clone(), body);
                        }
                        bodies.insert(known[&key].clone());
                    }
                    Node::Link { target, .. } => {
                        bodies.insert(target.to_string());
                    }
                    _ => {}
                }
            }
        }
        Ok(bodies)
    }

    async fn stored(&self, path: &FileName, place: &Place, size: u64) -> Result<String> {
        let range = Some(place.offset..place.end(size));
        let stored = self.bucket.get(&place.object, range).await.map_err(|error| error.on(path))?;
        let mut stored = bucket::collect(stored, place.stored(size)).await?;
        let (mut decoder, mut body) = (Decoder::new(size, place.sparse.as_deref()), Vec::new());
        while let Some(part) = decoder.next(&mut stored).map_err(|error| Error::invalid(error.to_string()))? {
            match part {
                Part::Data(bytes) => body.extend_from_slice(&bytes),
                Part::Zeros(count) => body.resize(body.len() + count as usize, 0),
            }
        }
        String::from_utf8(body).map_err(|error| Error::invalid(error.to_string()))
    }

    /// The promise: every byte written and not deleted by its user is somewhere.
    pub async fn nothing_is_lost(&self) -> Result<(), String> {
        let mut there =
            self.bodies_in_versions().await.map_err(|error| format!("a version cannot be read: {error}"))?;
        for replica in &self.replicas {
            there.extend(replica.bodies());
        }
        let lost: Vec<_> =
            self.written.iter().filter(|body| !self.dead.contains(*body) && !there.contains(*body)).collect();
        match lost.is_empty() {
            true => Ok(()),
            false => Err(format!("lost: {lost:?}")),
        }
    }

    /// With nobody writing and nothing failing all workspaces become the newest version.
    pub async fn converges(&self) -> Result<(), String> {
        for _ in 0..2 {
            for replica in 0..self.replicas.len() {
                self.sync(replica).await.map_err(|error| format!("replica {replica}: {error}"))?;
            }
        }
        let versions = self.versions(0);
        let head = versions.head().await.map_err(|error| error.to_string())?;
        let newest = match &head.version {
            Some(version) => versions.tree(version).await.map_err(|error| error.to_string())?,
            None => Tree::default(),
        };
        for (number, replica) in self.replicas.iter().enumerate() {
            let tree = replica.tree();
            if !tree.same(&newest) {
                return Err(format!("replica {number} has {tree:#?}, the newest version {newest:#?}"));
            }
        }
        self.nothing_is_lost().await
    }
}

fn is_real_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}
