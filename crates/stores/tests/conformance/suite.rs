//! Cases, how one is run, and the count at the end.

use super::{
    accounts, conversations, expiry, fixture::Store, idempotency, kit::Cx, leases, messages, outbox,
    ownership, sandboxes, sessions, stored, tokens, totals, turns,
};
use anyhow::{Result, anyhow};
use futures::future::BoxFuture;
use libtest_mimic::{Failed, Trial};
use seawall_core::testing::timed;
use std::{collections::BTreeMap, sync::Mutex, time::Duration};
use tokio::{runtime, time::timeout};

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Case {
    pub group: &'static str,
    pub name: &'static str,
    pub run: fn(Cx) -> BoxFuture<'static, Result<()>>,
}

/// Names functions as cases: `cases!("turns"; a_case; another;)`.
macro_rules! cases {
    ($group:literal; $($name:ident;)+) => {
        pub fn cases() -> Vec<$crate::conformance::suite::Case> {
            vec![$($crate::conformance::suite::Case {
                group: $group,
                name: stringify!($name),
                run: |cx| Box::pin($name(cx)),
            }),+]
        }
    };
}

pub(crate) use cases;

fn all() -> Vec<Case> {
    [
        accounts::cases(),
        conversations::cases(),
        turns::cases(),
        totals::cases(),
        messages::cases(),
        sandboxes::cases(),
        sessions::cases(),
        tokens::cases(),
        outbox::cases(),
        idempotency::cases(),
        leases::cases(),
        expiry::cases(),
        stored::cases(),
        ownership::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[derive(Default)]
struct Count {
    passed: usize,
    failed: usize,
    skipped: BTreeMap<String, usize>,
}

static COUNTS: Mutex<BTreeMap<&'static str, Count>> = Mutex::new(BTreeMap::new());

fn count(store: &'static str, update: impl FnOnce(&mut Count)) {
    update(COUNTS.lock().unwrap().entry(store).or_default());
}

pub fn trials(store: Store) -> Vec<Trial> {
    let cases = all().into_iter().filter(|case| store.only.is_none_or(|only| only.contains(&case.group)));
    cases.map(|case| trial(store.clone(), case)).collect()
}

fn trial(store: Store, case: Case) -> Trial {
    let name = format!("{}::{}::{}", store.name, case.group, case.name);
    let required = crate::postgres::is_required();
    let missing = store.missing.clone();
    if let Some(reason) = missing.clone().filter(|_| !required) {
        count(store.name, |count| *count.skipped.entry(reason.clone()).or_default() += 1);
        return Trial::test(name, || Ok(())).with_ignored_flag(true);
    }
    let shown = name.clone();
    Trial::test(name, move || {
        let done = match missing {
            Some(reason) => Err(anyhow!("{} is not there: {reason}", store.name)),
            None => timed(&shown, || run(&store, &case)),
        };
        count(store.name, |count| if done.is_ok() { count.passed += 1 } else { count.failed += 1 });
        done.map_err(|error| Failed::from(format!("{error:?}")))
    })
}

fn run(store: &Store, case: &Case) -> Result<()> {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let cx = (store.make)().await?;
        match timeout(PATIENCE, (case.run)(cx)).await {
            Ok(done) => done,
            Err(_) => Err(anyhow!("it took longer than {PATIENCE:?}")),
        }
    })
}

pub fn print_summary() {
    println!();
    for (store, count) in &*COUNTS.lock().unwrap() {
        let Count { passed, failed, skipped } = count;
        let total: usize = skipped.values().sum();
        for (reason, number) in skipped {
            println!("skipped {store}: {number} cases: {reason}");
        }
        println!("conformance {store}: {passed} passed, {failed} failed, {total} skipped");
    }
}
