//! The local socket of a server: how it is found, and how a server is started where none listens.

use crate::{Error, Result};
use async_trait::async_trait;
use rustix::fs::{CWD, Mode, OFlags};
use seawall_api::{ErrorKind, http::LOCAL_SOCKET};
use std::{
    error::Error as StdError,
    fmt, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Starts the server of a data folder.
#[async_trait]
pub trait Starter: Send + Sync {
    /// Returns when a server listens at the socket. Called where connecting to it failed because none does.
    async fn start(&self) -> Result<()>;
}

/// The socket in a data folder.
#[derive(Clone)]
pub struct LocalServer {
    data: PathBuf,
    starter: Option<Arc<dyn Starter>>,
}

impl fmt::Debug for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalServer").field("data", &self.data).finish_non_exhaustive()
    }
}

impl LocalServer {
    pub fn new(data: &Path) -> LocalServer {
        LocalServer { data: data.to_owned(), starter: None }
    }

    /// Starts a server where none listens.
    pub fn with_starter(mut self, starter: Arc<dyn Starter>) -> LocalServer {
        self.starter = Some(starter);
        self
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn starter(&self) -> Option<&Arc<dyn Starter>> {
        self.starter.as_ref()
    }

    /// Opens the data folder and returns the socket's path through its descriptor. That path is short: a socket address has
    /// room for about a hundred bytes.
    pub(crate) fn open(&self) -> Result<(OwnedFd, PathBuf)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, &self.data, flags, Mode::empty()).map_err(|error| {
            let shown = self.data.display();
            Error::new(ErrorKind::Unavailable, format!("the data folder {shown} cannot be opened: {error}"))
        })?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{LOCAL_SOCKET}", folder.as_raw_fd()));
        Ok((folder, path))
    }
}

/// Whether connecting failed because no server listens.
pub(crate) fn is_absent(error: &(dyn StdError + 'static)) -> bool {
    matches!(cause(error), Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused))
}

/// Whether this process may not connect to the socket.
pub(crate) fn is_forbidden(error: &(dyn StdError + 'static)) -> bool {
    cause(error) == Some(io::ErrorKind::PermissionDenied)
}

fn cause(error: &(dyn StdError + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        next = error.source();
    }
    None
}
