//! The kept corpora of this crate's fuzz targets, and some thousand inputs beside them.

#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../fuzz/bodies/restore.rs"]
mod restore;
#[path = "../../../../fuzz/bodies/state.rs"]
mod state;

use replay::replay;

#[test]
fn state_of_the_corpus() {
    replay("state", 3000, state::state);
}

#[test]
fn restore_of_the_corpus() {
    replay("restore", 300, restore::restore);
}
