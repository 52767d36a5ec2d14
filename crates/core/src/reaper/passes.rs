//! Work of a round that may take long, account by account or sandbox by sandbox: none waits for another's.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};
use tokio::{
    sync::Mutex,
    task::{Id, JoinSet},
    time::{Instant, timeout_at},
};

/// One task for each account, or other key. What takes longer than a round goes on, and its key gets no other task before it
/// ended.
pub(super) struct Passes<K, T>(Mutex<UnderWay<K, T>>);

struct UnderWay<K, T> {
    tasks: JoinSet<T>,
    keys: HashMap<Id, K>,
    /// What this round began.
    fresh: HashSet<Id>,
}

impl<K, T> fmt::Debug for Passes<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passes").finish_non_exhaustive()
    }
}

impl<K, T: Send + 'static> Default for Passes<K, T> {
    fn default() -> Self {
        Passes(Mutex::new(UnderWay { tasks: JoinSet::new(), keys: HashMap::new(), fresh: HashSet::new() }))
    }
}

impl<K: PartialEq, T: Send + 'static> Passes<K, T> {
    /// Begins work for a key that has none under way.
    pub async fn begin(&self, key: K, work: impl Future<Output = T> + Send + 'static) {
        let UnderWay { tasks, keys, fresh } = &mut *self.0.lock().await;
        if !keys.values().any(|busy| *busy == key) {
            let id = tasks.spawn(work).id();
            keys.insert(id, key);
            fresh.insert(id);
        }
    }

    /// What came of the next task that is done. None at `end`, or where all that was begun since the last None is done: what
    /// takes longer holds up one round and no more.
    pub async fn next(&self, end: Instant) -> Option<T> {
        let UnderWay { tasks, keys, fresh } = &mut *self.0.lock().await;
        loop {
            let ended = match tasks.try_join_next_with_id() {
                None if fresh.is_empty() => return None,
                None => timeout_at(end, tasks.join_next_with_id()).await.unwrap_or_default(),
                ended => ended,
            };
            let Some(ended) = ended else {
                fresh.clear();
                return None;
            };
            let (id, done) = match ended {
                Ok((id, done)) => (id, Some(done)),
                Err(error) => {
                    tracing::error!(%error, "a part of a round broke off");
                    (error.id(), None)
                }
            };
            keys.remove(&id);
            fresh.remove(&id);
            if done.is_some() {
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::AccountId;
    use std::{future::pending, time::Duration};

    const ROUND: Duration = Duration::from_secs(10);

    async fn rest(passes: &Passes<AccountId, u32>) -> Vec<u32> {
        let (end, mut done) = (Instant::now() + ROUND, Vec::new());
        while let Some(one) = passes.next(end).await {
            done.push(one);
        }
        done
    }

    #[tokio::test(start_paused = true)]
    async fn k5_an_account_that_takes_long_holds_up_one_round_and_no_more() {
        let passes = Passes::default();
        let [slow, quick] = [AccountId::generate(), AccountId::generate()];
        for expected in [ROUND, Duration::ZERO] {
            let begun = Instant::now();
            passes.begin(slow, pending()).await;
            passes.begin(quick, async { 1 }).await;
            assert_eq!(rest(&passes).await, [1]);
            assert_eq!(begun.elapsed(), expected);
            assert_eq!(passes.0.lock().await.keys.len(), 1, "the slow one is not begun again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn k5_what_ends_late_is_told_by_a_later_round() {
        let (passes, account) = (Passes::default(), AccountId::generate());
        let late = async {
            tokio::time::sleep(ROUND * 2).await;
            7
        };
        passes.begin(account, late).await;
        assert!(rest(&passes).await.is_empty());
        tokio::time::sleep(ROUND * 2).await;
        assert_eq!(rest(&passes).await, [7]);
        passes.begin(account, async { panic!("a test") }).await;
        assert!(rest(&passes).await.is_empty());
        passes.begin(account, async { 10 }).await;
        assert_eq!(rest(&passes).await, [10]);
    }
}
