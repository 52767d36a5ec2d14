//! What a whole service needs of its machine, in memory.

use crate::{Result, ports::Clock, workspaces::Buckets};
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use seawall_sync::bucket::SharedBucket;
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use tokio::time::Instant;

/// The time of tokio's clock: what is paused is paused for leases and outboxes too.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock(pub Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_767_225_600).unwrap_or_default() + self.0.elapsed()
    }
}

/// As [`TokioClock`], and somebody sets it. Clones show one time.
#[derive(Debug, Clone)]
pub struct SetClock {
    tokio: TokioClock,
    /// In microseconds.
    ahead: Arc<AtomicI64>,
}

impl SetClock {
    pub fn new() -> SetClock {
        SetClock { tokio: TokioClock(Instant::now()), ahead: Arc::default() }
    }

    /// Ahead, or back where it is negative.
    pub fn step(&self, by: SignedDuration) {
        let micros = i64::try_from(by.as_micros()).unwrap_or_default();
        self.ahead.fetch_add(micros, Ordering::Relaxed);
    }
}

impl Default for SetClock {
    fn default() -> SetClock {
        SetClock::new()
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        self.tokio.now() + SignedDuration::from_micros(self.ahead.load(Ordering::Relaxed))
    }
}

/// For every address.
#[derive(Debug)]
pub struct OneBucket(pub Option<SharedBucket>);

#[async_trait]
impl Buckets for OneBucket {
    async fn open(&self, _url: Option<&str>) -> Result<Option<SharedBucket>> {
        Ok(self.0.clone())
    }
}
