//! Rounds that take all of the machine.

use super::{World, stderr};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Servers that end as soon as they are idle, while clients come: each of them is served.
#[test]
fn no_command_fails_by_an_idle_exit() {
    const ROUNDS: usize = 200;
    let world = World::new();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < ROUNDS {
                    let mut command = world.command();
                    let output =
                        command.env("SEAWALL_TEST_BACKGROUND_IDLE", "1ms").args(["ls", "-q"]).output();
                    let output = output.unwrap();
                    assert!(output.status.success(), "{}", stderr(&output));
                    assert_eq!(stderr(&output), "");
                }
            });
        }
    });
    let starts = world.log().matches("the server has ended").count();
    assert!(starts > ROUNDS / 10, "only {starts} servers ended");
}
