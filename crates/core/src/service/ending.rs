//! Saving the files of a sandbox before its end.
//!
//! A running sandbox is pushed, closed to new uses, stopped, started once more and pushed again, so that files which
//! were written during the first push are saved too. The ledger counts it for that time. No limit counts
//! volumes, so a tenant's volume does not outlive its sandbox: if saving fails, the end fails with `sync_failed`, and
//! the sandbox stays.

use super::{Closing, SandboxService, Wanted, entrances::Closed, manage::GRACE};
use crate::{Error, Result, accounts::Admission, shares::Permit};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxState},
};
use seawall_sync::engine::SyncReport;

/// What is held until a sandbox is gone, or shall live on.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Nobody is let in.
    closed: Option<Closed>,
    /// It was started to be saved.
    rescue: Option<Permit>,
    /// It ran, and has its place until it is gone.
    place: Option<Admission>,
}

impl SandboxService {
    /// To be called before somebody stands in the queue of a sandbox that is about to be ended.
    pub(super) async fn before_end(&self, account: AccountId, id: SandboxId, sync: bool) -> Ending {
        let mut ending = Ending::default();
        let rescued = |state| {
            matches!(
                state,
                SandboxState::Stopped | SandboxState::Paused | SandboxState::Lost | SandboxState::Failed
            )
        };
        if sync && self.sandboxes.get(id).await.is_ok_and(|found| rescued(found.state)) {
            ending.rescue = Some(self.heavy.rescues.enter(account).await);
        }
        ending
    }

    /// Whether the bucket has all files of a sandbox that is about to be ended. An error where they cannot be saved, unless
    /// that is by force; then the sandbox is as it was.
    pub(super) async fn saved_for_good(
        &self,
        wanted: &Wanted,
        force: bool,
        ending: &mut Ending,
    ) -> Result<bool> {
        let (account, id) = (wanted.account, wanted.sandbox);
        let before = self.sandboxes.get(id).await?;
        // What was never started has nothing to save.
        if matches!(before.state, SandboxState::Created | SandboxState::Creating | SandboxState::Stopping) {
            return Ok(false);
        }
        let saved = match self.save_for_good(wanted, before.state, ending).await {
            // The volume of a tenant does not outlive its sandbox.
            Ok(Some(report)) if account != AccountId::LOCAL && !report.problems.is_empty() => {
                Err(in_part(&report))
            }
            saved => saved,
        };
        match saved {
            Ok(report) => Ok(report.is_some_and(|report| report.problems.is_empty())),
            Err(error) if force => {
                tracing::error!(sandbox = %id, error = %error.chain(), "terminated by force, with work that no bucket has");
                Ok(false)
            }
            Err(error) => {
                self.end_rescue(account, id, before.reason.unwrap_or(EndReason::Stopped)).await;
                Err(not_terminated(id, error))
            }
        }
    }

    /// The second time nothing runs in it any more: what was written during the first is saved too.
    async fn save_for_good(
        &self,
        wanted: &Wanted,
        state: SandboxState,
        ending: &mut Ending,
    ) -> Result<Option<SyncReport>> {
        let (account, id) = (wanted.account, wanted.sandbox);
        if self.workspaces(wanted).await?.is_none() {
            return Ok(None);
        }
        let runs = state == SandboxState::Running;
        // Pushes are never refused. Of an account that has all the bytes that it may have, each is of what nothing changes any
        // more: else whoever lets each push fail for one file stores more with each.
        let is_full = runs && self.sandboxes.is_full(account).await?;
        if !runs || is_full {
            if ending.rescue.is_none() {
                // It ran a moment ago. Whoever waits here has its queue, for which whoever has the permit may wait.
                ending.rescue = Some(self.may_rescue(account).ok_or_else(|| {
                    Error::unavailable(
                        "another sandbox of the account is just being saved; try again in a moment",
                    )
                })?);
            }
            ending.closed = Some(self.entrances.close(id, Closing::End));
            if is_full {
                self.sandboxes.stop_unsaved(id, GRACE, EndReason::Stopped).await?;
            }
            self.start_to_save(account, id).await?;
            return self.push(wanted).await;
        }
        let first = self.push(wanted).await?;
        if first.as_ref().is_none_or(|report| !report.is_complete()) {
            return Ok(first);
        }
        ending.closed = Some(self.entrances.close(id, Closing::End));
        ending.place = Some(self.sandboxes.keep_place(id).await?);
        let again = async {
            self.sandboxes.stop(id, GRACE).await?;
            self.sandboxes.start_to_save(id).await?;
            self.push(wanted).await
        };
        match again.await {
            Err(error) if account == AccountId::LOCAL => {
                tracing::error!(sandbox = %id, error = %error.chain(), "its last changes are not in the bucket; its volume is kept");
                Ok(None)
            }
            done => done,
        }
    }
}

fn in_part(report: &SyncReport) -> Error {
    let first = report.problems.first().map(|(name, why)| format!("{name}: {why}")).unwrap_or_default();
    Error::conflict(format!("{} files could not be saved, the first is {first}", report.problems.len()))
}

fn not_terminated(id: SandboxId, error: Error) -> Error {
    let message =
        format!("sandbox {id} was not terminated: its files could not be saved; use force to do without");
    let kind = if error.is_retryable() { error.kind() } else { ErrorKind::Conflict };
    Error::new(kind, message).with_code("sync_failed").with_source(error)
}
