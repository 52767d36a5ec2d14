//! The byte stream between a host process and a guest.
//!
//! [`mux`] shares one connection between many streams (the home of yamux), [`framed`] cuts a stream
//! into frames, [`handshake`] begins a connection. Those three are both sides'. With the feature
//! `host` come the link that reconnects and [`Guest`], the typed client of what a guest can do.
//!
//! Invariant: nothing that the other side sends makes this side allocate without a bound, wait without
//! an end, or panic.

mod coalesce;
pub mod error;
pub mod framed;
pub mod handshake;
pub mod mux;

#[cfg(feature = "host")]
mod guest;
#[cfg(feature = "host")]
mod link;
#[cfg(feature = "host")]
mod process;
#[cfg(feature = "host")]
mod raw;
#[cfg(feature = "host")]
mod transfer;
#[cfg(feature = "host")]
mod tunnel;

pub use error::{Error, Result};
#[cfg(feature = "host")]
pub use {
    guest::Guest,
    link::{Connector, LinkState},
    process::{Process, ProcessInput, ProcessOutput},
    raw::RawStream,
    transfer::{FileReader, FileWatch, FileWriter},
    tunnel::Listener,
};

use tokio::io::{AsyncRead, AsyncWrite};

/// A connection: bytes both ways.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Duplex for T {}
