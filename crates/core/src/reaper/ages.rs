//! How long sandboxes have run, by a clock that nobody sets.
//!
//! Rows say when a sandbox was started, by the time of day. That is believed once, of what ran before this process looked the
//! first time; from then on time is counted here. So a clock that is set ahead ends no sandbox, and one that is set back lets
//! none live longer.

use crate::ports::RecordHead;
use jiff::Timestamp;
use seawall_api::SandboxId;
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Ages {
    known: HashMap<SandboxId, Age>,
    /// When the round before this one began, if it came to its end.
    before: Option<Instant>,
    began: Option<Instant>,
    seen: HashSet<SandboxId>,
}

#[derive(Debug, Clone, Copy)]
struct Age {
    /// Another start is another life.
    started_at: Option<Timestamp>,
    /// It began then, or so long before this process looked.
    at: Instant,
    earlier: Duration,
}

impl Ages {
    pub fn begin_round(&mut self) {
        self.began = Some(Instant::now());
        self.seen.clear();
    }

    /// A sandbox that is there, at `now` by the time of day.
    pub fn see(&mut self, head: &RecordHead, now: Timestamp) {
        self.seen.insert(head.id);
        if self.known.get(&head.id).is_some_and(|age| age.started_at == head.started_at) {
            return;
        }
        let told = head.started_at.map_or(Duration::ZERO, |started| {
            Duration::try_from(now.duration_since(started)).unwrap_or_default()
        });
        // It was not there, or had not been started, when the last round began.
        let earlier = self.before.map_or(told, |before| told.min(before.elapsed()));
        self.known.insert(head.id, Age { started_at: head.started_at, at: Instant::now(), earlier });
    }

    /// Zero where it was never seen.
    pub fn of(&self, id: SandboxId) -> Duration {
        self.known.get(&id).map_or(Duration::ZERO, |age| age.earlier + age.at.elapsed())
    }

    /// All that is there was seen. Returns what is gone since the last round.
    pub fn end_round(&mut self) -> HashSet<SandboxId> {
        self.before = self.began;
        let gone = self.known.keys().filter(|id| !self.seen.contains(id)).copied().collect();
        let seen = std::mem::take(&mut self.seen);
        self.known.retain(|id, _| seen.contains(id));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use seawall_api::{
        AccountId,
        sandbox::{SandboxState, Timeouts},
    };

    fn started(at: Timestamp) -> RecordHead {
        RecordHead {
            id: SandboxId::generate(),
            account_id: AccountId::LOCAL,
            provider: "mock".to_owned(),
            template: None,
            state: SandboxState::Running,
            reason: None,
            removing: None,
            unsynced: None,
            timeouts: Timeouts::default(),
            volume: None,
            created_at: at,
            started_at: Some(at),
        }
    }

    fn round(ages: &mut Ages, heads: &[&RecordHead], now: Timestamp) {
        ages.begin_round();
        heads.iter().for_each(|head| ages.see(head, now));
        ages.end_round();
    }

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_changes_no_age() {
        let noon = Timestamp::from_second(1_800_000_000).unwrap();
        let (old, mut ages) = (started(noon), Ages::default());
        // It ran for an hour before this process looked.
        round(&mut ages, &[&old], noon + HOUR);
        tokio::time::advance(Duration::from_secs(60)).await;
        for set in [HOUR * 24, HOUR, HOUR * -24] {
            round(&mut ages, &[&old], noon + HOUR + set);
            assert_eq!(ages.of(old.id).as_secs(), 3660);
        }
        // One that was started since the last round cannot be older than that.
        tokio::time::advance(Duration::from_secs(5)).await;
        let (new, back) = (started(noon), started(noon + HOUR * 9));
        round(&mut ages, &[&old, &new, &back], noon + HOUR * 8);
        assert_eq!((ages.of(new.id).as_secs(), ages.of(back.id).as_secs()), (5, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn another_start_is_another_life_and_what_is_gone_is_forgotten() {
        let noon = Timestamp::from_second(1_800_000_000).unwrap();
        let (mut head, mut ages) = (started(noon), Ages::default());
        round(&mut ages, &[&head], noon + HOUR);
        tokio::time::advance(Duration::from_secs(10)).await;
        head.started_at = Some(noon + HOUR + SignedDuration::from_secs(7));
        round(&mut ages, &[&head], noon + HOUR + SignedDuration::from_secs(10));
        assert_eq!(ages.of(head.id).as_secs(), 3);
        ages.begin_round();
        assert_eq!(ages.end_round(), HashSet::from([head.id]));
        assert!(ages.known.is_empty() && ages.of(head.id).is_zero());
    }
}
