//! Connections that the guest makes: it dials hosts that listen in a folder of the container.
//!
//! A host on the same machine binds a socket for each connection that it wants, in a folder that is mounted into the
//! container, and checks who connects. The guest dials each new socket once.

use crate::{server::Connections, state::Guest};
use rustix::{
    fd::OwnedFd,
    fs::inotify::{self, CreateFlags, WatchFlags},
};
use std::{
    collections::HashSet,
    ffi::OsString,
    io,
    mem::MaybeUninit,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};
use tokio::{io::unix::AsyncFd, net::UnixStream, task::spawn_local, time::sleep};

/// The poll interval of a folder that inotify cannot watch: the kernel has one limit of watchers for all containers.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Dials each host that listens in a folder, for as long as the guest runs.
pub async fn serve(guest: Rc<Guest>, folder: PathBuf) {
    let connections = Rc::new(Connections::new(guest));
    let watch = watch(&folder).map_err(|error| crate::say!("{}: {error}", folder.display())).ok();
    let mut dialled = HashSet::new();
    loop {
        let present = sockets(&folder);
        dialled.retain(|name| present.contains(name));
        for name in present {
            if dialled.insert(name.clone()) {
                spawn_local(dial(connections.clone(), folder.join(name)));
            }
        }
        match &watch {
            Some(watch) => changed(watch).await,
            None => sleep(POLL_INTERVAL).await,
        }
    }
}

async fn dial(connections: Rc<Connections>, socket: PathBuf) {
    let slot = connections.slot().await;
    match UnixStream::connect(&socket).await {
        Ok(stream) => connections.serve(stream, slot).await,
        // The host needs the connection no longer.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
        Err(error) => crate::say!("{}: {error}", socket.display()),
    }
}

/// The sockets of hosts. A socket that does not listen yet has another ending.
fn sockets(folder: &Path) -> HashSet<OsString> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().ends_with(".sock")).collect()
}

fn watch(folder: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&inotify, folder, WatchFlags::MOVED_TO | WatchFlags::DELETE)?;
    crate::poll::watch(inotify)
}

/// Waits for a change of the folder, and takes all events that are queued.
async fn changed(watch: &AsyncFd<OwnedFd>) {
    let Ok(mut ready) = watch.readable().await else { return sleep(POLL_INTERVAL).await };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch.get_ref(), &mut buffer);
    while reader.next().is_ok() {}
    ready.clear_ready();
}
