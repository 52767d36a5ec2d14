//! What can go wrong with a call: the server said so, or nothing could be heard of it.

use crate::LocalServer;
use reqwest::{StatusCode, Url};
use seawall_api::{ErrorKind, http::Problem};
use std::{error::Error as StdError, fmt};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How much of an answer that is not ours is shown.
const SHOWN: usize = 200;

/// A call that failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// None: there was no answer.
    pub status: Option<u16>,
    /// What the server said; where it said nothing, what this side knows.
    pub problem: Box<Problem>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.detail)?;
        // The server tells its own faults to its log alone.
        if self.kind() == ErrorKind::Internal && !self.problem.request_id.is_empty() {
            write!(f, " (the server's log has it under request {})", self.problem.request_id)?;
        }
        Ok(())
    }
}

impl StdError for Error {}

impl Error {
    /// Of this side: there was no answer, or none that could be used.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error {
            status: None,
            problem: Box::new(Problem {
                type_: "about:blank".to_owned(),
                title: "No answer".to_owned(),
                status: 0,
                code: kind.as_str().to_owned(),
                detail: detail.into(),
                request_id: String::new(),
                retryable: kind.is_retryable(),
                limit: None,
                nothing_done: false,
            }),
        }
    }

    /// For programs: stable.
    pub fn code(&self) -> &str {
        &self.problem.code
    }

    /// The kind that the code names; where it says more than a kind, what the status means.
    pub fn kind(&self) -> ErrorKind {
        let named = ErrorKind::ALL.into_iter().find(|kind| kind.as_str() == self.problem.code);
        named.unwrap_or_else(|| kind_of(self.status.unwrap_or(0)))
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.problem.retryable
    }

    /// Whether a seawall server answered. Else nobody did, or something between it and us.
    pub(crate) fn is_answer(&self) -> bool {
        self.status.is_some() && !self.problem.request_id.is_empty()
    }

    /// An answer that is no success.
    pub(crate) fn answered(status: StatusCode, body: &[u8]) -> Error {
        let problem = match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => problem,
            Err(_) => not_ours(status, body),
        };
        Error { status: Some(status.as_u16()), problem: Box::new(problem) }
    }

    /// No answer, or half of one.
    pub(crate) fn broken(server: &Url, error: &reqwest::Error) -> Error {
        let (cause, server) = (root(error), shown(server));
        let detail = if cause.contains("certificate") {
            format!(
                "the certificate of {server} is not trusted here ({cause}): SSL_CERT_FILE may name one that is"
            )
        } else if error.is_connect() {
            format!(
                "cannot reach {server} ({cause}): is the server running? `seawall serve` starts one; is the address right?"
            )
        } else {
            format!("the connection to {server} broke before the answer was whole ({cause})")
        };
        Error::new(ErrorKind::Unavailable, detail)
    }

    /// The socket of a server on this machine could not be used.
    pub(crate) fn local(
        server: &LocalServer,
        error: &reqwest::Error,
        absent: bool,
        forbidden: bool,
    ) -> Error {
        let (cause, data) = (root(error), server.data().display());
        if forbidden {
            let detail = format!(
                "the server of {data} cannot be reached ({cause}): its socket is for its own user and root. As another user, or                  inside a sandbox, use --server with a key"
            );
            return Error::new(ErrorKind::Denied, detail);
        }
        let detail = match absent {
            true => format!("no server runs on {data}: `seawall serve` starts one"),
            false => {
                format!("the connection to the server of {data} broke before the answer was whole ({cause})")
            }
        };
        Error::new(ErrorKind::Unavailable, detail)
    }

    /// An answer that cannot be read.
    pub(crate) fn unreadable(what: &str, why: impl fmt::Display) -> Error {
        let detail = format!("the server's {what} cannot be read ({why}): is it another version of seawall?");
        Error::new(ErrorKind::Protocol, detail)
    }
}

fn kind_of(status: u16) -> ErrorKind {
    match status {
        400 | 405 | 415 | 416 => ErrorKind::Invalid,
        401 | 403 => ErrorKind::Denied,
        404 => ErrorKind::NotFound,
        409 => ErrorKind::Conflict,
        410 => ErrorKind::Gone,
        413 => ErrorKind::TooLarge,
        422 => ErrorKind::ExecFailed,
        429 | 503 => ErrorKind::Unavailable,
        501 => ErrorKind::Unsupported,
        502 => ErrorKind::Protocol,
        504 => ErrorKind::Timeout,
        _ => ErrorKind::Internal,
    }
}

/// Something between us and the server answered, or something else is at the address.
fn not_ours(status: StatusCode, body: &[u8]) -> Problem {
    let kind = kind_of(status.as_u16());
    let said: String = String::from_utf8_lossy(body).trim().chars().take(SHOWN).collect();
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    Problem {
        type_: "about:blank".to_owned(),
        title: status.canonical_reason().unwrap_or("Unknown").to_owned(),
        status: status.as_u16(),
        code: kind.as_str().to_owned(),
        detail: format!("the answer was {status}, and not from a seawall server{said}"),
        request_id: String::new(),
        // A proxy says so while the server behind it is started again.
        retryable: kind.is_retryable() || status == StatusCode::BAD_GATEWAY,
        limit: None,
        // Whoever answered, 429 is a refusal.
        nothing_done: status == StatusCode::TOO_MANY_REQUESTS,
    }
}

/// Without what may be secret in an address.
fn shown(server: &Url) -> String {
    server.origin().ascii_serialization()
}

/// The cause of all causes says the most.
pub(crate) fn root(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(code: &str, status: u16) -> Vec<u8> {
        let problem = serde_json::json!({
            "type": "about:blank", "title": "x", "status": status, "code": code, "detail": "why",
            "request_id": "r1", "retryable": false,
        });
        problem.to_string().into_bytes()
    }

    #[test]
    fn the_code_is_the_kind_or_says_more() {
        let of = |code, status: u16| {
            Error::answered(StatusCode::from_u16(status).unwrap(), &problem(code, status)).kind()
        };
        assert_eq!(of("stopped", 409), ErrorKind::Stopped);
        assert_eq!(of("limit_unenforceable", 422), ErrorKind::LimitUnenforceable);
        assert_eq!(of("key_expired", 403), ErrorKind::Denied);
        assert_eq!(of("waking", 503), ErrorKind::Unavailable);
        assert_eq!(of("rate_limited", 429), ErrorKind::Unavailable);
    }

    #[test]
    fn what_others_answer_is_shown() {
        let error = Error::answered(StatusCode::BAD_GATEWAY, b"<h1>nginx</h1>");
        assert_eq!((error.status, error.kind()), (Some(502), ErrorKind::Protocol));
        assert!(error.to_string().contains("nginx"), "{error}");
        assert!(Error::answered(StatusCode::NOT_FOUND, b"").to_string().contains("404"));
    }

    #[test]
    fn faults_of_the_server_name_their_request() {
        let error = Error::answered(StatusCode::INTERNAL_SERVER_ERROR, &problem("internal", 500));
        assert!(error.to_string().contains("r1"), "{error}");
        let error = Error::answered(StatusCode::NOT_FOUND, &problem("not_found", 404));
        assert_eq!(error.to_string(), "why");
    }
}
