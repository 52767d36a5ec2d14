//! The kept corpora of this crate's fuzz targets, and some thousand inputs beside them.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

use replay::replay;
use seawall_gateway::fuzzing;

#[test]
fn answers() {
    replay("answers", 4000, fuzzing::answers);
}

#[test]
fn asks() {
    replay("asks", 4000, fuzzing::asks);
}

#[test]
fn heads() {
    replay("heads", 1000, fuzzing::heads);
}
