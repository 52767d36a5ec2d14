//! A clock that moves only when told.

use super::lock;
use crate::ports::Clock;
use jiff::Timestamp;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Cheap to clone; all clones show one time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Timestamp>>);

impl ManualClock {
    pub fn new(now: Timestamp) -> Self {
        ManualClock(Arc::new(Mutex::new(now)))
    }

    pub fn advance(&self, by: Duration) {
        let mut now = lock(&self.0);
        *now = now.checked_add(by).unwrap_or(Timestamp::MAX);
    }

    pub fn set(&self, now: Timestamp) {
        *lock(&self.0) = now;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new(Timestamp::UNIX_EPOCH)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_only_when_told() {
        let clock = ManualClock::default();
        let other = clock.clone();
        assert_eq!(clock.now(), Timestamp::UNIX_EPOCH);
        other.advance(Duration::from_millis(1500));
        assert_eq!(clock.now().as_millisecond(), 1500);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
    }
}
