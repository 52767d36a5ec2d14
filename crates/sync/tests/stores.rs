//! One suite for every bucket: in memory, in a folder, on S3.
//!
//! A server that is not there is named with the reason; `SEAWALL_TEST_REQUIRE=all` makes that a failure.
//!
//! Run one with `cargo test -p seawall-sync --test stores -- files::list`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/server.rs"]
mod server;

mod stores {
    pub mod keys;
    pub mod kit;
    pub mod lists;
    pub mod uploads;
}

use libtest_mimic::{Arguments, Trial};
use std::time::Duration;
use stores::{
    keys,
    kit::{Case, Store},
    lists, uploads,
};

const PATIENCE: Duration = Duration::from_secs(120);

fn main() {
    let args = Arguments::from_args();
    let mut trials = Vec::new();
    let mut skipped = Vec::new();
    for store in Store::all() {
        let cases = [keys::cases(), lists::cases(), uploads::cases()].concat();
        if let Some(reason) = store.missing.filter(|_| !server::is_required()) {
            skipped.push(format!("skipped {}: {} cases: {reason}", store.name, cases.len()));
        }
        trials.extend(cases.into_iter().map(|case| trial(store, case)));
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        for line in skipped {
            println!("{line}");
        }
    }
    conclusion.exit();
}

fn trial(store: Store, case: Case) -> Trial {
    let name = format!("{}::{}", store.name, case.name);
    let is_skipped = store.missing.is_some() && !server::is_required();
    Trial::test(name, move || match store.missing {
        Some(reason) => Err(format!("{} is not there: {reason}", store.name).into()),
        None => {
            run(store, case);
            Ok(())
        }
    })
    .with_ignored_flag(is_skipped)
}

fn run(store: Store, case: Case) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cx = (store.make)().await;
        tokio::time::timeout(PATIENCE, (case.run)(cx)).await.expect("it took too long");
    });
}
