//! T5: when sandboxes end by themselves. Whoever starts one tells its guest; a server that looks after it holds to it.

use super::Sandboxes;
use crate::{Result, ports::Record};
use seawall_api::{
    SandboxId,
    message::{Attend, GuestInfo},
};
use std::{sync::atomic::Ordering, time::Duration};

impl Sandboxes {
    /// Every sandbox of this machine as it is recorded, oldest first.
    pub async fn records(&self) -> Result<Vec<Record>> {
        self.inner.records.list().await
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
            Ok(guest) => guest.attend(attend(record, self.attended())).await.map(drop).map_err(Into::into),
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            tracing::warn!(sandbox = %record.id, error = %error.chain(), "a guest does not know its deadlines");
        }
    }

    /// For so long the caller looks after a sandbox that runs, and its guest does not end it.
    pub async fn look_after(&self, record: &Record, time: Duration) -> Result<GuestInfo> {
        Ok(self.client(record.id, &record.provider)?.attend(attend(record, time)).await?)
    }

    /// As [`Sandboxes::look_after`], by its id. What has no deadlines needs nobody.
    pub async fn look_after_id(&self, id: SandboxId, time: Duration) -> Result<()> {
        let record = self.record(id).await?;
        match record.spec.timeouts.is_empty() {
            true => Ok(()),
            false => self.look_after(&record, time).await.map(drop),
        }
    }
}

fn attend(record: &Record, time: Duration) -> Attend {
    let timeouts = record.spec.timeouts;
    Attend {
        idle_s: timeouts.idle_seconds,
        max_lifetime_s: timeouts.max_lifetime_seconds,
        for_s: time.as_secs(),
    }
}
