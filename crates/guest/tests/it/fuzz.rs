//! The kept corpora of this crate's fuzz targets, and some thousand inputs beside them.

#[path = "../../../../fuzz/bodies/paths.rs"]
mod paths;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn paths_of_the_corpus() {
    replay("paths", 4000, paths::paths);
}
