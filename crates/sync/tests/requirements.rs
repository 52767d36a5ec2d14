//! The requirements S1 to S14, each shown on workspaces of this machine and a bucket in memory.
//!
//! `histories.rs` shows that nothing is lost whatever happens, `cells.rs` what the diff decides. Here stands what a
//! user sees, one thing at a time. A test's name begins with the requirement that it shows.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "requirements/attributes.rs"]
mod attributes;
#[path = "requirements/classic.rs"]
mod classic;
#[path = "requirements/deletion.rs"]
mod deletion;
#[path = "requirements/disturbed.rs"]
mod disturbed;
#[path = "requirements/failures.rs"]
mod failures;
#[path = "requirements/hostile.rs"]
mod hostile;
#[path = "requirements/ignored.rs"]
mod ignored;
#[path = "requirements/kit.rs"]
mod kit;
#[path = "requirements/older.rs"]
mod older;
#[path = "requirements/scans.rs"]
mod scans;
#[path = "requirements/sparse.rs"]
mod sparse;
#[path = "requirements/state_file.rs"]
mod state_file;
#[path = "requirements/upkeep.rs"]
mod upkeep;
#[path = "requirements/versions.rs"]
mod versions;
#[path = "support/world.rs"]
mod world;
