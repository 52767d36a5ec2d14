//! The reaper: what is over ends, what is not saved is saved, what nobody uses is stopped.
//!
//! A round looks at every sandbox of this machine once. It pushes before it ends anything, and what cannot be pushed
//! is kept (H8). Guests hold the same deadlines for the time when nobody runs rounds.

use crate::{Result, Turns, ports::Record, service::SandboxService};
use jiff::Timestamp;
use seawall_api::{
    SandboxId,
    message::GuestInfo,
    sandbox::{EndReason, SandboxState},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout};

/// How long processes may take to end.
const GRACE: Duration = Duration::from_secs(5);
/// For so long after a look guests leave everything to the next one.
const LOOKED_AFTER: Duration = Duration::from_secs(30);
/// How long a guest may take to answer, and a bucket to take what is new.
const PATIENCE: Duration = Duration::from_secs(10);
const PUSH: Duration = Duration::from_secs(600);
/// Between tries to push what a bucket did not take.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What a round did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reaped {
    pub ended: Vec<(SandboxId, EndReason)>,
    /// Work that no bucket had, and one has now.
    pub pushed: Vec<SandboxId>,
    /// Work that no bucket has, still.
    pub kept: Vec<SandboxId>,
}

#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Instant,
    pause: Duration,
}

#[derive(Clone, Debug)]
pub struct Reaper {
    service: SandboxService,
    turns: Turns,
    retries: Arc<Mutex<HashMap<SandboxId, Retry>>>,
}

impl Reaper {
    pub fn new(service: SandboxService, turns: Turns) -> Reaper {
        service.boxes().attend_all(LOOKED_AFTER);
        Reaper { service, turns, retries: Arc::default() }
    }

    /// One look at everything. What fails for one sandbox is told, and the others are looked at all the same.
    pub async fn round(&self) -> Result<Reaped> {
        let mut reaped = Reaped::default();
        let busy = self.turns.busy_sandboxes().await?;
        for record in self.service.boxes().records().await? {
            let id = record.id;
            if let Err(error) = self.look_at(record, &busy, &mut reaped).await {
                tracing::warn!(sandbox = %id, error = %error.chain(), "a sandbox could not be looked after");
            }
        }
        Ok(reaped)
    }

    /// Says to every guest that somebody is there. Apart from rounds, in which a push may take its time.
    pub async fn attend(&self) -> Result<()> {
        for record in self.service.boxes().records().await? {
            let limited = !record.spec.timeouts.is_empty() && record.state == SandboxState::Running;
            if limited && self.service.boxes().get(record.id).await?.state == SandboxState::Running {
                // One that does not answer is told of by the round.
                let _ = timeout(PATIENCE, self.service.boxes().look_after(&record, LOOKED_AFTER)).await;
            }
        }
        Ok(())
    }

    async fn look_at(&self, record: Record, busy: &HashSet<SandboxId>, reaped: &mut Reaped) -> Result<()> {
        let now = self.service.boxes().get(record.id).await?;
        let is_busy = busy.contains(&record.id);
        match now.state {
            SandboxState::Running => self.running(record, is_busy, reaped).await,
            // Its guest ended it while nobody looked: what it has is saved now.
            SandboxState::Stopped if record.state == SandboxState::Running && !is_busy => {
                let reason = now.reason.unwrap_or(EndReason::Stopped);
                let ended_itself = matches!(reason, EndReason::Idle | EndReason::MaxLifetime);
                if ended_itself || record.unsynced.is_some() {
                    self.save(&record, reason, reaped).await?;
                }
                Ok(())
            }
            SandboxState::Stopped | SandboxState::Lost | SandboxState::Failed
                if record.unsynced.is_some() && !is_busy =>
            {
                self.save(&record, now.reason.unwrap_or(EndReason::Stopped), reaped).await
            }
            _ => Ok(()),
        }
    }

    async fn running(&self, record: Record, is_busy: bool, reaped: &mut Reaped) -> Result<()> {
        let id = record.id;
        let asked = timeout(PATIENCE, self.service.boxes().look_after(&record, LOOKED_AFTER)).await;
        let info = match asked {
            Ok(info) => info?,
            Err(_) => return Err(crate::Error::unavailable("its guest does not answer")),
        };
        self.note_use(&record, &info).await;
        if is_busy {
            return Ok(());
        }
        if record.unsynced.is_some() && !self.try_push(&record, reaped).await {
            return Ok(());
        }
        let Some(reason) = due(&record, &info, self.service.clock.now()) else { return Ok(()) };
        // A round takes its time, and a turn may have begun meanwhile.
        if self.turns.busy_sandboxes().await?.contains(&id) {
            return Ok(());
        }
        // H8: what cannot be saved is not ended.
        if record.template.is_some() && record.unsynced.is_none() && !self.try_push(&record, reaped).await {
            return Ok(());
        }
        if self.turns.busy_sandboxes().await?.contains(&id) {
            return Ok(());
        }
        self.service.boxes().stop_because(id, GRACE, reason.clone()).await?;
        reaped.ended.push((id, reason));
        Ok(())
    }

    /// Any use counts: what the guest saw is written down for those who ask the database.
    async fn note_use(&self, record: &Record, info: &GuestInfo) {
        let idle = jiff::SignedDuration::from_secs(i64::try_from(info.idle_s).unwrap_or(i64::MAX));
        let Ok(used) = self.service.clock.now().checked_sub(idle) else { return };
        if let Err(error) = self.service.rows.touch(record.account_id, record.id, used).await {
            tracing::debug!(sandbox = %record.id, error = %error.chain(), "its last use could not be noted");
        }
    }

    /// Starts what does not run, pushes, and stops it again.
    async fn save(&self, record: &Record, reason: EndReason, reaped: &mut Reaped) -> Result<()> {
        if record.template.is_none() || !self.is_due(record.id) {
            return Ok(());
        }
        self.service.boxes().start_to_save(record.id).await?;
        if self.try_push(record, reaped).await {
            self.service.boxes().stop_because(record.id, GRACE, reason.clone()).await?;
            reaped.ended.push((record.id, reason));
        }
        Ok(())
    }

    fn is_due(&self, id: SandboxId) -> bool {
        let retries = self.retries.lock().unwrap_or_else(PoisonError::into_inner);
        retries.get(&id).is_none_or(|retry| retry.at <= Instant::now())
    }

    /// True where the bucket has everything now. A bucket that is down is asked less and less often.
    async fn try_push(&self, record: &Record, reaped: &mut Reaped) -> bool {
        let id = record.id;
        if !self.is_due(id) {
            return false;
        }
        let pushed = async {
            let Some(row) = self.service.rows.find(id).await? else { return Ok(true) };
            let wanted = self.service.wanted_of(&row).await?;
            let late = |_| Err(crate::Error::unavailable("the bucket does not answer"));
            let pushed = timeout(PUSH, self.service.push(&wanted)).await.unwrap_or_else(late)?;
            if pushed.is_none() {
                // Its files go nowhere, so nothing of them is missing there.
                self.service.boxes().mark_unsynced(id, None).await?;
            }
            Ok::<_, crate::Error>(pushed.is_none_or(|report| report.is_complete()))
        };
        let outcome = pushed.await;
        if let Err(error) = &outcome
            && let Err(error) = self.service.boxes().mark_unsynced(id, Some(error.chain())).await
        {
            tracing::error!(sandbox = %id, error = %error.chain(), "that it is not synced could not be noted");
        }
        let mut retries = self.retries.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(true) => {
                retries.remove(&id);
                if record.unsynced.is_some() {
                    reaped.pushed.push(id);
                }
                true
            }
            failed => {
                if let Err(error) = failed {
                    tracing::warn!(sandbox = %id, error = %error.chain(), "its work is not in the bucket yet");
                }
                let pause =
                    retries.get(&id).map_or(FIRST_PAUSE, |retry| (retry.pause * 2).min(LONGEST_PAUSE));
                retries.insert(id, Retry { at: Instant::now() + pause, pause });
                reaped.kept.push(id);
                false
            }
        }
    }
}

/// Why a sandbox's time is over, where it is.
fn due(record: &Record, info: &GuestInfo, now: Timestamp) -> Option<EndReason> {
    let timeouts = record.spec.timeouts;
    let passed = |limit: Option<u64>, time: u64| limit.is_some_and(|limit| limit > 0 && time >= limit);
    let lived = record
        .started_at
        .map_or(info.uptime_s, |started| u64::try_from(now.duration_since(started).as_secs()).unwrap_or(0));
    if passed(timeouts.max_lifetime_seconds, lived) {
        return Some(EndReason::MaxLifetime);
    }
    passed(timeouts.idle_seconds, info.idle_s).then_some(EndReason::Idle)
}
