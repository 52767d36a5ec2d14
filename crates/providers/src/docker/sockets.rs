//! The wire over sockets in a folder that is mounted into the container, where the daemon runs on this machine.
//!
//! For each connection the host binds a new socket in the folder, which the container can read and not write. The
//! guest dials each new socket once. Any process of the container can do the same, so each connection is checked,
//! and only one of the container's process 1 is kept.

use rustix::fs::{Mode, OFlags};
use seawall_api::SandboxId;
use std::{
    fs, io,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    time::sleep,
};

/// The pause after a connection that is not the guest's, so that a container that dials in a loop costs little.
const REFUSAL_PAUSE: Duration = Duration::from_millis(5);

/// A socket for one connection. Dropping it removes the socket.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The folder may be gone already, with its container.
        let _ = fs::remove_file(&self.path);
    }
}

impl Socket {
    pub fn bind(folder: &Path) -> io::Result<Socket> {
        let name = SandboxId::generate().to_string();
        // The path of a socket is limited to 108 bytes, so the folder is named by its descriptor.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(folder, flags, Mode::empty())?;
        let draft = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
        let listener = UnixListener::bind(&draft)?;
        // The guest dials names with this ending, so the name appears when the socket listens.
        let path = folder.join(format!("{name}.sock"));
        let socket = Socket { path, listener };
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
        fs::rename(&draft, &socket.path)?;
        Ok(socket)
    }

    /// Returns the connection of a container's process 1, which has the number `guest` on this machine.
    pub async fn accept(&self, guest: u32) -> io::Result<UnixStream> {
        let mut was_refused = false;
        loop {
            let (stream, _) = self.listener.accept().await?;
            let peer = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
            if peer == Some(guest) {
                return Ok(stream);
            }
            if !was_refused {
                tracing::warn!(
                    ?peer,
                    guest,
                    "a process that is not the guest dialled a host's socket and was refused"
                );
            }
            was_refused = true;
            sleep(REFUSAL_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[tokio::test]
    async fn only_the_expected_process_gets_in() {
        let dir = tempfile::tempdir().unwrap();
        let socket = Socket::bind(dir.path()).unwrap();
        let name = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let (own, other) = (std::process::id(), std::process::id() + 1);
        let _first = UnixStream::connect(&name).await.unwrap();
        let refused = timeout(Duration::from_millis(50), socket.accept(other)).await;
        assert!(refused.is_err(), "another process was taken for the guest");
        let _second = UnixStream::connect(&name).await.unwrap();
        assert!(socket.accept(own).await.is_ok());
        drop(socket);
        assert!(!name.exists());
    }
}
