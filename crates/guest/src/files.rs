//! Files of the box. The work happens on other threads, as the user named, beneath the root named.
//!
//! The kernel resolves every path: `openat2` with `RESOLVE_IN_ROOT` in the box's root, with `RESOLVE_BENEATH` below
//! `work` and `home`, and always with `RESOLVE_NO_MAGICLINKS`. No check precedes a later use, so there is no race.
//! Objects that are made, moved or removed are named by an open directory and one last name, and trees are walked
//! through descriptors with `O_NOFOLLOW`.

pub mod list;
pub mod meta;
pub mod read;
pub mod watch;
pub mod write;

use crate::{
    creds::{self, Identity, with_identity},
    fault::{Outcome, invalid},
    path::Clean,
    server::{Reader, Writer, answer},
    state::Guest,
    users,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use seawall_api::{
    ErrorKind, Fault,
    files::{FileName, FileRef, Root},
    message::Request,
};
use seawall_wire::Result;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// A file reference, looked up: whose rights, beneath what, where.
#[derive(Debug, Clone)]
pub struct Place {
    root: Arc<OwnedFd>,
    pub path: Clean,
    pub identity: Identity,
}

impl Place {
    pub fn new(guest: &Guest, file: &FileRef) -> Outcome<Place> {
        let user = guest.user(file.user.as_deref());
        let identity = creds::identity(user)?;
        let path = Clean::new(file.root, &file.path)?;
        let root = match file.root {
            Root::Box => guest.root.clone(),
            Root::Work => part_of(&guest.root, "/work")?,
            Root::Home => part_of(&guest.root, &home(guest, user)?)?,
        };
        Ok(Place { root, path, identity })
    }

    /// The same root and user, another path.
    pub fn at(&self, root: Root, path: &FileName) -> Outcome<Place> {
        Ok(Place { path: Clean::new(root, path)?, ..self.clone() })
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// As a path in the box. Where the box is a folder of the host, `$HOME` is the host's path to it.
fn home(guest: &Guest, user: Option<&str>) -> Outcome<String> {
    let home = match user {
        Some(name) => users::find(name)?.home,
        None => std::env::var("HOME").unwrap_or_else(|_| users::own().home),
    };
    let inside = std::path::Path::new(&home).strip_prefix(&guest.config.root);
    Ok(inside.map_or(home.clone(), |inside| format!("/{}", inside.display())))
}

fn part_of(root: &Arc<OwnedFd>, path: &str) -> Outcome<Arc<OwnedFd>> {
    let path = Clean::new(Root::Box, &FileName::from(path))?;
    Ok(Arc::new(path.open_dir(root.as_fd())?))
}

/// Does `work` on another thread with the rights of the place's user.
pub async fn off_thread<T: Send + 'static>(
    identity: Identity,
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    match spawn_blocking(move || with_identity(&identity, work)).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Fault::new(ErrorKind::Internal, format!("file work failed: {error}"))),
    }
}

/// Requests about files.
pub async fn serve(guest: &Guest, request: Request, reader: Reader, mut writer: Writer) -> Result<()> {
    match request {
        Request::Read(read) => read::serve(guest, read, writer).await,
        Request::Write(write) => write::serve(guest, write, reader, writer).await,
        Request::Watch(watch) => watch::serve(guest, watch, reader, writer).await,
        Request::List(list) => {
            let listed = match Place::new(guest, &list.dir) {
                Ok(place) => off_thread(place.identity.clone(), move || list::list(&place, &list)).await,
                Err(fault) => Err(fault),
            };
            answer(&mut writer, listed).await
        }
        other => meta::serve(guest, other, writer).await,
    }
}

/// A request that belongs elsewhere, or to a later version.
pub fn unknown() -> Fault {
    invalid("this guest does not know that request")
}
