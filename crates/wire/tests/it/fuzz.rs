//! The kept corpora of this crate's fuzz targets, and some thousand inputs beside them.

#[path = "../../../../fuzz/bodies/frames.rs"]
mod frames;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn frames_of_the_corpus() {
    replay("frames", 2000, frames::frames);
}
