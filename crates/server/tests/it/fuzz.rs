//! The kept corpora of this crate's fuzz targets, and some thousand inputs beside them.

#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod requests;

use replay::replay;
use seawall_server::fuzzing;

#[test]
fn previews() {
    replay("previews", 4000, fuzzing::previews);
}

#[test]
fn ranges() {
    replay("ranges", 4000, fuzzing::ranges);
}

#[test]
fn queries() {
    replay("queries", 4000, fuzzing::queries);
}

#[test]
fn whole_requests() {
    replay("requests", 1500, requests::requests);
}
