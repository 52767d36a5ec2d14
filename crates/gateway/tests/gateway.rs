//! The gateway over real connections: boxes on one side, a server that plays the APIs on the other.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "support/client.rs"]
mod client;
#[path = "support/upstream.rs"]
mod upstream;

#[path = "gateway/budget.rs"]
mod budget;
#[path = "gateway/git.rs"]
mod git;
#[path = "gateway/limits.rs"]
mod limits;
#[path = "gateway/logs.rs"]
mod logs;
#[path = "gateway/metering.rs"]
mod metering;
#[path = "gateway/models.rs"]
mod models;
#[path = "gateway/time.rs"]
mod time;
#[path = "gateway/webhooks.rs"]
mod webhooks;
