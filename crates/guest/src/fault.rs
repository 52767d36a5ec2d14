//! From errors of the kernel to faults that a host understands.

use rustix::io::Errno;
use seawall_api::{ErrorKind, Fault};
use std::io;

pub type Outcome<T> = Result<T, Fault>;

pub fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(ErrorKind::Invalid, message)
}

/// The kernel refused `what`.
pub fn from_errno(what: impl AsRef<str>, errno: Errno) -> Fault {
    let (kind, why): (_, &str) = match errno {
        Errno::NOENT => (ErrorKind::NotFound, "no such file or directory"),
        Errno::ACCESS | Errno::PERM => (ErrorKind::Denied, "permission denied"),
        Errno::ROFS => (ErrorKind::Denied, "the file system is read-only"),
        Errno::XDEV => (ErrorKind::Denied, "the path leads out of its root"),
        Errno::LOOP => (ErrorKind::Denied, "too many or forbidden links"),
        Errno::EXIST => (ErrorKind::AlreadyExists, "it exists already"),
        Errno::NOTEMPTY => (ErrorKind::Conflict, "the directory is not empty; remove it recursively"),
        Errno::NOTDIR => (ErrorKind::Invalid, "a part of the path is not a directory"),
        Errno::ISDIR => (ErrorKind::Invalid, "it is a directory"),
        Errno::NAMETOOLONG => (ErrorKind::Invalid, "a name is too long"),
        Errno::INVAL => (ErrorKind::Invalid, "invalid argument"),
        Errno::NOSPC | Errno::DQUOT => (ErrorKind::TooLarge, "no space left on the disk"),
        Errno::FBIG => (ErrorKind::TooLarge, "the file would be too large"),
        Errno::NODATA => (ErrorKind::NotFound, "no such attribute"),
        Errno::NOTSUP => (ErrorKind::Unsupported, "the file system cannot do that"),
        Errno::CONNREFUSED => (ErrorKind::NotFound, "nothing listens there"),
        Errno::ADDRINUSE => (ErrorKind::Conflict, "the port is taken"),
        Errno::MFILE | Errno::NFILE => (ErrorKind::Unavailable, "too many open files"),
        Errno::AGAIN | Errno::NOMEM => (ErrorKind::Unavailable, "no resources left; try again"),
        _ => (ErrorKind::Internal, ""),
    };
    let message = match why {
        "" => format!("{}: {}", what.as_ref(), io::Error::from(errno)),
        why => format!("{}: {why}", what.as_ref()),
    };
    Fault::new(kind, message).with_errno(errno.raw_os_error())
}

pub fn from_io(what: impl AsRef<str>, error: &io::Error) -> Fault {
    match error.raw_os_error() {
        Some(code) => from_errno(what, Errno::from_raw_os_error(code)),
        None => Fault::new(ErrorKind::Internal, format!("{}: {error}", what.as_ref())),
    }
}
