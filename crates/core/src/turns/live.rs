//! A turn that this process runs, and what those who follow it here need not ask the store for.

use crate::ports::store::TurnEvent;
use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::watch;

/// Of the last events of a turn. Who is further behind asks the store.
const MOST_KEPT: usize = 64 << 10;

/// Clones are of one turn.
#[derive(Clone)]
pub(crate) struct Live {
    /// How many events are stored. Whoever waits for a change wakes also when the turn is over, or is given up here.
    pub events: watch::Sender<u64>,
    pub cancel: watch::Sender<bool>,
    /// A task of this process has the claim.
    pub runs: Arc<AtomicBool>,
    recent: Arc<Mutex<Recent>>,
}

/// The last events that were stored. Without any nothing is known.
#[derive(Default)]
struct Recent {
    next: Option<u64>,
    kept: VecDeque<Bytes>,
    bytes: usize,
    ended: bool,
}

impl Live {
    pub fn new() -> Live {
        Live {
            events: watch::Sender::new(0),
            cancel: watch::Sender::new(false),
            runs: Arc::default(),
            recent: Arc::default(),
        }
    }

    pub fn is_run_here(&self) -> bool {
        self.runs.load(Ordering::Relaxed)
    }

    /// These are stored, from number `first` on.
    pub fn stored(&self, first: u64, events: &[Bytes]) {
        let next = first + events.len() as u64;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever ran it before the one that began it could say so knows more.
        if recent.next.is_some_and(|known| known >= next) {
            return;
        }
        if recent.next != Some(first) {
            (recent.bytes, recent.kept) = (0, VecDeque::new());
        }
        recent.next = Some(next);
        recent.bytes += events.iter().map(Bytes::len).sum::<usize>();
        recent.kept.extend(events.iter().cloned());
        while recent.bytes > MOST_KEPT {
            let dropped = recent.kept.pop_front();
            recent.bytes -= dropped.map_or(recent.bytes, |event| event.len());
        }
        drop(recent);
        self.events.send_replace(next);
    }

    /// The turn has ended, in the store.
    pub fn ended(&self, events: u64) {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.events.send_replace(events);
    }

    /// All that is stored from number `from` on. None: the store has to be asked.
    pub fn since(&self, from: u64) -> Option<VecDeque<TurnEvent>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let next = recent.next.filter(|_| !recent.ended)?;
        let first = next - recent.kept.len() as u64;
        if !(first..=next).contains(&from) {
            return None;
        }
        let skipped = usize::try_from(from - first).ok()?;
        let wanted = recent.kept.range(skipped..).zip(from..);
        Some(wanted.map(|(data, number)| TurnEvent { number, data: data.clone() }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(live: &Live, from: u64) -> Option<Vec<u64>> {
        live.since(from).map(|events| events.iter().map(|event| event.number).collect())
    }

    #[test]
    fn what_was_stored_is_known_from_any_number_on() {
        let live = Live::new();
        assert_eq!(numbers(&live, 0), None, "nothing is known before something is told");
        live.stored(0, &[Bytes::from_static(b"a"), Bytes::from_static(b"b")]);
        live.stored(2, &[Bytes::from_static(b"c")]);
        assert_eq!(numbers(&live, 0).unwrap(), [0, 1, 2]);
        assert_eq!(numbers(&live, 2).unwrap(), [2]);
        assert_eq!(numbers(&live, 3), Some(vec![]), "there is nothing new");
        assert_eq!(numbers(&live, 4), None, "a number from the future is the store's to judge");
        assert_eq!(live.since(1).unwrap()[0].data, Bytes::from_static(b"b"));
        live.stored(0, &[Bytes::from_static(b"a")]);
        assert_eq!(numbers(&live, 0).unwrap(), [0, 1, 2], "what is told late changes nothing");
        live.ended(4);
        assert_eq!(numbers(&live, 3), None, "the last event is made from rows");
    }

    #[test]
    fn of_a_turn_that_was_taken_up_the_beginning_is_the_stores() {
        let live = Live::new();
        live.stored(7, &[Bytes::from_static(b"h")]);
        assert_eq!((numbers(&live, 6), numbers(&live, 7)), (None, Some(vec![7])));
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let live = Live::new();
        let large = Bytes::from(vec![0; MOST_KEPT / 2]);
        for number in 0..5 {
            live.stored(number, std::slice::from_ref(&large));
        }
        assert_eq!((numbers(&live, 2), numbers(&live, 3)), (None, Some(vec![3, 4])));
        live.stored(5, &[Bytes::from(vec![0; MOST_KEPT + 1])]);
        assert_eq!((numbers(&live, 5), numbers(&live, 6)), (None, Some(vec![])));
    }
}
