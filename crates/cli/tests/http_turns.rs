//! Turns over HTTP from end to end, on the real binary with the template `shell`: what a client sees that is killed and
//! comes back, and what is kept, whatever dies: the server, the box, the bucket, the disk, the database.

#![allow(clippy::unwrap_used)] // Helpers beside the tests are tests too.

#[path = "http/client.rs"]
mod client;
#[path = "cli/gates.rs"]
mod gates;
#[path = "http/http.rs"]
mod http;
#[path = "http/served.rs"]
mod served;
#[path = "cli/world.rs"]
#[allow(dead_code)] // Other tests use more of it.
mod world;

#[path = "http/agents.rs"]
mod agents;
#[path = "http/crashes.rs"]
mod crashes;
#[path = "http/endings.rs"]
mod endings;
#[path = "http/outages.rs"]
mod outages;
#[path = "http/owners.rs"]
mod owners;
#[path = "http/streams.rs"]
mod streams;
#[path = "http/tenants.rs"]
mod tenants;
#[path = "http/tokens.rs"]
mod tokens;
#[path = "http/turns.rs"]
mod turns;
