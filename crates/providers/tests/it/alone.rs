//! Tests that measure. `scripts/run-tests` runs what is in a module of this name when nothing else runs.

mod memory;
