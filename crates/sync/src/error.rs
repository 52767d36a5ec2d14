//! Errors of a sync: what was being done, to which file, and whether trying again helps (S10).

use seawall_api::{ErrorKind, files::FileName};
use std::{error::Error as StdError, fmt};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    /// What was being done, e.g. "uploading".
    step: Option<&'static str>,
    /// The file or the object that it was done to.
    subject: Option<String>,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, step: None, subject: None, message: message.into(), source: None }
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

    pub fn not_found(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::NotFound, message)
    }

    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Names what was being done; the innermost word stays.
    pub fn during(mut self, step: &'static str) -> Self {
        self.step.get_or_insert(step);
        self
    }

    /// Names what it was done to; the innermost word stays.
    pub fn on(mut self, subject: impl fmt::Display) -> Self {
        self.subject.get_or_insert_with(|| subject.to_string());
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(step) = self.step {
            write!(f, "{step}")?;
        }
        if let Some(subject) = &self.subject {
            write!(f, "{}{subject}", if self.step.is_some() { " " } else { "" })?;
        }
        if self.step.is_some() || self.subject.is_some() {
            f.write_str(": ")?;
        }
        f.write_str(&self.message)?;
        match self.is_retryable() {
            true => f.write_str("; what was done is kept, and trying again is safe"),
            false => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// An error of the workspace's disk.
pub fn from_errno(path: &FileName, errno: rustix::io::Errno) -> Error {
    use rustix::io::Errno;
    let text = std::io::Error::from(errno).to_string();
    let (kind, advice) = match errno {
        Errno::NOSPC | Errno::DQUOT => (ErrorKind::Unavailable, "; make room, or give the sandbox more disk"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            (ErrorKind::Denied, "; the sandbox's user must be able to read and write it, e.g. chmod -R u+rwX")
        }
        Errno::NAMETOOLONG => (ErrorKind::Invalid, "; shorten its name or the names above it"),
        _ => (ErrorKind::Internal, ""),
    };
    Error::new(kind, format!("{text}{advice}")).on(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_an_error_names_step_and_file_and_says_that_trying_again_is_safe() {
        let error = Error::unavailable("connection reset").on("src/main.rs").during("uploading");
        assert_eq!(
            error.during("syncing").on("docs/x").to_string(),
            "uploading src/main.rs: connection reset; what was done is kept, and trying again is safe"
        );
    }

    #[test]
    fn s10_a_refusal_suggests_the_fix() {
        let error = from_errno(&FileName::from("secret"), rustix::io::Errno::ACCESS);
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("chmod"), "{error}");
    }
}
