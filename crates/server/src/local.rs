//! The local socket: how a server listens in its data folder, and who its peers are.
//!
//! The socket has mode 0600, so only processes of the server's user and of root connect. The kernel reports the uid of every
//! peer (SO_PEERCRED); [`LocalPeer`]s that are the operator need no key (see [`crate::auth`]).

use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use seawall_api::{account::LocalPeer, http::LOCAL_SOCKET};
use std::{
    fs::Permissions,
    io,
    net::SocketAddr,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
};
use tokio::net::{UnixListener, UnixStream};

/// Connections that may wait until they are accepted. Many commands can start at the same moment.
const BACKLOG: i32 = 4096;

/// The other end of a connection. It is in the extensions of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Remote(SocketAddr),
    Local(LocalPeer),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Remote(address) => address.fmt(f),
            Peer::Local(LocalPeer { uid, pid }) => write!(f, "uid {uid}, pid {pid}"),
        }
    }
}

impl Peer {
    /// The process at the other end of a Unix socket, as the kernel reports it.
    pub fn of(stream: &UnixStream) -> io::Result<Peer> {
        let found = stream.peer_cred()?;
        // 0 stands for a process that this PID namespace does not contain.
        let pid = found.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        Ok(Peer::Local(LocalPeer { uid: found.uid(), pid }))
    }

    /// The peer, if it is the operator: a process of the server's user or of root. A process of another PID namespace is a
    /// stranger, and so is a user that this user namespace does not map.
    pub fn operator(&self) -> Option<LocalPeer> {
        let Peer::Local(peer) = self else { return None };
        let own = rustix::process::geteuid().as_raw();
        let is_ours = peer.uid == own || peer.uid == 0;
        (is_ours && peer.pid != 0 && Some(peer.uid) != overflow_uid()).then_some(*peer)
    }
}

/// The uid that the kernel reports for users that are not mapped here.
fn overflow_uid() -> Option<u32> {
    static UID: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    *UID.get_or_init(|| std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok())
}

/// A socket in a data folder. Only the holder of the folder's lock may bind one.
#[derive(Debug)]
pub struct LocalSocket {
    listener: UnixListener,
    /// Keeps the path short, whatever the folder's path is, and the folder the same if it is renamed.
    folder: OwnedFd,
    shown: PathBuf,
}

impl LocalSocket {
    /// Binds the socket of a data folder in place of one that a dead server left. The socket appears under its name when it
    /// listens and has its mode.
    pub fn bind(data: &Path) -> io::Result<LocalSocket> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(data, flags, Mode::empty())?;
        let listener = open(&folder)?;
        Ok(LocalSocket { listener, folder, shown: data.join(LOCAL_SOCKET) })
    }

    pub fn path(&self) -> &Path {
        &self.shown
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    /// Refuses new clients from now on. Clients that connected before are still in the backlog.
    pub(crate) fn refuse(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read)?)
    }

    /// Listens again, on a new socket under the same name.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        self.listener = open(&self.folder)?;
        Ok(())
    }

    /// A connection that waits in the backlog, if there is one now.
    pub(crate) fn accept_waiting(&self) -> io::Result<Option<UnixStream>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.listener, flags) {
            Ok(stream) => Ok(Some(UnixStream::from_std(stream.into())?)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the name at the end of the server.
    pub(crate) fn remove(&self) {
        let _ = rustix::fs::unlinkat(&self.folder, LOCAL_SOCKET, rustix::fs::AtFlags::empty());
    }

    /// Whether the socket is still under its name. A clean-up of old files may have deleted it.
    pub fn is_reachable(&self) -> bool {
        rustix::fs::statat(&self.folder, LOCAL_SOCKET, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }
}

/// Binds a socket under a name of its own, and renames it when it listens and has its mode.
fn open(folder: &OwnedFd) -> io::Result<UnixListener> {
    let draft = format!(".{LOCAL_SOCKET}.{}", std::process::id());
    let _ = rustix::fs::unlinkat(folder, draft.as_str(), rustix::fs::AtFlags::empty());
    let listener = listen(&within(folder, &draft))?;
    // A mount that refuses the mode has the folder's protection, and strangers need a key in any case.
    let _ = std::fs::set_permissions(within(folder, &draft), Permissions::from_mode(0o600));
    rustix::fs::renameat(folder, draft.as_str(), folder, LOCAL_SOCKET)?;
    UnixListener::from_std(listener)
}

/// A path that is short enough for a socket's address.
fn within(folder: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

fn listen(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, pid: u32) -> Option<LocalPeer> {
        Peer::Local(LocalPeer { uid, pid }).operator()
    }

    #[test]
    fn k12_only_the_servers_user_and_root_are_the_operator() {
        let own = rustix::process::geteuid().as_raw();
        assert!(peer(own, 7).is_some() && peer(0, 7).is_some());
        assert_eq!(peer(own.wrapping_add(4321), 7), None);
        assert_eq!(peer(own, 0), None, "it is of another PID namespace");
        assert_eq!(peer(65534, 7), None, "its user is not mapped");
        assert_eq!(Peer::Remote(([127, 0, 0, 1], 1).into()).operator(), None);
    }

    #[tokio::test]
    async fn a_socket_is_bound_in_place_of_a_stale_one_below_a_long_path() {
        let data = tempfile::tempdir().unwrap();
        let deep = data.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        drop(LocalSocket::bind(&deep).unwrap());
        let mut socket = LocalSocket::bind(&deep).unwrap();
        let mode = std::fs::metadata(deep.join(LOCAL_SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let path = within(&socket.folder, LOCAL_SOCKET);
        let client = UnixStream::connect(&path).await.unwrap();
        let accepted = socket.accept().await.unwrap();
        assert!(Peer::of(&accepted).unwrap().operator().is_some());
        // Clients of before are not lost, and later ones are refused until it listens again.
        let _early = UnixStream::connect(&path).await.unwrap();
        socket.refuse().unwrap();
        assert!(UnixStream::connect(&path).await.is_err());
        assert!(socket.accept_waiting().unwrap().is_some());
        assert!(socket.accept_waiting().unwrap().is_none());
        socket.reopen().unwrap();
        drop((client, UnixStream::connect(&path).await.unwrap()));
        socket.remove();
        assert!(!socket.is_reachable());
    }
}
