//! Starting a server where none runs: in the background, or in this process where `SEAWALL_BACKGROUND=never`.

mod background;
mod hosted;

pub use background::{Background, FAILED, READY};
pub use hosted::Host;

use crate::{
    config::{Background as Setting, Settings},
    output,
    serving::{StartLock, info::Described, owned},
};
use anyhow::{Result, bail};
use async_trait::async_trait;
use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use seawall_api::{ErrorKind, http::LOCAL_SOCKET};
use seawall_client::Starter;
use std::{os::fd::AsRawFd, path::Path, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// How long a command waits for a server that is starting, or that is about to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer waits are explained.
const QUIET: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Makes a server run on the data folder. The caller holds the folder's start lock, and no process owns the folder.
#[async_trait]
pub trait Start: Send + Sync {
    /// Returns when the server answers.
    async fn start(&self, settings: &Settings, lock: &mut StartLock) -> Result<()>;

    /// Ends a server that is part of this process.
    async fn finish(&self);
}

/// The starter of a command's client.
pub struct OnDemand {
    settings: Settings,
    start: Arc<dyn Start>,
}

impl OnDemand {
    /// Creates the starter that the settings choose: in the background or in this process.
    pub fn new(settings: &Settings) -> OnDemand {
        let start: Arc<dyn Start> = match settings.background {
            Setting::Auto => Arc::new(Background),
            Setting::Never => Arc::new(Host::default()),
        };
        OnDemand { settings: settings.clone(), start }
    }

    /// Returns when a server listens. Only one process at a time starts one; the others wait for it.
    pub async fn ensure(&self) -> Result<()> {
        let data = &self.settings.data;
        let (begun, mut pause, mut told) = (Instant::now(), FIRST_PAUSE, false);
        loop {
            if listens(data)? {
                return Ok(());
            }
            if let Some(mut lock) = StartLock::try_take(data)? {
                if listens(data)? {
                    return Ok(());
                }
                if !owned::is_owned(data, &lock)? {
                    return self.start.start(&self.settings, &mut lock).await;
                }
                // The owner is just starting, or just ending: it has no socket.
            }
            if begun.elapsed() > PATIENCE {
                bail!("{}", silent(data));
            }
            if begun.elapsed() > QUIET && !told {
                told = true;
                output::note(waiting(data));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Ends a server that this process hosts.
    pub async fn finish(&self) {
        self.start.finish().await;
    }
}

fn waiting(data: &Path) -> String {
    match Described::read(data) {
        Some(found) if !found.is_ready => {
            format!("waiting for the server to start (pid {})", found.server.pid)
        }
        Some(found) => format!("waiting for the server that is ending (pid {})", found.server.pid),
        None => "waiting for another command that is starting the server".to_owned(),
    }
}

fn silent(data: &Path) -> String {
    let shown = data.display();
    match Described::read(data) {
        Some(found) => format!(
            "a server owns {shown} (pid {}) and has not answered for {} s: look at `seawall server logs`",
            found.server.pid,
            PATIENCE.as_secs()
        ),
        None => format!(
            "some process owns {shown} and is no server that answers: is a `seawall db restore` running?"
        ),
    }
}

#[async_trait]
impl Starter for OnDemand {
    async fn start(&self) -> seawall_client::Result<()> {
        self.ensure().await.map_err(|error| {
            seawall_client::Error::new(ErrorKind::Unavailable, crate::exit::message_of(&error))
        })
    }
}

/// Whether a server listens at the socket. It is not asked anything: one that has stopped answering is not absent.
pub fn listens(data: &Path) -> Result<bool> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(data, flags, Mode::empty())?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{LOCAL_SOCKET}", folder.as_raw_fd()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    use rustix::io::Errno;
    match rustix::net::connect(&socket, &address) {
        // A full backlog belongs to a server that lives.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(false),
        Err(Errno::ACCESS | Errno::PERM) => bail!(
            "the server of {} cannot be reached: its socket is for its own user and root",
            data.display()
        ),
        Err(error) => Err(error.into()),
    }
}
