//! Whether an account's limits have room for a turn.

use super::Turns;
use crate::{Result, accounts::Admission, templates::Template};
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{SandboxSpec, SandboxState},
};

impl Turns {
    /// Takes what a turn needs of its account's limits: a new sandbox with its disk, or one more that runs. Refuses where they
    /// do not have it.
    pub(super) async fn admit(
        &self,
        account: AccountId,
        sandbox: SandboxId,
        template: &Template,
    ) -> Result<Admission> {
        let (service, rows) = (&self.inner.service, &self.inner.stores.sandboxes);
        let head = rows.head(sandbox).await?;
        if head.is_none() {
            service.boxes().refuse_record(account, &SandboxSpec::default()).await?;
        }
        let there = head.is_some_and(|head| head.state != SandboxState::Terminated);
        // That of one that is there is counted.
        let disk_mb = if there { None } else { Some(service.disk_of(account, template).await?) };
        service.boxes().reserve(account, sandbox, disk_mb).await
    }
}
