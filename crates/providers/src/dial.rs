//! The way to a guest that listens in its box's folder.

use crate::{boxes::no_box, watch::Truth};
use rustix::fs::{Mode, OFlags};
use seawall_api::{ErrorKind, SandboxId, sandbox::EndReason};
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
            let info = truth.info(id)?;
            let (kind, message) = match (info.state, info.reason) {
                (BoxState::Running, _) => {
                    (ErrorKind::Unavailable, format!("the guest of {id} does not answer"))
                }
                (BoxState::Damaged, _) => (
                    ErrorKind::Unavailable,
                    format!("sandbox {id} is damaged, and does not answer; remove it"),
                ),
                (_, Some(EndReason::Failed(why))) if why == "oom" => {
                    let message =
                        format!("sandbox {id} does not run: it reached its limit `memory_mb` (failed: oom)");
                    (ErrorKind::Stopped, message)
                }
                (_, Some(reason)) => (ErrorKind::Stopped, format!("sandbox {id} does not run: {reason}")),
                (_, None) => (ErrorKind::Stopped, format!("sandbox {id} does not run")),
            };
            Err(Error::new(kind, message).with_source(error))
        }
    }
}
