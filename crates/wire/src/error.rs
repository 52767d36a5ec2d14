//! What can go wrong between a host and a guest.

use seawall_api::{ErrorKind, Fault, frame::FrameError};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The guest answered with an error.
    #[error("{0}")]
    Guest(#[from] Fault),
    /// No connection to the guest could be made.
    #[error("cannot reach the guest: {message}")]
    Unreachable { kind: ErrorKind, message: String },
    /// The connection ended before the answer was whole.
    #[error("the wire to the guest broke: {0}")]
    Broken(String),
    /// The guest sent what it must not.
    #[error("the guest broke the protocol: {0}")]
    Protocol(String),
    /// It did not answer in time.
    #[error("no answer from the guest: {0}")]
    Timeout(String),
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Guest(fault) => fault.kind,
            Error::Unreachable { kind, .. } => *kind,
            Error::Broken(_) => ErrorKind::Unavailable,
            Error::Protocol(_) => ErrorKind::Protocol,
            Error::Timeout(_) => ErrorKind::Timeout,
        }
    }

    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// Whether a new connection may help: the guest itself said nothing.
    pub fn is_broken_wire(&self) -> bool {
        matches!(self, Error::Broken(_) | Error::Timeout(_))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::Broken(error.to_string())
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        Error::Protocol(error.to_string())
    }
}
