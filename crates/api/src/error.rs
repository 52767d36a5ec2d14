//! Errors with a stable kind. The kind is for programs, the message is for people and says what to do.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What went wrong, as a program sees it. The names are part of the API and never change meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such sandbox, process, file or port.
    NotFound,
    /// It was there and was ended for good.
    Gone,
    /// The sandbox exists and does not run.
    Stopped,
    /// The command could not be started.
    ExecFailed,
    /// The other side cannot be reached now. Trying again may help.
    Unavailable,
    /// Not allowed: by permissions, or by the rules of the sandbox.
    Denied,
    /// It clashes with what is there, or with what somebody else does.
    Conflict,
    /// The request makes no sense as it is.
    Invalid,
    /// A limit was asked for that this host cannot enforce.
    LimitUnenforceable,
    /// It exists already.
    AlreadyExists,
    /// It took longer than allowed.
    Timeout,
    /// It is larger than allowed.
    TooLarge,
    /// The other side broke the protocol, or speaks another version of it.
    Protocol,
    /// This provider cannot do that.
    Unsupported,
    /// A fault of ours.
    #[serde(other)]
    Internal,
}

impl ErrorKind {
    pub const ALL: [ErrorKind; 15] = [
        ErrorKind::NotFound,
        ErrorKind::Gone,
        ErrorKind::Stopped,
        ErrorKind::ExecFailed,
        ErrorKind::Unavailable,
        ErrorKind::Denied,
        ErrorKind::Conflict,
        ErrorKind::Invalid,
        ErrorKind::LimitUnenforceable,
        ErrorKind::AlreadyExists,
        ErrorKind::Timeout,
        ErrorKind::TooLarge,
        ErrorKind::Protocol,
        ErrorKind::Unsupported,
        ErrorKind::Internal,
    ];

    /// The stable name, as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "not_found",
            ErrorKind::Gone => "gone",
            ErrorKind::Stopped => "stopped",
            ErrorKind::ExecFailed => "exec_failed",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Denied => "denied",
            ErrorKind::Conflict => "conflict",
            ErrorKind::Invalid => "invalid",
            ErrorKind::LimitUnenforceable => "limit_unenforceable",
            ErrorKind::AlreadyExists => "already_exists",
            ErrorKind::Timeout => "timeout",
            ErrorKind::TooLarge => "too_large",
            ErrorKind::Protocol => "protocol",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Internal => "internal",
        }
    }

    /// Whether the same call may succeed later, unchanged.
    pub fn is_retryable(self) -> bool {
        matches!(self, ErrorKind::Unavailable | ErrorKind::Timeout)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error as it travels: from a guest, over the wire, to whoever asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub kind: ErrorKind,
    pub message: String,
    /// The number the kernel gave, where it was the kernel that refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
}

impl Fault {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Fault { kind, message: message.into(), errno: None }
    }

    pub fn with_errno(mut self, errno: i32) -> Self {
        self.errno = Some(errno);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p9_kinds_have_stable_names() {
        for kind in ErrorKind::ALL {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{}\"", kind.as_str()));
            assert_eq!(serde_json::from_str::<ErrorKind>(&json).unwrap(), kind);
        }
    }

    #[test]
    fn a_kind_of_a_later_version_is_internal() {
        assert_eq!(serde_json::from_str::<ErrorKind>("\"quota\"").unwrap(), ErrorKind::Internal);
    }
}
