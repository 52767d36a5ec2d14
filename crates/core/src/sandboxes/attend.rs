//! T5: when sandboxes end by themselves. Whoever starts one tells its guest; a server that looks after it holds to it.
//!
//! The guest counts as use the requests that it is serving. Each round of the reaper suspends the guest's deadlines
//! for the next 180 s, and a turn suspends them for its whole time, so the server decides and can push first. Without
//! a server the guest ends the box itself, and the next server starts it once more to save its files.

use super::{Sandboxes, no_sandbox};
use crate::{
    Result, lifecycle,
    ports::{
        Record, RecordHead,
        store::{Cursor, Page, Paged},
    },
};
use seawall_api::{
    SandboxId,
    message::{Attend, GuestInfo},
    sandbox::{EndReason, SandboxState, Timeouts},
};
use std::{sync::atomic::Ordering, time::Duration};

/// How many heads of records a round holds at a time.
const HEADS: u32 = 100;

impl Sandboxes {
    /// The next page of this machine's records, oldest first, without what users put into them. For rounds: they hold one page
    /// at a time.
    pub async fn heads(&self, after: Option<Cursor>) -> Result<Paged<RecordHead>> {
        self.inner.records.heads(&Page { limit: HEADS, after }).await
    }

    pub(crate) async fn head(&self, id: SandboxId) -> Result<Option<RecordHead>> {
        self.inner.records.head(id).await
    }

    /// The state of a recorded sandbox, as its box is now.
    pub(crate) async fn state_of(&self, head: &RecordHead) -> Result<(SandboxState, Option<EndReason>)> {
        let found = self.find_box(&head.provider, head.id).await?;
        Ok(lifecycle::reconcile(head.state, head.reason.as_ref(), found.as_ref()))
    }

    /// From now on this process ends what is over, and comes by at least so often.
    pub fn attend_all(&self, time: Duration) {
        self.inner.attended.store(time.as_secs(), Ordering::Relaxed);
    }

    /// How long a guest may rely on this process.
    pub(crate) fn attended(&self) -> Duration {
        Duration::from_secs(self.inner.attended.load(Ordering::Relaxed))
    }

    /// A guest that nobody looks after keeps to these times.
    pub(super) async fn set_deadlines(&self, record: &Record) {
        if record.spec.timeouts.is_empty() {
            return;
        }
        let told = match self.client(record.id, &record.provider) {
            Ok(guest) => guest
                .attend(attend(record.spec.timeouts, self.attended()))
                .await
                .map(drop)
                .map_err(Into::into),
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            tracing::warn!(sandbox = %record.id, error = %error.chain(), "a guest does not know its deadlines");
        }
    }

    /// For so long the caller looks after a sandbox that runs, and its guest does not end it.
    pub async fn look_after(&self, head: &RecordHead, time: Duration) -> Result<GuestInfo> {
        Ok(self.client(head.id, &head.provider)?.attend(attend(head.timeouts, time)).await?)
    }

    /// As [`Sandboxes::look_after`], by its id. What has no deadlines needs nobody.
    pub async fn look_after_id(&self, id: SandboxId, time: Duration) -> Result<()> {
        let head = self.head(id).await?.ok_or_else(|| no_sandbox(id))?;
        match head.timeouts.is_empty() {
            true => Ok(()),
            false => self.look_after(&head, time).await.map(drop),
        }
    }
}

fn attend(timeouts: Timeouts, time: Duration) -> Attend {
    Attend {
        idle_s: timeouts.idle_seconds,
        max_lifetime_s: timeouts.max_lifetime_seconds,
        for_s: time.as_secs(),
    }
}
