//! When the box ends by itself: a server says so, and holds to it; where none is left, the guest does.

use crate::state::Guest;
use seawall_api::message::Attend;
use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::sleep};

/// How long processes may take to end.
const GRACE: Duration = Duration::from_secs(5);
/// Times beyond this are never.
const FAR: Duration = Duration::from_secs(u32::MAX as u64);

pub struct Deadlines {
    /// When the last use began or ended.
    last_used: Cell<Instant>,
    /// Requests that are being served.
    in_use: Cell<u32>,
    asked: Cell<Option<(Attend, Instant)>>,
    changed: Notify,
    /// The one that passed.
    pub passed: Cell<Option<&'static str>>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            last_used: Cell::new(Instant::now()),
            in_use: Cell::new(0),
            asked: Cell::new(None),
            changed: Notify::new(),
            passed: Cell::new(None),
        }
    }
}

/// Somebody uses the box while this lives.
pub struct InUse {
    guest: Rc<Guest>,
    counts: bool,
}

impl InUse {
    pub fn new(guest: &Rc<Guest>) -> InUse {
        InUse::begin(guest, true)
    }

    /// The box is not to end meanwhile; but saving its files is nobody's use of it.
    pub fn saving(guest: &Rc<Guest>) -> InUse {
        InUse::begin(guest, false)
    }

    fn begin(guest: &Rc<Guest>, counts: bool) -> InUse {
        let deadlines = &guest.deadlines;
        deadlines.in_use.set(deadlines.in_use.get() + 1);
        let begun = InUse { guest: guest.clone(), counts };
        begun.note();
        begun
    }

    fn note(&self) {
        if self.counts {
            self.guest.deadlines.last_used.set(Instant::now());
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let deadlines = &self.guest.deadlines;
        deadlines.in_use.set(deadlines.in_use.get().saturating_sub(1));
        self.note();
    }
}

impl Deadlines {
    pub fn set(&self, attend: Attend) {
        self.asked.set(Some((attend, Instant::now())));
        self.changed.notify_one();
    }

    /// Since anybody used the box.
    pub fn idle(&self) -> Duration {
        match self.in_use.get() {
            0 => self.last_used.get().elapsed(),
            _ => Duration::ZERO,
        }
    }

    /// How long until the next deadline as things are now, and which that is. None: there is none.
    fn next(&self, uptime: Duration) -> Option<(Duration, &'static str)> {
        let (attend, since) = self.asked.get()?;
        let left = |limit: Option<u64>, gone: Duration| {
            limit
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds).saturating_sub(gone))
        };
        let idle = left(attend.idle_s, self.idle()).map(|left| (left, "idle"));
        let lifetime = left(attend.max_lifetime_s, uptime).map(|left| (left, "max_lifetime"));
        let (left, which) = idle.into_iter().chain(lifetime).min()?;
        // Whoever looks after the box decides for itself.
        let attended = Duration::from_secs(attend.for_s).saturating_sub(since.elapsed());
        Some((left.max(attended), which))
    }
}

/// Ends the box when its time is over and nobody looks after it.
pub async fn keep(guest: Rc<Guest>) {
    loop {
        let pause = match guest.deadlines.next(guest.started.elapsed()) {
            None => FAR,
            Some((Duration::ZERO, which)) => {
                crate::say!("the box ends: {which}");
                guest.deadlines.passed.set(Some(which));
                guest.stopping.set(Some(GRACE.as_millis() as u64));
                guest.stop.notify_one();
                return;
            }
            // A little later, so that it has passed then.
            Some((left, _)) => (left + Duration::from_millis(10)).min(FAR),
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = guest.deadlines.changed.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(idle_s: Option<u64>, max_lifetime_s: Option<u64>, for_s: u64) -> Deadlines {
        let deadlines = Deadlines::default();
        deadlines.set(Attend { idle_s, max_lifetime_s, for_s });
        deadlines
    }

    #[test]
    fn t5_the_nearest_deadline_counts_and_zero_is_never() {
        let hour = Duration::from_secs(3600);
        assert_eq!(Deadlines::default().next(hour), None);
        assert_eq!(asked(Some(0), None, 0).next(hour), None);
        assert_eq!(asked(Some(9000), Some(3600), 0).next(hour), Some((Duration::ZERO, "max_lifetime")));
        let (left, which) = asked(Some(60), Some(7200), 0).next(hour).unwrap();
        assert!(which == "idle" && left > Duration::from_secs(50), "{which} {left:?}");
    }

    #[test]
    fn t5_whoever_looks_after_a_box_decides() {
        let (left, _) = asked(None, Some(1), 100).next(Duration::from_secs(5)).unwrap();
        assert!(left > Duration::from_secs(90), "{left:?}");
    }

    #[test]
    fn t5_a_box_in_use_is_not_idle() {
        let deadlines = asked(Some(1), None, 0);
        deadlines.in_use.set(1);
        assert_eq!(deadlines.idle(), Duration::ZERO);
        assert!(deadlines.next(Duration::ZERO).unwrap().0 > Duration::ZERO);
    }
}
