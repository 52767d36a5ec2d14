//! Shares of pools that all accounts use: blocking threads, orders of the launcher, connections to the database.
//!
//! [`Shares`] hands out permits: an account has its share of them, and where all permits are taken the accounts that wait get
//! the next ones in turn, whatever number of requests each of them has waiting. So no account waits behind another's requests.
//! Waiting takes no thread.

use crate::{Error, Result};
use seawall_api::AccountId;
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;
use tracing::Instrument as _;

tokio::task_local! {
    static CALLER: AccountId;
}

/// Runs work in the name of an account: what it asks of a pool counts against the account's share. Tasks that it spawns do not
/// inherit that.
pub async fn as_caller<T>(account: AccountId, work: impl Future<Output = T>) -> T {
    CALLER.scope(account, work).await
}

/// The account in whose name the current task works. None for the server's own work.
pub fn caller() -> Option<AccountId> {
    CALLER.try_with(|account| *account).ok()
}

/// Runs work on a task of its own, which goes on where the caller is dropped, and in the name of the same account. What bounds
/// such work, permits and places in queues, moves into it: then whoever hangs up again and again has no more of it under way
/// than whoever waits.
pub(crate) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let task = match caller() {
        Some(account) => tokio::spawn(as_caller(account, work).in_current_span()),
        None => tokio::spawn(work.in_current_span()),
    };
    match task.await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::unavailable("the server goes down; look whether it was done")),
    }
}

/// Permits of one pool. Clones share them.
#[derive(Clone)]
pub struct Shares(Arc<Mutex<State>>);

struct State {
    /// Permits of one account, and of all together. The operator's account may have all.
    each: usize,
    all: usize,
    taken: usize,
    accounts: HashMap<AccountId, Account>,
    /// Accounts that wait, in the order in which they get the next permits.
    queue: VecDeque<AccountId>,
}

#[derive(Default)]
struct Account {
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

impl fmt::Debug for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Shares").field("taken", &state.taken).field("all", &state.all).finish_non_exhaustive()
    }
}

impl Shares {
    /// `each`: the permits of one account; `all`: those of all together.
    pub fn new(each: usize, all: usize) -> Shares {
        let (each, all) = (each.clamp(1, all.max(1)), all.max(1));
        let (accounts, queue) = (HashMap::new(), VecDeque::new());
        Shares(Arc::new(Mutex::new(State { each, all, taken: 0, accounts, queue })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a permit. Requests of one account get theirs in the order in which they came.
    pub async fn enter(&self, account: AccountId) -> Permit {
        let waiting = {
            let mut state = self.state();
            if state.try_take(account) {
                drop(state);
                return Permit { shares: self.clone(), account, hands_on: true };
            }
            let (permit, waiting) = oneshot::channel();
            let found = state.accounts.entry(account).or_default();
            found.waiting.push_back(permit);
            if !state.queue.contains(&account) {
                state.queue.push_back(account);
            }
            waiting
        };
        match waiting.await {
            Ok(permit) => permit,
            // Its sender is in the state, which is there as long as `self` is.
            Err(_) => std::future::pending().await,
        }
    }

    /// Hands permits to those that wait.
    fn dispatch(&self) {
        loop {
            let Some((account, waiting)) = self.state().next() else { return };
            // Where the waiter gave up, the permit comes back and goes to the next waiter in this loop. Its own drop must not
            // dispatch: calls would nest as deep as there are waiters that gave up.
            let sent = waiting.send(Permit { shares: self.clone(), account, hands_on: true });
            if let Err(mut permit) = sent {
                permit.hands_on = false;
            }
        }
    }

    /// A permit, where one is free now and nobody of the account waits.
    pub fn try_enter(&self, account: AccountId) -> Option<Permit> {
        let taken = self.state().try_take(account);
        taken.then(|| Permit { shares: self.clone(), account, hands_on: true })
    }
}

impl State {
    fn is_free(&self, account: AccountId) -> bool {
        let share = if account == AccountId::LOCAL { self.all } else { self.each };
        self.taken < self.all && self.accounts.get(&account).is_none_or(|found| found.taken < share)
    }

    /// Takes a permit where one is free and nobody of the account waits for one.
    fn try_take(&mut self, account: AccountId) -> bool {
        let is_first = self.accounts.get(&account).is_none_or(|found| found.waiting.is_empty());
        let is_free = is_first && self.is_free(account);
        if is_free {
            self.take(account);
        }
        is_free
    }

    fn take(&mut self, account: AccountId) {
        self.taken += 1;
        self.accounts.entry(account).or_default().taken += 1;
    }

    /// The next that waits and may go. Its account goes to the end of the queue.
    fn next(&mut self) -> Option<(AccountId, oneshot::Sender<Permit>)> {
        let at = self.queue.iter().position(|account| self.is_free(*account))?;
        let account = self.queue.remove(at)?;
        let found = self.accounts.get_mut(&account)?;
        while found.waiting.front().is_some_and(oneshot::Sender::is_closed) {
            found.waiting.pop_front();
        }
        let waiting = found.waiting.pop_front();
        if !found.waiting.is_empty() {
            self.queue.push_back(account);
        }
        let Some(waiting) = waiting else {
            // All of them were given up.
            if found.taken == 0 {
                self.accounts.remove(&account);
            }
            return self.next();
        };
        self.take(account);
        Some((account, waiting))
    }

    fn give_back(&mut self, account: AccountId) {
        self.taken -= 1;
        let Some(found) = self.accounts.get_mut(&account) else { return };
        found.taken -= 1;
        if found.taken == 0 && found.waiting.is_empty() {
            self.accounts.remove(&account);
        }
    }
}

/// The right to work, until it is dropped.
pub struct Permit {
    shares: Shares,
    account: AccountId,
    /// Whether its end hands it to the next.
    hands_on: bool,
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("account", &self.account).finish_non_exhaustive()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shares.state().give_back(self.account);
        if self.hands_on {
            self.shares.dispatch();
        }
    }
}

/// Shares of the heavy work of a service: making boxes and starting them, ending them, and their files in buckets.
#[derive(Debug, Clone)]
pub struct HeavyWork {
    /// Boxes that are made or started: processor time, file work, orders of the launcher.
    pub starts: Shares,
    /// Boxes that are stopped or removed, which mostly wait.
    pub ends: Shares,
    /// Syncs, restores and looks into histories: memory, the network.
    pub files: Shares,
    /// Boxes that run only to be saved, past the limits of their account.
    pub rescues: Shares,
}

impl Default for HeavyWork {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        // What one account starts or saves keeps half of the processors at the most.
        let half = cores.div_ceil(2);
        HeavyWork {
            starts: Shares::new(half, 16 * cores),
            ends: Shares::new(8 * cores, 64 * cores),
            files: Shares::new(half, 16 * cores),
            rescues: Shares::new(1, 4 * cores),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, future::join_all};

    fn accounts<const N: usize>() -> [AccountId; N] {
        std::array::from_fn(|_| AccountId::generate())
    }

    #[tokio::test]
    async fn k5_an_account_beyond_its_share_waits_for_itself_alone() {
        let shares = Shares::new(2, 10);
        let [mine, theirs] = accounts();
        let held = join_all([shares.enter(mine), shares.enter(mine)]).await;
        let waiting: Vec<_> = (0..100).map(|_| Box::pin(shares.enter(mine))).collect();
        let mut waiting: Vec<_> = waiting.into_iter().map(FutureExt::fuse).collect();
        assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
        assert!(shares.enter(theirs).now_or_never().is_some(), "others do not wait");
        drop(held);
        let through = waiting.iter_mut().filter_map(|one| one.now_or_never()).count();
        assert_eq!(through, 100, "each gives its permit to the next when it is dropped");
        assert!(shares.state().accounts.is_empty());
    }

    #[tokio::test]
    async fn k5_where_all_is_taken_accounts_get_the_next_permits_in_turn() {
        let shares = Shares::new(4, 4);
        let [first, second, third] = accounts();
        let held: Vec<_> = join_all((0..4).map(|_| shares.enter(first))).await;
        let mut order = Vec::new();
        let mut waiting: Vec<_> = [first, first, first, second, third, second]
            .into_iter()
            .map(|account| (account, Box::pin(shares.enter(account))))
            .collect();
        waiting.iter_mut().for_each(|(_, one)| assert!(one.now_or_never().is_none()));
        let mut kept = Vec::new();
        for permit in held {
            drop(permit);
            waiting.retain_mut(|(account, one)| match one.now_or_never() {
                Some(permit) => {
                    order.push(*account);
                    kept.push(permit);
                    false
                }
                None => true,
            });
        }
        assert_eq!(order, [first, second, third, first]);
    }

    #[tokio::test]
    async fn k5_one_that_gives_up_waiting_leaves_its_place_to_the_next() {
        let shares = Shares::new(1, 1);
        let [mine, theirs] = accounts();
        let held = shares.enter(mine).await;
        let mut gone = Box::pin(shares.enter(mine));
        let mut next = Box::pin(shares.enter(theirs));
        assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        assert!(next.now_or_never().is_some());
        assert!(shares.enter(mine).now_or_never().is_some(), "nothing is lost");
    }

    #[tokio::test]
    async fn the_operator_may_have_all_permits() {
        let shares = Shares::new(1, 3);
        let _held = join_all((0..3).map(|_| shares.enter(AccountId::LOCAL))).await;
        assert!(shares.enter(AccountId::LOCAL).now_or_never().is_none());
    }

    #[tokio::test]
    async fn work_knows_in_whose_name_it_is_done() {
        let [mine] = accounts();
        assert_eq!(caller(), None);
        assert_eq!(as_caller(mine, async { caller() }).await, Some(mine));
        assert_eq!(as_caller(mine, async { tokio::spawn(async { caller() }).await.unwrap() }).await, None);
    }

    /// Whoever hangs up while it waits costs nothing, however many they are.
    #[tokio::test]
    async fn k5_many_that_gave_up_waiting_are_passed_over() {
        let shares = Shares::new(1, 10);
        let [mine, theirs] = accounts();
        let held = shares.enter(mine).await;
        let mut waiting: Vec<_> = (0..200_000).map(|_| Box::pin(shares.enter(mine))).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        let last = waiting.pop().unwrap();
        drop(waiting);
        assert!(shares.try_enter(mine).is_none() && shares.try_enter(theirs).is_some());
        drop(held);
        drop(last.await);
        assert!(shares.state().accounts.is_empty());
        // And where nobody is left at all.
        let held = shares.try_enter(mine).unwrap();
        let mut gone: Vec<_> = (0..200_000).map(|_| Box::pin(shares.enter(mine))).collect();
        assert!(gone.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        drop(gone);
        drop(held);
        assert!(shares.state().accounts.is_empty() && shares.state().queue.is_empty());
    }
}
