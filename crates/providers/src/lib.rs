//! How sandboxes are isolated: a folder per provider, the same file names in each.
//!
//! The contract is `seawall_core::ports::provider`; `tests/conformance` holds every provider to it.

#[cfg(feature = "local")]
pub mod local;
#[cfg(feature = "mock")]
pub mod mock;

/// The guest for this machine: one static program.
pub fn guest_binary() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/seawall-guest"))
}
