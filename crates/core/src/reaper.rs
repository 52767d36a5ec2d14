//! The reaper: what is over ends, what is not saved is saved, what nobody uses is stopped.
//!
//! A round looks at every sandbox of this machine once, a page of rows at a time. Each account has a pass of its own, so none waits
//! for what another's guests and buckets take. It pushes before it ends anything, and what cannot be
//! pushed is kept (H8); only a tenant's lifetime ends in any case, with its volume left as it is. Before it stops a sandbox it closes it to new uses and looks once more, so that no use that began
//! meanwhile is cut off. Guests hold the same deadlines for the time when nobody runs rounds.

mod ages;
mod passes;
mod saving;

use crate::{
    Error, Result, Turns,
    ports::RecordHead,
    service::{Closing, SandboxService, Watched},
};
use ages::Ages;
use futures::{StreamExt, stream};
use passes::Passes;
use saving::Retry;
use seawall_api::{
    AccountId, SandboxId,
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
/// How long a guest may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a round waits for the accounts that take long.
const ROUND: Duration = Duration::from_secs(10);
/// Guests of one account that are asked at a time.
const LOOKS: usize = 32;

/// What a round did, and earlier ones since they were told of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reaped {
    pub ended: Vec<(SandboxId, EndReason)>,
    /// Work that no bucket had, and one has now.
    pub pushed: Vec<SandboxId>,
    /// Work that no bucket has, still.
    pub kept: Vec<SandboxId>,
}

impl Reaped {
    fn add(&mut self, more: Reaped) {
        self.ended.extend(more.ended);
        self.pushed.extend(more.pushed);
        self.kept.extend(more.kept);
    }
}

/// What a look at a sandbox found to be done that may take long.
enum Need {
    /// It runs, and has work that no bucket has, or its time is over.
    Push { head: RecordHead, due: Option<EndReason>, watched: Watched },
    /// It does not run, and has work that no bucket has.
    Save { head: RecordHead, reason: EndReason },
}

/// A tenant's sandbox whose lifetime is over.
struct Over {
    head: RecordHead,
    /// Whether its guest does.
    answers: bool,
}

/// What came of the looks at an account's sandboxes.
struct Looked {
    account: AccountId,
    needs: Vec<Need>,
    over: Vec<Over>,
}

/// What one look found.
#[derive(Default)]
struct Found {
    need: Option<Need>,
    over: Option<Over>,
}

impl From<Need> for Found {
    fn from(need: Need) -> Found {
        Found { need: Some(need), over: None }
    }
}

impl From<Over> for Found {
    fn from(over: Over) -> Found {
        Found { need: None, over: Some(over) }
    }
}

#[derive(Clone, Debug)]
pub struct Reaper {
    service: SandboxService,
    turns: Turns,
    retries: Arc<Mutex<HashMap<SandboxId, Retry>>>,
    ages: Arc<Mutex<Ages>>,
    looks: Arc<Passes<AccountId, Looked>>,
    needs: Arc<Passes<AccountId, Reaped>>,
    ends: Arc<Passes<SandboxId, Reaped>>,
    attends: Arc<Passes<AccountId, ()>>,
}

impl Reaper {
    pub fn new(service: SandboxService, turns: Turns) -> Reaper {
        service.boxes().attend_all(LOOKED_AFTER);
        Reaper {
            service,
            turns,
            retries: Arc::default(),
            ages: Arc::default(),
            looks: Arc::default(),
            needs: Arc::default(),
            ends: Arc::default(),
            attends: Arc::default(),
        }
    }

    /// One look at everything. What fails for one sandbox is told, and the others are looked at all the same.
    pub async fn round(&self) -> Result<Reaped> {
        self.round_within(ROUND).await
    }

    /// As [`Reaper::round`], and waits so long for accounts that take long.
    pub async fn round_within(&self, time: Duration) -> Result<Reaped> {
        let end = Instant::now() + time;
        self.ages().begin_round();
        let heads = self.heads_by_account().await?;
        let gone = self.ages().end_round();
        self.retries().retain(|id, _| !gone.contains(id));
        self.service.entrances.forget(&gone);
        for (account, heads) in heads {
            self.looks.begin(account, self.clone().look_at_all(account, heads)).await;
        }
        let mut reaped = Reaped::default();
        while let Some(looked) = self.looks.next(end).await {
            for over in looked.over {
                self.ends.begin(over.head.id, self.clone().end_of_life(over)).await;
            }
            if !looked.needs.is_empty() {
                self.needs.begin(looked.account, self.clone().attend_to(looked.needs)).await;
            }
        }
        while let Some(done) = self.ends.next(end).await {
            reaped.add(done);
        }
        while let Some(done) = self.needs.next(end).await {
            reaped.add(done);
        }
        Ok(reaped)
    }

    async fn heads_by_account(&self) -> Result<HashMap<AccountId, Vec<RecordHead>>> {
        let (mut found, mut after) = (HashMap::<_, Vec<_>>::new(), None);
        loop {
            let page = self.service.boxes().heads(after).await?;
            for head in page.items {
                self.ages().see(&head, self.service.clock.now());
                found.entry(head.account_id).or_default().push(head);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Says to every guest that somebody is there. Apart from rounds, in which a push may take its time.
    pub async fn attend(&self) -> Result<()> {
        let (mut found, mut after) = (HashMap::<_, Vec<_>>::new(), None);
        loop {
            let page = self.service.boxes().heads(after).await?;
            let is_limited =
                |head: &RecordHead| !head.timeouts.is_empty() && head.state == SandboxState::Running;
            for head in page.items.into_iter().filter(is_limited) {
                found.entry(head.account_id).or_default().push(head);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        for (account, heads) in found {
            self.attends.begin(account, self.clone().attend_all(heads)).await;
        }
        let end = Instant::now() + ROUND;
        while self.attends.next(end).await.is_some() {}
        Ok(())
    }

    async fn attend_all(self, heads: Vec<RecordHead>) {
        let boxes = self.service.boxes();
        stream::iter(heads)
            .for_each_concurrent(LOOKS, async |head| {
                // One that cannot be looked at, or does not answer, is told of by the round.
                if matches!(boxes.state_of(&head).await, Ok((SandboxState::Running, _))) {
                    let _ = timeout(PATIENCE, boxes.look_after(&head, LOOKED_AFTER)).await;
                }
            })
            .await;
    }

    async fn look_at_all(self, account: AccountId, heads: Vec<RecordHead>) -> Looked {
        let looks = stream::iter(heads).map(|head| async {
            let id = head.id;
            self.look_at(head).await.unwrap_or_else(|error| {
                tell(id, &error);
                Found::default()
            })
        });
        let looks: Vec<Found> = looks.buffered(LOOKS).collect().await;
        let (mut needs, mut over) = (Vec::new(), Vec::new());
        for found in looks {
            needs.extend(found.need);
            over.extend(found.over);
        }
        Looked { account, needs, over }
    }

    async fn look_at(&self, head: RecordHead) -> Result<Found> {
        let (state, reason) = self.service.boxes().state_of(&head).await?;
        let reason = reason.unwrap_or(EndReason::Stopped);
        let is_unsynced = head.unsynced.is_some();
        match state {
            SandboxState::Running => self.running(head).await,
            // Its guest ended it while nobody looked: what it has is saved now.
            SandboxState::Stopped if head.state == SandboxState::Running => {
                let ended_itself = matches!(reason, EndReason::Idle | EndReason::MaxLifetime);
                match ended_itself || is_unsynced {
                    true => Ok(Need::Save { head, reason }.into()),
                    false => Ok(Found::default()),
                }
            }
            SandboxState::Stopped | SandboxState::Lost | SandboxState::Failed if is_unsynced => {
                Ok(Need::Save { head, reason }.into())
            }
            _ => Ok(Found::default()),
        }
    }

    async fn running(&self, head: RecordHead) -> Result<Found> {
        if self.service.boxes().is_saving(head.account_id, head.id) {
            return self.left_over(&head).await.map(|()| Found::default());
        }
        // Before the look: what begins after it is known.
        let watched = self.service.entrances.watch(head.id);
        let is_tenants = head.account_id != AccountId::LOCAL;
        let info = match self.ask(&head).await {
            Err(_) if is_tenants && self.is_over(&head, 0) => return Ok(Over { head, answers: false }.into()),
            info => info?,
        };
        self.note_use(&head, &info).await;
        let due = self.due(&head, &info);
        if is_tenants && due == Some(EndReason::MaxLifetime) {
            return Ok(Over { head, answers: true }.into());
        }
        if head.unsynced.is_none() && due.is_none() {
            return Ok(Found::default());
        }
        match self.turns.is_busy(head.account_id, head.id).await? {
            true => Ok(Found::default()),
            false => Ok(Need::Push { head, due, watched }.into()),
        }
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
        let Some(_alone) = self.service.queues.try_take(id) else { return Ok(false) };
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

    /// Why a sandbox's time is over, where it is.
    fn due(&self, head: &RecordHead, info: &GuestInfo) -> Option<EndReason> {
        match self.is_over(head, info.uptime_s) {
            true => Some(EndReason::MaxLifetime),
            false => passed(head.timeouts.idle_seconds, info.idle_s).then_some(EndReason::Idle),
        }
    }

    /// Whether its lifetime is over. `uptime`: what its guest says of that.
    fn is_over(&self, head: &RecordHead, uptime: u64) -> bool {
        passed(head.timeouts.max_lifetime_seconds, self.ages().of(head.id).as_secs().max(uptime))
    }

    fn ages(&self) -> MutexGuard<'_, Ages> {
        self.ages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retries(&self) -> MutexGuard<'_, HashMap<SandboxId, Retry>> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn passed(limit: Option<u64>, time: u64) -> bool {
    limit.is_some_and(|limit| limit > 0 && time >= limit)
}

fn tell(id: SandboxId, error: &Error) {
    tracing::warn!(sandbox = %id, error = %error.chain(), "a sandbox could not be looked after");
}
