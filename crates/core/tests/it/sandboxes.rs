//! What `Sandboxes` does, on the mock provider: real wires, held time, and faults on demand.

mod attach;
mod create;
mod exec;
mod faults;
mod find;
mod lifecycle;
mod providers;
mod sweep;
mod watch;
mod world;
