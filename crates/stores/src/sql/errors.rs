//! Errors of databases as ours: which of them may pass.

use seawall_api::ErrorKind;
use seawall_core::Error;
use sqlx::error::ErrorKind as SqlKind;

/// States of PostgreSQL that pass: it shuts down, crashed, starts, has too many connections, or two transactions
/// stood in each other's way or waited too long.
const PASSING: [&str; 8] = ["57P01", "57P02", "57P03", "53300", "40001", "40P01", "55P03", "25P03"];

pub fn from_sqlx(error: sqlx::Error) -> Error {
    let (kind, message) = match &error {
        sqlx::Error::Database(found) => match found.kind() {
            SqlKind::UniqueViolation => (ErrorKind::AlreadyExists, "it exists already"),
            SqlKind::ForeignKeyViolation => (ErrorKind::NotFound, "what it belongs to is not there"),
            _ => of_code(found.code().as_deref().unwrap_or_default(), found.message()),
        },
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_) => (ErrorKind::Unavailable, "the database cannot be reached now"),
        _ => (ErrorKind::Internal, "the database refused a statement"),
    };
    Error::new(kind, message).with_source(error)
}

fn of_code(code: &str, text: &str) -> (ErrorKind, &'static str) {
    // The file beside it cannot grow (SQLITE_IOERR_SHMSIZE): nothing else says so where it is the first to need room.
    if code == "4874" {
        return (ErrorKind::Unavailable, "the disk of the database is full");
    }
    // SQLite's codes are numbers; the lowest eight bits are the primary one.
    match code.parse::<u32>().map(|number| number & 0xff) {
        Ok(5 | 6) => return (ErrorKind::Unavailable, "the database is busy"),
        Ok(13) => return (ErrorKind::Unavailable, "the disk of the database is full"),
        Ok(11 | 26) => return (ErrorKind::Internal, "the database is damaged; restore a backup"),
        Ok(8) => {
            return (ErrorKind::Denied, "the database cannot be written: its file or folder is read-only");
        }
        _ => {}
    }
    match code {
        code if PASSING.contains(&code) || code.starts_with("08") => {
            (ErrorKind::Unavailable, "the database cannot be reached now")
        }
        "53100" => (ErrorKind::Unavailable, "the disk of the database is full"),
        _ if text.contains("terminating connection") => {
            (ErrorKind::Unavailable, "the database cannot be reached now")
        }
        _ => (ErrorKind::Internal, "the database refused a statement"),
    }
}
