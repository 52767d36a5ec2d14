//! The server's HTTP on the loopback of a box ([`HttpGateway`]), and its calls to others' servers
//! ([`HttpWebhooks`]).
//!
//! A box is hostile, and these hold whatever it sends:
//!
//! - **Keys never reach a box.** They are added to what goes out, as headers that are marked as secret;
//!   redirects are not followed, so that no key travels elsewhere; no error tells of one; where an API
//!   refuses our key, its own words, which may quote it, are not passed on.
//! - **What is reached is decided here.** Paths come from a table, or are equal to the one repository's, byte
//!   by byte. No credential, no `Host` and no hop-by-hop header of a box goes out.
//! - **What is used is counted.** Answers pass unchanged and at once, while their `usage` is read; it is
//!   added to the meter once, when the answer ends, breaks off, or the box hangs up.
//! - **What is limited is reserved first.** A request of an account with a token limit goes out only once its
//!   estimate (`estimate`) is reserved; an answer that does not tell what it used costs the estimate.
//! - **Memory is bounded.** Requests to models are read whole, up to 32 MiB each and 128 MiB for each sandbox, within
//!   five minutes, and each byte is reserved from the server's budget in the name of the account before it is kept; all
//!   else streams. Reading `usage` takes the same few kilobytes however long an answer is.
//! - **Nobody else's server is waited for without an end**, and no input makes anything panic.
//!
//! Start with `gateway`, then `models` and `git`.

mod answer;
mod ask;
mod body;
mod count;
mod estimate;
mod exchange;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gateway;
mod git;
mod headers;
mod models;
mod room;
mod scan;
mod settings;
mod upstream;
mod webhooks;

pub use gateway::HttpGateway;
pub use settings::{GatewaySettings, Upstream};
pub use webhooks::HttpWebhooks;
