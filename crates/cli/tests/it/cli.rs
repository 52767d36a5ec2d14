//! The binary from end to end, on the local provider, each test in a data folder of its own.

mod copy;
mod lifecycle;
mod logs;
mod run;
mod sync;
mod timeouts;
