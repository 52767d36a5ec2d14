//! Admission of sandboxes by the ledger of their account.

use super::Sandboxes;
use crate::{
    Result,
    accounts::{Admission, Cost, Counts, Ledger, LiveBoxes, Mark, Request},
    ports::{AccountUse, BoxState, Record},
};
use async_trait::async_trait;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{SandboxSpec, SandboxState},
};

/// The disk that is counted for a sandbox: its own, and as much for a volume that it shares, whoever else is counted for that.
pub(crate) fn counted_disk(spec: &SandboxSpec) -> u64 {
    let images = 1 + u64::from(spec.volume.is_some());
    spec.limits.disk_mb.unwrap_or(0).saturating_mul(images)
}

/// Why a box is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// For its account, within its limits.
    Use,
    /// To save its files, which no limit may prevent. Nobody else may use it.
    Save,
}

impl Sandboxes {
    /// Counts a sandbox that is about to be made or started, where its account's limits allow that.
    pub(super) async fn admit(&self, record: &Record, start: bool, purpose: Purpose) -> Result<Admission> {
        let Some(ledger) = self.inner.ledger.get() else { return Ok(Admission::free()) };
        let request = Request {
            account: record.account_id,
            sandbox: record.id,
            disk_mb: counted_disk(&record.spec),
            start,
            cost: Cost::of(&self.inner.providers, &record.provider, &record.spec),
        };
        let admission = match purpose {
            Purpose::Use => ledger.admit(request, self).await?,
            Purpose::Save => ledger.save(request).await?,
        };
        self.set_totals(ledger, record).await?;
        Ok(admission)
    }

    /// As [`Sandboxes::admit`], of a sandbox that may have no record yet.
    pub(super) async fn admit_new(&self, record: &Record, start: bool) -> Result<Admission> {
        if let Err(error) = self.refuse_record(record.account_id, &record.spec).await
            && self.inner.records.head(record.id).await?.is_none()
        {
            return Err(error);
        }
        self.admit(record, start, Purpose::Use).await
    }

    /// The provider holds the account to its totals from its first box on, and to new ones from its next box on.
    async fn set_totals(&self, ledger: &Ledger, record: &Record) -> Result<()> {
        let account = record.account_id;
        let Some(totals) = ledger.new_totals(account, &record.provider).await? else { return Ok(()) };
        let set = self.inner.providers.get(&record.provider)?.set_account_totals(account, &totals).await;
        match set {
            // The bounds of each sandbox hold; that the sum does not is for the operator to know.
            Err(error) if error.kind() == ErrorKind::LimitUnenforceable => {
                tracing::warn!(%account, error = %error.chain(), "a total of an account cannot be enforced");
            }
            set => set?,
        }
        ledger.totals_are_set(account, &record.provider, totals);
        Ok(())
    }

    /// Counts a sandbox that will be made or started soon, before anything is stored for that.
    pub(crate) async fn reserve(
        &self,
        account: AccountId,
        sandbox: SandboxId,
        disk_mb: Option<u64>,
    ) -> Result<Admission> {
        match self.inner.ledger.get() {
            Some(ledger) => ledger.reserve(account, sandbox, disk_mb, self).await,
            None => Ok(Admission::free()),
        }
    }

    /// Refuses one more record to an account that has too many of ended sandboxes.
    pub(crate) async fn refuse_record(&self, account: AccountId, spec: &SandboxSpec) -> Result<()> {
        match self.inner.ledger.get() {
            Some(ledger) => ledger.refuse_record(account, spec).await,
            None => Ok(()),
        }
    }

    /// Refuses an account that has all the bytes in buckets that it may have, and returns how many those are.
    pub(crate) async fn refuse_full(&self, account: AccountId) -> Result<Option<u64>> {
        match self.inner.ledger.get() {
            Some(ledger) => ledger.refuse_full(account).await,
            None => Ok(None),
        }
    }

    /// Whether an account has all the bytes in buckets that it may have.
    pub(crate) async fn is_full(&self, account: AccountId) -> Result<bool> {
        match self.refuse_full(account).await {
            Ok(_) => Ok(false),
            Err(error) if error.limit().is_some() => Ok(true),
            Err(error) if error.is_retryable() => Err(error),
            // Such as one that is suspended.
            Err(_) => Ok(false),
        }
    }

    /// Whether a box runs only to be saved.
    pub(crate) fn is_saving(&self, account: AccountId, id: SandboxId) -> bool {
        self.inner.ledger.get().is_some_and(|ledger| ledger.is_saving(account, id))
    }

    /// Lets its account use a box that was started only to be saved, where its limits allow that. For one who stands in
    /// the sandbox's queue.
    pub(crate) async fn take_place(&self, account: AccountId, id: SandboxId) -> Result<()> {
        match self.is_saving(account, id) {
            true => self.admit(&self.record(id).await?, true, Purpose::Use).await.map(drop),
            false => Ok(()),
        }
    }

    /// Keeps the place of one that runs while it is stopped and started again.
    pub(crate) async fn keep_place(&self, id: SandboxId) -> Result<Admission> {
        self.admit(&self.record(id).await?, true, Purpose::Save).await
    }

    /// To be taken before a box is stopped or removed.
    pub(super) fn mark(&self, record: &Record) -> Option<(Ledger, Mark)> {
        let ledger = self.inner.ledger.get()?;
        Some((ledger.clone(), ledger.mark(record.account_id, record.id)))
    }

    /// Drops what is counted of an account that was deleted.
    pub(crate) fn forget_account(&self, account: AccountId) {
        if let Some(ledger) = self.inner.ledger.get() {
            ledger.forget(account);
        }
    }

    /// What all boxes of an account hold together, of the providers that know.
    pub async fn held(&self, account: AccountId) -> AccountUse {
        let mut sum = AccountUse::default();
        let add = |sum: Option<u64>, more: Option<u64>| match (sum, more) {
            (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
            (sum, more) => sum.or(more),
        };
        for provider in self.inner.providers.all() {
            match provider.account_use(account).await {
                Ok(used) => {
                    sum.memory_bytes = add(sum.memory_bytes, used.memory_bytes);
                    sum.processes = add(sum.processes, used.processes);
                }
                Err(error) => {
                    tracing::warn!(%account, provider = provider.name(), error = %error.chain(), "what an account uses is not known");
                }
            }
        }
        sum
    }

    /// What an account has and runs now. Zero where nothing is counted.
    pub async fn counts(&self, account: AccountId) -> Result<Counts> {
        match self.inner.ledger.get() {
            Some(ledger) => ledger.counts(account, self).await,
            None => Ok(Counts::default()),
        }
    }
}

#[async_trait]
impl LiveBoxes for Sandboxes {
    async fn is_running(&self, id: SandboxId) -> Result<Option<bool>> {
        let Some(record) = self.inner.records.get(id).await? else { return Ok(None) };
        if record.state == SandboxState::Terminated {
            return Ok(None);
        }
        let found = self.find_box(&record.provider, record.id).await?;
        Ok(Some(found.is_some_and(|found| matches!(found.state, BoxState::Running | BoxState::Paused))))
    }
}

/// The provider stopped the box.
pub(super) fn count_stopped(mark: &Option<(Ledger, Mark)>, record: &Record) {
    if let Some((ledger, mark)) = mark {
        ledger.stopped(record.account_id, record.id, *mark);
    }
}

/// The sandbox has neither box nor record any more, or a record that says that it was ended.
pub(super) fn count_removed(mark: &Option<(Ledger, Mark)>, record: &Record) {
    if let Some((ledger, mark)) = mark {
        ledger.removed(record.account_id, record.id, *mark);
    }
}
