//! One suite for every provider: what a provider promises, and what its guest does.
//!
//! Cases are made from capabilities: a case that needs what a provider lacks is ignored, and named with
//! the reason after the run, under a line of counts per provider. `hostile` is not about providers: it
//! is the host against a guest that lies.
//!
//! Run one with `cargo test -p seawall-providers --test conformance -- local::exec::p5`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod conformance {
    pub mod crash;
    pub mod exec;
    pub mod exec_output;
    pub mod files;
    pub mod files_safety;
    pub mod fixture;
    pub mod hostile;
    pub mod hostile_guest;
    pub mod hostile_sync;
    pub mod kit;
    pub mod lifecycle;
    pub mod suite;
    pub mod terminals;
    pub mod tunnels;
    pub mod users;
    pub mod watch;
}

use conformance::{fixture, hostile, hostile_sync, suite};
use libtest_mimic::Arguments;

fn main() {
    let args = Arguments::from_args();
    let mut trials = Vec::new();
    for (name, make) in fixture::all() {
        trials.extend(suite::trials(name, make));
    }
    trials.extend(hostile::trials());
    trials.extend(hostile_sync::trials());
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        suite::print_summary();
        if let Some(why) = fixture::skipped() {
            println!("{why}");
        }
    }
    conclusion.exit();
}
