//! A push that died and comes again uploads only what is missing.

use super::*;

/// Notes how large the packs are that are stored, and is dead from one of them on.
#[derive(Debug)]
struct Counting {
    inner: SharedBucket,
    faults: Arc<Faults>,
    last: u64,
    sizes: Mutex<Vec<u64>>,
}

impl Counting {
    fn new(world: &World, faults: Arc<Faults>, last: u64) -> Arc<Counting> {
        Arc::new(Counting { inner: world.bucket.clone(), faults, last, sizes: Mutex::default() })
    }

    fn sizes(&self) -> Vec<u64> {
        self.sizes.lock().unwrap().clone()
    }

    async fn store(&self, key: &str, body: Bytes) -> Result<()> {
        let size = body.len() as u64;
        self.inner.put(key, body).await?;
        self.sizes.lock().unwrap().push(size);
        Ok(())
    }
}

#[async_trait]
impl Bucket for Counting {
    fn place(&self) -> String {
        self.inner.place()
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        self.inner.create(key, body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        if !key.starts_with(".packs/") {
            return self.inner.put(key, body).await;
        }
        if self.faults.calls() > self.last {
            // Whoever is dead stores nothing.
            std::future::pending::<()>().await;
        }
        self.faults.call(self.store(key, body)).await
    }

    async fn upload(&self, key: &str, body: Bodies) -> Result<()> {
        self.inner.upload(key, body).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies> {
        self.inner.get(key, range).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>> {
        self.inner.list(prefix, after).await
    }

    async fn folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.folders(prefix).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.inner.delete(key).await
    }
}

async fn push(world: &World, bucket: &Arc<Counting>) -> Option<Result<SyncReport>> {
    let workspace = LocalWorkspace(world.replicas[0].disk.clone());
    let lock = workspace.0.try_lock().unwrap();
    assert!(lock.is_some(), "the lock of a dead process is free");
    let versions = world.versions_on(bucket.clone(), 0);
    let engine = Engine::new(&versions, &workspace);
    tokio::select! {
        done = engine.sync() => Some(done),
        () = bucket.faults.crash() => None,
    }
}

/// Two of these fill a pack.
const SIZE: usize = 3 << 20;
const FILES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const PACKS: u64 = 3;

#[test]
fn s10_a_push_that_died_uploads_only_the_rest() {
    in_runtime(async {
        for pack in 0..PACKS {
            upload_the_rest(pack, Fault::CrashBefore, pack).await;
            upload_the_rest(pack, Fault::CrashAfter, pack + 1).await;
        }
    });
}

async fn upload_the_rest(pack: u64, fault: Fault, stored: u64) {
    let mut world = World::new(1);
    for name in FILES {
        let body = name.repeat(SIZE);
        fs::write(world.replicas[0].path(name), &body).unwrap();
        world.written.insert(body);
    }
    let dying = Counting::new(&world, Faults::at(pack, fault), pack);
    assert!(push(&world, &dying).await.is_none(), "it should have died");
    let first = dying.sizes();
    assert_eq!(first.len() as u64, stored, "{fault:?} at pack {pack}");

    let healthy = Counting::new(&world, Arc::default(), u64::MAX);
    let report = push(&world, &healthy).await.unwrap().unwrap();
    let second = healthy.sizes();
    assert_eq!(second.len() as u64, PACKS - stored, "{fault:?} at pack {pack}");
    assert_eq!(report.stats.bytes_transferred, second.iter().sum::<u64>());
    // Each body once, and behind the bodies the lists of what is where.
    let (all, bodies) = (first.iter().chain(&second).sum::<u64>(), (FILES.len() * SIZE) as u64);
    assert!((bodies..bodies + 1024).contains(&all), "{all} bytes were stored for {bodies}");
    world.converges().await.unwrap();
}
