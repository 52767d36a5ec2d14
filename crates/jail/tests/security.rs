//! The escape suite: what a box must not let out, tried for real, as root of the box and as a user of it.
//!
//! This program is the runner and the attacker. Called with `--attempt NAME` it tries that one thing, and its
//! exit code says what came of it: 0 it worked, 10 it was refused, 11 it cannot be tried here. The runner
//! puts itself into a box, makes the attempt there, and demands 10. Then comes the control: the same attempt
//! as root of the host must work, or the attempt would show nothing.
//!
//! Run one with `cargo test -p seawall-jail --test security -- mounts::bind`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod security {
    pub mod apart;
    pub mod attempts;
    pub mod blasts;
    pub mod bombs;
    pub mod containers;
    pub mod devices;
    pub mod file_api;
    pub mod files;
    pub mod hoards;
    pub mod kernel;
    pub mod kit;
    pub mod mounts;
    pub mod network;
    pub mod powers;
    pub mod probe;
    pub mod processes;
    pub mod runner;
    pub mod shared;
    pub mod tally;
    pub mod tricks;
    pub mod world;
}

use libtest_mimic::Arguments;
use security::{attempts, bombs, containers, file_api, kit, runner, shared, tally, tricks, world};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("--attempt") => std::process::exit(attempts::perform(&args[2..])),
        Some("--remove") => std::process::exit(kit::remove_in_this_process(&args[2..])),
        _ => run(),
    }
}

fn run() {
    world::mark_environment();
    let args = Arguments::from_args();
    let groups = [
        runner::attempts(),
        tricks::cases(),
        file_api::cases(),
        bombs::cases(),
        shared::cases(),
        containers::cases(),
    ]
    .into_iter();
    let conclusion = libtest_mimic::run(&args, groups.flatten().map(runner::trial).collect());
    world::end();
    if !args.list {
        tally::print_summary();
    }
    conclusion.exit();
}
