//! The reaper: what is over ends, what is not saved is saved, what nobody uses is stopped.
//!
//! A round looks at every sandbox of this machine once, a page at a time. It pushes before it ends anything, and what cannot be
//! pushed is kept (H8). Before it stops a sandbox it closes it to new uses and looks once more, so that no use that began
//! meanwhile is cut off. Guests hold the same deadlines for the time when nobody runs rounds.

mod ages;

use crate::{
    Error, Result, Turns,
    ports::RecordHead,
    service::{Closing, SandboxService, Watched},
};
use ages::Ages;
use seawall_api::{
    SandboxId,
    message::GuestInfo,
    sandbox::{EndReason, SandboxState},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    ages: Arc<Mutex<Ages>>,
}

impl Reaper {
    pub fn new(service: SandboxService, turns: Turns) -> Reaper {
        service.boxes().attend_all(LOOKED_AFTER);
        Reaper { service, turns, retries: Arc::default(), ages: Arc::default() }
    }

    /// One look at everything. What fails for one sandbox is told, and the others are looked at all the same.
    pub async fn round(&self) -> Result<Reaped> {
        let mut reaped = Reaped::default();
        self.ages().begin_round();
        let mut after = None;
        loop {
            let page = self.service.boxes().heads(after).await?;
            for head in page.items {
                let id = head.id;
                if let Err(error) = self.look_at(head, &mut reaped).await {
                    tracing::warn!(sandbox = %id, error = %error.chain(), "a sandbox could not be looked after");
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let gone = self.ages().end_round();
        self.retries().retain(|id, _| !gone.contains(id));
        Ok(reaped)
    }

    /// Says to every guest that somebody is there. Apart from rounds, in which a push may take its time.
    pub async fn attend(&self) -> Result<()> {
        let (boxes, mut after) = (self.service.boxes(), None);
        loop {
            let page = boxes.heads(after).await?;
            for head in &page.items {
                let limited = !head.timeouts.is_empty() && head.state == SandboxState::Running;
                // One that cannot be looked at, or does not answer, is told of by the round.
                if limited && matches!(boxes.state_of(head).await, Ok((SandboxState::Running, _))) {
                    let _ = timeout(PATIENCE, boxes.look_after(head, LOOKED_AFTER)).await;
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn look_at(&self, head: RecordHead, reaped: &mut Reaped) -> Result<()> {
        self.ages().see(&head, self.service.clock.now());
        let (state, reason) = self.service.boxes().state_of(&head).await?;
        let reason = reason.unwrap_or(EndReason::Stopped);
        let is_unsynced = head.unsynced.is_some();
        match state {
            SandboxState::Running => self.running(head, reaped).await,
            // Its guest ended it while nobody looked: what it has is saved now.
            SandboxState::Stopped if head.state == SandboxState::Running => {
                let ended_itself = matches!(reason, EndReason::Idle | EndReason::MaxLifetime);
                match ended_itself || is_unsynced {
                    true => self.save(&head, reason, reaped).await,
                    false => Ok(()),
                }
            }
            SandboxState::Stopped | SandboxState::Lost | SandboxState::Failed if is_unsynced => {
                self.save(&head, reason, reaped).await
            }
            _ => Ok(()),
        }
    }

    async fn running(&self, head: RecordHead, reaped: &mut Reaped) -> Result<()> {
        if self.service.boxes().is_saving(head.account_id, head.id) {
            return self.left_over(&head).await;
        }
        // Before the look: what begins after it is known.
        let watched = self.service.entrances.watch(head.id);
        let info = self.ask(&head).await?;
        self.note_use(&head, &info).await;
        let due = self.due(&head, &info);
        if head.unsynced.is_none() && due.is_none() {
            return Ok(());
        }
        if self.turns.is_busy(head.account_id, head.id).await? {
            return Ok(());
        }
        if head.unsynced.is_some() && !self.try_push(&head, reaped).await {
            return Ok(());
        }
        let Some(reason) = due else { return Ok(()) };
        // A push takes its time, and a turn may have begun meanwhile.
        if self.turns.is_busy(head.account_id, head.id).await? {
            return Ok(());
        }
        // H8: what cannot be saved is not ended.
        if head.template.is_some() && head.unsynced.is_none() && !self.try_push(&head, reaped).await {
            return Ok(());
        }
        let is_still_due = |info: &GuestInfo| match reason {
            // A use since the first look is a use, also where its request is still on its way to the guest.
            EndReason::Idle => !watched.is_used() && self.due(&head, info).is_some(),
            _ => true,
        };
        if self.stop_if(&head, &reason, is_still_due).await? {
            reaped.ended.push((head.id, reason));
        }
        Ok(())
    }

    /// Stops a sandbox in which no turn runs, if `may_stop` agrees to what the guest says then. Nobody is let in between that
    /// look and the end of the stop.
    async fn stop_if(
        &self,
        head: &RecordHead,
        reason: &EndReason,
        may_stop: impl Fn(&GuestInfo) -> bool,
    ) -> Result<bool> {
        let id = head.id;
        let _alone = self.service.queues.wait(id).await;
        let _closed = self.service.entrances.close(id, Closing::Stop);
        // A turn that begins now makes its sandbox ready behind us in the queue.
        if self.turns.is_busy(head.account_id, id).await? {
            return Ok(false);
        }
        let Some(now) = self.service.boxes().head(id).await? else { return Ok(false) };
        let is_running = self.service.boxes().state_of(&now).await?.0 == SandboxState::Running;
        if !is_running || now.unsynced.is_some() || !may_stop(&self.ask(&now).await?) {
            return Ok(false);
        }
        self.service.boxes().stop_because(id, GRACE, reason.clone()).await?;
        Ok(true)
    }

    /// What a guest says of itself. Asking is no use of the sandbox.
    async fn ask(&self, head: &RecordHead) -> Result<GuestInfo> {
        match timeout(PATIENCE, self.service.boxes().look_after(head, LOOKED_AFTER)).await {
            Ok(info) => info,
            Err(_) => Err(Error::unavailable("its guest does not answer")),
        }
    }

    /// Any use counts: what the guest saw is written down for those who ask the database.
    async fn note_use(&self, head: &RecordHead, info: &GuestInfo) {
        let idle = jiff::SignedDuration::from_secs(i64::try_from(info.idle_s).unwrap_or(i64::MAX));
        let Ok(used) = self.service.clock.now().checked_sub(idle) else { return };
        if let Err(error) = self.service.rows.touch(head.account_id, head.id, used).await {
            tracing::debug!(sandbox = %head.id, error = %error.chain(), "its last use could not be noted");
        }
    }

    /// Starts what does not run, pushes, and stops it again, unless somebody began to use it meanwhile.
    async fn save(&self, head: &RecordHead, reason: EndReason, reaped: &mut Reaped) -> Result<()> {
        if head.template.is_none() || !self.is_due(head.id) {
            return Ok(());
        }
        if self.turns.is_busy(head.account_id, head.id).await? {
            return Ok(());
        }
        let (account, id) = (head.account_id, head.id);
        let Some(_permit) = self.service.may_rescue(account) else { return Ok(()) };
        let watched = self.service.entrances.watch(id);
        if !self.start(head).await? {
            return Ok(());
        }
        let pushed = self.try_push(head, reaped).await;
        let rescued = {
            let _alone = self.service.queues.wait(id).await;
            self.service.end_rescue(account, id, reason.clone()).await
        };
        let untouched = |info: &GuestInfo| is_untouched(&watched, info);
        if pushed && (rescued || self.stop_if(head, &reason, untouched).await?) {
            reaped.ended.push((id, reason));
        }
        Ok(())
    }

    /// Somebody started it to save it, and hung up.
    async fn left_over(&self, head: &RecordHead) -> Result<()> {
        if let Some(_permit) = self.service.may_rescue(head.account_id) {
            let _alone = self.service.queues.wait(head.id).await;
            self.service.end_rescue(head.account_id, head.id, EndReason::Stopped).await;
        }
        Ok(())
    }

    /// False where it runs by now, or is gone: then it is the next round's.
    async fn start(&self, head: &RecordHead) -> Result<bool> {
        let id = head.id;
        let _alone = self.service.queues.wait(id).await;
        let Some(now) = self.service.boxes().head(id).await? else { return Ok(false) };
        if self.service.boxes().state_of(&now).await?.0 == SandboxState::Running {
            return Ok(false);
        }
        self.service.start_to_save(head.account_id, id).await?;
        Ok(true)
    }

    fn is_due(&self, id: SandboxId) -> bool {
        self.retries().get(&id).is_none_or(|retry| retry.at <= Instant::now())
    }

    /// True where the bucket has everything now. A bucket that is down is asked less and less often.
    async fn try_push(&self, head: &RecordHead, reaped: &mut Reaped) -> bool {
        let id = head.id;
        if !self.is_due(id) {
            return false;
        }
        let outcome = self.push(id).await;
        if let Err(error) = &outcome
            && let Err(error) = self.service.boxes().mark_unsynced(id, Some(error.chain())).await
        {
            tracing::error!(sandbox = %id, error = %error.chain(), "that it is not synced could not be noted");
        }
        let mut retries = self.retries();
        match outcome {
            Ok(true) => {
                retries.remove(&id);
                if head.unsynced.is_some() {
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

    /// Whether the bucket has everything.
    async fn push(&self, id: SandboxId) -> Result<bool> {
        let Some(row) = self.service.rows.find(id).await? else { return Ok(true) };
        let wanted = self.service.wanted_of(&row).await?;
        let late = |_| Err(Error::unavailable("the bucket does not answer"));
        let pushed = timeout(PUSH, self.service.push(&wanted)).await.unwrap_or_else(late)?;
        if pushed.is_none() {
            // Its files go nowhere, so nothing of them is missing there.
            self.service.boxes().mark_unsynced(id, None).await?;
        }
        Ok(pushed.is_none_or(|report| report.is_complete()))
    }

    /// Why a sandbox's time is over, where it is.
    fn due(&self, head: &RecordHead, info: &GuestInfo) -> Option<EndReason> {
        let timeouts = head.timeouts;
        let passed = |limit: Option<u64>, time: u64| limit.is_some_and(|limit| limit > 0 && time >= limit);
        let lived = self.ages().of(head.id).as_secs().max(info.uptime_s);
        if passed(timeouts.max_lifetime_seconds, lived) {
            return Some(EndReason::MaxLifetime);
        }
        passed(timeouts.idle_seconds, info.idle_s).then_some(EndReason::Idle)
    }

    fn ages(&self) -> MutexGuard<'_, Ages> {
        self.ages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retries(&self) -> MutexGuard<'_, HashMap<SandboxId, Retry>> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nobody used a sandbox since it was started to be saved: not through this process, and not through another.
fn is_untouched(watched: &Watched, info: &GuestInfo) -> bool {
    let used_elsewhere = info.processes_running > 0 || info.idle_s + 1 < info.uptime_s;
    !watched.is_used() && !used_elsewhere
}
