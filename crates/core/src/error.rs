//! The error of core and of everything behind its ports: a stable kind, a message that says what to
//! do, and the cause.

use crate::host_paths;
use seawall_api::{AccountId, ErrorKind, Fault, account::LimitUse};
use std::error::Error as StdError;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    /// Says more than the kind, where there is more to say.
    code: Option<&'static str>,
    message: String,
    /// The limit of an account that refused the request.
    limit: Option<Box<LimitUse>>,
    /// Whether it is certain that the call changed nothing.
    no_effect: bool,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, code: None, message: message.into(), limit: None, no_effect: false, source: None }
    }

    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A stable word for programs, finer than the kind (V5).
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Names the limit of an account that refused the request, with its value and what is in use.
    pub fn with_limit(mut self, limit: LimitUse) -> Self {
        self.limit = Some(Box::new(limit));
        self
    }

    /// The limit that refused the request. `None` where it was something else.
    pub fn limit(&self) -> Option<&LimitUse> {
        self.limit.as_deref()
    }

    /// States that the call changed nothing, so that the same call may be made again. Only for refusals that come before the
    /// first change.
    pub fn without_effect(mut self) -> Self {
        self.no_effect = true;
        self
    }

    /// True where it is certain that the call changed nothing. False says nothing about it.
    pub fn had_no_effect(&self) -> bool {
        self.no_effect
    }

    /// A request beyond a number that the service allows: its name, its value, what is in use, and what to do.
    pub fn limit_reached(name: &str, value: u64, used: u64, advice: &str) -> Self {
        let message = format!("the limit `{name}` is {value}, in use: {used}; {advice}");
        let limit = LimitUse { name: name.to_owned(), value: Some(value as f64), used: Some(used as f64) };
        Error::new(ErrorKind::Denied, message).with_code("limit_reached").with_limit(limit)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::NotFound, message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Conflict, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Unavailable, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Internal, message)
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The code; else the kind's name.
    pub fn code(&self) -> &'static str {
        self.code.unwrap_or(self.kind.as_str())
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    /// As [`Error::chain`], for an account: paths of this machine are the operator's alone.
    pub fn told_to(&self, account: AccountId) -> String {
        let chain = self.chain();
        match account {
            AccountId::LOCAL => chain,
            _ => host_paths::redact(&chain).into_owned(),
        }
    }

    /// The message with its causes, for logs and for people.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut next = self.source();
        while let Some(cause) = next {
            let cause_text = cause.to_string();
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            next = cause.source();
        }
        text
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::new(fault.kind, cut(fault.message))
    }
}

impl From<seawall_wire::Error> for Error {
    fn from(error: seawall_wire::Error) -> Self {
        Error::new(error.kind(), cut(error.to_string()))
    }
}

/// What a guest says of a failure may be as long as a frame, and is stored and shown.
const LONGEST: usize = 4 << 10;

pub(crate) fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    text
}
