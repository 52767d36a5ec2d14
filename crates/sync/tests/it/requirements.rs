//! The requirements S1 to S14, each shown on workspaces of this machine and a bucket in memory.
//!
//! `histories.rs` shows that nothing is lost whatever happens, `cells.rs` what the diff decides. Here stands what a
//! user sees, one thing at a time. A test's name begins with the requirement that it shows.

mod attributes;
mod classic;
mod deletion;
mod disturbed;
mod failures;
mod hostile;
mod ignored;
mod kit;
mod older;
mod scans;
mod sparse;
mod state_file;
mod upkeep;
mod versions;
