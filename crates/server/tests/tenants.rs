//! What one tenant can do to the server and to others: over HTTP, the real router on the real core, with boxes of the mock
//! provider. `local` is the operator's account; tenants are others.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "common/world.rs"]
mod common;

#[path = "tenants/ids.rs"]
mod ids;
#[path = "tenants/keys.rs"]
mod keys;
#[path = "tenants/memory.rs"]
mod memory;
#[path = "tenants/previews.rs"]
mod previews;
#[path = "tenants/ready.rs"]
mod ready;
#[path = "tenants/shares.rs"]
mod shares;
#[path = "tenants/stored.rs"]
mod stored;
#[path = "tenants/waits.rs"]
mod waits;
