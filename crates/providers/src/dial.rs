//! The way to a guest that listens in its box's folder.

use crate::{boxes::no_box, watch::Truth};
use rustix::fs::{Mode, OFlags};
use seawall_api::{ErrorKind, SandboxId};
use seawall_core::{Error, Result, ports::BoxState};
use seawall_wire::Duplex;
use std::os::fd::AsRawFd;
use tokio::net::UnixStream;

/// Through the folder's descriptor: a socket's path has room for about a hundred bytes only.
pub async fn dial(truth: &dyn Truth, id: SandboxId) -> Result<Box<dyn Duplex>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(truth.boxes().of(id), flags, Mode::empty()).map_err(|_| no_box(id))?;
    match UnixStream::connect(format!("/proc/self/fd/{}/wire.sock", dir.as_raw_fd())).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => {
            let (kind, message) = match truth.info(id)?.state {
                BoxState::Running => (ErrorKind::Unavailable, format!("the guest of {id} does not answer")),
                _ => (ErrorKind::Stopped, format!("sandbox {id} does not run")),
            };
            Err(Error::new(kind, message).with_source(error))
        }
    }
}
