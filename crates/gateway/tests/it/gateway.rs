//! The gateway over real connections: boxes on one side, a server that plays the APIs on the other.

mod client;
mod upstream;

mod budget;
mod git;
mod limits;
mod logs;
mod metering;
mod models;
mod time;
mod webhooks;
