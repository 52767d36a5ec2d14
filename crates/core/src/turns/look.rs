//! Whether an account's limits have room for a turn.

use super::Turns;
use crate::{Result, templates::Template};
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{SandboxSpec, SandboxState},
};

impl Turns {
    /// Refuses what the account's limits refuse: a new sandbox with its disk, or one more that runs.
    pub(super) async fn look(
        &self,
        account: AccountId,
        sandbox: SandboxId,
        template: &Template,
    ) -> Result<()> {
        let (service, rows) = (&self.inner.service, &self.inner.stores.sandboxes);
        let head = rows.head(sandbox).await?;
        if head.is_none() {
            service.boxes().refuse_record(account, &SandboxSpec::default()).await?;
        }
        let there = head.is_some_and(|head| head.state != SandboxState::Terminated);
        // That of one that is there is counted.
        let disk_mb = if there { 0 } else { service.disk_of(account, template).await? };
        service.boxes().look(account, sandbox, disk_mb).await
    }
}
