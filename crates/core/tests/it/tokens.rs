//! The ledger of tokens: never above a limit, whatever comes between, and nothing forgotten by a crash.

use async_trait::async_trait;
use futures::FutureExt;
use jiff::Timestamp;
use proptest::prelude::*;
use seawall_api::{AccountId, TurnId};
use seawall_core::{
    Error, Result,
    ports::{
        Clock,
        store::{Day, TokenCharge, TokenTotals, Tokens},
    },
    testing::{ManualClock, MemoryStore},
    tokens::{LimitReached, Reservation, TokenLedger, TokenLimits, TokenRefusal, TurnTokens},
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

/// What becomes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Works,
    Fails,
    /// It happens, and nobody hears of it.
    LosesTheReply,
}

/// A store that others come between, and that fails as planned.
#[derive(Clone)]
struct Shaky {
    inner: MemoryStore,
    fates: Arc<Mutex<VecDeque<Fate>>>,
    open: watch::Sender<bool>,
    writes: Arc<Mutex<usize>>,
}

impl Shaky {
    fn new(fates: Vec<Fate>) -> Shaky {
        let fates = Arc::new(Mutex::new(fates.into()));
        Shaky { inner: MemoryStore::new(), fates, open: watch::Sender::new(true), writes: Arc::default() }
    }

    fn plan(&self, fate: Fate) {
        self.fates.lock().unwrap().push_back(fate);
    }
}

#[async_trait]
impl Tokens for Shaky {
    async fn charge(&self, account: AccountId, charges: &[TokenCharge], today: Day) -> Result<TokenTotals> {
        tokio::task::yield_now().await;
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Works);
        if fate == Fate::Fails {
            return Err(Error::unavailable("a test made it fail"));
        }
        let totals = self.inner.charge(account, charges, today).await;
        *self.writes.lock().unwrap() += 1;
        tokio::task::yield_now().await;
        match fate {
            Fate::Works => totals,
            _ => Err(Error::unavailable("a test lost the reply")),
        }
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

struct World {
    store: Shaky,
    clock: ManualClock,
    account: AccountId,
    limits: TokenLimits,
}

impl World {
    fn new(per_day: Option<u64>, per_month: Option<u64>) -> World {
        let clock = ManualClock::new(at("2026-11-16T12:00:00Z"));
        let limits = TokenLimits { per_day, per_month };
        World { store: Shaky::new(Vec::new()), clock, account: AccountId::generate(), limits }
    }

    /// A process of the same server, or one after a restart.
    fn process(&self) -> TokenLedger {
        TokenLedger::new(Arc::new(self.store.clone()), Arc::new(self.clock.clone()))
    }

    fn turn(&self, process: &TokenLedger) -> TurnTokens {
        process.turn(self.account, TurnId::generate(), self.limits).unwrap()
    }

    /// What the store has, for the day and the month of now.
    async fn stored(&self) -> (u64, u64) {
        let totals = self.store.inner.charge(self.account, &[], Day::of(self.clock.now())).await.unwrap();
        (totals.day, totals.month)
    }
}

#[track_caller]
fn reached(refused: Result<Reservation, TokenRefusal>) -> LimitReached {
    match refused {
        Err(TokenRefusal::Limit(reached)) => reached,
        other => panic!("{other:?}"),
    }
}

async fn used(turn: &TurnTokens, reserved: u64, used: u64) {
    turn.reserve(reserved, reserved).await.unwrap().charge(used);
}

#[tokio::test(start_paused = true)]
async fn k8_what_is_reserved_is_stored_before_it_is_used_and_settled_after() {
    let world = World::new(Some(100), None);
    let turn = world.turn(&world.process());
    let mut one = turn.reserve(60, 60).await.unwrap();
    assert_eq!((one.tokens(), world.stored().await), (60, (60, 60)));
    let refused = reached(turn.reserve(41, 41).await);
    let expected = LimitReached { limit: "tokens_per_day", value: 100, used: 0, reserved: 60, needed: 41 };
    assert_eq!((refused, refused.may_pass()), (expected, true));
    one.charge(10);
    drop(one);
    used(&turn, 90, 35).await;
    let refused = reached(turn.reserve(56, 56).await);
    assert_eq!((refused.used, refused.reserved, refused.may_pass()), (45, 0, false));
    assert_eq!(turn.reserve(1, 1000).await.unwrap().tokens(), 55, "what is left, where less is enough");
    turn.close().await.unwrap();
    assert_eq!(world.stored().await, (45, 45));
    assert!(matches!(turn.reserve(1, 1).await, Err(TokenRefusal::Unavailable(_))), "the turn is over");
}

#[tokio::test(start_paused = true)]
async fn k8_a_day_begins_at_midnight_and_a_month_on_its_first() {
    let world = World::new(Some(100), Some(150));
    let turn = world.turn(&world.process());
    used(&turn, 90, 90).await;
    assert_eq!(reached(turn.reserve(11, 11).await).limit, "tokens_per_day");
    // A request of before midnight is charged to its day, however late its answer ends.
    let mut late = turn.reserve(10, 10).await.unwrap();
    world.clock.set(at("2026-11-17T00:00:00Z"));
    let refused = reached(turn.reserve(51, 51).await);
    assert_eq!(
        (refused.limit, refused.value, refused.used, refused.reserved),
        ("tokens_per_month", 150, 90, 10)
    );
    late.charge(4);
    drop(late);
    used(&turn, 56, 50).await;
    assert_eq!(world.stored().await.0, 56, "it is not settled in the store yet");
    assert_eq!(reached(turn.reserve(7, 7).await).limit, "tokens_per_month");
    world.clock.set(at("2026-12-01T00:00:00Z"));
    used(&turn, 100, 100).await;
    assert_eq!(reached(turn.reserve(1, 1).await).limit, "tokens_per_day");
    turn.close().await.unwrap();
    assert_eq!(world.stored().await, (100, 100));
    world.clock.set(at("2026-11-30T23:59:59Z"));
    assert_eq!(world.stored().await, (0, 144), "a clock that steps back finds what was there");
}

#[tokio::test(start_paused = true)]
async fn k8_a_crash_leaves_what_was_reserved_charged() {
    let world = World::new(Some(100), None);
    let (before, after) = (world.process(), world.process());
    let (id, limits) = (TurnId::generate(), world.limits);
    let dead = before.turn(world.account, id, limits).unwrap();
    used(&dead, 30, 20).await;
    let in_flight = dead.reserve(50, 50).await.unwrap();
    // Killed here: nothing is settled any more. The same turn is taken up again.
    let again = after.turn(world.account, id, limits).unwrap();
    let refused = reached(again.reserve(31, 31).await);
    assert_eq!((refused.used, refused.reserved), (70, 0));
    used(&again, 30, 10).await;
    again.close().await.unwrap();
    assert_eq!(world.stored().await, (80, 80));
    drop(in_flight);
}

#[tokio::test(start_paused = true)]
async fn k8_processes_of_one_machine_share_a_budget() {
    let world = World::new(Some(100), None);
    let (one, two) = (world.turn(&world.process()), world.turn(&world.process()));
    used(&one, 10, 10).await;
    used(&two, 10, 10).await;
    let held = one.reserve(50, 50).await.unwrap();
    // Its own memory would allow it.
    let refused = reached(two.reserve(31, 31).await);
    assert_eq!((refused.used, refused.reserved), (70, 0), "of others nothing is known but the sum");
    drop(held);
    one.close().await.unwrap();
    // It is asked again once a second.
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(two.reserve(80, 80).await.unwrap().tokens(), 80);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_reserves_nothing_and_loses_nothing() {
    let world = World::new(Some(100), None);
    let process = world.process();
    let turn = world.turn(&process);
    used(&turn, 100, 0).await;
    for fate in [Fate::Fails, Fate::LosesTheReply] {
        world.store.plan(fate);
        let refused = turn.reserve(90, 90).await;
        assert!(matches!(refused, Err(TokenRefusal::Unavailable(_))), "{fate:?}: {refused:?}");
        // All of it is there for the next.
        used(&turn, 100, 0).await;
    }
    assert_eq!(process.totals(world.account).await.unwrap(), TokenTotals::default());
}

/// The box hangs up while its request waits for the database.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_not_waited_for_is_given_back() {
    let world = World::new(Some(100), None);
    let process = world.process();
    let turn = world.turn(&process);
    used(&turn, 1, 1).await;
    world.store.open.send_replace(false);
    for _ in 0..3 {
        assert!(timeout(Duration::from_secs(1), turn.reserve(99, 99)).await.is_err());
    }
    world.store.open.send_replace(true);
    assert_eq!(turn.reserve(99, 99).await.unwrap().tokens(), 99);
}

/// A box that asks on and on costs the database nothing.
#[tokio::test(start_paused = true)]
async fn refusals_do_not_ask_the_store_each_time() {
    let world = World::new(Some(10), None);
    let turn = world.turn(&world.process());
    used(&turn, 10, 10).await;
    let before = *world.store.writes.lock().unwrap();
    for _ in 0..1000 {
        reached(turn.reserve(1, 1).await);
    }
    assert_eq!(*world.store.writes.lock().unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn an_account_without_limits_is_charged_and_never_waits() {
    let world = World::new(None, None);
    let process = world.process();
    let turn = world.turn(&process);
    world.store.open.send_replace(false);
    for _ in 0..3 {
        let mut reservation = turn.reserve(0, 0).now_or_never().unwrap().unwrap();
        reservation.charge(7);
    }
    world.store.open.send_replace(true);
    turn.close().await.unwrap();
    assert_eq!(world.stored().await, (21, 21));
}

/// Requests that outlive their turn stay reserved, and change nothing when they end.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_turn_waits_for_its_requests_and_not_for_ever() {
    let world = World::new(Some(100), None);
    let turn = world.turn(&world.process());
    let mut quick = turn.reserve(10, 10).await.unwrap();
    let slow = turn.reserve(20, 20).await.unwrap();
    let closing: JoinHandle<Result<()>> = tokio::spawn({
        let turn = turn.clone();
        async move { turn.close().await }
    });
    tokio::task::yield_now().await;
    quick.charge(3);
    drop(quick);
    closing.await.unwrap().unwrap();
    assert_eq!(world.stored().await, (23, 23));
    drop(slow);
    assert_eq!(world.stored().await, (23, 23));
}

/// One request of a turn.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Of how many processes, which.
    process: usize,
    least: u64,
    more: u64,
    /// How much of what was reserved is used, in percent.
    used: u64,
    pauses: (u8, u8),
}

#[derive(Debug, Clone, Copy)]
enum Happening {
    Request(Step),
    /// A process is killed, and another takes its place.
    Crash(usize),
    /// Hours pass.
    Later(u64),
    /// The tasks get on with it.
    Pause(u8),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let step = (0..2usize, 0..60u64, 0..60u64, 0..=100u64, (0..6u8, 0..6u8))
        .prop_map(|(process, least, more, used, pauses)| Step { process, least, more, used, pauses });
    let one = prop_oneof![
        12 => step.prop_map(Happening::Request),
        1 => (0..2usize).prop_map(Happening::Crash),
        2 => (1..30u64).prop_map(Happening::Later),
        4 => (0..8u8).prop_map(Happening::Pause),
    ];
    proptest::collection::vec(one, 1..60)
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let one = prop_oneof![6 => Just(Fate::Works), 1 => Just(Fate::Fails), 1 => Just(Fate::LosesTheReply)];
    proptest::collection::vec(one, 0..80)
}

/// What is really used or may still be, by day.
type Truth = Arc<Mutex<BTreeMap<i64, u64>>>;

async fn pause(times: u8) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

async fn request(turn: TurnTokens, step: Step, truth: Truth, clock: ManualClock, limits: TokenLimits) {
    pause(step.pauses.0).await;
    // Time stands still while it is asked, so that its day is known.
    let day = Day::of(clock.now());
    let Ok(mut reservation) = turn.reserve(step.least, step.least + step.more).await else { return };
    let tokens = reservation.tokens();
    assert!((step.least..=step.least + step.more).contains(&tokens));
    // Until it is settled all of it may be used; a crash leaves it so.
    reservation.charge(tokens);
    let used = tokens * step.used / 100;
    {
        let mut truth = truth.lock().unwrap();
        *truth.entry(day.0).or_default() += tokens;
        check(&truth, day, limits);
    }
    pause(step.pauses.1).await;
    *truth.lock().unwrap().entry(day.0).or_default() -= tokens - used;
    reservation.charge(used);
}

fn check(truth: &BTreeMap<i64, u64>, day: Day, limits: TokenLimits) {
    let (first, last) = day.month();
    let month: u64 = truth.range(first.0..=last.0).map(|(_, tokens)| tokens).sum();
    let today = truth.get(&day.0).copied().unwrap_or(0);
    assert!(limits.per_day.is_none_or(|most| today <= most), "{today} of a day");
    assert!(limits.per_month.is_none_or(|most| month <= most), "{month} of a month");
}

async fn play(happenings: Vec<Happening>, fates: Vec<Fate>, limits: TokenLimits) {
    let world = World { store: Shaky::new(fates), limits, ..World::new(None, None) };
    let truth = Truth::default();
    let process = || (world.process(), Vec::<JoinHandle<()>>::new());
    let mut processes = [process(), process()];
    for happening in happenings {
        match happening {
            Happening::Request(step) => {
                let (ledger, tasks) = &mut processes[step.process];
                let turn = world.turn(ledger);
                let (truth, clock) = (truth.clone(), world.clock.clone());
                tasks.push(tokio::spawn(request(turn, step, truth, clock, limits)));
            }
            Happening::Crash(which) => {
                for task in &processes[which].1 {
                    task.abort();
                }
                finish(&mut processes[which].1).await;
                processes[which] = process();
            }
            Happening::Later(hours) => {
                // Between requests, so that each knows its day.
                for (_, tasks) in &mut processes {
                    finish(tasks).await;
                }
                world.clock.advance(Duration::from_secs(hours * 3600));
            }
            Happening::Pause(times) => pause(times).await,
        }
    }
    for (_, tasks) in &mut processes {
        finish(tasks).await;
    }
    // Never less is charged than was used.
    let today = Day::of(world.clock.now());
    let used = truth.lock().unwrap().get(&today.0).copied().unwrap_or(0);
    let charged = world.stored().await.0;
    assert!(charged >= used, "{charged} are charged, and {used} used");
}

async fn finish(tasks: &mut Vec<JoinHandle<()>>) {
    for task in tasks.drain(..) {
        match task.await {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn k8_no_interleaving_uses_more_than_a_limit(
        happenings in happenings(), fates in fates(),
        per_day in proptest::option::weighted(0.9, 0..200u64), per_month in proptest::option::of(0..300u64),
    ) {
        prop_assume!(per_day.is_some() || per_month.is_some());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(happenings, fates, TokenLimits { per_day, per_month }));
    }
}
