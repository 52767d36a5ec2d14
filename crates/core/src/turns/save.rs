//! The files, at the end of a turn.

use super::Turns;
use crate::{Error, Result, service::Wanted};
use seawall_api::{ErrorKind, event::Event, sandbox::SandboxState};
use seawall_sync::engine::{Direction, SyncReport};
use std::time::Duration;
use tokio::time::timeout;
use tracing::Instrument as _;

/// A bucket that does not answer holds up no answer longer than this.
const PUSH: Duration = Duration::from_secs(120);

impl Turns {
    /// S6, H8. A box that is gone is made again on its volume first, where the agent `worked` in it.
    pub(super) async fn push(&self, wanted: &Wanted, worked: bool) -> Result<Option<SyncReport>> {
        let service = &self.inner.service;
        let there = service.sandboxes.get(wanted.sandbox).await?.state;
        if there == SandboxState::Terminated || (there != SandboxState::Running && !worked) {
            return Ok(None);
        }
        let work = async {
            match there {
                SandboxState::Running => service.push(wanted).await,
                // Rare, and large.
                _ => Box::pin(service.rescue(wanted)).await,
            }
        };
        // Waiting for others of the account is no fault of the bucket's.
        let _permit = service.heavy.files.enter(wanted.account).await;
        let late = |_| {
            let why = format!("the bucket did not answer within {} s", PUSH.as_secs());
            Err(Error::new(ErrorKind::Timeout, why))
        };
        let work = work.instrument(tracing::info_span!("push"));
        let done = timeout(PUSH, work).await.unwrap_or_else(late);
        if let Err(error) = &done {
            // H8, wherever it failed.
            let marked = service.sandboxes.mark_unsynced(wanted.sandbox, Some(error.chain())).await;
            if let Err(error) = marked {
                tracing::error!(sandbox = %wanted.sandbox, error = %error.chain(), "that it is not synced could not be noted");
            }
        }
        done
    }
}

pub(super) fn pushed_event(report: &SyncReport) -> Option<Event> {
    let version = report.version.as_ref()?.timestamp;
    let stats = &report.stats;
    let pushed = !matches!(report.direction, Direction::Nothing);
    pushed.then_some(Event::WorkspacePushed {
        version,
        files_uploaded: stats.files_uploaded,
        bytes_transferred: stats.bytes_transferred,
    })
}
