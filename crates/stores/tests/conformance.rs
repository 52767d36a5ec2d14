//! One suite for every store.
//!
//! The in-memory fakes pass it too, so that what is tested with them holds. A store that is not there is named with
//! the reason; `SEAWALL_TEST_REQUIRE=all` makes that a failure.
//!
//! Run one with `cargo test -p seawall-stores --test conformance -- sqlite::turns::m3`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "support/postgres.rs"]
mod postgres;

mod conformance {
    pub mod accounts;
    pub mod conversations;
    pub mod fixture;
    pub mod idempotency;
    pub mod kit;
    pub mod leases;
    pub mod messages;
    pub mod outbox;
    pub mod ownership;
    pub mod sandboxes;
    pub mod sessions;
    pub mod stored;
    pub mod suite;
    pub mod tokens;
    pub mod totals;
    pub mod turns;
}

use conformance::{fixture, suite};
use libtest_mimic::Arguments;

fn main() {
    let args = Arguments::from_args();
    let mut trials = Vec::new();
    for store in fixture::all() {
        trials.extend(suite::trials(store));
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        suite::print_summary();
    }
    conclusion.exit();
}
