//! How long a guest may be waited for.
//!
//! A guest that is silent is given up after a while. One that sends a little now and then must not be able to hold up a
//! sync for ever either, so all waiting of a sync has a bound: [`GRACE`], and a second more for each [`RATE`] bytes.

use seawall_api::ErrorKind;
use seawall_sync::{Error, Result};
use std::{
    future::Future,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout};

/// What all waiting of a sync may take, beside what its bytes take.
const GRACE: Duration = Duration::from_secs(900);
/// Bytes of a second from the slowest guest that is waited for.
const RATE: u64 = 1 << 20;
/// The most that a guest may take for one step that only it knows the size of: to read and hash all its files.
pub const LONG: Duration = Duration::from_secs(1800);
/// The most that it may take to change what it was told to.
pub const CHANGE: Duration = Duration::from_secs(600);
/// The most between two parts of a list or a body.
pub const SOON: Duration = Duration::from_secs(60);

/// The time that is left of a sync's patience with its guest.
#[derive(Debug)]
pub struct Pace(Mutex<Duration>);

impl Default for Pace {
    fn default() -> Self {
        Pace(Mutex::new(GRACE))
    }
}

impl Pace {
    /// Waits for a guest, at most `most`, and no longer than the sync has patience left.
    pub async fn wait<T>(
        &self,
        most: Duration,
        work: impl Future<Output = Result<T, seawall_wire::Error>>,
    ) -> Result<T> {
        let (left, began) = (*self.left(), Instant::now());
        let done = timeout(most.min(left), work).await;
        let mut left = self.left();
        *left = left.saturating_sub(began.elapsed());
        match done {
            Ok(done) => done.map_err(|error| failed(&error)),
            Err(_) => Err(Error::new(ErrorKind::Timeout, "the sandbox does not answer in time")),
        }
    }

    /// As [`Pace::wait`], for the one step that may take long, whatever else does.
    pub async fn wait_long<T>(
        &self,
        work: impl Future<Output = Result<T, seawall_wire::Error>>,
    ) -> Result<T> {
        match timeout(LONG, work).await {
            Ok(done) => done.map_err(|error| failed(&error)),
            Err(_) => Err(Error::new(ErrorKind::Timeout, "the sandbox does not answer")),
        }
    }

    /// So many bytes came.
    pub fn moved(&self, bytes: usize) {
        let more = Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / RATE);
        let mut left = self.left();
        *left = left.saturating_add(more);
    }

    fn left(&self) -> std::sync::MutexGuard<'_, Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub fn failed(error: &seawall_wire::Error) -> Error {
    Error::new(error.kind(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn after(time: Duration) -> Result<(), seawall_wire::Error> {
        tokio::time::sleep(time).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_wait() {
        let pace = Pace::default();
        pace.wait(SOON, after(SOON - Duration::from_secs(1))).await.unwrap();
        let error = pace.wait(SOON, std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn k5_a_guest_that_trickles_is_given_up() {
        let (pace, began) = (Pace::default(), Instant::now());
        let trickle = async {
            loop {
                pace.wait(SOON, after(SOON / 2)).await?;
                pace.moved(1);
            }
        };
        let done: Result<()> = trickle.await;
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Timeout);
        assert!(began.elapsed() <= GRACE + Duration::from_secs(1), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_is_slow_and_goes_on_is_waited_for() {
        let (pace, began) = (Pace::default(), Instant::now());
        while began.elapsed() < 10 * GRACE {
            pace.wait(SOON, after(Duration::from_millis(500))).await.unwrap();
            pace.moved(1 << 20);
        }
    }
}
