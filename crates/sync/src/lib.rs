//! Workspaces that never lose a byte: the state file, the scan, the three-way diff, and versions in a bucket.
//!
//! The pure part comes first: [`tree`], [`state`], [`diff`]. [`disk`] is the workspace's side (the guest runs it),
//! [`bucket`] and [`versions`] the store's; [`engine`] brings both together. Nothing here knows a wire or a
//! vendor, but for the feature `stores`, which is the home of `object_store`.

pub mod bucket;
pub mod diff;
pub mod disk;
pub mod engine;
mod error;
pub mod ignore;
pub mod path;
pub mod protocol;
mod retry;
pub mod sparse;
pub mod state;
pub mod sums;
pub mod tree;
pub mod versions;
pub mod workspace;

pub use error::{Error, Result};

#[cfg(feature = "stores")]
pub mod stores;
#[cfg(feature = "testing")]
pub mod testing;
