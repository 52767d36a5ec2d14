//! Turns over HTTP from end to end, on the real binary with the template `shell`: what a client sees that is killed and
//! comes back, and what is kept, whatever dies: the server, the box, the bucket, the disk, the database.

mod agents;
pub mod client;
mod crashes;
mod endings;
mod http;
mod outages;
mod owners;
pub mod served;
mod single;
mod streams;
mod tenants;
mod tokens;
mod turns;
