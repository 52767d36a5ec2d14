//! The ledger under every order of events: an account is never above a limit, and never locked out (K8).

use async_trait::async_trait;
use proptest::prelude::*;
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{SandboxSpec, SandboxState},
};
use seawall_core::{
    Result,
    accounts::{AccountCatalog, AccountLimits, Admission, Cost, Ledger, Limit, LiveBoxes, Request},
    ports::store::{NewConversation, SandboxRow, WHOLE_ROWS},
    testing::MemoryStore,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

const SANDBOXES: u64 = 4;
const RUNNING: u64 = 2;
const DISK_MB: u64 = 100;

/// The boxes that there are, and whether each runs.
#[derive(Clone, Default)]
struct Truth(Arc<Mutex<HashMap<SandboxId, (bool, u64)>>>);

#[async_trait]
impl LiveBoxes for Truth {
    async fn is_running(&self, id: SandboxId) -> Result<Option<bool>> {
        Ok(self.0.lock().unwrap().get(&id).map(|(running, _)| *running))
    }
}

impl Truth {
    /// What runs only to be saved is nobody's to use, and takes no place.
    fn check(&self, ledger: &Ledger, account: AccountId) {
        let boxes = self.0.lock().unwrap();
        let has_place =
            |(id, (running, _)): &(&SandboxId, &(bool, u64))| *running && !ledger.is_saving(account, **id);
        let running = boxes.iter().filter(has_place).count() as u64;
        let disk: u64 = boxes.values().map(|(_, disk)| disk).sum();
        assert!(boxes.len() as u64 <= SANDBOXES && running <= RUNNING && disk <= DISK_MB, "{boxes:?}");
    }
}

fn ledger() -> Ledger {
    ledger_on(&MemoryStore::default())
}

fn ledger_on(memory: &MemoryStore) -> Ledger {
    let stores = memory.stores();
    let mut limits = AccountLimits::NONE;
    limits.set(Limit::Sandboxes, Some(SANDBOXES));
    limits.set(Limit::RunningSandboxes, Some(RUNNING));
    limits.set(Limit::DiskMb, Some(DISK_MB));
    limits.set(Limit::EndedRecordsMb, Some(1));
    Ledger::new(
        stores.sandboxes.clone(),
        stores.stored.clone(),
        AccountCatalog::new(stores.accounts.clone(), limits),
        None,
    )
}

/// What can happen to one of eight sandboxes.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A request is admitted or refused; the box comes with a later event.
    Admit {
        which: usize,
        start: bool,
    },
    /// A box that does not run is started to be saved.
    Save(usize),
    /// The box of the oldest open admission is made.
    Make,
    /// The oldest open admission fails, and no box comes of it.
    Fail,
    Stop(usize),
    Remove(usize),
    /// The box ends, and nothing tells the ledger.
    Die(usize),
    /// The box and its record go, and nothing tells the ledger.
    Vanish(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let which = 0..8_usize;
    let one = prop_oneof![
        4 => (which.clone(), any::<bool>()).prop_map(|(which, start)| Event::Admit { which, start }),
        2 => which.clone().prop_map(Event::Save),
        3 => Just(Event::Make),
        1 => Just(Event::Fail),
        1 => which.clone().prop_map(Event::Stop),
        1 => which.clone().prop_map(Event::Remove),
        1 => which.clone().prop_map(Event::Die),
        1 => which.prop_map(Event::Vanish),
    ];
    proptest::collection::vec(one, 1..60)
}

async fn play(events: Vec<Event>) {
    let (ledger, truth, account) = (ledger(), Truth::default(), AccountId::generate());
    let ids: Vec<SandboxId> = (0..8).map(|_| SandboxId::generate()).collect();
    let mut open: Vec<(Admission, Request)> = Vec::new();
    let make = |truth: &Truth, request: &Request| {
        let mut boxes = truth.0.lock().unwrap();
        let entry = boxes.entry(request.sandbox).or_insert((false, request.disk_mb));
        entry.0 |= request.start;
    };
    for event in events {
        match event {
            Event::Admit { which, start } => {
                let disk_mb = 10 * (which as u64 + 1);
                let request = Request { account, sandbox: ids[which], disk_mb, start, cost: Cost::default() };
                // One at a time for a sandbox: that is what its queue is for.
                if open.iter().all(|(_, other)| other.sandbox != ids[which])
                    && let Ok(admission) = ledger.admit(request, &truth).await
                {
                    open.push((admission, request));
                }
            }
            Event::Save(which) => {
                let there = truth.0.lock().unwrap().get(&ids[which]).copied();
                if let Some((false, disk_mb)) = there
                    && open.iter().all(|(_, other)| other.sandbox != ids[which])
                {
                    let request =
                        Request { account, sandbox: ids[which], disk_mb, start: true, cost: Cost::default() };
                    open.push((ledger.save(request).await.unwrap(), request));
                }
            }
            Event::Make if !open.is_empty() => {
                let (admission, request) = open.remove(0);
                make(&truth, &request);
                drop(admission);
            }
            Event::Fail if !open.is_empty() => drop(open.remove(0)),
            Event::Stop(which) => {
                let mark = ledger.mark(account, ids[which]);
                if let Some((running, _)) = truth.0.lock().unwrap().get_mut(&ids[which]) {
                    *running = false;
                }
                ledger.stopped(account, ids[which], mark);
            }
            Event::Remove(which) => {
                let mark = ledger.mark(account, ids[which]);
                if open.iter().all(|(_, other)| other.sandbox != ids[which]) {
                    truth.0.lock().unwrap().remove(&ids[which]);
                    ledger.removed(account, ids[which], mark);
                }
            }
            Event::Die(which) => {
                if let Some((running, _)) = truth.0.lock().unwrap().get_mut(&ids[which]) {
                    *running = false;
                }
            }
            Event::Vanish(which) => drop(truth.0.lock().unwrap().remove(&ids[which])),
            Event::Make | Event::Fail => {}
        }
        truth.check(&ledger, account);
    }
    // Whatever happened: an account without boxes is locked out of nothing.
    drop(open);
    truth.0.lock().unwrap().clear();
    let request = Request {
        account,
        sandbox: SandboxId::generate(),
        disk_mb: DISK_MB,
        start: true,
        cost: Cost::default(),
    };
    drop(ledger.admit(request, &truth).await.unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn k8_no_order_of_events_brings_an_account_above_a_limit(events in events()) {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(play(events));
    }
}

#[tokio::test]
async fn k8_one_that_is_stopped_and_started_to_be_saved_keeps_its_place() {
    let (ledger, truth, account) = (ledger(), Truth::default(), AccountId::generate());
    let request = |sandbox| Request { account, sandbox, disk_mb: 1, start: true, cost: Cost::default() };
    let (one, two, three) = (SandboxId::generate(), SandboxId::generate(), SandboxId::generate());
    for id in [one, two] {
        drop(ledger.admit(request(id), &truth).await.unwrap());
        truth.0.lock().unwrap().insert(id, (true, 1));
    }
    let place = ledger.save(request(one)).await.unwrap();
    ledger.stopped(account, one, ledger.mark(account, one));
    truth.0.lock().unwrap().insert(one, (false, 1));
    assert!(ledger.admit(request(three), &truth).await.is_err());
    drop(ledger.save(request(one)).await.unwrap());
    truth.0.lock().unwrap().insert(one, (true, 1));
    assert!(!ledger.is_saving(account, one));
    drop(place);
    // Without a place, it has none while it is saved, and gets one where there is one.
    ledger.stopped(account, one, ledger.mark(account, one));
    drop(ledger.admit(request(three), &truth).await.unwrap());
    truth.0.lock().unwrap().extend([(one, (false, 1)), (three, (true, 1))]);
    drop(ledger.save(request(one)).await.unwrap());
    truth.0.lock().unwrap().insert(one, (true, 1));
    assert!(ledger.is_saving(account, one) && ledger.counts(account, &truth).await.unwrap().running == 2);
    assert!(ledger.admit(request(one), &truth).await.is_err(), "nobody may use it");
    ledger.stopped(account, two, ledger.mark(account, two));
    truth.0.lock().unwrap().insert(two, (false, 1));
    drop(ledger.admit(request(one), &truth).await.unwrap());
    assert!(!ledger.is_saving(account, one));
}

/// Looks at boxes that take their time, and counts them.
#[derive(Default)]
struct Slow(std::sync::atomic::AtomicU32);

#[async_trait::async_trait]
impl LiveBoxes for Slow {
    async fn is_running(&self, _: SandboxId) -> Result<Option<bool>> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        Ok(Some(true))
    }
}

/// However often an account asks what it uses, or asks for too much, its boxes are looked at for a tenth of the time.
#[tokio::test(start_paused = true)]
async fn k5_looks_at_boxes_are_not_repeated_for_each_request() {
    let (ledger, truth, slow, account) = (ledger(), Truth::default(), Slow::default(), AccountId::generate());
    for _ in 0..2 {
        let request = Request {
            account,
            sandbox: SandboxId::generate(),
            disk_mb: 1,
            start: true,
            cost: Cost::default(),
        };
        drop(ledger.admit(request, &truth).await.unwrap());
    }
    let looks = || slow.0.load(std::sync::atomic::Ordering::Relaxed);
    let usage = || ledger.counts(account, &slow);
    futures::future::try_join_all((0..100).map(|_| usage())).await.unwrap();
    assert_eq!(looks(), 2, "one look at both for all of them");
    tokio::time::sleep(std::time::Duration::from_millis(900)).await;
    usage().await.unwrap();
    assert_eq!(looks(), 2);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    usage().await.unwrap();
    assert_eq!(looks(), 4, "what was seen is good for a second");
}

/// A sandbox that was ended, with as much in its record as a user may put there.
fn ended(account_id: AccountId) -> SandboxRow {
    let now = jiff::Timestamp::UNIX_EPOCH;
    SandboxRow {
        id: SandboxId::generate(),
        account_id,
        name: None,
        provider: "mock".to_owned(),
        node: None,
        template: Some("shell".to_owned()),
        spec: SandboxSpec { env: [("A".to_owned(), "x".repeat(60_000))].into(), ..SandboxSpec::default() },
        state: SandboxState::Terminated,
        reason: None,
        removing: None,
        unsynced: None,
        metadata: serde_json::Map::new(),
        created_at: now,
        started_at: None,
        last_used_at: now,
        version: 1,
    }
}

/// Of a hundred ended sandboxes 1 MiB stays: an account that makes and ends them for ever does not fill the database. What a
/// conversation needs stays, and then there is an end to it.
#[tokio::test]
async fn k8_records_of_ended_sandboxes_are_bounded_and_the_needed_ones_stay() {
    let (memory, account) = (MemoryStore::default(), AccountId::generate());
    let (ledger, stores) = (ledger_on(&memory), memory.stores());
    let rows = &stores.sandboxes;
    for number in 0..100 {
        let row = ended(account);
        ledger.refuse_record(account, &row.spec).await.unwrap();
        rows.insert(&row).await.unwrap();
        let bytes = rows.ended_bytes(account).await.unwrap();
        assert!(bytes <= (1 << 20) + 61_000, "{number}: {bytes} bytes");
    }
    // All that is needed stays.
    let mut refused = None;
    let mut needed = Vec::new();
    for _ in 0..100 {
        let row = ended(account);
        if let Err(error) = ledger.refuse_record(account, &row.spec).await {
            refused = Some(error);
            break;
        }
        rows.insert(&row).await.unwrap();
        let linked = NewConversation {
            id: seawall_api::ConversationId::generate(),
            organization_id: None,
            agent_id: None,
            template: None,
            sandbox_id: Some(row.id),
            created_at: row.created_at,
        };
        stores.conversations.ensure(account, &linked).await.unwrap();
        needed.push(row.id);
    }
    let refused = refused.expect("there is no bound");
    assert_eq!(
        (refused.code(), refused.limit().unwrap().name.as_str()),
        ("limit_reached", "ended_records_mb")
    );
    for id in needed {
        assert!(rows.find(id).await.unwrap().is_some());
    }
    // The operator's account has no such bound.
    ledger.refuse_record(AccountId::LOCAL, &SandboxSpec::default()).await.unwrap();
}

#[tokio::test]
async fn k3_the_ledger_reads_small_pages_of_whole_rows() {
    let (memory, account) = (MemoryStore::default(), AccountId::generate());
    let (ledger, stores) = (ledger_on(&memory), memory.stores());
    let count = u64::from(2 * WHOLE_ROWS + 1);
    let truth = Truth::default();
    for _ in 0..count {
        let row = SandboxRow { state: SandboxState::Stopped, ..ended(account) };
        truth.0.lock().unwrap().insert(row.id, (false, 0));
        stores.sandboxes.insert(&row).await.unwrap();
    }
    assert_eq!(ledger.counts(account, &truth).await.unwrap().sandboxes, count);
    assert!(memory.widest_page() <= WHOLE_ROWS, "{} whole rows at once", memory.widest_page());
}
