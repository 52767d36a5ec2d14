//! Errors of making a sandbox, with a message and a code for the caller (V5).

use crate::Error;
use seawall_api::{ErrorKind, SandboxId};

/// V5.
pub(super) fn created(id: SandboxId, error: Error) -> Error {
    let code = match error.kind() {
        ErrorKind::Conflict | ErrorKind::AlreadyExists => "name_taken",
        ErrorKind::Invalid | ErrorKind::LimitUnenforceable | ErrorKind::Unsupported => "invalid_config",
        _ => "creation_failed",
    };
    // How much is free is the operator's to know, by `/ready` and the log.
    let why = match error.code() {
        "disk_reserve" => ": the data disk of the server is too full, and its operator has to make room",
        _ => "",
    };
    coded(code, format!("sandbox {id} could not be made{why}"), error)
}

pub(super) fn rebuilt(id: SandboxId, error: Error) -> Error {
    coded("reconstruction_failed", format!("sandbox {id} could not be made again"), error)
}

/// An error with more of a story, and a word for programs. A finer word that it has already stays.
pub(super) fn coded(code: &'static str, message: String, error: Error) -> Error {
    let code = if error.code() == error.kind().as_str() { code } else { error.code() };
    let limit = error.limit().cloned();
    let told = Error::new(error.kind(), message).with_code(code);
    let told = limit.into_iter().fold(told, Error::with_limit);
    told.with_source(error)
}
