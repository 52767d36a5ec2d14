//! Waiting for the turn before (C8): in the order in which requests came, and without asking the store.
//!
//! A conversation has one turn at a time, and so has a sandbox. Requests that wait for either stand in its lane. Only the first
//! of a lane tries, when it hears that a turn of the lane has ended; the others cost nothing.

use seawall_api::{ConversationId, SandboxId};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Mutex as Queue, Notify, OwnedMutexGuard, watch},
    time::{Instant, sleep_until},
};

/// How long the first of a lane waits for news of a turn, should one be missed.
const MISSED: Duration = Duration::from_secs(15);

/// What one turn at a time belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Conversation(ConversationId),
    Sandbox(SandboxId),
}

/// All lanes in which requests wait or turns run. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Lanes(Arc<Mutex<HashMap<Lane, Weak<Waiting>>>>);

#[derive(Default)]
struct Waiting {
    queue: Arc<Queue<()>>,
    /// Requests in the queue, with the first.
    waiters: AtomicUsize,
    ended: Notify,
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").finish_non_exhaustive()
    }
}

/// When a request stops waiting.
#[derive(Debug, Clone)]
pub(super) struct Patience {
    /// None: a time without end.
    pub until: Option<Instant>,
    /// Becomes true where the request is withdrawn: its key was revoked.
    pub withdrawn: Option<watch::Receiver<bool>>,
}

impl Patience {
    /// Ends when nothing is waited for any more.
    async fn ends(&self) {
        let late = async {
            match self.until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let withdrawn = async {
            if let Some(mut withdrawn) = self.withdrawn.clone()
                && withdrawn.wait_for(|is| *is).await.is_ok()
            {
                return;
            }
            std::future::pending().await
        };
        tokio::select! {
            () = late => {}
            () = withdrawn => {}
        }
    }

    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.as_ref().is_some_and(|withdrawn| *withdrawn.borrow())
    }
}

impl Lanes {
    fn find(&self, lane: Lane) -> Option<Arc<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&lane).and_then(Weak::upgrade)
    }

    fn open(&self, lane: Lane) -> Arc<Waiting> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = lanes.get(&lane).and_then(Weak::upgrade) {
            return found;
        }
        // Lanes that nobody is in are forgotten here, so that there are never many.
        lanes.retain(|_, waiting| waiting.strong_count() > 0);
        let waiting = Arc::new(Waiting::default());
        lanes.insert(lane, Arc::downgrade(&waiting));
        waiting
    }

    /// Whether requests wait in a lane.
    pub fn is_awaited(&self, lane: Lane) -> bool {
        self.find(lane).is_some_and(|waiting| waiting.waiters.load(Ordering::Acquire) > 0)
    }

    /// Stands in a lane until it is the first. None where patience ended before.
    pub async fn enter(&self, lane: Lane, patience: &Patience) -> Option<Place> {
        let waiter = Waiter::new(self.open(lane));
        tokio::select! {
            biased;
            first = waiter.0.queue.clone().lock_owned() => Some(Place { lane, waiter, _first: first }),
            () = patience.ends() => None,
        }
    }

    /// A turn that this process runs, until this is dropped.
    pub fn run(&self, conversation: ConversationId, sandbox: Option<SandboxId>) -> Running {
        let lanes = [Some(Lane::Conversation(conversation)), sandbox.map(Lane::Sandbox)];
        let all: Vec<_> = lanes.into_iter().flatten().map(|lane| self.open(lane)).collect();
        Running(all)
    }

    /// Tells the first of each lane that a turn has ended.
    pub fn ended(&self, conversation: ConversationId, sandbox: Option<SandboxId>) {
        for lane in [Some(Lane::Conversation(conversation)), sandbox.map(Lane::Sandbox)].into_iter().flatten()
        {
            if let Some(waiting) = self.find(lane) {
                waiting.ended.notify_one();
            }
        }
    }
}

/// One that stands in a queue.
struct Waiter(Arc<Waiting>);

impl Waiter {
    fn new(waiting: Arc<Waiting>) -> Waiter {
        waiting.waiters.fetch_add(1, Ordering::AcqRel);
        Waiter(waiting)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The first place of a lane.
pub(super) struct Place {
    pub lane: Lane,
    waiter: Waiter,
    _first: OwnedMutexGuard<()>,
}

/// Turns of lanes that run here.
pub(super) struct Running(Vec<Arc<Waiting>>);

impl Drop for Running {
    fn drop(&mut self) {
        for waiting in &self.0 {
            waiting.ended.notify_one();
        }
    }
}

/// Waits until a turn of one of these lanes may have ended. False where patience ended before.
pub(super) async fn news(places: &[&Place], patience: &Patience) -> bool {
    let ended = async {
        let all = places.iter().map(|place| Box::pin(place.waiter.0.ended.notified()));
        match places.is_empty() {
            false => drop(futures::future::select_all(all).await),
            true => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = ended => true,
        () = sleep_until(Instant::now() + MISSED) => true,
        () = patience.ends() => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex as StdMutex;

    fn patience(seconds: u64) -> Patience {
        Patience { until: Some(Instant::now() + Duration::from_secs(seconds)), withdrawn: None }
    }

    #[tokio::test(start_paused = true)]
    async fn c8_the_first_that_waits_goes_first() {
        let (lanes, id) = (Lanes::default(), ConversationId::generate());
        let order: Arc<StdMutex<Vec<usize>>> = Arc::default();
        let mut tasks = Vec::new();
        for number in 0..50 {
            let (lanes, order) = (lanes.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let place = lanes.enter(Lane::Conversation(id), &patience(600)).await.unwrap();
                tokio::task::yield_now().await;
                order.lock().unwrap().push(number);
                drop(place);
            }));
            tokio::task::yield_now().await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
        assert!(!lanes.is_awaited(Lane::Conversation(id)));
    }

    #[tokio::test(start_paused = true)]
    async fn c8_who_has_no_patience_leaves_the_lane() {
        let (lanes, id) = (Lanes::default(), ConversationId::generate());
        let lane = Lane::Conversation(id);
        let first = lanes.enter(lane, &patience(600)).await.unwrap();
        assert!(lanes.enter(lane, &patience(5)).await.is_none());
        let (withdraw, withdrawn) = watch::channel(false);
        let patient = Patience { until: None, withdrawn: Some(withdrawn) };
        let waiting = lanes.enter(lane, &patient);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        withdraw.send_replace(true);
        assert!(waiting.await.is_none() && patient.is_withdrawn());
        drop(first);
        assert!(lanes.enter(lane, &patience(1)).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn c8_news_come_at_once_and_none_are_missed() {
        let (lanes, id) = (Lanes::default(), ConversationId::generate());
        let place = lanes.enter(Lane::Conversation(id), &patience(600)).await.unwrap();
        let running = lanes.run(id, None);
        let begun = Instant::now();
        lanes.ended(id, None);
        assert!(news(&[&place], &patience(600)).await);
        assert_eq!(begun.elapsed(), Duration::ZERO, "what was told before is not missed");
        assert!(news(&[&place], &patience(600)).await);
        assert_eq!(begun.elapsed(), MISSED, "a look now and then");
        drop(running);
        assert!(news(&[&place], &patience(600)).await);
        assert_eq!(begun.elapsed(), MISSED);
        assert!(!news(&[&place], &patience(1)).await);
    }
}
