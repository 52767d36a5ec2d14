//! The kept corpora of this crate's fuzz targets, and some thousand inputs beside them.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

use replay::replay;
use seawall_core::fuzzing;

#[test]
fn agents() {
    replay("agents", 150, fuzzing::agents);
}

#[test]
fn specs() {
    replay("specs", 4000, fuzzing::specs);
}
