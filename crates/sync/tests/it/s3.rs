//! Syncs with an S3 server on the other side of a bad network, in real time.
//!
//! Whatever goes wrong on the way: in the end nothing is lost, all workspaces are the newest version, and every body in
//! the bucket is what was stored. Where it cannot work it fails at once, and says why.

use crate::proxy::{Fault, Options, Proxy};
use crate::server;
use crate::world::World;
use seawall_api::ErrorKind;
use seawall_sync::{Error, Result, testing::MemoryTurnstile};
use std::{
    collections::HashMap,
    fs,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Two workspaces, and a bucket behind a proxy.
struct Lab {
    world: World,
    proxy: Proxy,
    /// Whether anything goes wrong now.
    on: Arc<AtomicBool>,
}

impl Lab {
    async fn new(
        server: SocketAddr,
        options: Options,
        schedule: impl Fn(u64, &str) -> Fault + Send + Sync + 'static,
    ) -> Lab {
        let on = Arc::new(AtomicBool::new(true));
        let switch = on.clone();
        let proxy = Proxy::with(server, options, move |number, line| match switch.load(Ordering::SeqCst) {
            true => schedule(number, line),
            false => Fault::Pass,
        })
        .await;
        let bucket = server::make_bucket(server).await;
        let bucket = server::open(&proxy.endpoint(), &format!("{bucket}/docs/me/box")).await.unwrap();
        Lab { world: World::on(bucket, 2), proxy, on }
    }

    /// With the network well again all is as it should be.
    async fn ends_well(&self) {
        self.on.store(false, Ordering::SeqCst);
        self.world.converges().await.unwrap();
        let verified = self.world.versions(0).verify(|_| {}).await.unwrap();
        assert!(verified.damage.is_empty(), "{:?}", verified.damage);
        assert!(verified.versions > 0 && verified.bodies > 0, "{verified:?}");
    }
}

/// Does it again as long as the error says that this is safe.
async fn insist<T, F: Future<Output = Result<T>>>(what: &str, work: impl Fn() -> F) -> T {
    for _ in 0..10 {
        match work().await {
            Ok(done) => return done,
            Err(error) if error.is_retryable() || is_damage(&error) => {}
            Err(error) => panic!("{what}: {error:?}"),
        }
    }
    panic!("{what} never succeeds");
}

/// A body that came wrong twice: caught, and told.
fn is_damage(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid && error.to_string().contains("is not what was stored")
}

/// Push, change, pull elsewhere, change there, prune.
async fn story(lab: &mut Lab, with_large: bool) {
    let world = &mut lab.world;
    for path in ["a", "b.txt", "d/x", "d/e/y", "d/e/z"] {
        world.write(0, path);
    }
    if with_large {
        // More than a part of an upload.
        let large = "0123456789abcdef".repeat((9 << 20) / 16);
        fs::write(world.replicas[0].path("large.bin"), &large).unwrap();
        world.written.insert(large);
    }
    insist("the first push", || world.sync(0)).await;
    world.write(0, "b.txt");
    world.delete(0, "d/e/y");
    world.write(0, "new");
    insist("a push", || world.sync(0)).await;
    insist("a pull", || world.sync(1)).await;
    world.write(1, "d/x");
    world.write(1, "there");
    insist("a push from there", || world.sync(1)).await;
    insist("a pull of that", || world.sync(0)).await;
    insist("a prune", || world.prune(0, 1)).await;
    insist("a sync behind it", || world.sync(1)).await;
    lab.ends_well().await;
}

/// A number that looks random, the same for each run.
fn draw(seed: u64, number: u64) -> u64 {
    let mut z = (seed << 32).wrapping_add(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What has a hash, so that a wrong byte in it can be noticed.
fn is_hashed(line: &str) -> bool {
    line.starts_with("GET ") && (line.contains("/.packs/") || line.contains("/.sandbox-state "))
}

/// Each fifth request or so, by one of these.
fn often(seed: u64, faults: &'static [Fault]) -> impl Fn(u64, &str) -> Fault + Send + Sync + 'static {
    move |number, line| {
        let drawn = draw(seed, number);
        let fault = faults[(drawn / 5) as usize % faults.len()];
        match drawn.is_multiple_of(5) && (fault != Fault::CorruptBody || is_hashed(line)) {
            true => fault,
            false => Fault::Pass,
        }
    }
}

async fn seeds(name: &str, faults: &'static [Fault], with_large: bool) {
    let Some(server) = server::or_skip(name) else { return };
    for seed in 1..=2 {
        let mut lab = Lab::new(server, Options::default(), often(seed, faults)).await;
        story(&mut lab, with_large).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_errors_of_the_server_pass() {
    let faults = &[Fault::Status(500, "InternalError"), Fault::Status(503, "SlowDown")];
    seeds("s10_errors_of_the_server_pass", faults, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_connections_that_break_pass() {
    seeds("s10_connections_that_break_pass", &[Fault::Reset], false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_lost_replies_pass() {
    seeds("s10_lost_replies_pass", &[Fault::ResetAfter], true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_late_replies_pass() {
    const LATE: Fault = Fault::Slow(Duration::from_millis(80));
    seeds("s10_late_replies_pass", &[LATE], false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_bodies_cut_short_pass() {
    seeds("s10_bodies_cut_short_pass", &[Fault::CutBody], false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_wrong_bodies_pass() {
    seeds("s11_wrong_bodies_pass", &[Fault::CorruptBody], false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_all_of_it_together_passes() {
    // But for wrong bodies: the list in a pack that a dead push left has no hash.
    const FAULTS: [Fault; 6] = [
        Fault::Status(500, "InternalError"),
        Fault::Status(503, "SlowDown"),
        Fault::Reset,
        Fault::ResetAfter,
        Fault::Slow(Duration::from_millis(30)),
        Fault::CutBody,
    ];
    seeds("s10_all_of_it_together_passes", &FAULTS, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_throttling_is_waited_out() {
    let Some(server) = server::or_skip("s10_throttling_is_waited_out") else { return };
    let seen: Mutex<HashMap<String, u32>> = Mutex::default();
    let throttled = Arc::new(AtomicU64::new(0));
    let count = throttled.clone();
    let schedule = move |_: u64, line: &str| {
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(line.to_owned()).or_default();
        *times += 1;
        match *times > 3 {
            true => Fault::Pass,
            false => {
                count.fetch_add(1, Ordering::SeqCst);
                Fault::Status(503, "SlowDown")
            }
        }
    };
    let mut lab = Lab::new(server, Options::default(), schedule).await;
    lab.world.write(0, "a");
    lab.world.write(0, "d/b");
    // At the first try: waiting is its own business.
    lab.world.sync(0).await.unwrap();
    lab.world.sync(1).await.unwrap();
    assert!(throttled.load(Ordering::SeqCst) >= 20, "{throttled:?}");
    lab.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_wrong_bodies_are_caught_by_their_hash_and_read_again() {
    let name = "s11_wrong_bodies_are_caught_by_their_hash_and_read_again";
    let Some(server) = server::or_skip(name) else { return };
    let seen: Mutex<HashMap<String, u32>> = Mutex::default();
    let wrong = Arc::new(AtomicU64::new(0));
    let count = wrong.clone();
    let schedule = move |_: u64, line: &str| {
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(line.to_owned()).or_default();
        *times += 1;
        match is_hashed(line) && *times == 1 {
            true => {
                count.fetch_add(1, Ordering::SeqCst);
                Fault::CorruptBody
            }
            false => Fault::Pass,
        }
    };
    let mut lab = Lab::new(server, Options::default(), schedule).await;
    for path in ["a", "b", "c", "d/e"] {
        lab.world.write(0, path);
    }
    lab.world.sync(0).await.unwrap();
    lab.world.sync(1).await.unwrap();
    assert!(lab.world.replicas[1].tree().same(&lab.world.replicas[0].tree()));
    // The manifest, and the pack.
    assert_eq!(wrong.load(Ordering::SeqCst), 2);
    lab.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_bad_credentials_fail_at_once_before_any_transfer() {
    let name = "s10_bad_credentials_fail_at_once_before_any_transfer";
    let Some(server) = server::or_skip(name) else { return };
    let refuse = |_: u64, _: &str| Fault::Status(403, "InvalidAccessKeyId");
    let mut lab = Lab::new(server, Options::default(), refuse).await;
    lab.world.write(0, "a");
    let error = lab.world.sync(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    for word in ["InvalidAccessKeyId", "check the credentials", "AWS_ACCESS_KEY_ID"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    // One question, and no second.
    assert_eq!(lab.proxy.requests(), 1);
}

/// A store that knows no `If-None-Match`. Its server must not check signatures, for the header is signed.
async fn careless(server: SocketAddr) -> Lab {
    let options = Options { strip: Some("if-none-match"), serial: false };
    Lab::new(server, options, |_, _| Fault::Pass).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s9_a_store_that_overwrites_is_refused_without_a_lease() {
    let name = "s9_a_store_that_overwrites_is_refused_without_a_lease";
    let Some(server) = server::or_skip(name) else { return };
    let mut lab = careless(server).await;
    lab.world.write(0, "a");
    let error = lab.world.sync(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("If-None-Match"), "{error}");
    assert!(lab.world.versions(0).log().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s9_under_a_lease_two_writers_lose_nothing_on_it() {
    let name = "s9_under_a_lease_two_writers_lose_nothing_on_it";
    let Some(server) = server::or_skip(name) else { return };
    let mut lab = careless(server).await;
    lab.world.turnstile = Some(Arc::new(MemoryTurnstile::default()));
    for round in 0..3 {
        for replica in [0, 1] {
            lab.world.write(replica, "both");
            lab.world.write(replica, &format!("own/{replica}-{round}"));
        }
        let (one, other) = tokio::join!(lab.world.sync(0), lab.world.sync(1));
        one.unwrap();
        other.unwrap();
        lab.world.nothing_is_lost().await.unwrap();
    }
    lab.ends_well().await;
}

#[tokio::test]
async fn s10_a_server_that_is_not_there_is_worth_another_try() {
    // Nobody listens there any more.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bucket = server::open(&format!("http://{free}"), "some-bucket/x").await.unwrap();
    let error = bucket.list("", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("trying again is safe"), "{error}");
}
