//! What the reaper pushes before something ends, and what it starts to push.

use super::{GRACE, Need, Over, Reaped, Reaper};
use crate::{
    Result,
    ports::RecordHead,
    service::{Closing, Watched},
};
use futures::{StreamExt, stream};
use seawall_api::{
    SandboxId,
    message::GuestInfo,
    sandbox::{EndReason, SandboxState},
};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Between tries to push what a bucket did not take.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How long a push may hold up the end of a tenant's sandbox whose lifetime is over.
const LAST_PUSH: Duration = Duration::from_secs(15);
/// Pushes of one account at a time.
const PUSHES: usize = 4;

#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    at: Instant,
    pause: Duration,
}

impl Reaper {
    /// Does what takes its time, for one account.
    pub(super) async fn attend_to(self, needs: Vec<Need>) -> Reaped {
        let (runs, stopped): (Vec<Need>, Vec<Need>) =
            needs.into_iter().partition(|need| matches!(need, Need::Push { .. }));
        let pushing = stream::iter(runs).map(|need| self.meet(need)).buffer_unordered(PUSHES);
        let saving = stream::iter(stopped).then(|need| self.meet(need));
        let (mut reaped, more) = tokio::join!(gather(pushing), gather(saving));
        reaped.add(more);
        reaped
    }

    async fn meet(&self, need: Need) -> Reaped {
        let mut reaped = Reaped::default();
        let (id, met) = match need {
            Need::Push { head, due, watched } => {
                (head.id, self.push_one(head, due, &watched, &mut reaped).await)
            }
            Need::Save { head, reason } => (head.id, self.save(&head, reason, &mut reaped).await),
        };
        if let Err(error) = met {
            super::tell(id, &error);
        }
        reaped
    }

    /// Pushes what runs, and stops it where its time is over.
    async fn push_one(
        &self,
        head: RecordHead,
        due: Option<EndReason>,
        watched: &Watched,
        reaped: &mut Reaped,
    ) -> Result<()> {
        let is_full = self.service.boxes().is_full(head.account_id).await?;
        let must_push = head.unsynced.is_some() || head.template.is_some();
        let Some(reason) = due else {
            // No end needs this push, and each may store what was written since the last.
            if !is_full {
                self.try_push_within(&head, true, reaped).await;
            }
            return Ok(());
        };
        let saved = !must_push || self.try_push(&head, reaped).await;
        // A push takes its time, and a turn may have begun meanwhile.
        if self.turns.is_busy(head.account_id, head.id).await? {
            return Ok(());
        }
        let is_still_due = |info: &GuestInfo| match reason {
            // A use since the first look is a use, also where its request is still on its way to the guest.
            EndReason::Idle => !watched.is_used() && self.due(&head, info).is_some(),
            _ => true,
        };
        let stopped = match saved {
            true => self.stop_if(&head, &reason, is_still_due).await?,
            // H8: what cannot be saved is not ended, unless each try stores more than its account may have.
            false => is_full && self.stop_unsaved(&head, &reason).await?,
        };
        if stopped {
            reaped.ended.push((head.id, reason));
        }
        Ok(())
    }

    /// Ends a tenant's sandbox whose lifetime is over, whatever its guest or its bucket say, and whoever stands in its queue:
    /// they are its own, and could keep it alive for ever. What is not saved stays in its volume, marked, and is pushed from
    /// there. A turn that runs comes to its end; the next one finds a box that was just started.
    pub(super) async fn end_of_life(self, over: Over) -> Reaped {
        let (mut reaped, head) = (Reaped::default(), over.head);
        let ended = async {
            if self.turns.is_busy(head.account_id, head.id).await? {
                self.service.entrances.mark_over(head.id, head.started_at);
                return Ok(false);
            }
            let saved = match over.answers {
                true => timeout(LAST_PUSH, self.try_push(&head, &mut reaped)).await.unwrap_or(false),
                false => false,
            };
            let now = self.service.boxes().head(head.id).await?;
            if now.is_none_or(|now| now.started_at != head.started_at) {
                return Ok(false);
            }
            let is_saved = saved && self.stop_if(&head, &EndReason::MaxLifetime, |_| true).await?;
            Ok(is_saved || self.stop_unsaved(&head, &EndReason::MaxLifetime).await?)
        };
        match ended.await {
            Ok(true) => reaped.ended.push((head.id, EndReason::MaxLifetime)),
            Ok(false) => {}
            Err(error) => super::tell(head.id, &error),
        }
        reaped
    }

    /// Stops a sandbox in which no turn runs. Its volume stays, with a mark that no bucket has it.
    async fn stop_unsaved(&self, head: &RecordHead, reason: &EndReason) -> Result<bool> {
        let (id, boxes) = (head.id, self.service.boxes());
        let _alone = self.service.queues.wait(id).await;
        let _closed = self.service.entrances.close(id, Closing::Stop);
        if self.turns.is_busy(head.account_id, id).await? {
            return Ok(false);
        }
        let Some(now) = boxes.head(id).await? else { return Ok(false) };
        let is_another = now.started_at != head.started_at;
        if is_another || boxes.state_of(&now).await?.0 != SandboxState::Running {
            return Ok(false);
        }
        if now.template.is_some() && now.unsynced.is_none() {
            let why = "it was stopped before its files could be pushed".to_owned();
            boxes.mark_unsynced(id, Some(why)).await?;
        }
        tracing::warn!(sandbox = %id, account = %head.account_id, %reason, "a sandbox is stopped with files that no bucket has; its volume stays");
        boxes.stop_unsaved(id, GRACE, reason.clone()).await?;
        Ok(true)
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

    /// A server that was killed had started it to save it.
    pub(super) async fn left_over(&self, head: &RecordHead) -> Result<()> {
        if let Some(_permit) = self.service.may_rescue(head.account_id)
            && let Some(_alone) = self.service.queues.try_take(head.id)
        {
            self.service.end_rescue(head.account_id, head.id, EndReason::Stopped).await;
        }
        Ok(())
    }

    /// False where it runs by now, is gone, or somebody is at it: then it is the next round's.
    async fn start(&self, head: &RecordHead) -> Result<bool> {
        let id = head.id;
        let Some(_alone) = self.service.queues.try_take(id) else { return Ok(false) };
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
        self.try_push_within(head, false, reaped).await
    }

    /// As [`Reaper::try_push`]. `within`: not past what its account may store.
    async fn try_push_within(&self, head: &RecordHead, within: bool, reaped: &mut Reaped) -> bool {
        let id = head.id;
        if !self.is_due(id) {
            return false;
        }
        let outcome = self.push(id, within).await;
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
    async fn push(&self, id: SandboxId, within: bool) -> Result<bool> {
        let Some(row) = self.service.rows.find(id).await? else { return Ok(true) };
        let wanted = self.service.wanted_of(&row).await?;
        let most = match within {
            true => self.service.boxes().refuse_full(row.account_id).await?,
            false => None,
        };
        let pushed = self.service.push_in_time(&wanted, most).await?;
        if pushed.is_none() {
            // Its files go nowhere, so nothing of them is missing there.
            self.service.boxes().mark_unsynced(id, None).await?;
        }
        Ok(pushed.is_none_or(|report| report.is_complete()))
    }
}

async fn gather(reaped: impl stream::Stream<Item = Reaped>) -> Reaped {
    let add = |mut sum: Reaped, one| {
        sum.add(one);
        async { sum }
    };
    reaped.fold(Reaped::default(), add).await
}

/// Whether nobody used a sandbox since it was started to be saved: not through this process, and not through another.
fn is_untouched(watched: &Watched, info: &GuestInfo) -> bool {
    let used_elsewhere = info.processes_running > 0 || info.idle_s + 1 < info.uptime_s;
    !watched.is_used() && !used_elsewhere
}
