//! Several processes, and what kills them: a database is what remains.
//!
//! This program is also the processes that are killed, stopped and counted (`SEAWALL_STORE_ROLE`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "support/postgres.rs"]
mod postgres;

mod processes {
    pub mod cancelled;
    pub mod child;
    pub mod killed;
    pub mod kit;
    pub mod restarted;
    pub mod shared;
}

use libtest_mimic::Arguments;
use processes::{cancelled, child, killed, kit, restarted, shared};

fn main() {
    if let Ok(role) = std::env::var("SEAWALL_STORE_ROLE") {
        return child::play(&role);
    }
    let args = Arguments::from_args();
    let mut trials = vec![
        kit::trial("sqlite::m3_killed_in_the_middle_of_writes_300_times", || {
            killed::many_times(kit::sqlite(), 300)
        }),
        kit::trial("sqlite::every_acknowledged_batch_is_synced", killed::synced),
        kit::trial("sqlite::m3_64_tasks_in_two_processes_count_exactly", || shared::counted(kit::sqlite())),
        kit::trial("sqlite::a_sleeper_past_its_lease_is_refused", || shared::sleeper(kit::sqlite())),
    ];
    for (name, run) in [
        (
            "m3_killed_in_the_middle_of_writes_60_times",
            (|| killed::many_times(kit::postgres()?, 60)) as kit::Run,
        ),
        ("m3_64_tasks_in_two_processes_count_exactly", || shared::counted(kit::postgres()?)),
        ("a_sleeper_past_its_lease_is_refused", || shared::sleeper(kit::postgres()?)),
        // It fills the machine with waiting writes.
        ("alone::a_cancelled_write_leaves_nothing_behind", cancelled::leaves_nothing_behind),
        ("m3_restarted_under_load_nothing_is_lost_or_counted_twice", restarted::under_load),
    ] {
        trials.push(kit::postgres_trial(name, run));
    }
    libtest_mimic::run(&args, trials).exit();
}
