//! What is counted when something is stored, whatever goes wrong with it.

use super::*;
use crate::testing::MemoryStore;
use seawall_sync::{
    bucket::{MemoryBucket, Scoped},
    testing::{Fault, Faults, FaultyBucket},
};

const ME: AccountId = AccountId::LOCAL;

struct World {
    store: MemoryStore,
    memory: Arc<MemoryBucket>,
    place: String,
}

impl World {
    fn new() -> World {
        let (store, memory) = (MemoryStore::new(), Arc::new(MemoryBucket::default()));
        World { store, memory, place: "memory:/docs/a".to_owned() }
    }

    fn account(&self) -> Account {
        Account::new(ME, Arc::new(self.store.clone()))
    }

    fn bucket(&self) -> Metered {
        self.over(self.memory.clone())
    }

    fn over(&self, inner: SharedBucket) -> Metered {
        Metered::new(Arc::new(Scoped::new(inner, "docs/a").unwrap()), self.account())
    }

    async fn counted(&self) -> u64 {
        self.store.total(ME).await.unwrap()
    }

    async fn there(&self) -> u64 {
        self.memory.list("docs/a/", None).await.unwrap().iter().map(|object| object.size).sum()
    }

    /// As if the place had been listed before.
    async fn listed(self) -> World {
        self.store.set(ME, &self.place, 0).await.unwrap();
        self
    }
}

fn body(size: usize) -> Bytes {
    vec![7; size].into()
}

fn parts(sizes: &[usize], then: Option<Error>) -> Bodies {
    let parts: Vec<Result<Bytes>> = sizes.iter().map(|size| Ok(body(*size))).chain(then.map(Err)).collect();
    futures::stream::iter(parts).boxed()
}

#[tokio::test]
async fn k8_what_is_stored_is_counted_to_the_byte() {
    let world = World::new();
    let bucket = world.bucket();
    bucket.put("pack", body(100_000)).await.unwrap();
    assert!(bucket.create("record", body(300)).await.unwrap());
    bucket.upload("large", parts(&[1 << 20, 9 << 20, 5], None)).await.unwrap();
    assert!(world.counted().await > world.there().await, "counted before it is settled");
    bucket.settle().await.unwrap();
    assert_eq!((world.counted().await, world.there().await), (10_586_065, 10_586_065));
    assert_eq!(bucket.added().await, 10_586_065);
    let next = world.bucket();
    next.put("more", body(5)).await.unwrap();
    next.settle().await.unwrap();
    assert_eq!((world.counted().await, next.added().await), (10_586_070, 5));
    // Reading counts nothing.
    let reader = world.bucket();
    reader.list("", None).await.unwrap();
    reader.settle().await.unwrap();
    assert_eq!(world.counted().await, world.there().await);
}

#[tokio::test]
async fn k8_what_was_there_before_anybody_counted_is_counted_with_the_first_push() {
    let world = World::new();
    world.memory.put("docs/a/old", body(5000)).await.unwrap();
    world.memory.put("docs/ab/anothers", body(9)).await.unwrap();
    let bucket = world.bucket();
    bucket.put("new", body(10)).await.unwrap();
    bucket.settle().await.unwrap();
    assert_eq!(world.counted().await, 5010);
}

/// Whatever happens to the call, and whoever dies with it: the count is never below what is there.
#[tokio::test]
async fn k8_a_call_that_fails_leaves_no_count_that_is_too_low() {
    for fault in Fault::ALL {
        let world = World::new().listed().await;
        let faults = Faults::at(0, fault);
        let bucket = world.over(Arc::new(FaultyBucket::new(world.memory.clone(), faults.clone())));
        tokio::select! {
            _ = bucket.put("pack", body(70_000)) => {}
            () = faults.crash() => {}
        }
        assert!(world.counted().await >= world.there().await, "{fault:?}");
        // What is left of the step is given back, also by whoever is cut off.
        drop(bucket);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.counted().await, 70_000, "{fault:?}");
    }
}

#[tokio::test]
async fn k8_trying_again_counts_once() {
    let world = World::new().listed().await;
    let faults = Faults::at(0, Fault::LostReply);
    let bucket = world.over(Arc::new(FaultyBucket::new(world.memory.clone(), faults)));
    bucket.put("pack", body(1000)).await.unwrap_err();
    bucket.put("pack", body(1000)).await.unwrap();
    bucket.settle().await.unwrap();
    assert_eq!((world.counted().await, world.there().await), (1000, 1000));
    // A create whose reply was lost, and which finds its own object the second time.
    let faults = Faults::at(0, Fault::LostReply);
    let bucket = world.over(Arc::new(FaultyBucket::new(world.memory.clone(), faults)));
    bucket.create("record", body(10)).await.unwrap_err();
    assert!(!bucket.create("record", body(10)).await.unwrap());
    bucket.settle().await.unwrap();
    assert_eq!((world.counted().await, world.there().await), (1010, 1010));
}

#[tokio::test]
async fn k8_what_was_surely_not_stored_is_given_back() {
    let world = World::new().listed().await;
    world.memory.put("docs/a/taken", body(1)).await.unwrap();
    let bucket = world.bucket();
    assert!(!bucket.create("taken", body(400)).await.unwrap());
    // A file that changed while it was read.
    bucket.upload("cut", parts(&[20 << 20], Some(Error::conflict("it changed")))).await.unwrap_err();
    bucket.put("probe", body(1)).await.unwrap();
    bucket.delete("probe").await.unwrap();
    bucket.settle().await.unwrap();
    assert_eq!((world.counted().await, bucket.added().await), (0, 0));
}

/// A prune lists the place while something is pushed to it, and does not see it yet.
#[tokio::test]
async fn k8_a_listing_in_between_loses_nothing_of_a_push() {
    let world = World::new().listed().await;
    let pushing = world.bucket();
    pushing.put("one", body(100)).await.unwrap();
    world.store.set(ME, &world.place, 0).await.unwrap();
    pushing.put("two", body(200_000)).await.unwrap();
    assert!(world.counted().await >= world.there().await);
    world.store.set(ME, &world.place, 0).await.unwrap();
    pushing.settle().await.unwrap();
    assert_eq!((world.counted().await, world.there().await), (200_100, 200_100));
}

#[tokio::test]
async fn k8_a_database_that_is_away_lets_nothing_be_stored_uncounted() {
    struct Away;
    #[async_trait]
    impl Stored for Away {
        async fn add(&self, _: AccountId, _: &str, _: i64) -> crate::Result<u64> {
            Err(crate::Error::unavailable("the database is away"))
        }
        async fn set(&self, _: AccountId, _: &str, _: u64) -> crate::Result<()> {
            Err(crate::Error::unavailable("the database is away"))
        }
        async fn total(&self, _: AccountId) -> crate::Result<u64> {
            Ok(0)
        }
        async fn places(
            &self,
            _: AccountId,
            _: Option<&str>,
            _: u32,
        ) -> crate::Result<Vec<crate::ports::store::StoredPlace>> {
            Ok(Vec::new())
        }
        async fn all_places(
            &self,
            _: Option<&crate::ports::store::StoredPlace>,
            _: u32,
        ) -> crate::Result<Vec<crate::ports::store::StoredPlace>> {
            Ok(Vec::new())
        }
        async fn forget(&self, _: AccountId, _: &str) -> crate::Result<()> {
            Ok(())
        }
    }
    let memory = Arc::new(MemoryBucket::default());
    let bucket = Metered::new(memory.clone(), Account::new(ME, Arc::new(Away)));
    assert!(bucket.put("a", body(1)).await.unwrap_err().is_retryable());
    assert!(bucket.upload("b", parts(&[1], None)).await.is_err());
    assert!(memory.keys().is_empty());
}

/// Of several at once none stores what brings the account above its limit, and nothing stays counted for what was refused.
#[tokio::test]
async fn k8_what_is_stored_within_a_limit_never_exceeds_it() {
    const MOST: u64 = 40 << 20;
    let world = World::new().listed().await;
    let syncs: Vec<Metered> = (0..4)
        .map(|_| {
            let scoped = Arc::new(Scoped::new(world.memory.clone(), "docs/a").unwrap());
            Metered::new(scoped, world.account().within(Some(MOST)))
        })
        .collect();
    let put = async |number: usize, sync: &Metered| {
        for part in 0..10 {
            sync.put(&format!("{number}-{part}"), body(3 << 20)).await?;
            assert!(world.there().await <= MOST);
        }
        Ok::<(), Error>(())
    };
    let done =
        futures::future::join_all(syncs.iter().enumerate().map(|(number, sync)| put(number, sync))).await;
    let refused: &Error = done.iter().find_map(|done| done.as_ref().err()).unwrap();
    assert_eq!(refused.kind(), seawall_api::ErrorKind::Denied);
    assert!(refused.to_string().contains("stored_mb"), "{refused}");
    for sync in &syncs {
        sync.settle().await.unwrap();
    }
    assert_eq!(world.counted().await, world.there().await);
    assert!(world.there().await > MOST / 2);
    // What saves is never refused.
    world.bucket().put("saved", body(30 << 20)).await.unwrap();
}
