//! What one tenant can do to the server and to others: over HTTP, the real router on the real core, with boxes of the mock
//! provider. `local` is the operator's account; tenants are others.

mod ids;
mod keys;
mod memory;
mod previews;
mod ready;
mod shares;
mod stored;
mod waits;
